/* A small network of Gaussian layers and ReLU, predicting: all of it in one call, where calls are what takes time.
 *
 * Twin of bedl.moments.rules.linear and bedl.moments.rules.relu behind one another: of inputs N(m, v) and weights N(mu, s^2) the
 * mean is mu m, the variance s^2 (m^2 + v) + mu^2 v.
 */
#include <stdlib.h>

#include "arithmetic.h"

#define LANES 16
#define NARROW 8 /* outputs, below which sums run along the inputs */

void bedl_rectified_piece(int64_t n, const float *m, const float *v, float *mean, float *variance,
                          const float *coefficients, float unit, float far);

/* A layer's weights: (outputs, inputs), or (inputs, outputs) where `wide`. */
typedef struct {
    int64_t inputs, outputs;
    int wide;
    float *mean, *gain, *variance; /* gain: the mean's square */
    const float *bias;
} Layer;

/* Copies a weight as the sums below read it. `spread` is its variance, or the logarithm of that. */
FOR_EACH_PROCESSOR
void bedl_small_weight(const Layer *layer, const float *restrict mean, const float *restrict spread, int is_log) {
    int64_t inputs = layer->inputs, outputs = layer->outputs, size = inputs * outputs;
    float *restrict to_mean = layer->mean, *restrict gain = layer->gain, *restrict variance = layer->variance;
    float *restrict straight = layer->wide ? gain : variance;
    if (is_log)
        for (int64_t i = 0; i < size; i++) straight[i] = exp_of(smaller(spread[i], 87.0f));
    else
        memcpy(straight, spread, size * sizeof(float));
    if (layer->wide)
        for (int64_t o = 0; o < outputs; o++)
            for (int64_t i = 0; i < inputs; i++) {
                to_mean[i * outputs + o] = mean[o * inputs + i];
                variance[i * outputs + o] = gain[o * inputs + i];
            }
    else
        memcpy(to_mean, mean, size * sizeof(float));
    for (int64_t i = 0; i < size; i++) gain[i] = to_mean[i] * to_mean[i];
}

/* Sums along the outputs, which lie side by side. v is NULL where inputs are known. */
INLINE void wide(const Layer *layer, const float *m, const float *v, float *restrict loc, float *restrict variance) {
    int64_t outputs = layer->outputs;
    for (int64_t o = 0; o < outputs; o++) loc[o] = layer->bias ? layer->bias[o] : 0.0f, variance[o] = 0;
    for (int64_t i = 0; i < layer->inputs; i++) {
        const float *restrict mean = layer->mean + i * outputs, *restrict gain = layer->gain + i * outputs;
        const float *restrict own = layer->variance + i * outputs, mi = m[i], vi = v ? v[i] : 0.0f, seen = mi * mi + vi;
        if (v)
            for (int64_t o = 0; o < outputs; o++) loc[o] += mi * mean[o], variance[o] += vi * gain[o] + seen * own[o];
        else
            for (int64_t o = 0; o < outputs; o++) loc[o] += mi * mean[o], variance[o] += seen * own[o];
    }
}

/* Sums along the inputs, in lanes. */
INLINE void narrow(const Layer *layer, const float *m, const float *v, float *loc, float *variance) {
    int64_t inputs = layer->inputs;
    for (int64_t o = 0; o < layer->outputs; o++) {
        const float *mean = layer->mean + o * inputs, *gain = layer->gain + o * inputs, *own = layer->variance + o * inputs;
        float first[LANES] = {0}, second[LANES] = {0}, sum = layer->bias ? layer->bias[o] : 0.0f, total = 0;
        int64_t i = 0;
        for (; i + LANES <= inputs; i += LANES)
            for (int j = 0; j < LANES; j++) {
                float mi = m[i + j], vi = v ? v[i + j] : 0.0f;
                first[j] += mi * mean[i + j];
                second[j] += vi * gain[i + j] + (mi * mi + vi) * own[i + j];
            }
        for (; i < inputs; i++) {
            float vi = v ? v[i] : 0.0f;
            sum += m[i] * mean[i];
            total += vi * gain[i] + (m[i] * m[i] + vi) * own[i];
        }
        for (int j = 0; j < LANES; j++) sum += first[j], total += second[j];
        loc[o] = sum, variance[o] = total;
    }
}

FOR_EACH_PROCESSOR
void bedl_small_layer(int64_t n, const Layer *layer, const float *m, const float *v, float *loc, float *variance) {
    for (int64_t k = 0; k < n; k++) {
        const float *mk = m + k * layer->inputs, *vk = v ? v + k * layer->inputs : NULL;
        float *to_loc = loc + k * layer->outputs, *to_variance = variance + k * layer->outputs;
        if (layer->wide)
            wide(layer, mk, vk, to_loc, to_variance);
        else
            narrow(layer, mk, vk, to_loc, to_variance);
    }
}

/* numbers: the inputs, and of each layer its outputs, whether its variances are logarithms and whether ReLU follows.
 * given: of each layer mean, variance, bias or NULL. x: (n, inputs), known; shift, scale: (inputs,), or NULL.
 * loc, variance: (n, outputs of the last). */
void bedl_small_network(int64_t n, int64_t layers, const int64_t *numbers, float *const *given, const float *x,
                        const float *shift, const float *scale, const float *fit, float unit, float far, float *loc,
                        float *variance) {
    int64_t most = 0, inputs = numbers[0], largest = inputs, width = inputs;
    for (int64_t k = 0; k < layers; width = numbers[3 * k + 1], k++) {
        int64_t outputs = numbers[3 * k + 1];
        most = most < width * outputs ? width * outputs : most;
        largest = largest < outputs ? outputs : largest;
    }
    float *room = malloc((3 * most + 5 * n * largest) * sizeof(float)), *places[5];
    for (int i = 0; i < 5; i++) places[i] = room + 3 * most + i * n * largest;
    for (int64_t i = 0; shift && i < n * inputs; i++) places[4][i] = (x[i] - shift[i % inputs]) / scale[i % inputs];
    const float *m = shift ? places[4] : x, *v = NULL;
    for (int64_t k = 0; k < layers; k++) {
        int64_t outputs = numbers[3 * k + 1], rectifies = numbers[3 * k + 3], last = k == layers - 1;
        Layer layer = {inputs, outputs, outputs >= NARROW, room, room + most, room + 2 * most, given[3 * k + 2]};
        bedl_small_weight(&layer, given[3 * k], given[3 * k + 1], numbers[3 * k + 2]);
        float *to_m = last && !rectifies ? loc : places[0], *to_v = last && !rectifies ? variance : places[1];
        bedl_small_layer(n, &layer, m, v, to_m, to_v);
        m = to_m, v = to_v, inputs = outputs;
        if (rectifies) {
            float *next_m = last ? loc : places[2], *next_v = last ? variance : places[3];
            bedl_rectified_piece(n * outputs, m, v, next_m, next_v, fit, unit, far);
            m = next_m, v = next_v;
        }
    }
    free(room);
}
