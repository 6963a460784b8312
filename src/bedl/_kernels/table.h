/* Where numbers lie in a table of moments, and what it holds there; see bedl.moments.rules.numerical.
 *
 * The place is computed for many numbers at once; what is looked up is one cell per number, whose coefficients lie
 * together and are summed as vectors.
 */
#pragma once
#include "arithmetic.h"

/* as in numerical.py */
#define ROWS_ABOVE 48 /* rows above and below that of u = 0 */
#define ROWS_PER_UNIT 2
#define COLUMNS 32
#define POWERS_OF_T 4
#define KINDS 4 /* mean, slope, rest, and one to fill up */
#define CELL (POWERS_OF_T * 8 * KINDS)
#define PARTS (8 * KINDS / 8) /* vectors of one power of t: powers of u by twos */

#define BLOCK 64

typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
typedef union {
    Eight both;
    Four half[2]; /* even and odd powers of u */
} Pair;

/* Where one block of numbers lies. */
typedef struct {
    float x[BLOCK], y[BLOCK]; /* within the cell, in its units, from its centre */
    int32_t cell[BLOCK];
} Places;

INLINE float root_of(float v) { return smaller(sqrtf(larger(v, 0.0f)), 1e25f); }

INLINE void find(int64_t n, const float *m, const float *v, float scale, Places *at) {
    const float round = 12582912.0f;
    for (int64_t i = 0; i < n; i++) {
        float sigma = scale * root_of(v[i]), inverse = 1 / (1 + sigma);
        float u = ROWS_PER_UNIT * scale * m[i] * inverse, t = COLUMNS * sigma * inverse;
        u = u > -ROWS_ABOVE ? u : -ROWS_ABOVE; /* so that NaN is a place, too */
        u = u < ROWS_ABOVE ? u : ROWS_ABOVE;
        t = t > 0 ? t : 0;
        float row = (u + round) - round;
        int32_t column = (int32_t)t;
        column = column < COLUMNS - 1 ? column : COLUMNS - 1;
        at->x[i] = u - row;
        at->y[i] = t - column - 0.5f;
        at->cell[i] = (((int32_t)row + ROWS_ABOVE) * COLUMNS + column) * CELL;
    }
}

INLINE Eight load(const float *from) { return *(const Eight *)from; }

INLINE void values(int64_t n, const Places *at, const float *table, float (*restrict found)[KINDS]) {
    for (int64_t i = 0; i < n; i++) {
        const float *c = table + at->cell[i];
        float x = at->x[i], y = at->y[i], square = x * x;
        Eight q[PARTS];
        UNROLLED for (int k = 0; k < PARTS; k++) {
            q[k] = load(c + 8 * (3 * PARTS + k));
            UNROLLED for (int power = 2; power >= 0; power--) q[k] = q[k] * y + load(c + 8 * (power * PARTS + k));
        }
        Pair sum = {.both = ((q[3] * square + q[2]) * square + q[1]) * square + q[0]};
        *(Four *)found[i] = sum.half[0] + sum.half[1] * x;
    }
}

/* The same, and the derivatives by x and y. */
INLINE void slopes(int64_t n, const Places *at, const float *table, float (*restrict found)[KINDS],
                   float (*restrict by_x)[KINDS], float (*restrict by_y)[KINDS]) {
    for (int64_t i = 0; i < n; i++) {
        const float *c = table + at->cell[i];
        float x = at->x[i], y = at->y[i], square = x * x;
        Eight q[PARTS], d[PARTS];
        UNROLLED for (int k = 0; k < PARTS; k++) {
            d[k] = load(c + 8 * (3 * PARTS + k));
            q[k] = d[k] * y + load(c + 8 * (2 * PARTS + k));
            UNROLLED for (int power = 1; power >= 0; power--) {
                d[k] = d[k] * y + q[k];
                q[k] = q[k] * y + load(c + 8 * (power * PARTS + k));
            }
        }
        Pair sum, slope, other = {.both = ((d[3] * square + d[2]) * square + d[1]) * square + d[0]};
        slope.both = q[3];
        sum.both = q[3] * square + q[2];
        slope.both = slope.both * square + sum.both;
        sum.both = sum.both * square + q[1];
        slope.both = slope.both * square + sum.both;
        sum.both = sum.both * square + q[0];
        *(Four *)found[i] = sum.half[0] + sum.half[1] * x;
        *(Four *)by_x[i] = sum.half[1] + (slope.half[0] + slope.half[1] * x) * (2 * x);
        *(Four *)by_y[i] = other.half[0] + other.half[1] * x;
    }
}

/* Mean and variance of f(x), x ~ N(m, v), for a block of numbers; `plain` is f(m), and is not asked for sigma >= 1. */
INLINE void look_up(int64_t n, const float *restrict m, const float *restrict v, const float *restrict plain,
                    float *restrict mean, float *restrict variance, const float *restrict table, float scale,
                    int grows) {
    Places at;
    float found[BLOCK][KINDS];
    find(n, m, v, scale, &at);
    values(n, &at, table, found);
    for (int64_t i = 0; i < n; i++) {
        float root = root_of(v[i]), sigma = scale * root, inverse = 1 / (1 + sigma);
        float size = grows ? 1.0f : inverse, far = ROWS_PER_UNIT * fabsf(scale * m[i]) * inverse;
        float wide = size * (1 + sigma) * found[i][0], narrow = plain[i] + v[i] * found[i][0];
        float here = sigma < 1 ? narrow : wide, line = found[i][1] > 0.5f ? 1.0f : 0.0f;
        float slope = root * size * (far < ROWS_ABOVE ? found[i][1] : line);
        float bend = root * size * (sigma * inverse), rest = far < ROWS_ABOVE ? larger(found[i][2], 0.0f) : 0.0f;
        float known = m[i] == m[i] && v[i] == v[i] ? 0.0f : NAN;
        mean[i] = (far < ROWS_ABOVE ? here : plain[i]) + known;
        variance[i] = slope * slope + bend * bend * rest + known;
    }
}

/* Derivatives: dM/dm = D, dM/dv = D'/2, and those of V = v (D^2 + t^2 Q). */
INLINE void look_up_slopes(int64_t n, const float *restrict m, const float *restrict v, const float *restrict by_mean,
                           const float *restrict by_variance, float *restrict by_m, float *restrict by_v,
                           const float *restrict table, float scale, int grows) {
    Places at;
    float found[BLOCK][KINDS], by_x[BLOCK][KINDS], by_y[BLOCK][KINDS];
    find(n, m, v, scale, &at);
    slopes(n, &at, table, found, by_x, by_y);
    for (int64_t i = 0; i < n; i++) {
        float sigma = scale * root_of(v[i]), inverse = 1 / (1 + sigma), t = sigma * inverse;
        float size = grows ? 1.0f : inverse, far = ROWS_PER_UNIT * fabsf(scale * m[i]) * inverse;
        float within = far < ROWS_ABOVE ? 1.0f : 0.0f; /* beyond, f is a straight line */
        float u = far < ROWS_ABOVE ? scale * m[i] * inverse : 0.0f, line = found[i][1] > 0.5f ? 1.0f : 0.0f;
        float d = far < ROWS_ABOVE ? found[i][1] : line, q = within * found[i][2];
        float d_u = within * ROWS_PER_UNIT * by_x[i][1], q_u = within * ROWS_PER_UNIT * by_x[i][2];
        float d_t = within * COLUMNS * by_y[i][1], q_t = within * COLUMNS * by_y[i][2];
        float g = d * d + t * t * q, g_u = 2 * d * d_u + t * t * q_u;
        float g_t = 2 * d * d_t + 2 * t * q + t * t * q_t;
        float by_sigma = inverse * (inverse * g_t - u * g_u - (grows ? 0.0f : 2 * g));
        float step = scale * inverse * size;
        by_m[i] = by_mean[i] * (size * d) + by_variance[i] * ((v[i] * size) * (step * g_u));
        by_v[i] = by_mean[i] * (0.5f * step * d_u) + by_variance[i] * (size * size * (g + 0.5f * sigma * by_sigma));
    }
}
