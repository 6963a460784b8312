/* Moments of smooth activations from a table: as in
 * bedl.moments.rules.numerical, which says what it holds. */
#include "table.h"

#define AT_A_TIME 4096      /* numbers that one thread takes at once */
#define WORTH_THREADS 32768 /* numbers from which on several threads are faster */

FOR_EACH_PROCESSOR
void bedl_tabulated_piece(int64_t n, const float *m, const float *v, const float *plain, float *mean, float *variance,
                          const float *table, float scale, int grows) {
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t count = n - i < BLOCK ? n - i : BLOCK;
        look_up(count, m + i, v + i, plain + i, mean + i, variance + i, table, scale, grows);
    }
}

FOR_EACH_PROCESSOR
void bedl_tabulated_gradients_piece(int64_t n, const float *m, const float *v, const float *by_mean,
                                    const float *by_variance, float *by_m, float *by_v, const float *table, float scale,
                                    int grows) {
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t count = n - i < BLOCK ? n - i : BLOCK;
        look_up_slopes(count, m + i, v + i, by_mean + i, by_variance + i, by_m + i, by_v + i, table, scale, grows);
    }
}

void bedl_tabulated(int64_t n, const float *m, const float *v, const float *plain, float *mean, float *variance,
                    const float *table, float scale, int64_t grows) {
#pragma omp parallel for if (n >= WORTH_THREADS)
    for (int64_t i = 0; i < n; i += AT_A_TIME) {
        int64_t count = n - i < AT_A_TIME ? n - i : AT_A_TIME;
        bedl_tabulated_piece(count, m + i, v + i, plain + i, mean + i, variance + i, table, scale, (int)grows);
    }
}

void bedl_tabulated_gradients(int64_t n, const float *m, const float *v, const float *by_mean,
                              const float *by_variance, float *by_m, float *by_v, const float *table, float scale,
                              int64_t grows) {
#pragma omp parallel for if (n >= WORTH_THREADS)
    for (int64_t i = 0; i < n; i += AT_A_TIME) {
        int64_t count = n - i < AT_A_TIME ? n - i : AT_A_TIME;
        bedl_tabulated_gradients_piece(count, m + i, v + i, by_mean + i, by_variance + i, by_m + i, by_v + i, table,
                                       scale, (int)grows);
    }
}
