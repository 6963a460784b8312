/* What uncompiled PyTorch is slow at: long chains of arithmetic on each number of a float32 tensor, in one pass.
 *
 * Each kernel is the twin of a function in Python, which is the reference and runs wherever this file does not:
 * bedl.moments.numerics.tail_moments, bedl.moments.rules.relu, bedl.heads.integrals.nodes. NaN stays NaN. Loops have no branches, so that
 * compilers turn them into vector instructions; see `hatch_build.py` for how this is built, `__init__.py` for its use.
 */
#include "clock.h"
#include "tails.h"

#define AT_A_TIME 4096      /* numbers that one thread takes at once */
#define WORTH_THREADS 32768 /* numbers from which on several threads are faster */

/* Mean and variance of max(x, 0), x ~ N(m, v). */
FOR_EACH_PROCESSOR
void bedl_rectified_piece(int64_t n, const float *restrict m, const float *restrict v, float *restrict mean,
                          float *restrict variance, const float *restrict coefficients, float unit, float far) {
    float fit[FIT];
    memcpy(fit, coefficients, sizeof fit);
    for (int64_t i = 0; i < n; i++) {
        float pdf, upper, t1, t2, sigma = sqrtf(larger(v[i], 0.0f)), x = distance_of(m[i], sigma, far);
        tail_of(x, fit, unit, &pdf, &upper, &t1, &t2);
        float below = t2 - t1 * t1, above = 1 - t2 - t1 * (t1 + 2 * x);
        mean[i] = larger(m[i], 0.0f) + sigma * t1;
        variance[i] = v[i] * (m[i] < 0 ? below : above);
    }
}

/* Its derivatives: dM/dm = Phi(r), dM/dv = phi/2 sigma, dV/dm = 2M Phi(-r), dV/dv = Phi(r) - M phi/sigma. */
FOR_EACH_PROCESSOR
void bedl_rectified_gradients_piece(int64_t n, const float *restrict m, const float *restrict v,
                                    const float *restrict mean, const float *restrict by_mean,
                                    const float *restrict by_variance, float *restrict by_m, float *restrict by_v,
                                    const float *restrict coefficients, float unit, float far) {
    float fit[FIT];
    memcpy(fit, coefficients, sizeof fit);
    for (int64_t i = 0; i < n; i++) {
        float pdf, upper, t1, t2, sigma = sqrtf(larger(v[i], 0.0f)), x = distance_of(m[i], sigma, far);
        tail_of(x, fit, unit, &pdf, &upper, &t1, &t2);
        float probability = m[i] < 0 ? upper : 1 - upper;
        float density = v[i] <= 0 ? 0.0f : pdf / larger(sigma, 1e-19f);
        by_m[i] = by_mean[i] * probability + 2 * by_variance[i] * (mean[i] * (1 - probability));
        by_v[i] = by_variance[i] * (probability - mean[i] * density) + 0.5f * by_mean[i] * density;
    }
}

void bedl_rectified(int64_t n, const float *m, const float *v, float *mean, float *variance, const float *coefficients,
                    float unit, float far) {
#pragma omp parallel for if (n >= WORTH_THREADS)
    for (int64_t i = 0; i < n; i += AT_A_TIME) {
        int64_t count = n - i < AT_A_TIME ? n - i : AT_A_TIME;
        bedl_rectified_piece(count, m + i, v + i, mean + i, variance + i, coefficients, unit, far);
    }
}

void bedl_rectified_gradients(int64_t n, const float *m, const float *v, const float *mean, const float *by_mean,
                              const float *by_variance, float *by_m, float *by_v, const float *coefficients,
                              float unit, float far) {
#pragma omp parallel for if (n >= WORTH_THREADS)
    for (int64_t i = 0; i < n; i += AT_A_TIME) {
        int64_t count = n - i < AT_A_TIME ? n - i : AT_A_TIME;
        bedl_rectified_gradients_piece(count, m + i, v + i, mean + i, by_mean + i, by_variance + i, by_m + i, by_v + i,
                                       coefficients, unit, far);
    }
}

/* Standard deviations (times sqrt 2) of the widest component, as in bedl.heads.integrals.nodes. */
#define FARTHEST 30.0f

INLINE void clock_of(int components, int slopes, int64_t count, float m, float v, Clock at) {
    const float *restrict nodes = at.nodes;
    float *restrict log_survival = at.log_survival, *restrict log_density = at.log_density;
    float *restrict by_m = at.by_m, *restrict by_v = at.by_v;
    float p[MOST_COMPONENTS], mean[MOST_COMPONENTS], inverse[MOST_COMPONENTS];
    for (int r = 0; r < components; r++) {
        p[r] = at.mixture[3 * r];
        mean[r] = at.mixture[3 * r + 1] - m;
        inverse[r] = 1 / sqrtf(2 * (at.mixture[3 * r + 2] + v));
    }
    const float reach = FARTHEST / inverse[0];
    const float limit = 0.5f + 3 * sqrtf(v) * v / (v + 12) - v - m;
    for (int64_t t = 0; t < count; t++) {
        float time = nodes[t], shift = time < limit ? v : 0.0f, middle = mean[0] - shift;
        float u = larger(smaller(time, middle + reach), middle - reach); /* farther out squares lose their digits */
        float distance = (middle - u) * inverse[0], reference = distance * distance;
        float survival = 0.5f, moved = 0.5f, density = 0.0f, slope = 0.0f, curve = 0.0f;
        UNROLLED for (int r = 0; r < components; r++) {
            float d = (mean[r] - u) * inverse[r], g = d - shift * inverse[r];
            float e = p[r] * 0.56418958f * inverse[r] * exp_of(reference - g * g); /* 1/sqrt(pi) */
            float e1 = 2 * g * inverse[r] * e;
            survival += 0.5f * p[r] * erf_of(d);
            moved += 0.5f * p[r] * erf_of(g);
            density += e;
            slope += e1;
            curve += 2 * inverse[r] * (g * e1 - inverse[r] * e);
        }
        float there = larger(moved, 1e-4f); /* above that wherever it is used */
        float early = m + time + 0.5f * v + log_of(there);
        float late = log_of(density) - reference + 2 * distance * inverse[0] * (time - u);
        log_survival[t] = log_of(larger(survival, 1.42108547e-14f)); /* eps^2 */
        log_density[t] = time < limit ? early : late;
        if (slopes) {
            float ratio = exp_of(-reference) / there, share = 1 / density;
            float early_m = 1 - density * ratio, late_m = slope * share;
            float early_v = 0.5f - (density + 0.5f * slope) * ratio, late_v = 0.5f * curve * share;
            by_m[t] = time < limit ? early_m : late_m;
            by_v[t] = time < limit ? early_v : late_v;
        }
    }
}

FOR_EACH_PROCESSOR
void bedl_clock(int64_t components, int64_t count, float m, float v, Clock at) {
    int slopes = at.by_m != NULL;
    if (components == 4 && slopes) clock_of(4, 1, count, m, v, at);
    if (components == 6 && slopes) clock_of(6, 1, count, m, v, at);
    if (components == 8 && slopes) clock_of(8, 1, count, m, v, at);
    if (components == 4 && !slopes) clock_of(4, 0, count, m, v, at);
    if (components == 6 && !slopes) clock_of(6, 0, count, m, v, at);
    if (components == 8 && !slopes) clock_of(8, 0, count, m, v, at);
}

/* All clocks of all points; derivatives are left out where `by_m` is NULL. */
void bedl_clocks(int64_t points, int64_t classes, int64_t times, int64_t components, const float *mixture,
                 const float *m, const float *v, const float *nodes, float *log_survival, float *log_density,
                 float *by_m, float *by_v) {
#pragma omp parallel for if (points * classes * times >= WORTH_THREADS / 8)
    for (int64_t row = 0; row < points * classes; row++) {
        int64_t i = row * times;
        Clock at = {mixture, nodes + row / classes * times, log_survival + i, log_density + i,
                    by_m ? by_m + i : NULL, by_m ? by_v + i : NULL};
        bedl_clock(components, times, m[row], v[row], at);
    }
}
