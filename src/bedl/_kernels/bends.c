/* Moments of activations made of pieces: ELU, hardswish, hardtanh. As in bedl.moments.rules.activations and
 * bedl.moments.rules.numerical, which have them for other precisions and devices.
 *
 * For small variances, f is the piece that m lies on, and a correction on the tail of the law that lies on another;
 * moments of that tail, E[(x - k)_+^n] = sigma^n T_n, follow from each other: T_{n+1} = -r T_n + n T_{n-1}.
 */
#include "table.h"
#include "tails.h"

#define WORTH_THREADS 32768
#define AT_A_TIME 4096
#define SMALL 0.25f /* sigma below which ELU is taken as a series */
#define TERMS 10

typedef struct {
    const float *fit; /* of bedl.moments.numerics */
    float unit, far;
} Law;

/* e^x - 1, with all digits next to 0. */
INLINE float expm1_of(float x) {
    float near = larger(smaller(x, 0.34f), -0.34f), series = 1;
    UNROLLED for (int n = 8; n > 1; n--) series = 1 + near * (1.0f / n) * series;
    return fabsf(x) < 0.34f ? near * series : exp_of(smaller(x, 87.0f)) - 1;
}

/* E[e^{nx}; x < 0], n > 0: phi(r) R(r + n sigma), or what is left of the whole. */
INLINE float negative_of(float m, float v, float r, float sigma, float pdf, float n, Law law) {
    float x = r + n * sigma, ratio = pdf * mills_of(smaller(fabsf(x), 1e9f), law.fit, law.unit);
    return x >= 0 ? ratio : larger(exp_of(smaller(n * m + 0.5f * n * n * v, 0.0f)) - ratio, 0.0f);
}

FOR_EACH_PROCESSOR
void bedl_elu_piece(int64_t n, const float *restrict m, const float *restrict v, float *restrict mean,
                    float *restrict variance, float alpha, const float *restrict coefficients, float unit, float far) {
    float fit[FIT];
    memcpy(fit, coefficients, sizeof fit);
    Law law = {fit, unit, far};
    for (int64_t i = 0; i < n; i++) {
        float sigma = sqrtf(larger(v[i], 0.0f)), x = distance_of(m[i], sigma, far), r = m[i] < 0 ? -x : x;
        float pdf, upper, t1, t2;
        tail_of(x, fit, unit, &pdf, &upper, &t1, &t2);
        float above = larger(m[i], 0.0f) + sigma * t1;
        float variance_above = v[i] * (m[i] < 0 ? t2 - t1 * t1 : 1 - t2 - t1 * (t1 + 2 * x));
        /* f = x_+ - alpha y, y = (1 - e^x)_+, or e^x alone far below 0 */
        float first = negative_of(m[i], v[i], r, sigma, pdf, 1, law);
        float second = negative_of(m[i], v[i], r, sigma, pdf, 2, law);
        float lower = m[i] < 0 ? 1 - upper : upper, higher = m[i] < 0 ? upper : 1 - upper;
        float b = lower - first;
        float bent = r >= -1 ? lower - 2 * first + second - b * b : second + higher - (first + higher) * (first + higher);
        float mean_wide = above - alpha * b;
        float variance_wide = variance_above + alpha * alpha * larger(bent, 0.0f) + 2 * alpha * (above * b);
        /* series over the tail on the other side of 0 */
        float s = smaller(sigma, SMALL), step = m[i] < 0 ? s : -s, power = step * step, before = t1, now = t2;
        float e = 0, d = 0, w = 0; /* E of e^x - 1 - x, (e^x - 1)^2, x (e^x - 1) */
        float factor = 0.5f;
        UNROLLED for (int k = 2; k <= TERMS; k++) {
            float term = factor * power * now, next = -x * now + k * before;
            e += term;
            d += ((float)(1 << k) - 2) * term;
            w += k * term;
            before = now;
            now = next;
            power *= step;
            factor /= k + 1;
        }
        float l1 = step * t1, l2 = s * s * t2;
        float near_v = smaller(v[i], SMALL * SMALL), grown = smaller(m[i], 0.0f) + 0.5f * near_v;
        float level = exp_of(smaller(grown, 1.0f)), h = (1 - alpha) * l1 - alpha * e;
        float c = l1 + w - alpha * (d + l1 + e), h2 = l2 - 2 * alpha * w + alpha * alpha * d;
        float mean_below = alpha * expm1_of(grown) + h;
        float variance_below = alpha * alpha * level * (level * expm1_of(near_v)) + 2 * alpha * (c - level * h) + h2 - h * h;
        float own = -(l1 + e);
        float mean_above = above - alpha * own;
        float bent_above = variance_above + alpha * alpha * (d - own * own) + 2 * alpha * (above * own);
        float mean_small = m[i] < 0 ? mean_below : mean_above, variance_small = m[i] < 0 ? variance_below : bent_above;
        mean[i] = sigma < SMALL ? mean_small : mean_wide;
        variance[i] = larger(sigma < SMALL ? variance_small : variance_wide, 0.0f);
    }
}

FOR_EACH_PROCESSOR
void bedl_elu_gradients_piece(int64_t n, const float *restrict m, const float *restrict v, const float *restrict mean,
                              const float *restrict by_mean, const float *restrict by_variance, float *restrict by_m,
                              float *restrict by_v, float alpha, const float *restrict coefficients, float unit,
                              float far) {
    float fit[FIT];
    memcpy(fit, coefficients, sizeof fit);
    Law law = {fit, unit, far};
    for (int64_t i = 0; i < n; i++) {
        float sigma = sqrtf(larger(v[i], 0.0f)), x = distance_of(m[i], sigma, far), r = m[i] < 0 ? -x : x;
        float pdf, upper, t1, t2;
        tail_of(x, fit, unit, &pdf, &upper, &t1, &t2);
        float above = larger(m[i], 0.0f) + sigma * t1, higher = m[i] < 0 ? upper : 1 - upper;
        float density = v[i] <= 0 ? 0.0f : pdf / larger(sigma, 1e-19f);
        float first = negative_of(m[i], v[i], r, sigma, pdf, 1, law);
        float second = negative_of(m[i], v[i], r, sigma, pdf, 2, law);
        float mean_m = higher + alpha * first, mean_v = 0.5f * (alpha * first + (1 - alpha) * density);
        float variance_m = 2 * (above + alpha * alpha * (second - first) - mean[i] * mean_m);
        float variance_v = higher + alpha * alpha * (2 * second - first) - 2 * mean[i] * mean_v;
        by_m[i] = by_mean[i] * mean_m + by_variance[i] * variance_m;
        by_v[i] = by_mean[i] * mean_v + by_variance[i] * variance_v;
    }
}

/* The tail of a law beyond one kink, at a distance of x standard deviations: E[.^n] of what lies beyond, n = 0 to 4, and
 * the density of the kink itself. */
typedef struct {
    float power[5], density;
} Tail;

INLINE Tail tail_beyond(float distance, float v, Law law) {
    Tail tail;
    float sigma = sqrtf(larger(v, 0.0f)), x = distance_of(distance, sigma, law.far), pdf, upper, t1, t2;
    tail_of(x, law.fit, law.unit, &pdf, &upper, &t1, &t2);
    float there = x < law.far ? 1.0f : 0.0f; /* beyond there is nothing, so that products with m are 0 */
    pdf *= there;
    upper *= there;
    t1 *= there;
    t2 *= there;
    float t3 = larger(2 * t1 - x * t2, 0.0f), t4 = larger(3 * t2 - x * t3, 0.0f);
    tail.power[0] = upper;
    tail.power[1] = sigma * t1;
    tail.power[2] = v * t2;
    tail.power[3] = v * sigma * t3;
    tail.power[4] = v * v * t4;
    tail.density = v <= 0 ? 0.0f : pdf / larger(sigma, 1e-19f);
    return tail;
}

/* Hardswish for sigma < 1: 0, x(x + 3)/6, or x. With p = x + 3 or x - 3 beyond a kink, the pieces differ by
 * (p^2 - 3p)/6 seen from outside, and by -(p^2 + 3p)/6 seen from inside. */
INLINE void hardswish_of(float m, float v, Law law, float *mean, float *variance) {
    Tail low = tail_beyond(m + 3, v, law), high = tail_beyond(m - 3, v, law);
    const float *a = m < -3 ? low.power : high.power;
    float c = (a[2] - 3 * a[1]) / 6, cc = (a[4] - 6 * a[3] + 9 * a[2]) / 36, pc = (a[3] - 3 * a[2]) / 6;
    float g = (low.power[2] + 3 * low.power[1]) / 6, h = (high.power[2] + 3 * high.power[1]) / 6;
    float gg = (low.power[4] + 6 * low.power[3] + 9 * low.power[2]) / 36;
    float hh = (high.power[4] + 6 * high.power[3] + 9 * high.power[2]) / 36;
    float ph = (high.power[3] + 3 * high.power[2]) / 6, q = (m * (m + 3) + v) / 6, slope = (2 * m + 3) / 6;
    float inside = v * (slope * slope + v / 18) - gg + (2 * q - g) * g - hh - 2 * ph + (2 * q - 6 - h) * h - 2 * g * h;
    float above = v + 2 * ((3 - m) * c - pc) + cc - c * c, below = cc - c * c;
    *mean = m < -3 ? c : m > 3 ? m + c : q - g - h;
    *variance = larger(m < -3 ? below : m > 3 ? above : inside, 0.0f);
}

INLINE void hardswish_slopes_of(float m, float v, Law law, float *mean_m, float *mean_v, float *variance_m,
                                float *variance_v) {
    Tail low = tail_beyond(m + 3, v, law), high = tail_beyond(m - 3, v, law);
    const float *l = low.power, *u = high.power;
    /* outside: d/dm E p^n = n E p^(n - 1), d/dv = n (n - 1)/2 E p^(n - 2); p grows with x below, falls above */
    const float *a = m < -3 ? l : u;
    float sign = m < -3 ? 1.0f : -1.0f, density = m < -3 ? low.density : high.density;
    float c = (a[2] - 3 * a[1]) / 6, c_m = sign * (2 * a[1] - 3 * a[0]) / 6, c_v = (a[0] - 1.5f * density) / 6;
    float cc_m = sign * (4 * a[3] - 18 * a[2] + 18 * a[1]) / 36, cc_v = (6 * a[2] - 18 * a[1] + 9 * a[0]) / 36;
    float pc_m = sign * (3 * a[2] - 6 * a[1]) / 6, pc_v = (3 * a[1] - 3 * a[0]) / 6;
    float below_m = cc_m - 2 * c * c_m, below_v = cc_v - 2 * c * c_v;
    float above_m = 2 * ((3 - m) * c_m - c - pc_m) + below_m, above_v = 1 + 2 * ((3 - m) * c_v - pc_v) + below_v;
    /* inside */
    float g = (l[2] + 3 * l[1]) / 6, g_m = -(2 * l[1] + 3 * l[0]) / 6, g_v = (l[0] + 1.5f * low.density) / 6;
    float h = (u[2] + 3 * u[1]) / 6, h_m = (2 * u[1] + 3 * u[0]) / 6, h_v = (u[0] + 1.5f * high.density) / 6;
    float gg_m = -(4 * l[3] + 18 * l[2] + 18 * l[1]) / 36, gg_v = (6 * l[2] + 18 * l[1] + 9 * l[0]) / 36;
    float hh_m = (4 * u[3] + 18 * u[2] + 18 * u[1]) / 36, hh_v = (6 * u[2] + 18 * u[1] + 9 * u[0]) / 36;
    float ph_m = (3 * u[2] + 6 * u[1]) / 6, ph_v = (3 * u[1] + 3 * u[0]) / 6;
    float q = (m * (m + 3) + v) / 6, slope = (2 * m + 3) / 6, q_v = 1.0f / 6;
    float inside_m = 2 * v * slope / 3 - gg_m + 2 * (slope * g + (q - g) * g_m) - hh_m - 2 * ph_m +
                     2 * (slope * h + (q - 3 - h) * h_m) - 2 * (g_m * h + g * h_m);
    float inside_v = slope * slope + v / 9 - gg_v + 2 * (q_v * g + (q - g) * g_v) - hh_v - 2 * ph_v +
                     2 * (q_v * h + (q - 3 - h) * h_v) - 2 * (g_v * h + g * h_v);
    *mean_m = m < -3 ? c_m : m > 3 ? 1 + c_m : slope - g_m - h_m;
    *mean_v = m < -3 || m > 3 ? c_v : q_v - g_v - h_v;
    *variance_m = m < -3 ? below_m : m > 3 ? above_m : inside_m;
    *variance_v = m < -3 ? below_v : m > 3 ? above_v : inside_v;
}

/* What is cut off at the ends of an interval, seen from the end that is nearer: the law beyond it, and beyond the other. */
typedef struct {
    float height, near, near_1, near_2, far, far_1, far_2, near_density, far_density, sigma;
    int mirrored;
} Ends;

INLINE Ends ends_of(float m, float v, float low, float high, Law law) {
    Ends e;
    float width = high - low, pdf, other;
    e.sigma = sqrtf(larger(v, 0.0f));
    e.mirrored = m > 0.5f * (low + high);
    e.height = e.mirrored ? high - m : m - low;
    tail_of(distance_of(e.height, e.sigma, law.far), law.fit, law.unit, &pdf, &e.near, &e.near_1, &e.near_2);
    tail_of(distance_of(width - e.height, e.sigma, law.far), law.fit, law.unit, &other, &e.far, &e.far_1, &e.far_2);
    float within = law.far * e.sigma; /* beyond there is nothing, so that products with m are 0 */
    e.near_density = fabsf(e.height) < within ? pdf / larger(e.sigma, 1e-19f) : 0.0f;
    e.far_density = fabsf(width - e.height) < within ? other / larger(e.sigma, 1e-19f) : 0.0f;
    return e;
}

INLINE int some_beyond(float limit, int64_t n, const float *v) {
    float most = 0;
    for (int64_t i = 0; i < n; i++) most = larger(most, v[i]);
    return !(most < limit);
}

/* min(max(x, low), high): for sigma up to half the width, two rectifications; where those would cancel, the density
 * between the ends is so flat that 12 of Gauss's nodes suffice. */
FOR_EACH_PROCESSOR
void bedl_clipped_piece(int64_t n, const float *m, const float *v, float *mean, float *variance, float low, float high,
                        const float *nodes, const float *coefficients, float unit, float far) {
    float fit[FIT], width = high - low, limit = 0.25f * width * width;
    memcpy(fit, coefficients, sizeof fit);
    Law law = {fit, unit, far};
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t count = n - start < BLOCK ? n - start : BLOCK;
        const float *restrict own = m + start, *restrict spread = v + start;
        float *restrict to = mean + start, *restrict to_variance = variance + start;
        for (int64_t i = 0; i < count; i++) {
            Ends e = ends_of(own[i], spread[i], low, high, law);
            float x = distance_of(e.height, e.sigma, far), beyond = e.sigma * e.near_1, over = e.sigma * e.far_1;
            float first = larger(e.height, 0.0f) + beyond, above = first - over;
            float variance_first = spread[i] * (e.height < 0 ? e.near_2 - e.near_1 * e.near_1
                                                             : 1 - e.near_2 - e.near_1 * (e.near_1 + 2 * x));
            float cut = spread[i] * (e.far_2 - e.far_1 * e.far_1) + 2 * over * (width - above);
            float inside = e.mirrored ? own[i] + over - beyond : own[i] + beyond - over;
            float outside = e.mirrored ? high - above : low + above;
            to[i] = e.height >= 0 ? inside : outside;
            to_variance[i] = larger(variance_first - cut, 0.0f);
        }
        if (!some_beyond(limit, count, spread)) continue;
        for (int64_t i = 0; i < count; i++) {
            Ends e = ends_of(own[i], spread[i], low, high, law);
            float inverse = 1 / larger(e.sigma, 0.5f * width), one = width * e.far, two = width * width * e.far;
            for (int k = 0; k < 12; k++) {
                float x = 0.5f * width * (1 + nodes[2 * k]), z = smaller(larger((x - e.height) * inverse, -far), far);
                float mass = 0.5f * width * nodes[2 * k + 1] * 0.39894228f * exp_of(-0.5f * z * z) * inverse;
                one += mass * x;
                two += mass * x * x;
            }
            to[i] = spread[i] <= limit ? to[i] : e.mirrored ? high - one : low + one;
            to_variance[i] = spread[i] <= limit ? to_variance[i] : larger(two - one * one, 0.0f);
        }
    }
}

/* With A the mean over the nearer end and P the probability of the interval: dA/dm = P, dV/dv = P - A phi_0 -
 * (width - A) phi_1, the densities of the ends; in wide laws all this is next to nothing, and summed over the nodes. */
FOR_EACH_PROCESSOR
void bedl_clipped_gradients_piece(int64_t n, const float *m, const float *v, const float *mean, const float *by_mean,
                                  const float *by_variance, float *by_m, float *by_v, float low, float high,
                                  const float *nodes, const float *coefficients, float unit, float far) {
    float fit[FIT], width = high - low, limit = 0.25f * width * width;
    memcpy(fit, coefficients, sizeof fit);
    Law law = {fit, unit, far};
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t count = n - start < BLOCK ? n - start : BLOCK;
        const float *restrict own = m + start, *restrict spread = v + start, *restrict average = mean + start;
        const float *restrict by = by_mean + start, *restrict by_spread = by_variance + start;
        float *restrict to_m = by_m + start, *restrict to_v = by_v + start;
        for (int64_t i = 0; i < count; i++) {
            Ends e = ends_of(own[i], spread[i], low, high, law);
            float below = e.height < 0 ? 1 - e.near : e.near, sign = e.mirrored ? -1.0f : 1.0f;
            float a = e.mirrored ? high - average[i] : average[i] - low, within = e.height < 0 ? e.near - e.far : 1 - e.near - e.far;
            float mean_v = 0.5f * sign * (e.near_density - e.far_density);
            float variance_m = 2 * sign * (a * below - (width - a) * e.far);
            float variance_v = within - a * e.near_density - (width - a) * e.far_density;
            to_m[i] = by[i] * within + by_spread[i] * variance_m;
            to_v[i] = by[i] * mean_v + by_spread[i] * variance_v;
        }
        if (!some_beyond(limit, count, spread)) continue;
        for (int64_t i = 0; i < count; i++) {
            Ends e = ends_of(own[i], spread[i], low, high, law);
            float sign = e.mirrored ? -1.0f : 1.0f, inverse = 1 / larger(e.sigma, 0.5f * width);
            float half = 0.5f * inverse * inverse, grown = width * e.far_density * (width - e.height) * half;
            float within = 0, inside = 0, one_v = grown, two_v = width * grown;
            for (int k = 0; k < 12; k++) {
                float x = 0.5f * width * (1 + nodes[2 * k]), z = smaller(larger((x - e.height) * inverse, -far), far);
                float mass = 0.5f * width * nodes[2 * k + 1] * 0.39894228f * exp_of(-0.5f * z * z) * inverse;
                float change = mass * (z * z - 1) * half;
                within += mass;
                inside += mass * x;
                one_v += change * x;
                two_v += change * x * x;
            }
            float a = inside + width * e.far;
            float wide_m = by[i] * within + by_spread[i] * (2 * sign * (inside - a * within));
            float wide_v = by[i] * (sign * one_v) + by_spread[i] * (two_v - 2 * a * one_v);
            to_m[i] = spread[i] <= limit ? to_m[i] : wide_m;
            to_v[i] = spread[i] <= limit ? to_v[i] : wide_v;
        }
    }
}

/* `table` holds sigma >= 1. */
FOR_EACH_PROCESSOR
void bedl_hardswish_piece(int64_t n, const float *m, const float *v, float *mean, float *variance, const float *table,
                          const float *coefficients, float unit, float far) {
    float fit[FIT], wide[BLOCK], wide_variance[BLOCK];
    memcpy(fit, coefficients, sizeof fit);
    Law law = {fit, unit, far};
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t count = n - start < BLOCK ? n - start : BLOCK;
        const float *restrict own = m + start, *restrict spread = v + start;
        float *restrict to = mean + start, *restrict to_variance = variance + start;
        for (int64_t i = 0; i < count; i++) hardswish_of(own[i], spread[i], law, to + i, to_variance + i);
        if (!some_beyond(1, count, spread)) continue;
        look_up(count, own, spread, to, wide, wide_variance, table, 1.0f, 1);
        for (int64_t i = 0; i < count; i++) {
            to[i] = spread[i] < 1 ? to[i] : wide[i];
            to_variance[i] = spread[i] < 1 ? to_variance[i] : wide_variance[i];
        }
    }
}

FOR_EACH_PROCESSOR
void bedl_hardswish_gradients_piece(int64_t n, const float *m, const float *v, const float *by_mean,
                                    const float *by_variance, float *by_m, float *by_v, const float *table,
                                    const float *coefficients, float unit, float far) {
    float fit[FIT], wide_m[BLOCK], wide_v[BLOCK];
    memcpy(fit, coefficients, sizeof fit);
    Law law = {fit, unit, far};
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t count = n - start < BLOCK ? n - start : BLOCK;
        const float *restrict own = m + start, *restrict spread = v + start;
        const float *restrict by = by_mean + start, *restrict by_spread = by_variance + start;
        float *restrict to_m = by_m + start, *restrict to_v = by_v + start;
        for (int64_t i = 0; i < count; i++) {
            float mean_m, mean_v, variance_m, variance_v;
            hardswish_slopes_of(own[i], spread[i], law, &mean_m, &mean_v, &variance_m, &variance_v);
            to_m[i] = by[i] * mean_m + by_spread[i] * variance_m;
            to_v[i] = by[i] * mean_v + by_spread[i] * variance_v;
        }
        if (!some_beyond(1, count, spread)) continue;
        look_up_slopes(count, own, spread, by, by_spread, wide_m, wide_v, table, 1.0f, 1);
        for (int64_t i = 0; i < count; i++) {
            to_m[i] = spread[i] < 1 ? to_m[i] : wide_m[i];
            to_v[i] = spread[i] < 1 ? to_v[i] : wide_v[i];
        }
    }
}

#define IN_PIECES(call)                                                                                               \
    _Pragma("omp parallel for if (n >= WORTH_THREADS)") for (int64_t i = 0; i < n; i += AT_A_TIME) {                  \
        int64_t count = n - i < AT_A_TIME ? n - i : AT_A_TIME;                                                        \
        call;                                                                                                         \
    }

void bedl_elu(int64_t n, const float *m, const float *v, float *mean, float *variance, float alpha, const float *fit,
              float unit, float far) {
    IN_PIECES(bedl_elu_piece(count, m + i, v + i, mean + i, variance + i, alpha, fit, unit, far))
}

void bedl_elu_gradients(int64_t n, const float *m, const float *v, const float *mean, const float *by_mean,
                        const float *by_variance, float *by_m, float *by_v, float alpha, const float *fit, float unit,
                        float far) {
    IN_PIECES(bedl_elu_gradients_piece(count, m + i, v + i, mean + i, by_mean + i, by_variance + i, by_m + i, by_v + i,
                                       alpha, fit, unit, far))
}

void bedl_hardswish(int64_t n, const float *m, const float *v, float *mean, float *variance, const float *table,
                    const float *fit, float unit, float far) {
    IN_PIECES(bedl_hardswish_piece(count, m + i, v + i, mean + i, variance + i, table, fit, unit, far))
}

void bedl_hardswish_gradients(int64_t n, const float *m, const float *v, const float *by_mean,
                              const float *by_variance, float *by_m, float *by_v, const float *table, const float *fit,
                              float unit, float far) {
    IN_PIECES(bedl_hardswish_gradients_piece(count, m + i, v + i, by_mean + i, by_variance + i, by_m + i, by_v + i,
                                             table, fit, unit, far))
}

void bedl_clipped(int64_t n, const float *m, const float *v, float *mean, float *variance, float low, float high,
                  const float *nodes, const float *fit, float unit, float far) {
    IN_PIECES(bedl_clipped_piece(count, m + i, v + i, mean + i, variance + i, low, high, nodes, fit, unit, far))
}

void bedl_clipped_gradients(int64_t n, const float *m, const float *v, const float *mean, const float *by_mean,
                            const float *by_variance, float *by_m, float *by_v, float low, float high,
                            const float *nodes, const float *fit, float unit, float far) {
    IN_PIECES(bedl_clipped_gradients_piece(count, m + i, v + i, mean + i, by_mean + i, by_variance + i, by_m + i,
                                           by_v + i, low, high, nodes, fit, unit, far))
}
