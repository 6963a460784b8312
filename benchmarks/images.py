"""What the default makes of MNIST: ``python -m benchmarks.images``, $BEDL_DATA being where the images are.

LeNet-5 of the paper and `BEDLClassifier(net=…)` as it is. The settings were chosen on a part of the training images
and on things drawn by code; the test part, Fashion-MNIST and CIFAR-10 are only looked at here.
"""

from __future__ import annotations

import argparse
import ast
import time
from typing import Any

import numpy as np

from bedl import BEDLClassifier
from bedl.bench.images import RESEMBLES, foreign_sets, load
from bedl.bench.util import lenet5
from bedl.evaluation import metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--images", type=int, default=60_000, help="how many of the training images")
    add("--validate", action="store_true", help="score the last 5,000 training images, not the test part")
    add("--most", type=int, default=None, help="look at no more images of each set than that")
    add("--epochs", type=int, default=None)
    add("--nets", type=int, default=1)
    add("--method", default="auto")
    add("--options", type=ast.literal_eval, default=None, help="of the method, as a dict")
    add("--seed", type=int, default=0)
    add("--checkpoint", default=None, help="a folder: an interrupted run goes on from there")
    options = parser.parse_args()
    x, y, *test, _ = load("mnist")
    if options.validate:
        test = [x[-5000:], y[-5000:]]
    x, y = x[: options.images], y[: options.images]
    began = time.process_time()
    model = BEDLClassifier(
        net=lenet5(), method=options.method, method_options=options.options, epochs=options.epochs or "auto",
        ensemble=options.nets, random_state=options.seed, checkpoint=options.checkpoint, device="cpu", verbose=1,
    ).fit(x, y)  # fmt: skip
    print(f"\n{vars(options)}, {time.process_time() - began:.0f} CPU seconds")
    print("\n".join(table(model, *(part[: options.most] for part in test), options.most)))


def table(model: Any, x: np.ndarray, y: np.ndarray, most: int | None) -> list[str]:
    """Scores on the data, and how well what is no data is told from them."""
    known = model.predict_dist(x)
    p = known.probabilities.numpy()
    scores = (
        f"error {100 * np.mean(p.argmax(1) != y):.2f} %, NLL {metrics.nll_categorical(y, known.log_probabilities):.4f}"
    )
    lines = [f"{scores}, ECE {100 * metrics.ece(y, p):.2f} %", ""]
    lines += [
        "| foreign images | AUROC: epistemic | entropy | ECDF-AUC | resembles |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, images in foreign_sets("mnist", x, most=most)[0].items():
        foreign = model.predict_dist(images)
        parts = [metrics.auroc(getattr(known, part), getattr(foreign, part)) for part in ("epistemic", "entropy")]
        area = metrics.ecdf_auc(foreign.entropy, 10)
        lines.append(f"| {name} | {parts[0]:.4f} | {parts[1]:.4f} | {area:.4f} | {RESEMBLES[name]} |")
    return lines


if __name__ == "__main__":
    main()
