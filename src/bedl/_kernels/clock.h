/* Clocks of the race, bedl.heads.integrals: what more than one file asks of them. */
#pragma once
#include "arithmetic.h"

#define MOST_COMPONENTS 8

/* erf in the form of Eigen and XLA, x P(x^2) / Q(x^2) on [-4, 4]. Error 3e-7. */
INLINE float erf_of(float x) {
    x = larger(smaller(x, 4.0f), -4.0f);
    float s = x * x;
    float p = -2.72614225801306e-10f;
    p = p * s + 2.77068142495902e-08f;
    p = p * s - 2.10102402082508e-06f;
    p = p * s - 5.69250639462346e-05f;
    p = p * s - 7.34990630326855e-04f;
    p = p * s - 2.95459980854025e-03f;
    p = p * s - 1.60960333262415e-02f;
    float q = -1.45660718464996e-05f;
    q = q * s - 2.13374055278905e-04f;
    q = q * s - 1.68282697438203e-03f;
    q = q * s - 7.37332916720468e-03f;
    q = q * s - 1.42647390514189e-02f;
    return x * p / q;
}

/* A clock at some times: the logarithms of its survival and density, and the derivatives of the latter where `by_m` is
 * not NULL. `mixture` holds probability, mean and variance of each component, the widest first. */
typedef struct {
    const float *mixture, *nodes;
    float *log_survival, *log_density, *by_m, *by_v;
} Clock;

void bedl_clock(int64_t components, int64_t count, float m, float v, Clock at);
