/* The entropy that is left once class probabilities are known: twin of bedl.heads.integrals.moments, which has the formulas
 * and the reasons. One point after the other, some times of its race side by side.
 */
#include <stdlib.h>

#include "race.h"

#define LOG_SIX 1.79175947f
#define FEW 7        /* nodes of the rule for a total that hardly varies */
#define MOST_AROUND 21
#define HARDLY 0.01f /* as in bedl.heads.integrals.moments */

/* Nodes of Gauss and Hermite, and their weights. */
typedef struct {
    int64_t count;
    const float *nodes, *weights;
} Rule;

/* psi(e^x + 1), and its derivative by x. */
INLINE float digamma_after(float x, float *by_x) {
    float a = exp_of(smaller(x, 30.0f)), q = 1 / (a + 6), q2 = q * q, harmonic = 0;
    float trigamma = q + 0.5f * q2 + q2 * q / 6;
    UNROLLED for (int j = 1; j < 6; j++) {
        float inverse = 1 / (a + j);
        harmonic += inverse;
        trigamma += inverse * inverse;
    }
    *by_x = a * trigamma;
    float log_b = x > 30.0f ? x : log_of(a + 6);
    return log_b - 0.5f * q - q2 * (1 / 12.0f - q2 * (1 / 120.0f - q2 / 252)) - harmonic;
}

/* The solution x > 0 of x + log x = c. */
INLINE float wright_omega(float c) {
    float near = larger(c, -8.0f), e = exp_of(-fabsf(near)), sigmoid_near = (near < 0 ? e : 1.0f) / (1 + e);
    float x = near > 1 ? near - log_of(larger(near, 1.0f)) : sigmoid_near;
    UNROLLED for (int i = 0; i < 4; i++) x = x * (1 + near - log_of(x)) / (1 + x);
    return c < -8 ? exp_of(smaller(c, 0.0f)) : x;
}

/* E[psi(a_c + 1) | c rings at u] at all times u, for a class of mean m and variance v; slope: of its log density. */
FOR_EACH_PROCESSOR
void bedl_given_ringing(int64_t times, Rule rule, float m, float v, const float *restrict nodes,
                        const float *restrict slope, float *restrict result) {
    float at[MOST_NODES], std[MOST_NODES], height[MOST_NODES], highest[MOST_NODES], excess[MOST_AROUND][MOST_NODES];
    float mass[MOST_NODES], mean[MOST_NODES], value[MOST_NODES], by[MOST_NODES], log_v;
    v = larger(v, 1e-10f), log_v = log_of(v);
    for (int64_t t = 0; t < times; t++) {
        float w = m + nodes[t], omega = wright_omega(w + v + log_v), mode = w + v - omega;
        at[t] = mode - nodes[t], std[t] = sqrtf(v / (1 + omega)), height[t] = exp_of(smaller(mode, 30.0f));
        highest[t] = -1e30f, mass[t] = mean[t] = value[t] = by[t] = 0;
    }
    for (int64_t j = 0; j < rule.count; j++) {
        float log_weight = log_of(rule.weights[j]);
        for (int64_t t = 0; t < times; t++) {
            float step = std[t] * rule.nodes[j], near = -step * step * step * (1 / 6.0f + step / 24);
            float far = 0.5f * step * step + 1 + step - exp_of(smaller(step, 30.0f));
            excess[j][t] = log_weight + larger(height[t] * (fabsf(step) < 0.05f ? near : far), -1e4f);
            highest[t] = larger(highest[t], excess[j][t]);
        }
    }
    for (int64_t j = 0; j < rule.count; j++)
        for (int64_t t = 0; t < times; t++) {
            float p = exp_of(excess[j][t] - highest[t]), x = at[t] + std[t] * rule.nodes[j], by_x;
            value[t] += p * digamma_after(x, &by_x);
            by[t] += p * by_x, mean[t] += p * x, mass[t] += p;
        }
    for (int64_t t = 0; t < times; t++) {
        float missing = m + v * slope[t] - mean[t] / mass[t];
        result[t] = (value[t] + missing * by[t]) / mass[t];
    }
}

/* E psi(A + 1). when: shares of the nodes. */
INLINE float total_of(const Rules *h, Rule few, const float *m, const float *v, const Race *race, const float *when) {
    float top = m[0] + 0.5f * v[0], sum = 0, squares = 0, by_race = 0, calm = 0;
    for (int64_t k = 1; k < h->classes; k++) top = larger(top, m[k] + 0.5f * v[k]);
    for (int64_t k = 0; k < h->classes; k++) sum += exp_of(m[k] + 0.5f * v[k] - top);
    for (int64_t k = 0; k < h->classes; k++) {
        float share = exp_of(m[k] + 0.5f * v[k] - top) / sum;
        squares += share * share * expm1_of(smaller(v[k], 80.0f));
    }
    float log_mean = top + log_of(sum), spread = log_of(1 + squares), std = sqrtf(larger(spread, 0.0f)), by_x;
    for (int64_t j = 0; j < few.count; j++)
        calm += few.weights[j] * digamma_after(log_mean - 0.5f * spread + std * few.nodes[j], &by_x);
    for (int64_t t = 0; t < h->times; t++) {
        float u = race->nodes[t], time = exp_of(smaller(u, 60.0f)), near = smaller(time, 0.5f);
        float silent = log_of(1 - exp_of(-larger(time, 0.5f)));
        float kernel = -(time < 0.5f ? u - 0.5f * time + near * near / 24 : silent) - EULER;
        /* left of the first node the kernel is a line, and the first weight holds a mass of 1 there */
        by_race += when[t] * (t ? kernel : kernel + exp_of(-race->log_weight[0]));
    }
    return spread < HARDLY ? calm : by_race;
}

FOR_EACH_PROCESSOR
float bedl_entropy_of(const Rules *h, Rule around, Rule few, const float *m, const float *v, Race *race) {
    int64_t c = h->classes, count = h->times;
    float when[MOST_NODES], rate[MOST_NODES], told[MOST_NODES], sum = 0, known = 0;
    nodes_of(h, m, v, 0, 2.5f, 10.0f, race);
    run(h, m, v, race);
    for (int64_t t = 0; t < count; t++) rate[t] = 0;
    for (int64_t k = 0; k < c; k++)
        for (int64_t t = 0; t < count; t++) rate[t] += race->hazard[k * count + t];
    for (int64_t t = 0; t < count; t++) when[t] = race->log_survival[t] + race->log_weight[t] + log_of(rate[t]);
    float top = largest_of(count, when);
    for (int64_t t = 0; t < count; t++) sum += when[t] = exp_of(when[t] - top);
    for (int64_t t = 0; t < count; t++) when[t] /= sum;
    for (int64_t k = 0; k < c; k++) {
        bedl_given_ringing(count, around, m[k], v[k], race->nodes, race->by_m + k * count, told);
        for (int64_t t = 0; t < count; t++) known += when[t] * (race->hazard[k * count + t] / rate[t]) * told[t];
    }
    return larger(total_of(h, few, m, v, race, when) - known, 0.0f);
}

/* All points. m, v: (points, C). coarse, fine: nodes of the race, and around each mode; the latter from variances of
 * `wide` on. hermite: FEW, the coarse and the fine rule, the nodes of each and then their weights. */
void bedl_data_entropy(int64_t points, int64_t classes, int64_t components, int64_t coarse_times, int64_t coarse_around,
                       int64_t fine_times, int64_t fine_around, float wide, const float *mixture, const float *hermite,
                       const float *m, const float *v, float *result) {
    const float *first = hermite + 2 * FEW, *second = first + 2 * coarse_around;
    Rule few = {FEW, hermite, hermite + FEW}, coarse = {coarse_around, first, first + coarse_around};
    Rule fine = {fine_around, second, second + fine_around};
#pragma omp parallel if (points > 8)
    {
        int64_t block = classes * fine_times;
        float *room = malloc(4 * block * sizeof(float));
        Race race = {.log_hazard = room, .hazard = room + block, .by_m = room + 2 * block, .by_v = room + 3 * block};
#pragma omp for
        for (int64_t i = 0; i < points; i++) {
            int far = largest_of(classes, v + i * classes) > wide;
            Rules h = {classes, far ? fine_times : coarse_times, components, mixture, log_of(classes)};
            result[i] = bedl_entropy_of(&h, far ? fine : coarse, few, m + i * classes, v + i * classes, &race);
        }
        free(room);
    }
}
