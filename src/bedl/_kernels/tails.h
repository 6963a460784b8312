/* Tail moments of the normal law, as in bedl.moments.numerics. */
#pragma once
#include "arithmetic.h"

/* Tail moments of N(0, 1) beyond x >= 0; `fit` are the coefficients of bedl.moments.numerics's fit of q2. */
#define FIT 13

INLINE void tail_of(float x, const float *fit, float unit, float *pdf, float *upper, float *t1, float *t2) {
    float square = 1 + x * x, shifted = x + unit;
    float inverse = 1 / (square * shifted);
    float tau = unit * square * inverse;
    float q2 = fit[FIT - 1];
    UNROLLED for (int i = FIT - 2; i >= 0; i--) q2 = q2 * tau + fit[i];
    q2 *= tau * tau * tau;
    *pdf = 0.39894228f * exp_of(-0.5f * x * x);
    float scaled = *pdf * (shifted * inverse);
    *upper = scaled * (x + q2);
    *t1 = scaled * (1 - x * q2);
    *t2 = *pdf * q2;
}

/* |m| in standard deviations, at most `far` of them; 0 of 0 is 0. */
INLINE float distance_of(float m, float sigma, float far) { return smaller(fabsf(m / larger(sigma, 1e-19f)), far); }

/* q2(x) for x >= 0, and R(x) = Q(x)/phi(x), Mills' ratio. */
INLINE float mills_of(float x, const float *fit, float unit) {
    float square = 1 + x * x, shifted = x + unit;
    float inverse = 1 / (square * shifted), tau = unit * square * inverse;
    float q2 = fit[FIT - 1];
    UNROLLED for (int i = FIT - 2; i >= 0; i--) q2 = q2 * tau + fit[i];
    q2 *= tau * tau * tau;
    return (x + q2) * shifted * inverse;
}
