"""Dense predictions: a prediction at every place of an image, as rows to be scored and as maps to be looked at."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from bedl.evaluation.tasks._base import Quantities, get
from bedl.evaluation.tasks._results import Array, Results, ResultsError

SHOWN = 8  # images with maps on a page
ROWS = 200_000  # places that are scored and plotted; of more, so many are chosen


@dataclasses.dataclass(frozen=True, eq=False)
class Maps:
    """Images, what was predicted at each of their places, and the parts of the uncertainty there.

    Args:
        images: 0 … 255, grey (k, H, W) or (k, 1, H, W), colour (k, 3, H, W). dtype: uint8
        predicted: class numbers, or values. shape: (k, H, W)
        parts: name → that part of the uncertainty. shapes: (k, H, W)
        unit: of the parts.
        names: of the classes; None where values were predicted.
        observed: targets, as predicted; −1 or NaN where not known. shape: (k, H, W)
        index: which images these are, counted from 0. shape: (k,)
    """

    images: Array
    predicted: Array
    parts: dict[str, Array]
    unit: str
    names: Sequence[Any] | None = None
    observed: Array | None = None
    index: Array = dataclasses.field(default_factory=lambda: np.arange(0))

    def __post_init__(self) -> None:
        shape = self.predicted.shape
        fits = self.images.shape[-2:] == shape[1:] and len(self.images) == len(self.predicted)
        if self.images.dtype != np.uint8 or not fits:
            raise ResultsError(
                f"images are {self.images.dtype} of shape {self.images.shape}: uint8, and as many and as large as the "
                f"maps, {shape}, are needed"
            )
        for name, part in self.parts.items():
            if part.shape != shape:
                raise ResultsError(f"the map of {name} has shape {part.shape}, that of the prediction {shape}")


def map_results(
    prediction: Any,
    images: Array,
    y: Array | None = None,
    *,
    task: str | None = None,
    names: Sequence[Any] | None = None,
    target: str = "target",
    show: int = SHOWN,
    **about: Any,
) -> Results:
    """A dense prediction as a record: every place is a row, and the most uncertain images are kept as maps.

    Args:
        prediction: what a method predicts for images, or the outputs of an exported model, by name.
        images: numbers of any range. shape: (n, H, W), (n, 1, H, W) or (n, 3, H, W)
        y: targets; −1 for a class, NaN for a value that is not known. shape: (n, H, W)
        task: needed for outputs of an exported model: its task.
        names: of the classes.
        target: what the target is called.
        show: how many images to keep.
        about: further fields of the record, such as ``title``.

    Example:
        >>> import bedl, torch
        >>> method = bedl.BEDL(bedl.GaussianConv2d(1, 3, 1), bedl.Dirichlet(3, dim=1))
        >>> images = torch.rand(2, 1, 8, 8)
        >>> results = map_results(method.predict(images), images, names=["sky", "sea", "sand"])
        >>> len(results), results.maps.predicted.shape, sorted(results.maps.parts)
        (128, (2, 8, 8), ['data', 'distributional', 'model'])
    """
    outputs = prediction if isinstance(prediction, dict) else prediction.outputs()
    values: dict[str, Array] = {name: _array(value) for name, value in outputs.items()}
    name = task or getattr(prediction, "task", None)
    if name is None:
        raise ResultsError("outputs by name do not say what they are of: pass task=, such as OnnxModel(…).task")
    kind = get(name)
    classes = "probabilities" in values
    dense = values["probabilities" if classes else "mean"]
    if dense.ndim != 4:
        raise ResultsError(f"maps are of predictions of shape (n, H, W, …), not {dense.shape}")
    if not classes and dense.shape[-1] != 1:
        raise ResultsError(f"a record holds one target, not {dense.shape[-1]}: make one of each")
    truth = None if y is None else _array(y).reshape(dense.shape[:3])
    parts = {name: values[name].reshape(dense.shape[:3]) for name in ("data", "distributional", "model")}
    if not classes:
        parts = {name: np.sqrt(part) for name, part in parts.items()}
    predicted = dense.argmax(-1) if classes else dense[..., 0]
    order = np.argsort(-sum(parts.values()).mean((1, 2)), kind="stable")[:show]  # type: ignore[union-attr]
    maps = Maps(
        _as_bytes(_array(images))[order], predicted[order], {name: part[order] for name, part in parts.items()},
        "nats" if classes else "standard deviations", names if classes else None,
        None if truth is None else truth[order], order,
    )  # fmt: skip
    rows, some = _rows(values, truth, dense.shape[:3])
    record = kind.results(rows, some, names=names, target=target)
    return dataclasses.replace(record, maps=maps, **about)


def _rows(values: Quantities, y: Array | None, places: tuple[int, ...]) -> tuple[dict[str, Array], Array | None]:
    """Every place as a row; of very many, some, the same ones each time."""
    count = int(np.prod(places))
    chosen = np.arange(count)
    if count > ROWS:
        chosen = np.sort(np.random.default_rng(0).choice(count, ROWS, replace=False))
    flat = {name: v.reshape(count, *v.shape[3:])[chosen] for name, v in values.items()}
    return flat, None if y is None else y.reshape(-1)[chosen]


def _array(value: Any) -> Array:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _as_bytes(images: Array) -> Array:
    """Images of any range as bytes, each from its darkest to its brightest value."""
    if images.dtype == np.uint8:
        return images
    axes = tuple(range(1, images.ndim))
    low, high = images.min(axes, keepdims=True), images.max(axes, keepdims=True)
    return np.round(255 * (images - low) / np.where(high > low, high - low, 1.0)).astype(np.uint8)


# Where in a map, a sequence or a volume a prediction is.


PLACES = {2: ("position",), 3: ("row", "column"), 4: ("slice", "row", "column")}  # by dimensions, points included


def place_columns(shape: Sequence[int]) -> dict[str, np.ndarray]:
    """Columns that say which place a row of a long table is of; none where every point has one prediction.

    Example:
        >>> {name: values.tolist() for name, values in place_columns((2, 1, 2)).items()}
        {'point': [0, 0, 1, 1], 'row': [0, 0, 0, 0], 'column': [0, 1, 0, 1]}
    """
    if len(shape) < 2:
        return {}
    names = PLACES.get(len(shape), tuple(f"axis_{i}" for i in range(1, len(shape))))
    return {name: at.reshape(-1) for name, at in zip(("point", *names), np.indices(shape), strict=True)}
