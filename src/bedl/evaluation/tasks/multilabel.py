"""Several labels at once, each yes or no with a probability of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bedl.evaluation import metrics
from bedl.evaluation.tasks._base import DETECTION, NLL, Meaning, Output, Quantities, Task, detection, names_for
from bedl.evaluation.tasks._results import Array, Results, ResultsError
from bedl.evaluation.tasks.classification import ClassificationResults

PARTS = ("data", "distributional", "model")


@dataclasses.dataclass(frozen=True, eq=False)
class MultilabelResults(Results):
    """Predicted probabilities of L labels. Entropies are in nats, of each label by itself; parts add up to the whole.

    Args:
        probabilities: those of yes. shape: (n, L)
        data: expected entropy of a label whose probability is known. shape: (n, L)
        distributional: what is not known of the probability given the network. shape: (n, L)
        model: what is not known of the network. shape: (n, L)
        label_names: L names.
        labels: 1 for yes, 0 for no, −1 where not known; None if nowhere. shape: (n, L)
        log_density, examples, target_name, title, ood, about, notes: as for every `Results`; ood has the same labels.

    Example:
        >>> p = np.array([[0.5, 0.9]])
        >>> part = np.array([[0.2, 0.1]])
        >>> MultilabelResults(p, part, part, part, ["warm", "wet"]).entropy.round(2).tolist()
        [0.9]
    """

    probabilities: Array
    data: Array
    distributional: Array
    model: Array
    label_names: Sequence[Any]
    labels: Array | None = None

    task: ClassVar[str] = "multilabel"
    ARRAYS: ClassVar[tuple[str, ...]] = ("probabilities", *PARTS, "labels")

    def __post_init__(self) -> None:
        shape = (len(self.probabilities), len(self.label_names))
        for name in self.ARRAYS:
            value = getattr(self, name)
            if value is not None:
                array = np.asarray(value)
                object.__setattr__(self, name, array)
                if array.shape != shape or not np.isfinite(array).all():
                    raise ResultsError(f"{name} must be finite numbers of shape {shape}, not of {array.shape}")
        self._check()
        if self.probabilities.min() < 0 or self.probabilities.max() > 1:
            raise ResultsError("probabilities must lie between 0 and 1")
        if self.labels is not None and not np.isin(self.labels, (-1, 0, 1)).all():
            raise ResultsError("labels must be 0 or 1, or −1 where not known")
        if self.ood is not None and len(self.ood.label_names) != shape[1]:
            raise ResultsError("the OOD results have another number of labels")

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def observed(self) -> Array:
        """The labels, −1 where not known. shape: (n, L)"""
        return np.full(self.probabilities.shape, -1) if self.labels is None else self.labels

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Which rows have all their labels. shape: (n,)"""
        return np.asarray((self.observed >= 0).all(1))

    @property
    def entropy(self) -> Array:
        """Of all labels together. shape: (n,)"""
        return (self.data + self.distributional + self.model).sum(1)

    @property
    def uncertainty(self) -> Array:
        """What ranks the most uncertain rows: the entropy of all labels. shape: (n,)"""
        return self.entropy

    @property
    def epistemic(self) -> Array:
        """What is not known of probabilities and network, of all labels together. shape: (n,)"""
        return (self.distributional + self.model).sum(1)

    def answers(self) -> ClassificationResults:
        """Every label of every row as a row of its own, with the classes no and yes."""
        p, data, evidence, model = (getattr(self, name).ravel() for name in ("probabilities", *PARTS))
        more = evidence + model
        return ClassificationResults(
            probabilities=np.stack([1 - p, p], 1), entropy=data + more, aleatoric_entropy=data, data_entropy=data,
            epistemic_entropy=more, distributional_entropy=evidence, model_entropy=model,
            class_names=["no", "yes"], target_name=self.target_name,
            labels=None if self.labels is None else self.labels.ravel().astype(np.int64),
            ood=None if self.ood is None else self.ood.answers(),
        )  # fmt: skip


class Multilabel(Task):
    """Several labels at once, each yes or no."""

    name = "multilabel"
    outputs = MappingProxyType({
        "probabilities": Output("probability"), "total": Output("nats"),
        **{name: Output("nats") for name in PARTS},
    })  # fmt: skip
    column = "binary"
    missing = -1
    dtype = np.int64
    estimator = "BEDLClassifier"
    record: ClassVar[type[MultilabelResults]] = MultilabelResults
    observed = "labels"
    work = 1600  # nodes of the head's quadrature
    meanings = MappingProxyType({
        "label_accuracy": Meaning("Accuracy", "share of labels whose more probable answer is right", share=True),
        "all_labels_right": Meaning("All labels right", "share of rows without a wrong label", share=True),
        "nll": NLL,
        "label_ece": Meaning("ECE", "expected calibration error of all answers, 15 bins", share=True),
        "label_brier": Meaning("Brier score", "mean of (probability − label)², 0 to 1; lower is better"),
        "label_auroc": Meaning("AUROC", "ranking of yes before no, mean over the labels; 1 perfect, 0.5 chance"),
        "mean_entropy": Meaning("Mean entropy", "of the predicted probabilities, in nats"),
        **DETECTION,
    })  # fmt: skip

    def describe(self, names: Sequence[Any]) -> str:
        return f"{self.name}, {len(names)} labels"

    def validation_error(self, y: np.ndarray) -> tuple[int, str] | None:
        wrong = ~np.isin(y, (0, 1, self.missing))
        return (int(wrong.argmax()), f"{y[wrong][0]:g} is neither 0 nor 1") if wrong.any() else None

    def columns(
        self, quantities: Quantities, names: Sequence[Any] | None = None, coverage: float = 0.9
    ) -> dict[str, np.ndarray]:
        """For each label ``prediction_<label>`` (0 or 1), ``probability_<label>``, and, in nats, ``entropy_<label>``
        with its parts ``data_entropy_…``, ``distributional_entropy_…``, ``model_entropy_…``. There are no intervals.
        """
        p = quantities["probabilities"]
        tables = {"prediction": (p > 0.5).astype(np.int64), "probability": p, "entropy": quantities["total"]}
        tables |= {f"{name}_entropy": quantities[name] for name in PARTS}
        labels = names_for(names, p.shape[1], "label")
        return {f"{name}_{label}": values[:, i] for i, label in enumerate(labels) for name, values in tables.items()}

    def fields(self, quantities: Quantities, names: Sequence[Any] | None, coverage: float) -> dict[str, Any]:
        labels = names_for(names, quantities["probabilities"].shape[1], "label")
        return {name: quantities[name] for name in ("probabilities", *PARTS)} | {"label_names": labels}

    def marginal(self, outputs: Quantities) -> dict[str, np.ndarray]:
        found = {name: values.mean(0) for name, values in outputs.items()}
        p, least = found["probabilities"], np.finfo(found["probabilities"].dtype).tiny
        entropy = -(p * np.log(np.maximum(p, least)) + (1 - p) * np.log(np.maximum(1 - p, least)))
        between = np.maximum(entropy - found["total"], 0)
        return {**found, **{name: found[name] + between for name in ("total", "distributional")}}

    def scores(self, results: MultilabelResults) -> dict[str, float]:
        values: dict[str, float] = {}
        some = results.labelled
        if some.any():
            y, p = results.observed[some], results.probabilities[some].astype(float)
            right = (p > 0.5) == y
            if results.log_density is not None:
                logs = np.asarray(results.log_density, float)[some]
            else:
                with np.errstate(divide="ignore"):
                    logs = np.log(np.where(y == 1, p, 1 - p)).sum(1)
            values = {
                "label_accuracy": float(right.mean()),
                "all_labels_right": float(right.all(1).mean()),
                "nll": float(-logs.mean()),
                "label_ece": metrics.ece(y.ravel(), np.stack([1 - p.ravel(), p.ravel()], 1)),
                "label_brier": float(np.square(p - y).mean()),
            }
            ranked = [metrics.auroc(p[y == 0], p[y == 1]) for p, y in zip(p.T, y.T, strict=True) if 0 < y.mean() < 1]
            values |= {"label_auroc": float(np.mean(ranked))} if ranked else {}
        values["mean_entropy"] = float(np.mean(results.entropy, dtype=float))
        return {**values, **detection(results)}

    def cost(self, truth: Quantities, other: Quantities) -> dict[str, float]:
        """Largest differences of ``probability`` and ``entropy``, and ``labels_changed``, a share of all labels."""
        answers = [outputs["probabilities"] > 0.5 for outputs in (truth, other)]
        return {
            "probability": float(np.abs(truth["probabilities"] - other["probabilities"]).max()),
            "entropy": float(np.abs(truth["total"] - other["total"]).max()),
            "labels_changed": float(np.mean(answers[0] != answers[1])),
        }


TASK = Multilabel()
