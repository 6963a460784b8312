/* Arithmetic that the kernels share: functions of one number without branches, which compilers turn into vector
 * instructions, and one copy of each kernel for each generation of processors.
 */
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* One copy for each generation of processors; the loader picks the newest that runs here. */
#if defined(__x86_64__) && defined(__linux__) && !defined(PORTABLE)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

#define UNROLLED _Pragma("GCC unroll 16")
#define INDEPENDENT _Pragma("GCC ivdep") /* arrays of a loop that do not overlap, though the compiler cannot know */

INLINE float smaller(float x, float bound) { return x > bound ? bound : x; }
INLINE float larger(float x, float bound) { return x < bound ? bound : x; }

/* e^x for x <= 87: 2^n e^r, |r| <= log(2)/2, with the polynomial of Cephes' expf. Error 1e-7. Not below e^-60, so that
 * products with it are no denormal numbers, on which processors are a hundred times slower. */
INLINE float exp_of(float x) {
    const float round = 12582912.0f; /* 1.5 * 2^23: the sum's last bit is worth 1 */
    x = larger(x, -60.0f);
    float n = x * 1.44269504f + round;
    int32_t power;
    memcpy(&power, &n, 4);
    n -= round;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    power = (int32_t)((uint32_t)power << 23) + 0x3F800000;
    float scale;
    memcpy(&scale, &power, 4);
    return p * scale;
}

/* log x for normal x > 0: n log(2) + log(f), f in [sqrt(1/2), sqrt(2)), with the polynomial of Cephes' logf. */
INLINE float log_of(float x) {
    int32_t bits;
    memcpy(&bits, &x, 4);
    int32_t n = (bits - 0x3F3504F3) >> 23;
    bits -= n * (1 << 23);
    float f;
    memcpy(&f, &bits, 4);
    f -= 1.0f;
    float square = f * f;
    float p = 7.0376836292e-2f;
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    p = p * f * square - 2.12194440e-4f * n - 0.5f * square;
    return p + f + 0.693359375f * n + (x - x); /* the last term is NaN for NaN */
}

/* log(e^a + e^b) */
INLINE float log_sum(float a, float b) {
    float high = larger(a, b), low = smaller(a, b);
    return high + log_of(1 + exp_of(low - high));
}
INLINE float softplus(float x) { return log_sum(x, 0.0f); }
INLINE float sigmoid(float x) {
    float e = exp_of(-fabsf(x));
    return (x < 0 ? e : 1.0f) / (1 + e);
}
