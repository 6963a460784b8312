/* The loss of a network with the head bedl.heads.Normal, and its derivatives by the network's outputs.
 *
 * Twin of the objectives MarginalLikelihood, PAC, Known and Unknown in PyTorch, which have the formulas and the reasons.
 */
#include <stdlib.h>

#include "arithmetic.h"

#define TINY 1.17549435e-38f
#define KNEE 20.0f
#define MOST_EVIDENCE 0.69314718f
#define MOST_NOISE 2.30258509f
#define LOG_2PI 1.83787707f

typedef struct {
    int64_t n, copies, targets;
    int learned;                                /* noise */
    float log_beta, prior;                      /* prior: precision */
    float pac, pac_rest, known, known_rest, unknown; /* strengths; what is added to PAC's mean and Known's logarithm */
} Normal;

INLINE float soft_exp(float x) { return exp_of(smaller(x, KNEE)) * (1 + larger(x - KNEE, 0.0f)); }

/* What the outputs of `count` rows say of one target, as arrays. */
typedef struct {
    float *m1, *v1, *evidence, *noise, *lambda; /* lambda: log of its variance */
    float *evidence_slope, *noise_slope;        /* by the outputs that they are made of */
    float *by_m1, *by_v1, *by_evidence, *by_noise, *values;
} Said;

#define ARRAYS 12

INLINE Said arrays(float *room, int64_t count) {
    Said s;
    float **all[ARRAYS] = {&s.m1, &s.v1, &s.evidence, &s.noise, &s.lambda, &s.evidence_slope, &s.noise_slope,
                           &s.by_m1, &s.by_v1, &s.by_evidence, &s.by_noise, &s.values};
    for (int i = 0; i < ARRAYS; i++) *all[i] = room + i * count;
    return s;
}

FOR_EACH_PROCESSOR
void bedl_normal_read(const Normal *h, int64_t count, int64_t target, const float *restrict m, const float *restrict v,
                      Said s) {
    int64_t d = h->targets, outputs = (2 + h->learned) * d;
    float *restrict m1 = s.m1, *restrict v1 = s.v1, *restrict evidence = s.evidence, *restrict noise = s.noise;
    float *restrict lambda = s.lambda, *restrict evidence_slope = s.evidence_slope, *restrict noise_slope = s.noise_slope;
    INDEPENDENT for (int64_t i = 0; i < count; i++) {
        const float *mi = m + i * outputs + target, *vi = v + i * outputs + target;
        m1[i] = mi[0], v1[i] = vi[0], evidence[i] = mi[d] + 0.5f * vi[d];
        noise[i] = h->learned ? mi[2 * d] + 0.5f * vi[2 * d] : -h->log_beta;
    }
    if (h->learned)
        INDEPENDENT for (int64_t i = 0; i < count; i++) {
            float bent = MOST_NOISE - softplus(MOST_NOISE - noise[i]), both = log_sum(bent, -h->log_beta);
            noise_slope[i] = exp_of(bent - both) * sigmoid(MOST_NOISE - noise[i]);
            noise[i] = both;
            evidence_slope[i] = sigmoid(MOST_EVIDENCE - evidence[i]);
            evidence[i] = MOST_EVIDENCE - softplus(MOST_EVIDENCE - evidence[i]);
        }
    else
        for (int64_t i = 0; i < count; i++) noise_slope[i] = 0, evidence_slope[i] = 1;
    INDEPENDENT for (int64_t i = 0; i < count; i++) {
        lambda[i] = log_sum(log_of(larger(v1[i], TINY)), evidence[i]);
        s.by_m1[i] = s.by_v1[i] = s.by_evidence[i] = s.by_noise[i] = 0;
    }
}

/* -log N(y; m1, noise + v1 + evidence), and `share` of each one's derivatives. */
FOR_EACH_PROCESSOR
void bedl_normal_likelihood(int64_t count, const float *restrict y, const float *restrict share, Said s) {
    float *restrict by_m1 = s.by_m1, *restrict by_v1 = s.by_v1, *restrict by_evidence = s.by_evidence;
    float *restrict by_noise = s.by_noise, *restrict values = s.values;
    INDEPENDENT for (int64_t i = 0; i < count; i++) {
        float rest = log_of(larger(exp_of(s.noise[i]) + s.v1[i], TINY)), log_t = log_sum(rest, s.evidence[i]);
        float inverse = exp_of(-0.5f * log_t), distance = (y[i] - s.m1[i]) * inverse;
        float slope = 0.5f * share[i] * (1 - distance * distance);
        values[i] = 0.5f * (distance * distance + log_t + LOG_2PI);
        by_m1[i] -= share[i] * distance * inverse;
        by_v1[i] += slope * exp_of(-log_t);
        by_evidence[i] += slope * exp_of(s.evidence[i] - log_t);
        by_noise[i] += slope * exp_of(s.noise[i] - log_t);
    }
}

/* KL(N(m1 or 0, v1 + evidence) || N(0, 1/a)). */
FOR_EACH_PROCESSOR
void bedl_normal_divergence(const Normal *h, int64_t count, float mean, Said s) {
    float a = h->prior, constant = 1 + log_of(a);
    float *restrict values = s.values;
    INDEPENDENT for (int64_t i = 0; i < count; i++)
        values[i] = 0.5f * (a * (s.v1[i] + soft_exp(s.evidence[i]) + mean * s.m1[i] * s.m1[i]) - constant - s.lambda[i]);
}

/* Derivatives of `factor` times a function of lambda's variance: `by_log[i]` by its logarithm, `by_sum` by itself. */
INLINE void spread_slopes(Said s, int64_t i, float by_log, float by_sum) {
    float v = larger(s.v1[i], TINY), own = exp_of(log_of(v) - s.lambda[i]) / v;
    s.by_v1[i] += by_sum + by_log * (s.v1[i] < TINY ? 0.0f : own);
    s.by_evidence[i] += by_sum * exp_of(smaller(s.evidence[i], KNEE)) + by_log * exp_of(s.evidence[i] - s.lambda[i]);
}

FOR_EACH_PROCESSOR
void bedl_normal_divergence_slopes(const Normal *h, int64_t count, float mean, float factor,
                                   const float *restrict share, Said s) {
    INDEPENDENT for (int64_t i = 0; i < count; i++) {
        float half = 0.5f * factor * share[i];
        s.by_m1[i] += 2 * half * h->prior * mean * s.m1[i];
        spread_slopes(s, i, -half, half * h->prior);
    }
}

FOR_EACH_PROCESSOR
void bedl_normal_known(const Normal *h, int64_t count, float log_signal, const float *restrict share, Said s) {
    float *restrict values = s.values, factor = h->known / h->targets;
    INDEPENDENT for (int64_t i = 0; i < count; i++) {
        float excess = s.lambda[i] - log_signal + h->known_rest;
        values[i] = (softplus(excess) - 0.5f * excess - MOST_EVIDENCE) / h->targets;
        spread_slopes(s, i, factor * share[i] * (sigmoid(excess) - 0.5f), 0.0f);
    }
}

FOR_EACH_PROCESSOR
void bedl_normal_write(const Normal *h, int64_t count, int64_t target, Said s, float *restrict by_m,
                       float *restrict by_v) {
    int64_t d = h->targets, outputs = (2 + h->learned) * d;
    INDEPENDENT for (int64_t i = 0; i < count; i++) {
        float *mi = by_m + i * outputs + target, *vi = by_v + i * outputs + target;
        mi[0] = s.by_m1[i], vi[0] = s.by_v1[i];
        vi[d] = 0.5f * (mi[d] = s.by_evidence[i] * s.evidence_slope[i]);
        if (h->learned) vi[2 * d] = 0.5f * (mi[2 * d] = s.by_noise[i] * s.noise_slope[i]);
    }
}

/* Sum of what counts: a row of share 0 is padding, whose value may be anything. */
INLINE double mean_of(int64_t count, const float *share, const float *values) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        if (share[i] > 0) sum += (double)share[i] * values[i];
    return sum;
}

INLINE void drop_padding(int64_t count, const float *share, Said s) {
    for (int64_t i = 0; i < count; i++)
        if (!(share[i] > 0)) s.by_m1[i] = s.by_v1[i] = s.by_evidence[i] = s.by_noise[i] = 0;
}

INLINE float log_of_signal(int64_t count, const float *m1) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < count; i++) mean += m1[i];
    mean /= count;
    for (int64_t i = 0; i < count; i++) square += (m1[i] - mean) * (m1[i] - mean);
    return log_of(larger(smaller((float)(square / count), 1.0f), 0.02f));
}

/* One network. m, v, by_m, by_v: (n + copies, outputs); y: (n, targets); share: of each row in means, the points' first;
 * room: ARRAYS arrays for each target and row, and one more row of y. */
static double loss_of(const Normal *h, const float *m, const float *v, const float *y, const float *share, float *by_m,
                      float *by_v, float *room) {
    int64_t n = h->n, d = h->targets, outputs = (2 + h->learned) * d, block = ARRAYS * (n + h->copies);
    double likelihood = 0, known = 0, pac = 0, unknown = 0;
    float *own = room + d * block;
    for (int64_t t = 0; t < d; t++) {
        Said at = arrays(room + t * block, n), off = arrays(room + t * block + ARRAYS * n, h->copies);
        bedl_normal_read(h, n, t, m, v, at);
        for (int64_t i = 0; i < n; i++) own[i] = y[i * d + t];
        bedl_normal_likelihood(n, own, share, at);
        likelihood += mean_of(n, share, at.values);
        if (h->known > 0) {
            bedl_normal_known(h, n, log_of_signal(n, at.m1), share, at);
            known += mean_of(n, share, at.values);
        }
        if (h->pac > 0) {
            bedl_normal_divergence(h, n, 1, at);
            pac += mean_of(n, share, at.values);
        }
        if (h->copies) {
            bedl_normal_read(h, h->copies, t, m + n * outputs, v + n * outputs, off);
            bedl_normal_divergence(h, h->copies, 0, off);
            unknown += mean_of(h->copies, share + n, off.values);
        }
    }
    double pac_root = sqrt(pac + h->pac_rest), unknown_root = sqrt((unknown < 0 ? 0 : unknown) + 1e-3);
    for (int64_t t = 0; t < d; t++) {
        Said at = arrays(room + t * block, n), off = arrays(room + t * block + ARRAYS * n, h->copies);
        if (h->pac > 0) bedl_normal_divergence_slopes(h, n, 1, 0.5 * h->pac / pac_root, share, at);
        drop_padding(n, share, at);
        bedl_normal_write(h, n, t, at, by_m, by_v);
        if (h->copies) {
            float factor = unknown < 0 ? 0 : 0.5 * h->unknown / unknown_root;
            bedl_normal_divergence_slopes(h, h->copies, 0, factor, share + n, off);
            drop_padding(h->copies, share + n, off);
            bedl_normal_write(h, h->copies, t, off, by_m + n * outputs, by_v + n * outputs);
        }
    }
    return likelihood + h->known * known + (h->pac > 0 ? h->pac * pac_root : 0) +
           (h->copies ? h->unknown * unknown_root : 0);
}

/* All networks. strengths: (rows, 5), the last five fields of Normal; weight: (rows, n), or NULL where all points count
 * the same; a copy counts as its point. */
void bedl_normal_loss(int64_t rows, int64_t n, int64_t copies, int64_t targets, int64_t learned, float log_beta,
                      float prior, const float *strengths, const float *m, const float *v, const float *y,
                      const float *weight, float *loss, float *by_m, float *by_v) {
    int64_t all = n + copies, outputs = (2 + learned) * targets;
    float *room = malloc(((ARRAYS * targets + 1) * all + all) * sizeof(float)), *share = room + (ARRAYS * targets + 1) * all;
    for (int64_t r = 0; r < rows; r++) {
        const float *at = strengths + 5 * r;
        Normal h = {n, copies, targets, learned != 0, log_beta, prior, at[0], at[1], at[2], at[3], at[4]};
        double total = 0, behind = 0;
        for (int64_t i = 0; weight && i < n; i++) total += weight[r * n + i];
        for (int64_t i = 0; weight && i < copies; i++) behind += weight[r * n + i];
        for (int64_t i = 0; i < n; i++) share[i] = weight ? weight[r * n + i] / total : 1.0 / n;
        for (int64_t i = 0; i < copies; i++) share[n + i] = weight ? weight[r * n + i] / behind : 1.0 / copies;
        loss[r] = loss_of(&h, m + r * all * outputs, v + r * all * outputs, y + r * n * targets, share,
                          by_m + r * all * outputs, by_v + r * all * outputs, room);
    }
    free(room);
}

/* The prediction: mean, noise, variance for lack of evidence and of the mean, one behind the other, each (n, targets). */
FOR_EACH_PROCESSOR
void bedl_normal_parts(int64_t n, int64_t targets, int64_t learned, float log_beta, const float *restrict m,
                       const float *restrict v, float *restrict parts) {
    int64_t outputs = (2 + learned) * targets, size = n * targets;
    for (int64_t i = 0; i < n; i++)
        for (int64_t t = 0; t < targets; t++) {
            const float *mi = m + i * outputs + t, *vi = v + i * outputs + t;
            float *to = parts + i * targets + t, evidence = mi[targets] + 0.5f * vi[targets], noise = -log_beta;
            if (learned) {
                noise = mi[2 * targets] + 0.5f * vi[2 * targets];
                noise = log_sum(MOST_NOISE - softplus(MOST_NOISE - noise), -log_beta);
                evidence = MOST_EVIDENCE - softplus(MOST_EVIDENCE - evidence);
            }
            to[0] = mi[0], to[size] = exp_of(smaller(noise, 87.0f)), to[2 * size] = soft_exp(evidence), to[3 * size] = vi[0];
        }
}
