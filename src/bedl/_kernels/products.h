/* Products of matrices in registers, as large as a processor has them; see tile.h. */
#pragma once
#include "arithmetic.h"

#define ROWS 6          /* of a tile: rows of the left matrix that are multiplied at a time */
#define MOST_OUTPUTS 64 /* of a tile */

/* What an output sees: runs of so many numbers, so far apart. */
typedef struct {
    int64_t runs, length, apart;
} Window;

/* Of inputs: means, variances (NULL: they are known), means of squares (NULL: variances are not asked for). */
typedef struct {
    float *m, *v, *seen;
} Values;

/* Weights of up to MOST_OUTPUTS outputs, (window, width); width is that of the outputs filled up with zeros. */
typedef struct {
    int64_t width;
    const float *mean, *gain, *variance;
} Panel;

typedef void Tile(const Window *, const Values *, const int64_t *, const Panel *, float *, float *, int64_t);

/* How this processor multiplies: outputs of a panel, and what their number is filled up to a multiple of. */
typedef struct {
    Tile *tile;
    int64_t most, unit;
} Way;

Way bedl_way(void);

INLINE int64_t filled(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }
