"""Active learning: ask for the labels of the rows the model knows least about, and compare with a random choice.

Starts with 40 labelled digits; every round labels 40 more: those with the largest epistemic uncertainty, or as many at
random. Several seeds, since a single comparison says little, and a standard error, since three say little more.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

from bedl import BEDLClassifier

QUICK = "--quick" in sys.argv
SEEDS, ROUNDS, EPOCHS, ADDED = (2, 1, 10, 40) if QUICK else (3, 2, 40, 40)

X, y = load_digits(return_X_y=True)
X = X.astype(np.float32)


def trained(rows: np.ndarray, seed: int) -> BEDLClassifier:
    return BEDLClassifier(method="bedl", epochs=EPOCHS, random_state=seed).fit(X[rows], y[rows])


def compare(seed: int) -> dict[str, list[float]]:
    """Accuracies on the same 600 test rows after every round; 500 rows to choose from."""
    rng = np.random.default_rng(seed)
    test, labelled, rest, _ = np.split(rng.permutation(len(X)), [600, 640, 1140])
    start = trained(labelled, seed)
    history = {}
    for way in ("random", "epistemic"):
        model, chosen, pool = start, labelled, rest
        history[way] = [start.score(X[test], y[test])]
        for _ in range(ROUNDS):
            worth = rng.random(len(pool)) if way == "random" else model.uncertainty(X[pool])[way].to_numpy()
            best = np.argsort(-worth)[:ADDED]
            chosen, pool = np.append(chosen, pool[best]), np.delete(pool, best)
            model = trained(chosen, seed)
            history[way].append(model.score(X[test], y[test]))
    return history


runs = [compare(seed) for seed in range(SEEDS)]
print("labels    ", "  ".join(f"{40 + ADDED * number:5d}" for number in range(ROUNDS + 1)))
for way in ("random", "epistemic"):
    print(f"{way:10s}", "  ".join(f"{value:.3f}" for value in np.mean([run[way] for run in runs], axis=0)))
gain = np.array([run["epistemic"][-1] - run["random"][-1] for run in runs])
print(
    f"gain of epistemic over random at the end: {gain.mean():+.3f}, standard error {gain.std(ddof=1) / SEEDS**0.5:.3f}"
)
