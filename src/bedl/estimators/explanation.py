"""Why predictions are uncertain: the parts of each row's uncertainty, and the columns that these change with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bedl.nn.tabular import Standardize

__all__ = ["NEXT", "explained"]


NEXT = {  # what lowers a part
    "data": "another column, or repeated measurements: noise, which more rows do not lower",
    "distributional": "the target of this row, or of rows like it: there is little evidence",
    "model": "targets of more rows: the weights are uncertain",
}


def explained(estimator: Any, X: Any) -> Any:
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
    return frame


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
