/* log E[softmax(f)] of all points by the race, without derivatives: twin of bedl.heads.integrals.log_mean_softmax. */
#include <stdlib.h>

#include "race.h"

#define SMALL_VARIANCE 1e-4f /* as in bedl.heads.integrals.nodes */

/* Subtracts log(sum e^x), so that probabilities add up to 1. */
INLINE void normalise(int64_t count, float *restrict x) {
    float top = largest_of(count, x), sum = 0;
    for (int64_t k = 0; k < count; k++) sum += exp_of(x[k] - top);
    top += log_of(sum);
    for (int64_t k = 0; k < count; k++) x[k] -= top;
}

/* To first order in variances that are small. */
INLINE void expansion(int64_t count, const float *m, const float *v, float *restrict log_p) {
    float sum = 0;
    for (int64_t k = 0; k < count; k++) log_p[k] = m[k];
    normalise(count, log_p);
    for (int64_t k = 0; k < count; k++) {
        float p = exp_of(log_p[k]);
        sum += v[k] * p * (2 * p - 1);
    }
    for (int64_t k = 0; k < count; k++) log_p[k] += 0.5f * (v[k] * (1 - 2 * exp_of(log_p[k])) + sum);
}

/* m: the largest is 0. log_survival, log_density: (C, T) */
FOR_EACH_PROCESSOR
void bedl_chances_of(const Rules *h, const float *m, const float *v, Race *race, float *restrict log_survival,
                     float *restrict log_density, float *restrict log_p) {
    int64_t count = h->times;
    if (largest_of(h->classes, v) < SMALL_VARIANCE) {
        expansion(h->classes, m, v, log_p);
        return;
    }
    double total[MOST_NODES]; /* of a thousand classes, too */
    nodes_of(h, m, v, 0, 1.9f, 5.5f, race);
    for (int64_t t = 0; t < count; t++) total[t] = race->log_weight[t];
    for (int64_t k = 0; k < h->classes; k++) {
        float *restrict own = log_survival + k * count;
        Clock at = {h->mixture, race->nodes, own, log_density + k * count, NULL, NULL};
        bedl_clock(h->components, count, m[k], v[k], at);
        for (int64_t t = 0; t < count; t++) total[t] += own[t];
    }
    for (int64_t k = 0; k < h->classes; k++) {
        float *restrict joint = log_density + k * count, *restrict own = log_survival + k * count, sum = 0;
        for (int64_t t = 0; t < count; t++) joint[t] += (float)(total[t] - own[t]);
        float top = largest_of(count, joint);
        for (int64_t t = 0; t < count; t++) joint[t] = exp_of(joint[t] - top);
        for (int64_t t = 0; t < count; t++) sum += joint[t];
        log_p[k] = top + log_of(sum);
    }
    normalise(h->classes, log_p);
}

/* All points. m, v, log_p: (points, C); mixture: as for clocks. */
void bedl_log_mean_softmax(int64_t points, int64_t classes, int64_t times, int64_t components, const float *mixture,
                           const float *m, const float *v, float *log_p) {
    Rules h = {classes, times, components, mixture, 0};
#pragma omp parallel if (points * classes * times >= 1 << 14)
    {
        float *room = malloc((2 * classes * times + classes) * sizeof(float)), *shifted = room + 2 * classes * times;
        Race race = {0};
#pragma omp for
        for (int64_t i = 0; i < points; i++) {
            const float *mi = m + i * classes;
            float top = largest_of(classes, mi);
            /* so that nodes keep their digits; a class that is impossible is infinitely far below, but no NaN */
            for (int64_t k = 0; k < classes; k++) shifted[k] = larger(mi[k] - top, -1e30f);
            bedl_chances_of(&h, shifted, v + i * classes, &race, room, room + classes * times, log_p + i * classes);
            for (int64_t k = 0; k < classes; k++)
                if (mi[k] == -INFINITY && top > mi[k]) log_p[i * classes + k] = mi[k];
        }
        free(room);
    }
}
