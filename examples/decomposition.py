"""Where uncertainty comes from: noise in the data, too little evidence, or a network that could be otherwise.

A regression whose noise grows from left to right, with no data in the middle and none beyond the right end. The noise
is found, and the epistemic part, evidence and model together, is large where there are no data.
"""

import sys

import numpy as np

from bedl import BEDLRegressor

QUICK = {"epochs": 40} if "--quick" in sys.argv else {}


def noise(x: np.ndarray) -> np.ndarray:
    """Its standard deviation: 0.05 at -3, 0.65 at 3."""
    return 0.05 + 0.1 * (x + 3)


rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-3, -1, 200), rng.uniform(1, 3, 200)])
y = np.sin(x) + noise(x) * rng.normal(size=len(x))
model = BEDLRegressor(method="evidence", random_state=0, **QUICK).fit(x[:, None], y)

places = {"left": (-3, -1), "gap": (-0.5, 0.5), "right": (1, 3), "beyond": (5, 6)}
print("standard deviations, in the units of y")
for place, (low, high) in places.items():
    grid = np.linspace(low, high, 50)
    parts = np.sqrt(model.uncertainty(grid[:, None]).mean())
    known = f" (noise of the data: {noise(grid).mean():.2f})" if place in ("left", "right") else ""
    said = ", ".join(f"{name} {parts[name]:.2f}" for name in ("total", "data", "distributional", "model"))
    print(f"{place:6s}  {said}{known}")

uncertainty = model.uncertainty(x[:, None])
found = uncertainty.aleatoric**0.5
print(f"correlation of the aleatoric std with the noise: {np.corrcoef(found, noise(x))[0, 1]:.2f}")
gap = model.uncertainty(np.linspace(-0.5, 0.5, 50)[:, None]).epistemic
print(f"epistemic std in the gap over that on the data: {np.sqrt(gap.median() / uncertainty.epistemic.median()):.1f}")
