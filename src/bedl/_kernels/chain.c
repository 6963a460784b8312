/* A chain of Gaussian convolutions and linear layers with ReLU, predicting: three products where PyTorch has three calls
 * and as many passes over memory, ReLU on what they give while it is in the cache, one call for all layers.
 *
 * Twin of bedl.moments.rules.conv and bedl.moments.rules.relu behind one another: of inputs N(m, v) and weights N(mu, s^2)
 * the mean is mu m, the variance s^2 (m^2 + v) + mu^2 v. Maps lie in memory as (points, height, width, channels), so that
 * what an output sees in a row of a map is one run. A linear layer sees all of its input: a window as large as the map.
 */
#include "products.h"

#define GROUP 60         /* rows that a thread takes at once */
#define AT_A_TIME 16     /* weights of an output that are laid out at once */
#define WORTH_THREADS (1 << 20)

void bedl_rectified_piece(int64_t n, const float *m, const float *v, float *mean, float *variance,
                          const float *coefficients, float unit, float far);

/* A layer, as it comes from Python. height, width: of its inputs with the zeros around them. */
typedef struct {
    int64_t channels, height, width, outputs, down, across, stride_down, stride_across, pad_down, pad_across, rectifies;
} Layer;

static int64_t window_size(const Layer *l) { return l->channels * l->down * l->across; }
static int64_t height_of(const Layer *l) { return (l->height - l->down) / l->stride_down + 1; }
static int64_t width_of(const Layer *l) { return (l->width - l->across) / l->stride_across + 1; }

/* Lays weights out as tiles read them: mean, square of the mean (or `gain`), variance, each panel by panel, within it
 * (down, across, channel, output). weights: (outputs, channels, down, across); spread: variances or their logarithms;
 * panels: 3 x (window, outputs filled up). */
FOR_EACH_PROCESSOR
void bedl_panels(const Layer *l, const float *mean, const float *spread, int64_t is_log, const float *gain,
                 float *panels) {
    Way way = bedl_way();
    int64_t size = window_size(l), area = l->down * l->across, filled_up = filled(l->outputs, way.unit);
    float *to_mean = panels, *to_gain = panels + size * filled_up, *to_variance = to_gain + size * filled_up;
    for (int64_t first = 0; first < l->outputs; first += way.most) {
        int64_t left = filled_up - first, width = left < way.most ? left : way.most;
        int64_t end = l->outputs - first < width ? l->outputs - first : width;
        for (int64_t part = 0; end < width && part < 3; part++)
            memset(panels + (part * filled_up + first) * size, 0, size * width * sizeof(float));
        for (int64_t start = 0; start < size; start += AT_A_TIME) { /* so few that the cache holds where they go */
            int64_t count = size - start < AT_A_TIME ? size - start : AT_A_TIME, to[AT_A_TIME];
            for (int64_t i = 0; i < count; i++)
                to[i] = first * size + ((start + i) % area * l->channels + (start + i) / area) * width;
            for (int64_t o = 0; o < end; o++) {
                int64_t from = (first + o) * size + start;
                float variance[AT_A_TIME] = {0};
                for (int64_t i = 0; i < count; i++) variance[i] = spread[from + i];
                if (is_log)
                    for (int64_t i = 0; i < AT_A_TIME; i++) variance[i] = exp_of(smaller(variance[i], 87.0f));
                for (int64_t i = 0; i < count; i++) {
                    to_mean[to[i] + o] = mean[from + i];
                    to_gain[to[i] + o] = gain ? gain[from + i] : mean[from + i] * mean[from + i];
                    to_variance[to[i] + o] = variance[i];
                }
            }
        }
    }
}

/* Where the results of a layer go: into maps of the next, with its zeros around them. */
typedef struct {
    Values values;
    int64_t height, width, pad_down, pad_across;
} Place;

typedef struct {
    const float *fit;
    float unit, far;
} Fit;

/* Bias and ReLU on numbers of `rows` rows without gaps, and what the next layer needs to know of them. */
INLINE void activate(int rectifies, int64_t count, const Fit *fit, const float *restrict m, const float *restrict v,
                     const Values *to) {
    float *restrict to_m = to->m, *restrict to_v = to->v, *restrict seen = to->seen;
    if (rectifies)
        bedl_rectified_piece(count, m, v, to_m, to_v, fit->fit, fit->unit, fit->far);
    else
        memcpy(to_m, m, count * sizeof(float)), memcpy(to_v, v, count * sizeof(float));
    if (seen)
        for (int64_t i = 0; i < count; i++) seen[i] = to_m[i] * to_m[i] + to_v[i];
}

/* A tile with bias and ReLU; to: where each of its rows goes. */
FOR_EACH_PROCESSOR
void bedl_chain_finish(const Layer *l, const Panel *panel, int64_t first, int64_t outputs, int64_t rows,
                       const float *bias, const Fit *fit, const float *loc, const float *variance, const int64_t *to,
                       const Values *values) {
    float room[5][(ROWS + 1) * MOST_OUTPUTS], *restrict m = room[0], *restrict v = room[1];
    for (int64_t r = 0; r < rows; r++) { /* zeros behind a row are overwritten by the next one */
        const float *restrict from_loc = loc + r * MOST_OUTPUTS, *restrict from_variance = variance + r * MOST_OUTPUTS;
        for (int64_t o = 0; o < panel->width; o += 4)
            for (int64_t i = o; i < o + 4; i++) m[r * outputs + i] = from_loc[i], v[r * outputs + i] = from_variance[i];
    }
    for (int64_t r = 0; bias && r < rows; r++)
        for (int64_t o = 0; o < outputs; o++) m[r * outputs + o] += bias[first + o];
    int whole = outputs == l->outputs && to[rows - 1] - to[0] == (rows - 1) * outputs;
    Values straight = {values->m + to[0], values->v + to[0], values->seen ? values->seen + to[0] : NULL};
    Values made = whole ? straight : (Values){room[2], room[3], values->seen ? room[4] : NULL};
    activate(l->rectifies, rows * outputs, fit, m, v, &made);
    for (int64_t r = 0; !whole && r < rows; r++) {
        int64_t from = r * outputs, at = to[r] + first, size = outputs * sizeof(float);
        memcpy(values->m + at, made.m + from, size), memcpy(values->v + at, made.v + from, size);
        if (values->seen) memcpy(values->seen + at, made.seen + from, size);
    }
}

/* Rows from `row` to `end`, and the outputs of one panel. */
static void some_rows(const Layer *l, Way way, int64_t row, int64_t end, int64_t number, const float *panels,
                      const float *bias, const Fit *fit, const Values *x, const Place *place) {
    int64_t size = window_size(l), filled_up = filled(l->outputs, way.unit), part = size * filled_up;
    int64_t first = number * way.most, left = filled_up - first, width = left < way.most ? left : way.most;
    int64_t outputs = l->outputs - first < width ? l->outputs - first : width;
    int64_t high = height_of(l), wide = width_of(l), line = l->across * l->channels;
    Window window = {l->down, line, l->width * l->channels};
    if (l->across == l->width) window = (Window){1, l->down * line, 0};
    const float *weights = panels + first * size;
    Panel panel = {width, weights, weights + part, weights + 2 * part};
    float loc[ROWS * MOST_OUTPUTS], variance[ROWS * MOST_OUTPUTS];
    int64_t point = row / (high * wide), y = row / wide % high, z = row % wide;
    for (; row < end; row += ROWS) {
        int64_t offsets[ROWS], to[ROWS], rows = end - row < ROWS ? end - row : ROWS;
        for (int64_t r = 0; r < ROWS; r++) {
            if (r >= rows) { /* behind the last row, that one again */
                offsets[r] = offsets[rows - 1];
                continue;
            }
            offsets[r] = ((point * l->height + y * l->stride_down) * l->width + z * l->stride_across) * l->channels;
            to[r] = ((point * place->height + y + place->pad_down) * place->width + z + place->pad_across) * l->outputs;
            if (++z == wide) z = 0, y++;
            if (y == high) y = 0, point++;
        }
        way.tile(&window, x, offsets, &panel, loc, variance, MOST_OUTPUTS);
        bedl_chain_finish(l, &panel, first, outputs, rows, bias, fit, loc, variance, to, &place->values);
    }
}

static void one_layer(const Layer *l, Way way, int64_t points, const float *panels, const float *bias, const Fit *fit,
                      const Values *x, const Place *place) {
    int64_t rows = points * height_of(l) * width_of(l), groups = (rows + GROUP - 1) / GROUP;
    int64_t count = (l->outputs + way.most - 1) / way.most;
    if (place->pad_down || place->pad_across) {
        int64_t size = points * place->height * place->width * l->outputs * sizeof(float);
        memset(place->values.m, 0, size), memset(place->values.v, 0, size), memset(place->values.seen, 0, size);
    }
#pragma omp parallel for if (rows * window_size(l) * l->outputs >= WORTH_THREADS)
    for (int64_t i = 0; i < count * groups; i++) {
        int64_t row = i % groups * GROUP, end = rows - row < GROUP ? rows : row + GROUP;
        some_rows(l, way, row, end, i / groups, panels, bias, fit, x, place);
    }
}

/* Known inputs (points, channels, height, width), with channels last, zeros around them, and squared. */
static void lay_out(const Layer *l, int64_t points, const float *x, Values *to) {
    int64_t high = l->height - 2 * l->pad_down, wide = l->width - 2 * l->pad_across, size = l->height * l->width;
    if (size != high * wide) memset(to->m, 0, points * size * l->channels * sizeof(float));
    if (size == 1) memcpy(to->m, x, points * l->channels * sizeof(float));
    for (int64_t p = 0; size > 1 && p < points; p++)
        for (int64_t c = 0; c < l->channels; c++)
            for (int64_t y = 0; y < high; y++, x += wide) {
                float *line = to->m + ((p * l->height + y + l->pad_down) * l->width + l->pad_across) * l->channels + c;
                if (l->channels == 1)
                    memcpy(line, x, wide * sizeof(float));
                else
                    for (int64_t z = 0; z < wide; z++) line[z * l->channels] = x[z];
            }
    for (int64_t i = 0; i < points * size * l->channels; i++) to->seen[i] = to->m[i] * to->m[i];
}

/* given: of each layer its panels and its bias or NULL. room: 3 numbers for each input of `at_a_time` points to the
 * largest of the layers 0, 2, ..., and as many again for 1, 3, ...; `even` and `odd` are what those take in.
 * x: known; loc, variance: (n, outputs of the last). */
void bedl_chain(int64_t n, int64_t at_a_time, int64_t layers, const Layer *layer, float *const *given, const float *x,
                const float *fit, float unit, float far, float *room, int64_t even, int64_t odd, float *loc,
                float *variance) {
    Way way = bedl_way();
    Fit how = {fit, unit, far};
    int64_t shown = layer->channels * (layer->height - 2 * layer->pad_down) * (layer->width - 2 * layer->pad_across);
    const Layer *end = layer + layers - 1;
    int64_t made = end->outputs * height_of(end) * width_of(end);
    for (int64_t i = 0; i < n; i += at_a_time) {
        int64_t points = n - i < at_a_time ? n - i : at_a_time;
        Values now = {room, NULL, room + at_a_time * even};
        lay_out(layer, points, x + i * shown, &now);
        for (int64_t k = 0; k < layers; k++) {
            int64_t size = at_a_time * (k % 2 ? even : odd);
            float *start = k % 2 ? room : room + 3 * at_a_time * even;
            const Layer *next = k + 1 < layers ? layer + k + 1 : NULL;
            Place place = {{loc + i * made, variance + i * made, NULL}, height_of(end), width_of(end), 0, 0};
            if (next)
                place = (Place){{start, start + size, start + 2 * size}, next->height, next->width, next->pad_down,
                                next->pad_across};
            one_layer(layer + k, way, points, given[2 * k], given[2 * k + 1], &how, &now, &place);
            now = place.values;
        }
    }
}
