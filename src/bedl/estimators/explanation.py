"""Why predictions are uncertain, by component and column; and which rows to label next (active learning)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bedl.nn.tabular import Standardize

NEXT = {  # what lowers a part
    "data": "another column, or repeated measurements: noise, which more rows do not lower",
    "distributional": "the target of this row, or of rows like it: there is little evidence",
    "model": "targets of more rows: the weights are uncertain",
}


NEAREST = 3  # rows that are named


def explained(estimator: Any, X: Any, rows: Any = None) -> Any:
    """As `BEDLEstimator.explain`."""
    import pandas

    inputs = estimator._inputs(X)
    if inputs.X.ndim != 2:
        raise ValueError(f"explain is for tables; each of these points has the shape {inputs.X.shape[1:]}")
    names, column = _columns(estimator, inputs.X.shape[1])
    method = estimator.method_.eval()
    front = next((part for part in method.modules() if isinstance(part, Standardize)), None)
    scale = torch.ones(()) if front is None else front.scale.cpu()
    found: dict[str, list[np.ndarray]] = {}
    place = next(method.parameters()).device
    for chunk in inputs.chunks():
        x = chunk.to(place).requires_grad_()
        with torch.enable_grad():
            prediction = estimator._in_units(method(x).to("cpu"))
            total = prediction.total
            several = total.shape[1] if total.ndim > 1 else 1
            labels = [""] if several == 1 else [f"_{name}" for name in estimator._output_names() or range(several)]
            for part in ("total", *NEXT):
                values = getattr(prediction, part).reshape(len(x), -1)
                for number, label in enumerate(labels):
                    found.setdefault(part + label, []).append(values[:, number].detach().double().numpy())
                    if part != "total":
                        effect = _effects(values[:, number], x, scale, column, len(names))
                        most = np.abs(effect).argmax(1)
                        found.setdefault(f"{part}_column{label}", []).append(np.asarray(names, dtype=object)[most])
                        found.setdefault(f"{part}_effect{label}", []).append(effect[np.arange(len(x)), most])
    columns = {name: np.concatenate(parts) for name, parts in found.items()}
    order = [f"{part}{what}{label}" for label in labels for part in ("total", *NEXT)
             for what in ("", "_column", "_effect") if part != "total" or not what]  # fmt: skip
    frame = pandas.DataFrame({name: columns[name] for name in order}, index=getattr(X, "index", None))
    for label in labels:
        largest = np.stack([columns[part + label] for part in NEXT], 1).argmax(1)
        frame[f"next{label}"] = np.array(list(NEXT.values()))[largest]
    if rows is None:
        return frame
    numbers = _nearest(method, inputs, estimator._inputs(rows), scale, place)
    nearest = np.asarray(getattr(rows, "index", range(len(rows))))[numbers]
    return frame.assign(**{f"nearest_{k + 1}": nearest[:, k] for k in range(nearest.shape[1])})


def _nearest(method: Any, inputs: Any, rows: Any, scale: Tensor, device: torch.device) -> np.ndarray:
    """Numbers of the nearest rows of each point, the nearest first. shape: (n, at most `NEAREST`)

    By what the last hidden layer makes of them, where the method has a `place`, else by columns in standard deviations.
    """
    from scipy.spatial import cKDTree

    where = getattr(method, "place", lambda x: x / scale.to(x))
    with torch.no_grad():
        at, of = (np.concatenate([where(x.to(device)).double().cpu().numpy() for x in some.chunks()])
                  for some in (inputs, rows))  # fmt: skip
    return np.asarray(cKDTree(of).query(at, np.arange(1, min(NEAREST, len(of)) + 1))[1])


def _columns(estimator: Any, n_features: int) -> tuple[list[str], np.ndarray]:
    """Names of the columns, and which of them each feature is of. shape: (n_features,)"""
    encoder = estimator.encoder_
    if encoder is not None:
        counts = [len(column.features) for column in encoder.columns]
        return [column.name for column in encoder.columns], np.repeat(np.arange(len(counts)), counts)
    names = getattr(estimator, "feature_names_in_", None)
    return [str(n) for n in (range(n_features) if names is None else names)], np.arange(n_features)


def _effects(values: Tensor, x: Tensor, scale: Tensor, column: np.ndarray, n_columns: int) -> np.ndarray:
    """By how much values change, to first order, with one standard deviation of each column. shape: (n, columns)

    Of a column that became several features it is the length of the vector of their effects.
    """
    if not values.requires_grad:  # noise that is the same for all
        return np.zeros((len(x), n_columns))
    (slope,) = torch.autograd.grad(values.sum(), x, retain_graph=True, allow_unused=True, materialize_grads=True)
    effect = (slope.cpu() * scale).double().nan_to_num().numpy()
    length = np.sqrt(effect**2 @ (column[:, None] == np.arange(n_columns)))
    alone = np.flatnonzero(np.bincount(column, minlength=n_columns) == 1)
    length[:, alone] = effect[:, np.isin(column, alone)]  # which has a sign
    return length


# Which rows to label next: those whose labels would tell most about all the others.


MIN_VARIANCE = 1e-300
MAX_ROWS = 2000  # of a large pool, that are looked at: so many of the least known, and so many of all


def candidates(unknown: np.ndarray, most: int = MAX_ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Of a large pool: rows that may be labelled, and which of them stand for the pool. shape: (n,) -> (m,), (m,)

    They stand for it by what is not known of them, in whatever order rows come.
    """
    if len(unknown) <= 2 * most:
        return np.arange(len(unknown)), np.ones(len(unknown), dtype=bool)
    order = np.argsort(-unknown, kind="stable")
    spaced = order[np.linspace(0, len(order) - 1, most).astype(np.int64)]
    rows = np.union1d(spaced, order[:most])
    return rows, np.isin(rows, spaced)


def rest_of(unknown: np.ndarray, found: np.ndarray) -> np.ndarray:
    """All other rows, the least known first. shapes: (n,), (m,) -> (n - m,)"""
    order = np.argsort(-unknown, kind="stable")
    return order[~np.isin(order, found)]


def most_telling(
    unknown: np.ndarray, noise: float, places: np.ndarray, n: int, matter: np.ndarray | None = None
) -> np.ndarray:
    """Rows whose labels, one after the other, lower the sum of the epistemic variances most.

    What is not known of two rows is taken for a Gaussian process: they have the variances `unknown`, and their
    correlation falls with the squared distance between them, in units of what is predicted, over the usual epistemic
    variance. (Where predictions differ by more than what is not known, the one says nothing about the other.) Then each
    label's effect on all rows has a closed form, and the best is taken: D. Cohn, Z. Ghahramani, M. Jordan, "Active
    Learning with Statistical Models", JAIR 1996; A. Krause, A. Singh, C. Guestrin, JMLR 2008.

    Args:
        unknown: epistemic variances. shape: (n,)
        noise: the variance of a label's noise.
        places: where rows are, in units of what is predicted. shape: (n, columns)
        n: how many.
        matter: which rows are to be known. shape: (n,)

    Returns:
        which rows, the first one first. shape: (n,)

    Example:
        >>> import numpy as np
        >>> places = np.array([[0.0], [0.01], [0.02], [5.0]])  # three that are alike, and one apart
        >>> most_telling(np.array([1.0, 1.0, 1.0, 1.2]), 0.1, places, 2)
        array([1, 3])
    """
    if matter is None:
        matter = np.ones(len(unknown), dtype=bool)
    sizes = np.einsum("ij,ij->i", places, places)
    squares = np.maximum(sizes[:, None] + sizes - 2 * places @ places.T, 0.0)
    covariance = np.sqrt(np.outer(unknown, unknown)) * np.exp(-squares / (2 * max(unknown.mean(), MIN_VARIANCE)))
    with_all = np.ascontiguousarray(covariance[:, matter])  # of each row with those that are to be known
    left, gain = unknown.astype(np.float64), np.square(with_all).sum(1)  # variances, and sums of squares
    told = np.zeros((n, len(unknown)))  # what each label takes from the covariances is an outer product of these
    free = np.ones(len(unknown), dtype=bool)
    chosen = np.zeros(n, dtype=np.int64)
    for number in range(n):
        best = int(np.where(free, gain / np.maximum(left + noise, MIN_VARIANCE), -np.inf).argmax())
        chosen[number], free[best] = best, False
        before = told[:number]
        said = (covariance[best] - before[:, best] @ before) / np.sqrt(max(left[best] + noise, MIN_VARIANCE))
        across = with_all @ said[matter] - before.T @ (before[:, matter] @ said[matter])
        gain = np.maximum(gain - 2 * said * across + np.square(said) * np.square(said[matter]).sum(), 0.0)
        left = np.maximum(left - np.square(said), 0.0)
        told[number] = said
    return chosen
