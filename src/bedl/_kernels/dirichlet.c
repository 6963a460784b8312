/* The loss of a network with the head bedl.heads.Dirichlet, and its derivatives by the network's outputs.
 *
 * Twin of the objectives MarginalLikelihood, Known and Unknown in PyTorch, and of the race behind them
 * (bedl.heads.integrals), which have the formulas and the reasons. One point after the other: what is known of its race
 * stays in the cache.
 */
#include <stdlib.h>

#include "race.h"

#define LOGISTICS 4
#define CURVES 6
#define BINETS 7
#define SMALL_VARIANCE 1e-4f
#define HALF_LOG_2PI 0.918938533f
#define LOG_2 0.69314718f
#define SQRT_HALF 0.70710678f
#define INV_SQRT_2PI 0.39894228f

/* What is the same for all points. */
typedef struct {
    Rules race;
    int64_t n, copies;
    const float *curves; /* LOGISTICS × (probability, variance), CURVES × (factor, mean, variance), an offset, BINETS */
    float log_gamma; /* log Gamma(C) */
    float known, known_rest, unknown; /* strengths, and what is added to Known's logarithm */
} Dirichlet;

/* bedl.heads.integrals.nodes.pull_back, where `own` reaches each clock's log hazard and `through` their survival:
 * dL/dm = -D, dL/dv = -D'/2. */
INLINE void pull_back(const Dirichlet *h, const Race *race, const float *through, float *by_m, float *by_v) {
    int64_t count = h->race.times;
    for (int64_t k = 0; k < h->race.classes; k++) {
        const float *restrict own = race->own + k * count, *restrict hazard = race->hazard + k * count;
        const float *restrict d_m = race->by_m + k * count, *restrict d_v = race->by_v + k * count;
        float m = 0, v = 0;
        for (int64_t t = 0; t < count; t++) {
            float lost = (through[t] - own[t]) * hazard[t];
            m += own[t] * d_m[t] - lost;
            v += own[t] * d_v[t] - 0.5f * lost * d_m[t];
        }
        by_m[k] = m, by_v[k] = v;
    }
}

/* Mean of log E[softmax(f)_k] over classes by their shares y, to first order in the variances, and its derivatives;
 * room: (C,) */
INLINE float expansion(int64_t c, const float *m, const float *v, const float *y, float *by_m, float *by_v, float *p) {
    float top = largest_of(c, m), sum = 0, inner = 0, pull = 0, own = 0, value = 0;
    for (int64_t k = 0; k < c; k++) sum += p[k] = exp_of(m[k] - top);
    for (int64_t k = 0; k < c; k++) {
        p[k] /= sum;
        inner += v[k] * p[k] * (2 * p[k] - 1);
        pull += v[k] * (4 * p[k] - 1) * p[k];
        own += y[k] * v[k] * p[k];
        value += y[k] * (m[k] + 0.5f * v[k] * (1 - 2 * p[k]));
    }
    for (int64_t k = 0; k < c; k++) {
        by_v[k] = 0.5f * (y[k] * (1 - 2 * p[k]) + p[k] * (2 * p[k] - 1));
        by_m[k] = y[k] * (1 - v[k] * p[k]) - p[k] * (1 - own) + 0.5f * p[k] * (v[k] * (4 * p[k] - 1) - pull);
    }
    return value - top - log_of(sum) + 0.5f * inner;
}

/* Mean of log p(k | f) over classes by their shares y, and its derivatives by m and v; room: 2 (C,) */
FOR_EACH_PROCESSOR
float bedl_log_marginal(const Dirichlet *h, const float *given, const float *v, const float *y, float *by_m,
                        float *by_v, Race *race, float *room) {
    int64_t c = h->race.classes, count = h->race.times;
    if (largest_of(c, v) < SMALL_VARIANCE) return expansion(c, given, v, y, by_m, by_v, room);
    float *m = room, *log_p = room + c, top = largest_of(c, given), sum = 0, through[MOST_NODES];
    for (int64_t k = 0; k < c; k++) m[k] = given[k] - top; /* the nodes keep their digits */
    nodes_of(&h->race, m, v, 0, 1.9f, 5.5f, race);
    run(&h->race, m, v, race);
    for (int64_t t = 0; t < count; t++) race->log_survival[t] += race->log_weight[t], through[t] = 0;
    for (int64_t k = 0; k < c; k++) {
        float *restrict own = race->own + k * count, *restrict log_hazard = race->log_hazard + k * count, mass = 0;
        for (int64_t t = 0; t < count; t++) own[t] = log_hazard[t] + race->log_survival[t];
        float highest = largest_of(count, own);
        for (int64_t t = 0; t < count; t++) mass += own[t] = exp_of(own[t] - highest);
        for (int64_t t = 0; t < count; t++) own[t] /= mass;
        log_p[k] = highest + log_of(mass);
    }
    top = largest_of(c, log_p);
    for (int64_t k = 0; k < c; k++) sum += exp_of(log_p[k] - top);
    float total = top + log_of(sum), value = 0;
    for (int64_t k = 0; k < c; k++) {
        float *restrict own = race->own + k * count, factor = y[k] - exp_of(log_p[k] - total);
        value += y[k] * (log_p[k] - total);
        for (int64_t t = 0; t < count; t++) through[t] += own[t] *= factor;
    }
    pull_back(h, race, through, by_m, by_v);
    return value;
}

/* What C psi(A) - F(A) averages at log time u: bedl.heads.integrals.kl.total_kernel. */
INLINE float total_kernel(float u, float classes, const float *binets) {
    float t = exp_of(u), near = smaller(t, 0.5f), t2 = near * near, silent = 1 - exp_of(-larger(t, 0.5f));
    float log_near = u - 0.5f * t + t2 * (1 / 24.0f - t2 * (1 / 2880.0f - t2 / 181440));
    float log_silent = t < 0.5f ? log_near : log_of(silent);
    float pole_near = -0.5f - t * (1 / 12.0f - t2 * (1 / 720.0f - t2 / 30240));
    float pole = t < 0.5f ? pole_near : 1 / t - 1 / silent;
    float r = t / (t + 6), binet = 0;
    UNROLLED for (int i = BINETS - 1; i >= 0; i--) binet = (binet + binets[i]) * r;
    float f = -0.5f * (EULER + u) - HALF_LOG_2PI + pole - 0.5f * log_of(1 + t / 6) - binet;
    return classes * (-EULER - log_silent - t) - f;
}

/* E[F(a) - psi(a)] for a = exp(f) + floor, and its derivatives: bedl.heads.integrals.kl.expected_terms. */
FOR_EACH_PROCESSOR
void bedl_expected_terms(int64_t count, const float *restrict curves, const float *restrict m, const float *restrict v,
                         float *restrict values, float *restrict by_m, float *restrict by_v) {
    const float *curve = curves + 2 * LOGISTICS, offset = curve[3 * CURVES];
    for (int64_t i = 0; i < count; i++) {
        float mi = m[i], vi = v[i], value = 0, slope = 0, curvature = 0;
        float above = mi - vi > LOG_FLOOR ? 1.0f : 0.0f, sign = 2 * above - 1, centre = mi - above * vi;
        float rest = offset + LOG_FLOOR, rest_m = 0, rest_v = 0;
        UNROLLED for (int r = 0; r < LOGISTICS; r++) {
            float p = curves[2 * r], inverse = 1 / sqrtf(curves[2 * r + 1] + vi), x = (centre - LOG_FLOOR) * inverse;
            float density = INV_SQRT_2PI * exp_of(-0.5f * x * x);
            value += p * (0.5f + 0.5f * erf_of(sign * x * SQRT_HALF));
            slope += sign * p * density * inverse;
            curvature -= sign * p * density * x * 0.5f * inverse * inverse;
            x = (mi - LOG_FLOOR) * inverse;
            density = INV_SQRT_2PI * exp_of(-0.5f * x * x);
            float cdf = 0.5f + 0.5f * erf_of(x * SQRT_HALF);
            rest += p * (x * cdf + density) / inverse;
            rest_m += p * cdf;
            rest_v += 0.5f * p * density * inverse;
        }
        UNROLLED for (int r = 0; r < CURVES; r++) {
            float factor = curve[3 * r], inverse = 1 / sqrtf(curve[3 * r + 2] + vi);
            float x = (mi - curve[3 * r + 1]) * inverse, density = INV_SQRT_2PI * exp_of(-0.5f * x * x);
            float cdf = 0.5f + 0.5f * erf_of(x * SQRT_HALF);
            rest += factor * (x * cdf + density) / inverse;
            rest_m += factor * cdf;
            rest_v += 0.5f * factor * density * inverse;
        }
        float scale = exp_of(above > 0 ? 0.5f * vi - mi : -LOG_FLOOR);
        values[i] = scale * value + rest;
        by_m[i] = scale * (slope - above * value) + rest_m;
        by_v[i] = scale * (curvature + above * (0.5f * value - slope)) + rest_v;
    }
}

/* The part of the KL that alpha_0 has, and its derivatives by m and v. */
FOR_EACH_PROCESSOR
float bedl_total_divergence(const Dirichlet *h, const float *m, const float *v, float *by_m, float *by_v, Race *race) {
    int64_t c = h->race.classes, count = h->race.times;
    nodes_of(&h->race, m, v, 1, 2.2f, 6.0f, race);
    run(&h->race, m, v, race);
    const float *binets = h->curves + 2 * LOGISTICS + 3 * CURVES + 1;
    float weight[MOST_NODES], kernel[MOST_NODES], through[MOST_NODES], top[MOST_NODES], sum = 0, value = 0;
    float *restrict log_rate = race->log_rate;
    for (int64_t t = 0; t < count; t++) top[t] = -1e30f, log_rate[t] = 0;
    for (int64_t k = 0; k < c; k++)
        for (int64_t t = 0; t < count; t++) top[t] = larger(top[t], race->log_hazard[k * count + t]);
    for (int64_t k = 0; k < c; k++)
        for (int64_t t = 0; t < count; t++) log_rate[t] += exp_of(race->log_hazard[k * count + t] - top[t]);
    for (int64_t t = 0; t < count; t++) {
        float floor = race->nodes[t] + h->race.log_classes + LOG_FLOOR; /* log hazard of the floors' clock */
        log_rate[t] = top[t] + log_of(log_rate[t]);
        weight[t] = race->log_survival[t] - exp_of(floor) + log_sum(log_rate[t], floor) + race->log_weight[t];
        kernel[t] = total_kernel(race->nodes[t], c, binets);
    }
    kernel[0] += (c - 0.5f) * exp_of(-race->log_weight[0]);
    float highest = largest_of(count, weight);
    for (int64_t t = 0; t < count; t++) sum += weight[t] = exp_of(weight[t] - highest);
    for (int64_t t = 0; t < count; t++) value += (weight[t] /= sum) * kernel[t];
    for (int64_t t = 0; t < count; t++) through[t] = weight[t] * (kernel[t] - value);
    for (int64_t k = 0; k < c; k++)
        for (int64_t t = 0; t < count; t++) {
            float by_rate = through[t] * sigmoid(log_rate[t] - (race->nodes[t] + h->race.log_classes + LOG_FLOOR));
            /* a rate below e^-80 decides nothing */
            race->own[k * count + t] = by_rate * exp_of(race->log_hazard[k * count + t] - larger(log_rate[t], -80.0f));
        }
    pull_back(h, race, through, by_m, by_v);
    return value;
}

/* Known at one point, log cosh of half the excess; `factor` of its derivatives is added. */
INLINE float known_at(const Dirichlet *h, const float *m, float factor, float *by_m) {
    int64_t c = h->race.classes;
    float top = largest_of(c, m), sum = 0;
    for (int64_t k = 0; k < c; k++) sum += exp_of(m[k] - top);
    float excess = h->known_rest - top - log_of(sum);
    for (int64_t k = 0; k < c; k++) by_m[k] -= factor * (sigmoid(excess) - 0.5f) * exp_of(m[k] - top) / sum;
    return softplus(excess) - 0.5f * excess - LOG_2;
}

/* One network. m, v, by_m, by_v: (n + copies, C); y: (n, C); share: of each row in means, 0 for padding;
 * room: 5 (C, T), 2 (C,), 3 (copies, C) */
static double loss_of(const Dirichlet *h, const float *m, const float *v, const float *y, const float *share,
                      float *by_m, float *by_v, float *room) {
    int64_t c = h->race.classes, block = c * h->race.times, off = h->n * c;
    double likelihood = 0, known = 0, unknown = 0;
    Race race = {.log_hazard = room, .hazard = room + block, .by_m = room + 2 * block, .by_v = room + 3 * block,
                 .own = room + 4 * block};
    float *own = room + 5 * block, *terms = own + 2 * c, *terms_m = terms + h->copies * c, *terms_v = terms_m + h->copies * c;
    memset(by_m, 0, (h->n + h->copies) * c * sizeof(float));
    memset(by_v, 0, (h->n + h->copies) * c * sizeof(float));
    for (int64_t i = 0; i < h->n; i++) {
        if (!(share[i] > 0)) continue;
        float *to_m = by_m + i * c, *to_v = by_v + i * c;
        likelihood -= (double)share[i] * bedl_log_marginal(h, m + i * c, v + i * c, y + i * c, to_m, to_v, &race, own);
        for (int64_t k = 0; k < c; k++) to_m[k] *= -share[i], to_v[k] *= -share[i];
        if (h->known > 0) known += (double)share[i] * known_at(h, m + i * c, h->known * share[i], to_m);
    }
    if (h->copies) bedl_expected_terms(h->copies * c, h->curves, m + off, v + off, terms, terms_m, terms_v);
    for (int64_t i = 0; i < h->copies; i++) {
        if (!(share[h->n + i] > 0)) continue;
        int64_t at = off + i * c;
        double value = bedl_total_divergence(h, m + at, v + at, by_m + at, by_v + at, &race) - h->log_gamma;
        for (int64_t k = 0; k < c; k++) value += terms[i * c + k];
        unknown += share[h->n + i] * value;
    }
    double root = sqrt((unknown < 0 ? 0 : unknown) + 1e-3), factor = unknown < 0 ? 0 : 0.5 * h->unknown / root;
    for (int64_t i = 0; i < h->copies * c; i++) {
        if (!(share[h->n + i / c] > 0)) continue;
        float pull = factor * share[h->n + i / c];
        by_m[off + i] = pull * (by_m[off + i] + terms_m[i]);
        by_v[off + i] = pull * (by_v[off + i] + terms_v[i]);
    }
    return likelihood + h->known * known + (h->copies ? h->unknown * root : 0);
}

/* All networks. strengths: (rows, 3), the last fields of Dirichlet; weight: (rows, n), or NULL where all points count
 * the same; a copy counts as its point. */
void bedl_dirichlet_loss(int64_t rows, int64_t n, int64_t copies, int64_t classes, int64_t times, int64_t components,
                         float log_gamma, const float *mixture, const float *curves, const float *strengths,
                         const float *m, const float *v, const float *y, const float *weight, float *loss,
                         float *by_m, float *by_v) {
    int64_t all = n + copies, size = 5 * classes * times + 2 * classes + 3 * copies * classes;
#pragma omp parallel for if (rows > 1)
    for (int64_t r = 0; r < rows; r++) {
        const float *at = strengths + 3 * r;
        Dirichlet h = {{classes, times, components, mixture, log_of(classes)}, n, copies, curves, log_gamma,
                       at[0], at[1], at[2]};
        float *room = malloc((size + all) * sizeof(float)), *share = room + size;
        double total = 0, behind = 0;
        for (int64_t i = 0; weight && i < n; i++) total += weight[r * n + i];
        for (int64_t i = 0; weight && i < copies; i++) behind += weight[r * n + i];
        for (int64_t i = 0; i < n; i++) share[i] = weight ? weight[r * n + i] / total : 1.0 / n;
        for (int64_t i = 0; i < copies; i++) share[n + i] = weight ? weight[r * n + i] / behind : 1.0 / copies;
        loss[r] = loss_of(&h, m + r * all * classes, v + r * all * classes, y + r * n * classes, share, by_m + r * all * classes,
                          by_v + r * all * classes, room);
        free(room);
    }
}
