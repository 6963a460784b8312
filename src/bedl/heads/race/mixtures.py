"""Two laws written as sums of normals, so that adding a normal variable only widens each component.

`LOG_EXPONENTIAL[R]`: X = log E with E ~ Exp(1), as  sum_r p_r N(mu_r, tau_r^2).  The largest error of the survival
function is 8e-4 for R = 4, 1.2e-4 for R = 6 and 2e-5 for R = 8 (minimax fits; the tests hold them to the exact law).
`LOGISTIC`: the logistic cdf as  sum_r p_r Phi(x / scale_r), largest error 5e-6.
"""

from __future__ import annotations

__all__ = ["LOGISTIC", "LOG_EXPONENTIAL", "NUMBERS"]

# (probability, mean, variance), the widest component first: `clocks` scales by that one
LOG_EXPONENTIAL: dict[int, tuple[tuple[float, float, float], ...]] = {
    4: (
        (0.07739102736, -2.86996895466, 2.42672389874),
        (0.305187088677, -1.2828670277, 0.945565716643),
        (0.420164622327, -0.202356385571, 0.465045811539),
        (0.197257261636, 0.62511998392, 0.258460877226),
    ),
    6: (
        (0.0194135425628, -3.97136100857, 3.17560116225),
        (0.10920606994, -2.32559035915, 1.37840035766),
        (0.252012080161, -1.17609097404, 0.720961000231),
        (0.326471003362, -0.310473893799, 0.417978187703),
        (0.229513791023, 0.388139402193, 0.259629066962),
        (0.0633835129503, 0.990399257959, 0.168386908307),
    ),
    8: (
        (0.00541877658657, -4.91228383616, 4.00582296965),
        (0.039138449249, -3.24144521087, 1.87962129128),
        (0.118092054808, -2.02784744256, 1.03425120645),
        (0.219005524094, -1.10509752879, 0.61898902948),
        (0.272128703986, -0.371109044878, 0.392304532321),
        (0.22135482356, 0.239024751957, 0.259849137576),
        (0.104572819195, 0.769321146097, 0.178193439183),
        (0.0202888485205, 1.25358003283, 0.124777151196),
    ),
}

# the same as kernels read them: one number after the other
NUMBERS = {count: [number for component in LOG_EXPONENTIAL[count] for number in component] for count in LOG_EXPONENTIAL}

# (probability, variance)
LOGISTIC: tuple[tuple[float, float], ...] = (
    (0.061030312051, 9.69801567215),
    (0.374417478289, 4.42794422173),
    (0.45825470861, 2.04696364288),
    (0.10629750105, 0.954795296021),
)
