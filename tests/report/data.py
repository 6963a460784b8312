"""Results to make pages of: small, seeded, with everything or with parts missing."""

import numpy as np

from bedl.evaluation.report import ClassificationResults, Examples, RegressionResults

SCRIPT = "<script>window.hacked = 1</script>"
NASTY = [
    SCRIPT,
    "\"><img src=x onerror='window.hacked = 1'>",
    "a & 'b' \"c\"",
    "\u202egnirts lanoitceridib",
    "שלום",
    "w" * 500,
]


def regression(n=60, *, seed=0, ood=True, **changes):
    rng = np.random.default_rng(seed)
    aleatoric, epistemic = rng.uniform(0.5, 1.5, n), rng.uniform(0.1, 0.8, n)
    mean, std = rng.normal(10, 3, n), np.hypot(aleatoric, epistemic)
    evidence = rng.uniform(0, 1, n)  # its share of the epistemic variance
    fields = {
        "mean": mean,
        "std": std,
        "aleatoric_std": aleatoric,
        "epistemic_std": epistemic,
        "lower": mean - 1.6448536 * std,
        "upper": mean + 1.6448536 * std,
        "y": mean + std * rng.normal(size=n),
        "data_std": aleatoric,
        "distributional_std": np.sqrt(evidence) * epistemic,
        "model_std": np.sqrt(1 - evidence) * epistemic,
        "examples": Examples({"age": list(range(n)), "city": [f"city {i}" for i in range(n)]}),
        "target_name": "price",
        "title": "Prices",
        "ood": regression(n // 2, seed=seed + 1, y=None, ood=None) if ood else None,
    }
    return RegressionResults(**(fields | changes))


def classification(n=80, classes=4, *, seed=0, ood=True, images=True, **changes):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(classes, 0.4), n)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(1)
    share = rng.uniform(0.5, 0.9, n)
    pictures = rng.integers(0, 256, (n, 6, 5), dtype=np.uint8)
    fields = {
        "probabilities": p,
        "entropy": entropy,
        "aleatoric_entropy": share * entropy,
        "epistemic_entropy": (1 - share) * entropy,
        "class_names": [f"class {i}" for i in range(classes)],
        "data_entropy": share * entropy,
        "distributional_entropy": 0.7 * (1 - share) * entropy,
        "model_entropy": 0.3 * (1 - share) * entropy,
        "labels": np.array([rng.choice(classes, p=q) for q in p]),
        "examples": Examples(images=pictures) if images else Examples({"age": list(range(n))}),
        "target_name": "kind",
        "title": "Kinds",
        "ood": classification(n // 2, classes, seed=seed + 1, labels=None, ood=None, images=images) if ood else None,
    }
    return ClassificationResults(**(fields | changes))


def nasty_regression():
    results = regression()
    columns = {name: [name] * len(results) for name in NASTY}
    return regression(
        examples=Examples(columns), target_name=SCRIPT, title=NASTY[1], about={SCRIPT: NASTY[1]}, notes=NASTY, ood=False
    )


def nasty_classification():
    names = NASTY
    results = classification(classes=len(names))
    return classification(
        classes=len(names),
        class_names=names,
        ood=False,
        title=SCRIPT,
        target_name=NASTY[1],
        examples=Examples(
            {name: NASTY * (len(results) // len(NASTY)) + NASTY[: len(results) % len(NASTY)] for name in names}
        ),
    )
