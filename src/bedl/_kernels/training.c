/* A training step of many small networks, whose parameters are rows of one matrix: all of it but the products.
 *
 * Twins of bedl.training.engines.fused and bedl.training.engines.stacked in PyTorch, as in kernels.c. A tensor of which row r
 * belongs to network r is given by a pointer and the distance of its rows.
 */
#include <stdlib.h>

#include "arithmetic.h"

#define LANES 16 /* sums run side by side in as many variables: compilers must not reorder a single one */

INLINE float sum_of(const float *lanes) {
    float sum = 0;
    for (int j = 0; j < LANES; j++) sum += lanes[j];
    return sum;
}

/* -- Gaussian weights ------------------------------------------------------------------------------------------- */

/* Variances e^l and second moments m^2 + e^l; returns the sum of (m^2 + e^l - 1 - l) / 2. */
FOR_EACH_PROCESSOR
double bedl_weights_row(int64_t n, const float *restrict m, const float *restrict l, float *restrict variance,
                        float *restrict second) {
    double total = 0;
    for (int64_t i = 0; i < n; i += 64 * LANES) {
        float lanes[LANES] = {0};
        int64_t end = n - i < 64 * LANES ? n : i + 64 * LANES, k = i;
        for (; k + LANES <= end; k += LANES)
            for (int j = 0; j < LANES; j++) {
                variance[k + j] = exp_of(smaller(l[k + j], 87.0f));
                second[k + j] = variance[k + j] + m[k + j] * m[k + j];
                lanes[j] += second[k + j] - 1 - l[k + j];
            }
        for (; k < end; k++) {
            variance[k] = exp_of(smaller(l[k], 87.0f));
            second[k] = variance[k] + m[k] * m[k];
            lanes[0] += second[k] - 1 - l[k];
        }
        total += sum_of(lanes);
    }
    return 0.5 * total;
}

void bedl_weights(int64_t rows, int64_t n, int64_t distance, const float *m, const float *l, float *variance,
                  float *second, float *divergence) {
    for (int64_t r = 0; r < rows; r++)
        divergence[r] = bedl_weights_row(n, m + r * distance, l + r * distance, variance + r * n, second + r * n);
}

/* Derivatives by m (which adds up) and by l, of those by variances and second moments and, with a factor `pull`, of the
 * divergence. */
FOR_EACH_PROCESSOR
void bedl_weights_gradients_row(int64_t n, float pull, const float *restrict m, const float *restrict variance,
                                const float *restrict by_variance, const float *restrict by_second,
                                float *restrict by_m, float *restrict by_l) {
    for (int64_t i = 0; i < n; i++) {
        by_m[i] += m[i] * (2 * by_second[i] + pull);
        by_l[i] = variance[i] * (by_variance[i] + by_second[i]) + 0.5f * pull * (variance[i] - 1);
    }
}

void bedl_weights_gradients(int64_t rows, int64_t n, int64_t distance, const float *pull, const float *m,
                            const float *variance, const float *by_variance, const float *by_second, float *by_m,
                            float *by_l) {
    for (int64_t r = 0; r < rows; r++)
        bedl_weights_gradients_row(n, pull[r], m + r * distance, variance + r * n, by_variance + r * n,
                                   by_second + r * n, by_m + r * distance, by_l + r * distance);
}

/* -- Adam -------------------------------------------------------------------------------------------------------- */

FOR_EACH_PROCESSOR
double bedl_square_sum(int64_t n, const float *restrict x) {
    double total = 0;
    for (int64_t i = 0; i < n; i += 64 * LANES) {
        float lanes[LANES] = {0};
        int64_t end = n - i < 64 * LANES ? n : i + 64 * LANES, k = i;
        for (; k + LANES <= end; k += LANES)
            for (int j = 0; j < LANES; j++) lanes[j] += x[k + j] * x[k + j];
        for (; k < end; k++) lanes[0] += x[k] * x[k];
        total += sum_of(lanes);
    }
    return total;
}

void bedl_norms(int64_t rows, int64_t n, const float *x, float *norm) {
    for (int64_t r = 0; r < rows; r++) norm[r] = sqrt(bedl_square_sum(n, x + r * n));
}

typedef struct {
    float beta1, beta2, root, eps; /* root: of 1 - beta2^t */
} Adam;

FOR_EACH_PROCESSOR
void bedl_adam_row(int64_t n, float scale, float rate, Adam how, float *restrict x, const float *restrict gradient,
                   float *restrict mean, float *restrict square) {
    for (int64_t i = 0; i < n; i++) {
        float g = gradient[i] * scale;
        mean[i] += (1 - how.beta1) * (g - mean[i]);
        square[i] = how.beta2 * square[i] + (1 - how.beta2) * g * g;
        x[i] -= rate * (mean[i] / (sqrtf(square[i]) * how.root + how.eps));
    }
}

/* One step of each row; its gradient is multiplied by `scale` first. A row whose rate is 0 stays as it is. */
void bedl_adam(int64_t rows, int64_t n, const float *scale, const float *rate, float beta1, float beta2, float root,
               float eps, float *x, const float *gradient, float *mean, float *square) {
    Adam how = {beta1, beta2, 1 / root, eps};
    for (int64_t r = 0; r < rows; r++)
        bedl_adam_row(n, scale[r], rate[r], how, x + r * n, gradient + r * n, mean + r * n, square + r * n);
}

/* -- Embedded columns -------------------------------------------------------------------------------------------- */

#define AT_ONCE 128 /* rows of a table, a multiple of LANES */
#define MOST_SIZE 8
#define INV_2PI 0.15915494f

/* sin(2 pi u) for |u| <= 1/4. Error 2e-7. */
INLINE float sin_of_turns(float u) {
    float s = u * u, p = -14.393966f;
    p = p * s + 42.009779f;
    p = p * s - 76.704280f;
    p = p * s + 81.605226f;
    p = p * s - 41.341702f;
    p = p * s + 6.2831853f;
    return p * u;
}

/* t less the nearest whole number, for |t| < 2^22 */
INLINE float part_of_turn(float t) {
    const float round = 12582912.0f;
    float whole = (t + round) - round;
    return t - whole;
}

INLINE float cosine(float q) { return sin_of_turns(0.25f - fabsf(q)); }
INLINE float sine(float q) { return sin_of_turns(copysignf(0.25f - fabsf(fabsf(q) - 0.25f), q)); }

/* A column of one network: its waves' parameters and, for the backward pass, where derivatives go. */
typedef struct {
    int64_t waves, size;
    const float *frequency, *phase, *weight, *bias;
    float *by_frequency, *by_phase, *by_weight, *by_bias;
} Column;

/* What `count` numbers z of a column become; made: size arrays of AT_ONCE. */
FOR_EACH_PROCESSOR
void bedl_column(const Column *c, int64_t count, const float *restrict z, float *restrict made) {
    for (int64_t s = 0; s < c->size; s++)
        for (int64_t i = 0; i < count; i++) made[s * AT_ONCE + i] = c->bias[s];
    for (int64_t w = 0; w < c->waves; w++) {
        float f = c->frequency[w], p = c->phase[w] * INV_2PI;
        float wave[AT_ONCE];
        for (int64_t i = 0; i < count; i++) wave[i] = cosine(part_of_turn(z[i] * f + p));
        for (int64_t s = 0; s < c->size; s++) {
            float weight = c->weight[w * c->size + s];
            for (int64_t i = 0; i < count; i++) made[s * AT_ONCE + i] += weight * wave[i];
        }
    }
}

INLINE float dot(const float *restrict a, const float *restrict b) {
    float lanes[LANES] = {0};
    for (int64_t i = 0; i < AT_ONCE; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += a[i + j] * b[i + j];
    return sum_of(lanes);
}

/* Adds to the derivatives; z and by, size arrays of AT_ONCE, are 0 from `count` on. */
FOR_EACH_PROCESSOR
void bedl_column_gradients(const Column *c, const float *restrict z, const float *restrict by) {
    float ones[AT_ONCE];
    for (int64_t i = 0; i < AT_ONCE; i++) ones[i] = 1;
    for (int64_t s = 0; s < c->size; s++) c->by_bias[s] += dot(by + s * AT_ONCE, ones);
    for (int64_t w = 0; w < c->waves; w++) {
        float f = c->frequency[w], p = c->phase[w] * INV_2PI;
        float wave[AT_ONCE], slope[AT_ONCE], by_wave[AT_ONCE] = {0};
        for (int64_t i = 0; i < AT_ONCE; i++) {
            float q = part_of_turn(z[i] * f + p);
            wave[i] = cosine(q);
            slope[i] = -sine(q);
        }
        for (int64_t s = 0; s < c->size; s++) {
            float weight = c->weight[w * c->size + s];
            for (int64_t i = 0; i < AT_ONCE; i++) by_wave[i] += weight * by[s * AT_ONCE + i];
            c->by_weight[w * c->size + s] += dot(wave, by + s * AT_ONCE);
        }
        for (int64_t i = 0; i < AT_ONCE; i++) by_wave[i] *= slope[i];
        c->by_phase[w] += dot(by_wave, ones);
        c->by_frequency[w] += 6.2831853f * dot(by_wave, z);
    }
}

/* All columns of all networks. z: (rows, n, columns); made: (rows, n, columns * (1 + size)), the columns themselves in
 * front. Parameters: (rows, columns, waves[, size]), their rows `distance` apart. */
void bedl_columns(int64_t rows, int64_t n, int64_t columns, int64_t waves, int64_t size, int64_t distance,
                  const float *z, const float *frequency, const float *phase, const float *weight, const float *bias,
                  float *made) {
    int64_t width = columns * (1 + size);
    float own[AT_ONCE], numbers[MOST_SIZE * AT_ONCE];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < columns; k++) {
            int64_t at = r * distance + k * waves, last = r * distance + k * size;
            Column c = {waves, size, frequency + at, phase + at, weight + r * distance + k * waves * size, bias + last};
            for (int64_t first = 0; first < n; first += AT_ONCE) {
                int64_t count = n - first < AT_ONCE ? n - first : AT_ONCE;
                const float *from = z + (r * n + first) * columns + k;
                float *to = made + (r * n + first) * width;
                for (int64_t i = 0; i < count; i++) own[i] = to[i * width + k] = from[i * columns];
                bedl_column(&c, count, own, numbers);
                for (int64_t i = 0; i < count; i++)
                    for (int64_t s = 0; s < size; s++) to[i * width + columns + k * size + s] = numbers[s * AT_ONCE + i];
            }
        }
}

void bedl_columns_gradients(int64_t rows, int64_t n, int64_t columns, int64_t waves, int64_t size, int64_t distance,
                            const float *z, const float *frequency, const float *phase, const float *weight,
                            const float *by_made, float *by_frequency, float *by_phase, float *by_weight,
                            float *by_bias) {
    int64_t width = columns * (1 + size);
    float own[AT_ONCE], by[MOST_SIZE * AT_ONCE];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < columns; k++) {
            int64_t at = r * distance + k * waves, last = r * distance + k * size;
            int64_t table = r * distance + k * waves * size;
            Column c = {waves, size, frequency + at, phase + at, weight + table, NULL,
                        by_frequency + at, by_phase + at, by_weight + table, by_bias + last};
            memset(c.by_frequency, 0, waves * sizeof(float));
            memset(c.by_phase, 0, waves * sizeof(float));
            memset(c.by_weight, 0, waves * size * sizeof(float));
            memset(c.by_bias, 0, size * sizeof(float));
            for (int64_t first = 0; first < n; first += AT_ONCE) {
                int64_t count = n - first < AT_ONCE ? n - first : AT_ONCE;
                const float *from = z + (r * n + first) * columns + k, *to = by_made + (r * n + first) * width;
                memset(own, 0, sizeof own);
                memset(by, 0, sizeof by);
                for (int64_t i = 0; i < count; i++) {
                    own[i] = from[i * columns];
                    for (int64_t s = 0; s < size; s++) by[s * AT_ONCE + i] = to[i * width + columns + k * size + s];
                }
                bedl_column_gradients(&c, own, by);
            }
        }
}
