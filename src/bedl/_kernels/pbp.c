/* Probabilistic backpropagation: points are taken in one after the other, and each changes all weights.
 *
 * Twin of bedl.methods.baselines.pbp in PyTorch, which has the formulas and the reasons; in double precision, as there. Weights of
 * all layers lie one behind the other, each layer (width, fan-in + 1), the last column those of the bias.
 */
#include <stdlib.h>

#include "arithmetic.h"

#define LANES 8      /* sums run side by side in as many variables: compilers must not reorder a single one */
#define LEAST 1e-100 /* variance of a weight */
#define MOST 1e6     /* variance of a cavity */

INLINE double sum_of(const double *lanes) {
    double sum = 0;
    for (int k = 0; k < LANES; k++) sum += lanes[k];
    return sum;
}

INLINE int finite_double(double x) { return fabs(x) < INFINITY; }

/* A layer at one point: moments of its inputs (the last of which is 1) and of its outputs, and derivatives by them. */
typedef struct {
    int64_t inputs, width;
    double *m, *v;                       /* weights */
    double *h, *u, *second;              /* means, variances, second moments of inputs */
    double *z, *spread;                  /* means and variances of outputs */
    double *by_z, *by_spread;            /* derivatives by these */
    double *by_h, *by_second, *by_square; /* sums a·m, b·v and b·(v + m²) over outputs */
} Layer;

FOR_EACH_PROCESSOR
void bedl_pbp_forward(const Layer *l) {
    int64_t n = l->inputs;
    const double *restrict h = l->h, *restrict u = l->u, *restrict second = l->second;
    for (int64_t i = 0; i < l->width; i++) {
        const double *restrict m = l->m + i * n, *restrict v = l->v + i * n;
        double means[LANES] = {0}, variances[LANES] = {0};
        int64_t j = 0;
        for (; j + LANES <= n; j += LANES)
            for (int k = 0; k < LANES; k++) {
                means[k] += m[j + k] * h[j + k];
                variances[k] += v[j + k] * second[j + k] + m[j + k] * m[j + k] * u[j + k];
            }
        for (; j < n; j++) {
            means[0] += m[j] * h[j];
            variances[0] += v[j] * second[j] + m[j] * m[j] * u[j];
        }
        l->z[i] = sum_of(means) / sqrt((double)n);
        l->spread[i] = sum_of(variances) / n;
    }
}

/* The derivatives by the inputs' moments, of the weights as they are, and then the update of the weights. */
FOR_EACH_PROCESSOR
void bedl_pbp_update(const Layer *l) {
    int64_t n = l->inputs;
    const double *restrict h = l->h, *restrict u = l->u, *restrict second = l->second;
    double *restrict by_h = l->by_h, *restrict by_second = l->by_second, *restrict by_square = l->by_square;
    memset(by_h, 0, n * sizeof(double));
    memset(by_second, 0, n * sizeof(double));
    memset(by_square, 0, n * sizeof(double));
    for (int64_t i = 0; i < l->width; i++) {
        double *restrict m = l->m + i * n, *restrict v = l->v + i * n;
        double a = l->by_z[i] / sqrt((double)n), b = l->by_spread[i] / n;
        INDEPENDENT for (int64_t j = 0; j < n; j++) {
            double mj = m[j], vj = v[j];
            by_h[j] += a * mj;
            by_second[j] += b * vj;
            by_square[j] += b * (vj + mj * mj);
            double by_m = a * h[j] + 2 * mj * b * u[j], by_v = b * second[j];
            double new_m = mj + vj * by_m, new_v = vj - vj * vj * (by_m * by_m - 2 * by_v);
            int valid = (new_v > LEAST) & finite_double(new_v) & finite_double(new_m);
            m[j] = valid ? new_m : mj;
            v[j] = valid ? new_v : vj;
        }
    }
}

INLINE double density(double r) { return 0.3989422804014327 * exp(-0.5 * r * r); }
INLINE double probability(double r) { return 0.5 * erfc(-0.7071067811865476 * r); }

/* Moments of max(z, 0), z ~ N(., .), as inputs of the next layer. */
static void rectify(const Layer *from, const Layer *to) {
    for (int64_t i = 0; i < from->width; i++) {
        double z = from->z[i], v = from->spread[i], sigma = sqrt(v), r = z / sigma, p = probability(r);
        double mean = z * p + sigma * density(r);
        mean = mean < 0 ? 0 : mean;
        double variance = v * p + mean * (z - mean);
        variance = variance < 0 ? 0 : variance;
        to->h[i] = mean, to->u[i] = variance, to->second[i] = mean * mean + variance;
    }
}

/* The derivatives by z's moments, of those by the moments of max(z, 0). */
static void rectify_back(const Layer *from, const Layer *to) {
    for (int64_t i = 0; i < from->width; i++) {
        double sigma = sqrt(from->spread[i]), r = from->z[i] / sigma, mean = to->h[i];
        double p = probability(r), pdf = density(r);
        double by_mean = to->by_h[i] + 2 * mean * to->by_second[i], by_variance = to->by_square[i];
        from->by_z[i] = by_mean * p + by_variance * 2 * mean * (1 - p);
        from->by_spread[i] = by_mean * pdf / (2 * sigma) + by_variance * (p - mean * pdf / sigma);
    }
}

/* log Z and its derivatives by the outputs' moments, and the new posterior of each target's noise. */
static void look_at_targets(const Layer *last, const double *y, double *shape, double *rate) {
    for (int64_t t = 0; t < last->width; t++) {
        double a = shape[t], b = rate[t], off = y[t] - last->z[t], log_z[3], spread = 0;
        for (int k = 0; k < 3; k++) {
            double s = last->spread[t] + b / (a + k - 1);
            log_z[k] = -0.5 * (log(s) + off * off / s);
            spread = k == 0 ? s : spread;
        }
        last->by_z[t] = off / spread;
        last->by_spread[t] = 0.5 * (off * off / spread - 1) / spread;
        double new_a = 1 / (exp(log_z[2] - 2 * log_z[1] + log_z[0]) * (a + 1) / a - 1);
        double new_b = 1 / (exp(log_z[2] - log_z[1]) * (a + 1) / b - exp(log_z[1] - log_z[0]) * a / b);
        if (new_a > 1 && new_b > 0 && finite_double(new_a) && finite_double(new_b)) shape[t] = new_a, rate[t] = new_b;
    }
}

/* One pass over points. sizes: layers + 1 of them, features first; x: (points, features), y: (points, targets); order:
 * of the points; m, v: all weights; shape, rate: (targets,), of the noise precisions. */
void bedl_pbp_pass(int64_t layers, const int64_t *sizes, int64_t points, const int64_t *order, const double *x,
                   const double *y, double *m, double *v, double *shape, double *rate) {
    int64_t needed = 0, place = 0, features = sizes[0], targets = sizes[layers];
    for (int64_t i = 0; i < layers; i++) needed += 6 * (sizes[i] + 1) + 4 * sizes[i + 1];
    double *room = calloc(needed, sizeof(double)), *next = room;
    Layer *all = malloc(layers * sizeof(Layer));
    for (int64_t i = 0; i < layers; i++) {
        Layer *l = all + i;
        l->inputs = sizes[i] + 1, l->width = sizes[i + 1];
        l->m = m + place, l->v = v + place;
        place += l->inputs * l->width;
        double **of_inputs[] = {&l->h, &l->u, &l->second, &l->by_h, &l->by_second, &l->by_square};
        double **of_outputs[] = {&l->z, &l->spread, &l->by_z, &l->by_spread};
        for (int k = 0; k < 6; k++) *of_inputs[k] = next, next += l->inputs;
        for (int k = 0; k < 4; k++) *of_outputs[k] = next, next += l->width;
        l->h[sizes[i]] = l->second[sizes[i]] = 1; /* what the bias sees */
    }
    for (int64_t i = 0; i < points; i++) {
        const double *xi = x + order[i] * features;
        for (int64_t j = 0; j < features; j++) all->h[j] = xi[j], all->second[j] = xi[j] * xi[j];
        for (int64_t k = 0; k < layers; k++) {
            if (k) rectify(all + k - 1, all + k);
            bedl_pbp_forward(all + k);
        }
        look_at_targets(all + layers - 1, y + order[i] * targets, shape, rate);
        for (int64_t k = layers - 1; k >= 0; k--) {
            bedl_pbp_update(all + k);
            if (k) rectify_back(all + k - 1, all + k);
        }
    }
    free(all);
    free(room);
}

/* One round over the factors of the prior, each in turn, because all share lambda ~ Gamma(both[0], both[1]). n weights and
 * the natural parameters of their factors: linear, precision, shape, rate. */
void bedl_pbp_refine(int64_t n, double *m, double *v, double *linear, double *precision, double *factor_shape,
                     double *factor_rate, double *both) {
    for (int64_t i = 0; i < n; i++) {
        double p = 1 / v[i] - precision[i], l = m[i] / v[i] - linear[i];
        double shape = both[0] - factor_shape[i], rate = both[1] - factor_rate[i];
        if (!(p > 1 / MOST && rate > 0 && shape > 1)) continue;
        double mean = l / p, variance = 1 / p, log_z[3], spread = 0;
        for (int k = 0; k < 3; k++) {
            double s = variance + rate / (shape + k - 1);
            log_z[k] = -0.5 * (log(s) + mean * mean / s);
            spread = k == 0 ? s : spread;
        }
        double by_mean = -mean / spread, by_variance = 0.5 * (mean * mean / spread - 1) / spread;
        double new_m = mean + variance * by_mean;
        double new_v = variance - variance * variance * (by_mean * by_mean - 2 * by_variance);
        double a = exp(log_z[2] - 2 * log_z[1] + log_z[0]) * (shape + 1) / shape - 1;
        double b = exp(log_z[2] - log_z[1]) * (shape + 1) / rate - exp(log_z[1] - log_z[0]) * shape / rate;
        if (!(new_v > 0 && a > 0 && b > 0 && finite_double(a) && finite_double(b))) continue;
        precision[i] = 1 / new_v - p, linear[i] = new_m / new_v - l;
        factor_shape[i] = 1 / a - shape, factor_rate[i] = 1 / b - rate;
        both[0] = 1 / a, both[1] = 1 / b;
        m[i] = new_m, v[i] = new_v;
    }
}
