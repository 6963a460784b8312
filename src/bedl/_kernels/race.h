/* The race of bedl.heads.integrals.nodes for one point: nodes, and all clocks at them. */
#pragma once
#include "clock.h"

#define MOST_NODES 64
#define LOG_FLOOR -6.90775528f
#define EULER 0.577215665f

/* What is the same for all points. mixture: of log Exp(1), as for clocks. */
typedef struct {
    int64_t classes, times, components;
    const float *mixture;
    float log_classes;
} Rules;

/* A race: nodes and the logarithms of their weights, of all clocks together survival and hazard, and of each clock
 * the logarithm of its hazard, the hazard, and the derivatives of its log density. (T,) and (C, T) */
typedef struct {
    float nodes[MOST_NODES], log_weight[MOST_NODES], log_survival[MOST_NODES], log_rate[MOST_NODES];
    float *log_hazard, *hazard, *by_m, *by_v, *own;
} Race;

INLINE float largest_of(int64_t count, const float *x) {
    float top = x[0];
    for (int64_t i = 1; i < count; i++) top = larger(top, x[i]);
    return top;
}

/* e^x - 1 for x >= 0, also where it is small. */
INLINE float expm1_of(float x) {
    float near = x * (1 + x * (0.5f + x * (1 / 6.0f + x * (1 / 24.0f + x * (1 / 120.0f + x / 720)))));
    return x < 0.3f ? near : exp_of(x) - 1;
}

/* bedl.heads.integrals.nodes.race_nodes; with one more clock of rate C * e^LOG_FLOOR if `floors`. */
INLINE void nodes_of(const Rules *h, const float *m, const float *v, int floors, float after, float before,
                     Race *race) {
    int64_t c = h->classes, count = h->times;
    float more = smaller((count - 16) / 16.0f, 1.0f), extra = h->log_classes + LOG_FLOOR;
    float top = floors ? extra : -1e30f, low = top, sum = 0, slow = 0, width = 0;
    for (int64_t k = 0; k < c; k++) {
        float s = sqrtf(v[k]);
        top = larger(top, m[k] + (3.55f + 0.65f * more) * s);
        low = larger(low, m[k] - (3.2f + more) * s);
    }
    for (int64_t k = 0; k < c + floors; k++) {
        float mean = k < c ? m[k] : extra, variance = k < c ? v[k] : 0.0f, s = sqrtf(variance);
        float share = exp_of(mean - (3.2f + more) * s - low);
        sum += exp_of(mean + (3.55f + 0.65f * more) * s - top);
        slow += share;
        width += share * sqrtf(1.8f + variance);
    }
    float start = -(top + log_of(sum)) - before, stop = -(low + log_of(slow)) + after, last = count - 1;
    float stretch = larger((stop - start) / (last * 0.39f * (width / slow)), 1.02f), k = 2 * log_of(stretch);
    for (int i = 0; i < 4; i++) k = log_of(1 + k * stretch);
    float scale = (stop - start) / expm1_of(k), step = scale * k / last;
    float *restrict nodes = race->nodes, *restrict log_weight = race->log_weight;
    for (int64_t t = 0; t < count; t++) {
        float back = k * ((last - t) / last);
        nodes[t] = stop - scale * expm1_of(back);
        log_weight[t] = log_of(step) + back;
    }
    log_weight[0] = log_of(0.5f * step * exp_of(k) + 1);
}

/* All clocks at the nodes. */
INLINE void run(const Rules *h, const float *m, const float *v, Race *race) {
    int64_t c = h->classes, count = h->times;
    float *restrict survival = race->log_survival;
    for (int64_t t = 0; t < count; t++) survival[t] = 0;
    for (int64_t k = 0; k < c; k++) {
        float *restrict log_hazard = race->log_hazard + k * count, *restrict hazard = race->hazard + k * count;
        /* the hazard's place holds log L for a moment, its logarithm's log D */
        Clock at = {h->mixture, race->nodes, hazard, log_hazard, race->by_m + k * count, race->by_v + k * count};
        bedl_clock(h->components, count, m[k], v[k], at);
        for (int64_t t = 0; t < count; t++) {
            survival[t] += hazard[t];
            log_hazard[t] -= hazard[t];
            hazard[t] = exp_of(smaller(log_hazard[t], 80.0f));
        }
    }
}
