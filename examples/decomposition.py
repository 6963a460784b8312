"""Where uncertainty comes from: noise in the data (aleatoric), or too little data (epistemic).

A regression whose noise grows from left to right, with no data in the middle and none beyond the right end. The noise
is found; the epistemic part grows beyond the data, but not in the gap.
"""

import sys

import numpy as np

from bedl import BEDLRegressor

QUICK = "--quick" in sys.argv


def noise(x: np.ndarray) -> np.ndarray:
    """Its standard deviation: 0.05 at -3, 0.65 at 3."""
    return 0.05 + 0.1 * (x + 3)


rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-3, -1, 200), rng.uniform(1, 3, 200)])
y = np.sin(x) + noise(x) * rng.normal(size=len(x))
model = BEDLRegressor(epochs=40 if QUICK else 80, random_state=0).fit(x[:, None], y)

places = {"left": (-3, -1), "gap": (-0.5, 0.5), "right": (1, 3), "beyond": (5, 6)}
print("standard deviations, in the units of y")
for place, (low, high) in places.items():
    grid = np.linspace(low, high, 50)
    total, aleatoric, epistemic = np.sqrt(model.uncertainty(grid[:, None])[["total", "aleatoric", "epistemic"]].mean())
    known = f" (noise of the data: {noise(grid).mean():.2f})" if place in ("left", "right") else ""
    print(f"{place:6s}  total {total:.2f}, aleatoric {aleatoric:.2f}, epistemic {epistemic:.2f}{known}")

found = model.uncertainty(x[:, None]).aleatoric ** 0.5
print(f"correlation of the aleatoric std with the noise: {np.corrcoef(found, noise(x))[0, 1]:.2f}")
