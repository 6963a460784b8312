/* Products of ROWS rows with up to VECTORS * LANES outputs, in the registers of one instruction set. Included once for
 * each by products.c, which says what NAMED, TARGET, LANES, VECTORS and HALF are: an output more than a whole vector
 * costs half of one where HALF is less than LANES.
 */
typedef float NAMED(Whole) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float NAMED(Half) __attribute__((vector_size(4 * HALF), aligned(4), may_alias));

/* The sums of one tile. */
typedef struct {
    NAMED(Whole) whole[ROWS][VECTORS];
    NAMED(Half) half[ROWS];
} NAMED(Sums);

/* Adds the products of `ROWS` windows and a panel of weights, (window, width). */
TARGET INLINE void NAMED(add)(const int count, const int half, const Window *window, const float *x,
                              const int64_t *offsets, const float *weight, NAMED(Sums) * sums) {
    const int width = count * LANES + half * HALF;
    for (int64_t run = 0; run < window->runs; run++) {
        const float *from[ROWS];
        UNROLLED for (int r = 0; r < ROWS; r++) from[r] = x + offsets[r] + run * window->apart;
        for (int64_t k = 0; k < window->length; k++, weight += width) {
            NAMED(Whole) w[VECTORS];
            NAMED(Half) last = {0};
            UNROLLED for (int j = 0; j < count; j++) w[j] = *(const NAMED(Whole) *)(weight + j * LANES);
            if (half) last = *(const NAMED(Half) *)(weight + count * LANES);
            UNROLLED for (int r = 0; r < ROWS; r++) {
                float value = from[r][k];
                UNROLLED for (int j = 0; j < count; j++) sums->whole[r][j] += w[j] * value;
                if (half) sums->half[r] += last * value;
            }
        }
    }
}

TARGET INLINE void NAMED(clear)(const int count, const int half, NAMED(Sums) * sums) {
    UNROLLED for (int r = 0; r < ROWS; r++) {
        UNROLLED for (int j = 0; j < count; j++) sums->whole[r][j] = (NAMED(Whole)){0};
        if (half) sums->half[r] = (NAMED(Half)){0};
    }
}

TARGET INLINE void NAMED(store)(const int count, const int half, const NAMED(Sums) * sums, float *to, int64_t apart) {
    UNROLLED for (int r = 0; r < ROWS; r++, to += apart) {
        UNROLLED for (int j = 0; j < count; j++) *(NAMED(Whole) *)(to + j * LANES) = sums->whole[r][j];
        if (half) *(NAMED(Half) *)(to + count * LANES) = sums->half[r];
    }
}

TARGET INLINE void NAMED(products)(const int count, const int half, const Window *window, const Values *x,
                                   const int64_t *offsets, const Panel *panel, float *loc, float *variance,
                                   int64_t apart) {
    NAMED(Sums) sums;
    NAMED(clear)(count, half, &sums);
    NAMED(add)(count, half, window, x->m, offsets, panel->mean, &sums);
    NAMED(store)(count, half, &sums, loc, apart);
    if (!x->seen) return;
    NAMED(clear)(count, half, &sums);
    NAMED(add)(count, half, window, x->seen, offsets, panel->variance, &sums);
    if (x->v) NAMED(add)(count, half, window, x->v, offsets, panel->gain, &sums);
    NAMED(store)(count, half, &sums, variance, apart);
}

/* loc, variance: (ROWS, width of the panel), rows `apart` from each other */
TARGET static void NAMED(tile)(const Window *window, const Values *x, const int64_t *offsets, const Panel *panel,
                               float *loc, float *variance, int64_t apart) {
#define CASE(count, half)                                                                                             \
    case 2 * (count) + (half):                                                                                        \
        NAMED(products)(count, half, window, x, offsets, panel, loc, variance, apart);                                \
        return;
    int half = HALF < LANES && panel->width % LANES;
    switch (2 * (panel->width / LANES) + half) {
        CASE(0, 1)
        CASE(1, 0)
        CASE(1, 1)
        CASE(2, 0)
#if VECTORS > 2
        CASE(2, 1)
        CASE(3, 0)
        CASE(3, 1)
        CASE(4, 0)
#endif
    }
#undef CASE
}
