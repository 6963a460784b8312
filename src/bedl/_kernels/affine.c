/* A Gaussian linear layer of many networks, in training: its three products in one call, and the six of its derivatives.
 *
 * Counterpart of bedl.training.engines.fused.Affine, which has the formulas. Libraries multiply such small matrices one call
 * after the other; here what is multiplied stays in the cache for the next product, and nothing is passed over twice.
 */
#include <stdlib.h>

#include "products.h"

/* Networks, points, inputs, outputs; from one network's parameters to the next one's, and from its weights' variances. */
typedef struct {
    int64_t networks, n, inputs, outputs, apart, apart_w;
} Sizes;

/* A matrix (rows, columns), as tiles read it: panel by panel, each (rows, width). `down` and `across` lead from one
 * number to those below and beside it; where it lies in such a way already, it is taken as it is. */
INLINE const float *panels_of(Way way, int64_t rows, int64_t columns, const float *from, int64_t down, int64_t across,
                              float **room) {
    int64_t filled_up = filled(columns, way.unit);
    if (across == 1 && down == columns && columns == filled_up && columns <= way.most) return from;
    float *to = *room, *start = to;
    for (int64_t first = 0; first < filled_up; first += way.most) {
        int64_t width = filled_up - first < way.most ? filled_up - first : way.most;
        int64_t end = columns - first < width ? columns - first : width;
        const float *some = from + first * across;
        for (int64_t k = 0; k < rows; k++, to += width) {
            for (int64_t j = 0; j < end; j++) to[j] = some[k * down + j * across];
            for (int64_t j = end; j < width; j++) to[j] = 0;
        }
    }
    *room = to;
    return start;
}

/* (rows, window) times panels of (window, columns). a: its rows are `apart`; loc, variance: (rows, columns) */
INLINE void multiply(Way way, int64_t rows, int64_t columns, Window window, int64_t apart, Values a, Panel b,
                     float *loc, float *variance) {
    int64_t filled_up = filled(columns, way.unit), size = window.runs * window.length;
    float room[2][ROWS * MOST_OUTPUTS];
    for (int64_t first = 0; first < columns; first += way.most) {
        int64_t width = filled_up - first < way.most ? filled_up - first : way.most;
        int64_t end = columns - first < width ? columns - first : width;
        Panel panel = {width, b.mean + first * size, b.gain ? b.gain + first * size : NULL,
                       b.variance ? b.variance + first * size : NULL};
        for (int64_t row = 0; row < rows; row += ROWS) {
            int64_t count = rows - row < ROWS ? rows - row : ROWS, at = row * columns + first, offsets[ROWS];
            for (int64_t r = 0; r < ROWS; r++) offsets[r] = (row + (r < count ? r : count - 1)) * apart;
            if (count == ROWS && end == width) {
                way.tile(&window, &a, offsets, &panel, loc + at, a.seen ? variance + at : NULL, columns);
                continue;
            }
            way.tile(&window, &a, offsets, &panel, room[0], room[1], MOST_OUTPUTS);
            for (int64_t r = 0; r < count; r++)
                for (int64_t j = 0; j < end; j++) {
                    loc[at + r * columns + j] = room[0][r * MOST_OUTPUTS + j];
                    if (a.seen) variance[at + r * columns + j] = room[1][r * MOST_OUTPUTS + j];
                }
        }
    }
}

/* Network r of those of `bedl_affine`. */
FOR_EACH_PROCESSOR
void bedl_affine_of(const Sizes *s, int64_t r, const float *mean, const float *variance, const float *second_moment,
                    const float *bias, const float *x, const float *x_variance, float *square, float *loc,
                    float *made_variance) {
    Way way = bedl_way();
    int64_t n = s->n, inputs = s->inputs, outputs = s->outputs, shown = r * n * inputs, made = r * n * outputs;
    float *whole = malloc(3 * inputs * filled(outputs, way.unit) * sizeof(float)), *room = whole;
    const float *restrict own = x + shown;
    float *restrict squared = square + shown, *restrict to = loc + made;
    for (int64_t i = 0; i < n * inputs; i++) squared[i] = own[i] * own[i];
    Values a = {(float *)own, x_variance ? (float *)x_variance + shown : NULL, squared};
    Panel b = {0, panels_of(way, inputs, outputs, mean + r * s->apart, 1, inputs, &room), NULL,
               panels_of(way, inputs, outputs, variance + r * s->apart_w, 1, inputs, &room)};
    if (x_variance) b.gain = panels_of(way, inputs, outputs, second_moment + r * s->apart_w, 1, inputs, &room);
    multiply(way, n, outputs, (Window){1, inputs, 0}, inputs, a, b, to, made_variance + made);
    for (int64_t i = 0; bias && i < n; i++)
        for (int64_t o = 0; o < outputs; o++) to[i * outputs + o] += bias[r * s->apart + o];
    free(whole);
}

/* x: (networks, n, inputs); x_variance: the same, or NULL; square: room for the squares of x; bias: or NULL */
void bedl_affine(const Sizes *s, const float *mean, const float *variance, const float *second_moment,
                 const float *bias, const float *x, const float *x_variance, float *square, float *loc,
                 float *made_variance) {
#pragma omp parallel for if (s->networks > 1)
    for (int64_t r = 0; r < s->networks; r++)
        bedl_affine_of(s, r, mean, variance, second_moment, bias, x, x_variance, square, loc, made_variance);
}

/* Network r of those of `bedl_affine_gradients`. */
FOR_EACH_PROCESSOR
void bedl_affine_gradients_of(const Sizes *s, int64_t r, const float *mean, const float *variance,
                              const float *second_moment, const float *x, const float *x_variance, const float *square,
                              const float *by_loc, const float *by_variance, float *by_mean, float *by_weight,
                              float *by_second, float *by_bias, float *to_loc, float *to_variance) {
    Way way = bedl_way();
    int64_t n = s->n, inputs = s->inputs, outputs = s->outputs, size = 3 * (n > outputs ? n : outputs);
    int64_t shown = r * n * inputs, made = r * n * outputs, at = r * s->apart, at_w = r * s->apart_w;
    size *= filled(inputs, way.unit);
    float *whole = malloc((size + (to_loc ? n * inputs : 0)) * sizeof(float)), *room = whole;
    Values a = {(float *)by_loc + made, NULL, (float *)by_variance + made}, second = {a.seen, NULL, NULL};
    Window down = {n, 1, outputs}, along = {1, outputs, 0}; /* columns, and rows of the derivatives */
    Panel b = {0, panels_of(way, n, inputs, x + shown, inputs, 1, &room), NULL,
               panels_of(way, n, inputs, square + shown, inputs, 1, &room)};
    multiply(way, outputs, inputs, down, 1, a, b, by_mean + at, by_weight + at_w);
    if (x_variance) {
        Panel spread = {0, panels_of(way, n, inputs, x_variance + shown, inputs, 1, &room), NULL, NULL};
        multiply(way, outputs, inputs, down, 1, second, spread, by_second + at_w, NULL);
    }
    if (by_bias) {
        float *restrict sums = by_bias + at;
        memset(sums, 0, outputs * sizeof(float));
        for (int64_t i = 0; i < n; i++)
            for (int64_t o = 0; o < outputs; o++) sums[o] += by_loc[made + i * outputs + o];
    }
    if (to_loc) {
        float *restrict by_square = whole + size, *restrict to = to_loc + shown;
        const float *restrict own = x + shown;
        room = whole;
        b.mean = panels_of(way, outputs, inputs, mean + at, inputs, 1, &room);
        b.variance = panels_of(way, outputs, inputs, variance + at_w, inputs, 1, &room);
        multiply(way, n, inputs, along, outputs, a, b, to, by_square);
        for (int64_t i = 0; i < n * inputs; i++) to[i] += 2 * by_square[i] * own[i];
        if (to_variance) {
            Panel gain = {0, panels_of(way, outputs, inputs, second_moment + at_w, inputs, 1, &room), NULL, NULL};
            multiply(way, n, inputs, along, outputs, second, gain, to_variance + shown, NULL);
        }
    }
    free(whole);
}

/* by_loc, by_variance: derivatives by what `bedl_affine` made; by_mean, by_weight, by_second, by_bias: those by the
 * parameters, the last one or NULL; to_loc, to_variance: those by x and x_variance, or NULL where nobody asks. */
void bedl_affine_gradients(const Sizes *s, const float *mean, const float *variance, const float *second_moment,
                           const float *x, const float *x_variance, const float *square, const float *by_loc,
                           const float *by_variance, float *by_mean, float *by_weight, float *by_second, float *by_bias,
                           float *to_loc, float *to_variance) {
#pragma omp parallel for if (s->networks > 1)
    for (int64_t r = 0; r < s->networks; r++)
        bedl_affine_gradients_of(s, r, mean, variance, second_moment, x, x_variance, square, by_loc, by_variance,
                                 by_mean, by_weight, by_second, by_bias, to_loc, to_variance);
}
