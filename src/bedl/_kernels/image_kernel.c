/* Covariances of infinitely wide convolutional ReLU networks, for many pairs of images.
 *
 * Twin of bedl.methods.baselines.wide_kernels.ImageKernel in PyTorch, which has the formulas; in double precision. A network is a
 * list of steps that work on a map of covariances, one for each place of the images. LANES pairs go through it side by
 * side, numbers of one place next to each other, so that everything between the pixels and the result stays in a cache.
 * Networks' variances depend on one image each: they go through it once, before all pairs, and leave their roots.
 */
#include <stdlib.h>

#include "arithmetic.h"

#define LANES 16
#define DEEPEST 16 /* maps that wait at a time: residual blocks inside of each other */

enum { RELU, CONVOLUTION, MEAN, KEEP, SWAP, ADD };

/* size, stride: of a convolution's window; weight, bias: of convolutions and means. */
typedef struct {
    int64_t steps;
    const int64_t *kind, *size, *stride;
    const double *weight, *bias;
} Program;

/* What ReLU looks up, place behind place: roots of the variances of an image and of LANES others; or where to put them. */
typedef struct {
    const double *first, *second;
    double *record;
    int64_t apart; /* from one place to the next in `second` and `record` */
} Roots;

/* (asin(sqrt z)/sqrt z - 1)/z for z <= 1/4, interpolated at Chebyshev's nodes; error 1e-16. */
static const double ARC[13] = {0.16666666666666669,  0.07499999999998433,  0.04464285714635543,  0.030381944138531247,
                               0.02237217294214989,  0.017352392720869973, 0.013971212973552933, 0.011479177415184906,
                               0.01032281435018578,  0.005457506718640358, 0.01740087944269402,  -0.014851887071247204,
                               0.028757851367421566};
#define PI 3.141592653589793

/* sin t + (pi - t) cos t of t = arccos(cosine). */
INLINE double arc_cosine(double cosine) {
    double size = fabs(cosine), outer = 0.5 * (1 - size), square = cosine * cosine;
    int near = size < 0.5;
    double z = near ? square : outer, root = near ? cosine : sqrt(outer), p = ARC[12];
    UNROLLED for (int i = 11; i >= 0; i--) p = p * z + ARC[i];
    double arc = root + root * z * p; /* arcsine of the root */
    double beyond = near ? 0.5 * PI + arc : cosine > 0 ? PI - 2 * arc : 2 * arc; /* pi - t */
    return sqrt((1 - cosine) * (1 + cosine)) + beyond * cosine;
}

FOR_EACH_PROCESSOR
void bedl_image_relu(int64_t places, double *restrict map, Roots roots) {
    for (int64_t p = 0; p < places; p++) {
        double *restrict c = map + p * LANES;
        const double *restrict second = roots.second + p * roots.apart;
        double first = roots.first[p];
        for (int k = 0; k < LANES; k++) {
            double scale = first * second[k];
            scale = scale < 2.2250738585072014e-308 ? 2.2250738585072014e-308 : scale;
            double cosine = c[k] / scale;
            cosine = cosine > 1 ? 1 : cosine;
            cosine = cosine < -1 ? -1 : cosine;
            c[k] = scale * arc_cosine(cosine) / (2 * PI);
        }
    }
}

static void record(int64_t places, double *map, Roots roots) {
    for (int64_t p = 0; p < places; p++)
        for (int k = 0; k < LANES; k++) {
            roots.record[p * roots.apart + k] = sqrt(map[p * LANES + k]);
            map[p * LANES + k] /= 2;
        }
}

/* Sums over windows along one direction: `count` rows of `width` numbers, `blocks` times. Zeros stand outside. */
FOR_EACH_PROCESSOR
void bedl_image_sums(int64_t blocks, int64_t count, int64_t width, int64_t size, int64_t stride, double factor,
                     double bias, const double *restrict from, double *restrict to) {
    int64_t made = (count - 1) / stride + 1, front = (size - 1) / 2;
    for (int64_t b = 0; b < blocks; b++, from += count * width, to += made * width)
        for (int64_t r = 0; r < made; r++) {
            int64_t start = r * stride - front, end = start + size;
            start = start < 0 ? 0 : start, end = end > count ? count : end;
            double *restrict row = to + r * width;
            memset(row, 0, width * sizeof(double));
            for (int64_t s = start; s < end; s++)
                for (int64_t i = 0; i < width; i++) row[i] += from[s * width + i];
            for (int64_t i = 0; i < width; i++) row[i] = row[i] * factor + bias;
        }
}

/* Through all steps; the map is the first of DEEPEST + 2, each as large as the images, and ends in the one returned. */
static const double *through(const Program *program, int64_t height, int64_t width, double *room, Roots roots) {
    int64_t size = height * width * LANES, waiting = 0, heights[DEEPEST], widths[DEEPEST];
    double *maps[DEEPEST + 2];
    for (int i = 0; i < DEEPEST + 2; i++) maps[i] = room + i * size;
    double **map = maps + DEEPEST, **spare = maps + DEEPEST + 1;
    for (int64_t i = 0; i < program->steps; i++) {
        double weight = program->weight[i], bias = program->bias[i], *swapped = *map;
        int64_t places = height * width, window = program->size[i], stride = program->stride[i], other;
        switch (program->kind[i]) {
        case RELU:
            if (roots.record) record(places, *map, roots), roots.record += places * roots.apart;
            else bedl_image_relu(places, *map, roots), roots.first += places, roots.second += places * roots.apart;
            break;
        case CONVOLUTION: /* rows into the spare map, columns back */
            bedl_image_sums(1, height, width * LANES, window, stride, 1, 0, *map, *spare);
            height = (height - 1) / stride + 1;
            bedl_image_sums(height, width, LANES, window, stride, weight / (window * window), bias, *spare, *map);
            width = (width - 1) / stride + 1;
            break;
        case MEAN:
            bedl_image_sums(1, 1, LANES, 1, 1, 0, 0, *map, *spare);
            for (int64_t p = 0; p < places; p++)
                for (int k = 0; k < LANES; k++) (*spare)[k] += (*map)[p * LANES + k];
            for (int k = 0; k < LANES; k++) (*map)[k] = (*spare)[k] * (weight / places) + bias;
            height = width = 1;
            break;
        case KEEP:
            memcpy(maps[waiting], *map, places * LANES * sizeof(double));
            heights[waiting] = height, widths[waiting++] = width;
            break;
        case SWAP:
            *map = maps[waiting - 1], maps[waiting - 1] = swapped;
            other = height, height = heights[waiting - 1], heights[waiting - 1] = other;
            other = width, width = widths[waiting - 1], widths[waiting - 1] = other;
            break;
        case ADD:
            waiting--;
            for (int64_t j = 0; j < places * LANES; j++) (*map)[j] += maps[waiting][j];
            break;
        }
    }
    return *map;
}

static double *room_for(int64_t places) { return malloc((DEEPEST + 2) * places * LANES * sizeof(double)); }

/* Variances: squares (places, n) of the pixels, averaged over channels, to their roots at each ReLU, (places of all, n),
 * and to the last ones, (n,). n: a multiple of LANES. */
void bedl_image_variances(int64_t steps, const int64_t *kind, const int64_t *size, const int64_t *stride,
                          const double *weight, const double *bias, int64_t height, int64_t width, int64_t n,
                          const double *squares, double *roots, double *last) {
    Program program = {steps, kind, size, stride, weight, bias};
    int64_t places = height * width;
    double *room = room_for(places), *map = room + DEEPEST * places * LANES;
    for (int64_t j = 0; j < n; j += LANES) {
        for (int64_t p = 0; p < places; p++) memcpy(map + p * LANES, squares + p * n + j, LANES * sizeof(double));
        Roots at = {NULL, NULL, roots + j, n};
        memcpy(last + j, through(&program, height, width, room, at), LANES * sizeof(double));
    }
    free(room);
}

/* Covariances of n images with m others, m a multiple of LANES; a symmetric matrix is not filled below its diagonal.
 * x: (n, channels, places); z: (channels, places, m); first: (n, places of all ReLUs), second: (places of all, m). */
void bedl_image_covariances(int64_t steps, const int64_t *kind, const int64_t *size, const int64_t *stride,
                            const double *weight, const double *bias, int64_t channels, int64_t height, int64_t width,
                            int64_t n, int64_t m, int64_t looked_up, int64_t symmetric, const double *x, const double *z,
                            const double *first, const double *second, double *covariances) {
    Program program = {steps, kind, size, stride, weight, bias};
    int64_t places = height * width;
#pragma omp parallel
    {
        double *room = room_for(places), *map = room + DEEPEST * places * LANES;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = symmetric ? i / LANES * LANES : 0; j < m; j += LANES) {
                for (int64_t p = 0; p < places; p++)
                    for (int k = 0; k < LANES; k++) {
                        double sum = 0;
                        for (int64_t c = 0; c < channels; c++)
                            sum += x[(i * channels + c) * places + p] * z[(c * places + p) * m + j + k];
                        map[p * LANES + k] = sum / channels;
                    }
                Roots at = {first + i * looked_up, second + j, NULL, m};
                memcpy(covariances + i * m + j, through(&program, height, width, room, at), LANES * sizeof(double));
            }
        free(room);
    }
}
