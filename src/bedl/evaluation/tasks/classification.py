"""Classes: one of several names, each with a probability."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bedl.evaluation import metrics
from bedl.evaluation.metrics._checks import as_labels
from bedl.evaluation.tasks._base import DETECTION, NLL, Meaning, Output, Quantities, Task, detection, names_for
from bedl.evaluation.tasks._results import Array, Hits, Results, ResultsError


@dataclasses.dataclass(frozen=True, eq=False)
class ClassificationResults(Results):
    """Predicted probabilities of C classes. Entropies are in nats.

    Args:
        probabilities: those of the classes. shape: (n, C)
        entropy: that of the predicted probabilities. shape: (n,)
        aleatoric_entropy: of classes that overlap: what would be left if everything were known. shape: (n,)
        epistemic_entropy: what is not known; the two add up to `entropy`. shape: (n,)
        class_names: C names.
        labels: class numbers, −1 where not known; None if nowhere. shape: (n,)
        data_entropy: as aleatoric_entropy; None where the model does not tell three parts apart. shape: (n,)
        distributional_entropy: for lack of evidence. shape: (n,)
        model_entropy: for what the network may be; the three add up to `entropy`. shape: (n,)
        sets: which classes the prediction set of a row holds; None where there are none. shape: (n, C)
        level: nominal probability with which these sets hold the label.
        log_density: log p(label), for an exact likelihood where a probability rounds to 0. shape: (n,)
        examples, target_name, title, ood, about, notes: as for every `Results`; ood has the same classes.

    Example:
        >>> p = np.array([[0.5, 0.5], [0.9, 0.1]])
        >>> h = -(p * np.log(p)).sum(1)
        >>> ClassificationResults(p, h, 0.7 * h, 0.3 * h, ["no", "yes"]).predicted.tolist()
        [0, 0]
    """

    probabilities: Array
    entropy: Array
    aleatoric_entropy: Array
    epistemic_entropy: Array
    class_names: Sequence[Any]
    labels: Array | None = None
    data_entropy: Array | None = None
    distributional_entropy: Array | None = None
    model_entropy: Array | None = None
    sets: Array | None = None
    level: float = 0.9

    task: ClassVar[str] = "classification"
    PARTS: ClassVar[tuple[str, ...]] = ("data_entropy", "distributional_entropy", "model_entropy")
    ARRAYS: ClassVar[tuple[str, ...]] = (
        *("probabilities", "entropy", "aleatoric_entropy", "epistemic_entropy"), "labels", *PARTS, "sets"
    )  # fmt: skip

    def __post_init__(self) -> None:
        table = np.asarray(self.probabilities)
        object.__setattr__(self, "probabilities", table)
        if table.ndim != 2 or table.shape[1] != len(self.class_names) or table.shape[1] < 2:
            raise ResultsError(
                f"probabilities have shape {table.shape}, but there are {len(self.class_names)} class names"
            )
        self._check(*self.ARRAYS[1:-1])
        if self.sets is not None and np.shape(self.sets) != table.shape:
            raise ResultsError(f"sets have shape {np.shape(self.sets)}, the probabilities {table.shape}")
        if not (np.isfinite(table).all() and table.min() >= 0 and np.allclose(table.sum(1), 1, atol=1e-3)):
            raise ResultsError("probabilities must be finite, not negative, and sum to 1 in every row")
        if self.labels is not None:
            try:
                as_labels("labels", self.labels, table.shape[1], unknown=True)
            except metrics.MetricError as error:
                raise ResultsError(str(error)) from None
        elif self.log_density is not None:
            raise ResultsError("log_density is that of the labels: without labels there is none")
        if self.ood is not None and len(self.ood.class_names) != len(self.class_names):
            raise ResultsError("the OOD results have another number of classes")

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def observed(self) -> Array:
        """The labels, −1 where not known. shape: (n,)"""
        return np.full(len(self), -1) if self.labels is None else self.labels

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Which rows have a label. shape: (n,)"""
        return self.observed >= 0

    @property
    def predicted(self) -> NDArray[np.intp]:
        """The most probable class. shape: (n,)"""
        return self.probabilities.argmax(1)

    @property
    def uncertainty(self) -> Array:
        """What ranks the most uncertain rows: the entropy. shape: (n,)"""
        return self.entropy

    @property
    def epistemic(self) -> Array:
        """What is not known, in nats. shape: (n,)"""
        return self.epistemic_entropy

    @property
    def surprise(self) -> Array | None:
        """−log of the probability that the label had, in nats. shape: (n,)"""
        if self.labels is None:
            return None
        if self.log_density is not None:  # of probabilities that round to 0, one can be smaller than another
            return np.where(self.labelled, -np.asarray(self.log_density, float), -np.inf)
        table, some = self.probabilities, self.labelled
        chosen = table[np.arange(len(table)), np.where(some, self.labels, 0)].astype(float)
        return np.where(some, -np.log(np.maximum(chosen, np.finfo(float).tiny)), -np.inf)

    @property
    def hits(self) -> Hits | None:
        """Whether the predicted class is right, by confidence."""
        confidence = self.probabilities.max(1).astype(float)
        return Hits(self.predicted == self.observed, confidence, confidence, "confidence")


class Classification(Task):
    """One of several classes."""

    name = "classification"
    # data, distributional and model add up to the entropy; aleatoric is data, epistemic the other two, and
    # expected_entropy data and distributional. In files of schema 1 aleatoric and epistemic are variances per class.
    outputs = MappingProxyType({
        "probabilities": Output("probability"), "aleatoric": Output("nats", per_name=False),
        "epistemic": Output("nats", per_name=False), "entropy": Output("nats", per_name=False),
        "expected_entropy": Output("nats", per_name=False),
        "data": Output("nats", per_name=False, optional=True),
        "distributional": Output("nats", per_name=False, optional=True),
        "model": Output("nats", per_name=False, optional=True),
    })  # fmt: skip
    column = "class"
    missing = -1
    dtype = np.int64
    estimator = "BEDLClassifier"
    record: ClassVar[type[ClassificationResults]] = ClassificationResults
    observed = "labels"
    work = 32  # nodes of the head's quadrature
    meanings = MappingProxyType({
        "accuracy": Meaning("Accuracy", "share of rows whose most probable class is right", share=True),
        "balanced_accuracy": Meaning("Balanced accuracy", "mean recall of the classes", share=True),
        "nll": NLL,
        "ece": Meaning("ECE", "expected calibration error, 15 bins: mean gap between confidence and accuracy", True),
        "brier": Meaning("Brier score", "squared error of the probabilities, 0 to 2; lower is better"),
        "aurc": Meaning("AURC", "area under the risk-coverage curve by entropy; lower is better"),
        "auroc": Meaning("AUROC", "of the class probabilities, mean over one class against the rest; 0.5 is chance"),
        "average_precision": Meaning(
            "Average precision", "of the rarer class; of several classes, their mean; chance is a class's share of rows"
        ),
        "set_coverage": Meaning("Set coverage", "share of rows whose prediction set holds their label", share=True),
        "set_size": Meaning("Set size", "mean number of classes in a prediction set; fewer is better"),
        "mean_entropy": Meaning("Mean entropy", "of the predicted probabilities, in nats"),
        "ecdf_auc": Meaning("ECDF-AUC", "log C − mean entropy in nats; high is confident"),
        **DETECTION,
        "ood_ecdf_auc": Meaning("ECDF-AUC, OOD", "log C − mean entropy in nats; low is uncertain"),
    })  # fmt: skip

    def describe(self, names: Sequence[Any]) -> str:
        return f"{self.name}, {len(names)} classes"

    def columns(
        self, quantities: Quantities, names: Sequence[Any] | None = None, coverage: float = 0.9
    ) -> dict[str, np.ndarray]:
        """``prediction`` (the name of the class), ``entropy``, ``aleatoric_entropy``, ``epistemic_entropy`` (in nats;
        the latter two add up to the first), where the model tells them apart ``data_entropy``,
        ``distributional_entropy`` and ``model_entropy``, which do too, then ``probability_<class>``. Where rows were
        held out, ``prediction_set``, the names of the classes that hold the label with probability `coverage`, the most
        probable first, with | between them, and ``set_size`` follow the prediction.
        """
        probabilities, entropy = quantities["probabilities"], quantities["entropy"]
        classes = names_for(names, probabilities.shape[1], "class")
        aleatoric = quantities["data"] if "data" in quantities else quantities["expected_entropy"]
        aleatoric = np.minimum(aleatoric, entropy)  # rounding only
        parts = {
            f"{part}_entropy": quantities[part] for part in ("data", "distributional", "model") if part in quantities
        }
        columns = {
            "prediction": np.asarray(classes)[probabilities.argmax(1)],
            **(set_columns(quantities["set"], probabilities, classes) if "set" in quantities else {}),
            "entropy": entropy,
            "aleatoric_entropy": aleatoric,
            "epistemic_entropy": entropy - aleatoric,
            **parts,
        }
        return {**columns, **{f"probability_{name}": probabilities[:, i] for i, name in enumerate(classes)}}

    def fields(self, quantities: Quantities, names: Sequence[Any] | None, coverage: float) -> dict[str, Any]:
        probabilities, columns = quantities["probabilities"], self.columns(quantities, names)
        classes = names_for(names, probabilities.shape[1], "class")
        names_of_parts = ("entropy", "aleatoric_entropy", "epistemic_entropy", *self.record.PARTS)
        parts = {name: columns[name] for name in names_of_parts if name in columns}
        sets = {"sets": quantities.get("set"), "level": coverage}
        return {"probabilities": probabilities, **parts, "class_names": classes, **sets}

    def marginal(self, outputs: Quantities) -> dict[str, np.ndarray]:
        found = {name: values.mean(0) for name, values in outputs.items()}
        p = found["probabilities"]
        entropy = -(p * np.log(np.maximum(p, np.finfo(p.dtype).tiny))).sum(1)
        between = np.maximum(entropy - found["entropy"], 0)
        for name in {"entropy", "epistemic", "distributional", "expected_entropy"} & set(found):
            found[name] = found[name] + between
        return found

    def scores(self, results: ClassificationResults) -> dict[str, float]:
        values: dict[str, float] = {}
        some, count = results.labelled, len(results.class_names)
        if some.any():
            labels, table = results.observed[some], results.probabilities[some]
            if results.log_density is not None:
                logs = np.asarray(results.log_density, float)[some]
            else:
                with np.errstate(divide="ignore"):
                    logs = np.log(table[np.arange(len(labels)), labels].astype(float))
            values = {
                "accuracy": metrics.accuracy(labels, table),
                "balanced_accuracy": metrics.balanced_accuracy(labels, table),
                "nll": float(-logs.mean()),
                "ece": metrics.ece(labels, table),
                "brier": metrics.brier(labels, table),
                "aurc": metrics.aurc(table.argmax(1) != labels, results.entropy[some]),
            }
            areas, precisions = metrics.one_vs_rest(labels, table)
            if np.isfinite(areas).any():
                rarest = np.bincount(labels, minlength=count).argmin() if count == 2 else slice(None)
                values["auroc"] = float(np.nanmean(areas))
                values["average_precision"] = float(np.nanmean(precisions[rarest]))
        if some.any() and results.sets is not None:
            sets = np.asarray(results.sets)[some]
            values |= {"set_coverage": float(sets[np.arange(len(sets)), results.observed[some]].mean()),
                       "set_size": float(sets.sum(1).mean())}  # fmt: skip
        values["mean_entropy"] = float(np.mean(results.entropy, dtype=float))
        if results.ood is None:
            return values
        areas_under = {
            "ecdf_auc": metrics.ecdf_auc(results.entropy, count),
            "ood_ecdf_auc": metrics.ecdf_auc(results.ood.entropy, count),
        }
        return {**values, **detection(results), **areas_under}

    def baseline(self, results: ClassificationResults) -> dict[str, float]:
        """Scores of the class frequencies among the record's own labels, for every row."""
        labels = results.observed[results.labelled]
        if not len(labels):
            return {}
        shares = np.bincount(labels, minlength=len(results.class_names)) / len(labels)
        seen = shares[shares > 0]
        return {
            "accuracy": float(shares.max()),
            "nll": float(-(seen * np.log(seen)).sum()),
            "brier": float(1 - np.square(shares).sum()),
        }

    def cost(self, truth: Quantities, other: Quantities) -> dict[str, float]:
        """Largest differences of ``probability`` and ``entropy``, and ``labels_changed``, a share of the points."""
        labels = [outputs["probabilities"].argmax(-1) for outputs in (truth, other)]
        return {
            "probability": float(np.abs(truth["probabilities"] - other["probabilities"]).max()),
            "entropy": float(np.abs(truth["entropy"] - other["entropy"]).max()),
            "labels_changed": float(np.mean(labels[0] != labels[1])),
        }


def set_columns(held: np.ndarray, probabilities: np.ndarray, classes: Sequence[Any]) -> dict[str, np.ndarray]:
    """``prediction_set`` and ``set_size`` of rows, as in `Classification.columns`. shapes: (n, C), (n, C)"""
    sizes = held.sum(1)
    order = np.argsort(np.where(held, -probabilities, 1.0), axis=1, kind="stable")
    names = [str(name) for name in classes]
    texts = ["|".join(names[c] for c in row[:size]) for row, size in zip(order.tolist(), sizes.tolist(), strict=True)]
    return {"prediction_set": np.array(texts, dtype=object if not texts else str), "set_size": sizes}


TASK = Classification()
