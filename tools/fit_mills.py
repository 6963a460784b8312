"""Print the coefficients in `bedl/special.py`: `python tools/fit_mills.py` (needs mpmath).

Fits q2(x) = ((1 + x²) R(x) − x), R the Mills ratio of the normal law, by t³·poly(t·(start + shift)) with
t = 1/(x + shift) on x ≥ start, interpolating at Chebyshev nodes in t; prints the largest relative error.
"""

import mpmath as mp

mp.mp.dps = 60


def q2(x):
    mills = mp.sqrt(mp.pi / 2) * mp.exp(x * x / 2) * mp.erfc(x / mp.sqrt(2))
    return (1 + x * x) * mills - x


def fit(start, shift, degree):
    scale, n = mp.mpf(1) / (mp.mpf(start) + shift), degree + 1
    taus = [(1 + mp.cos(mp.pi * (2 * i + 1) / (2 * n))) / 2 for i in range(n)]
    values = [q2(1 / (tau * scale) - shift) / (tau * scale) ** 3 for tau in taus]
    return mp.lu_solve(mp.matrix([[tau**j for j in range(n)] for tau in taus]), mp.matrix(values))


def error(coefficients, start, shift):
    worst = 0
    for i in range(1, 600):
        tau = mp.mpf(i) / 600
        t = tau / (mp.mpf(start) + shift)
        approximation = t**3 * mp.polyval(list(coefficients)[::-1], tau)
        worst = max(worst, abs(approximation / q2(1 / t - shift) - 1))
    return float(worst)


if __name__ == "__main__":
    for name, start, shift, degree in (
        ("float32, x ≥ 0", 0, 3, 12),
        ("float64, x ≥ 0", 0, 4, 22),
        ("float32, x ≥ −1", -1, 4, 14),
        ("float64, x ≥ −1", -1, 5, 22),
    ):
        coefficients = fit(start, shift, degree)
        print(f"# {name}: shift {shift}, relative error {error(coefficients, start, shift):.1e}")
        print("(" + ", ".join(mp.nstr(c, 17) for c in coefficients) + ")")
