"""What leaves the process: files, pickles, exported models."""

from __future__ import annotations

import copy
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import nn

from bedl.deploy.scaling import InUnits
from bedl.estimators import storage
from bedl.nn.scaling import Standardize

__all__ = ["Portable", "device_of"]


def device_of(module: nn.Module) -> torch.device:
    """Where a module's tensors are; one without any is on the CPU."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


class Portable:
    """Base of estimators that are saved, loaded and exported."""

    method_: Any
    task_: str
    input_shape_: tuple[int, ...]

    # -- what the subclasses say ------------------------------------------------------------------
    def _scale(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Where targets have been moved and scaled to: what to add and what to multiply by to undo it."""
        return None

    def _as_predicted(self, method: nn.Module) -> nn.Module:
        """A module that predicts as the estimator does: in the targets' own units."""
        scale = self._scale()
        return method if scale is None else InUnits(method, *(torch.as_tensor(part) for part in scale))

    def _intervals(self) -> dict[str, Any] | None:
        """What rows that were held out say about intervals: ``scores`` and ``mass``; None: nothing was held out."""
        return None

    def _names(self) -> dict[str, list[str] | None]:
        """Names of targets or classes, for export."""
        raise NotImplementedError

    # -- out of this process ----------------------------------------------------------------------
    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()  # type: ignore[misc]
        if "method_" in state and device_of(state["method_"]).type != "cpu":
            state = {**state, "method_": copy.deepcopy(state["method_"]).cpu(), "_optimizers": []}
        return state

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the fitted estimator to one safetensors file; nothing is pickled.

        Args:
            path: the file; refused if it exists, unless `overwrite`.
            overwrite: replace what is there.
        """
        check_is_fitted(self, "method_")
        return storage.save(self, Path(path), overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], **given: Any) -> Any:
        """Read what `save` wrote.

        Args:
            path: the file.
            given: parameters that no file can hold: the `net` (a module or callable), an own objective or activation.
        """
        return storage.load(Path(path), cls, given)

    def _exportable(self) -> Any:
        """What leaves Python, in single precision, on the CPU, in evaluation mode; see `bedl.deploy`."""
        check_is_fitted(self, "method_")
        from bedl.deploy import Exportable

        module = self._as_predicted(copy.deepcopy(self.method_))
        encoder = getattr(self, "encoder_", None)
        features = getattr(self, "feature_names_in_", None) if encoder is None else encoder.feature_names
        front = next((part for part in module.modules() if isinstance(part, Standardize)), None)
        centre = torch.zeros(()) if front is None else front.loc.cpu().float()
        return Exportable(
            module=module.cpu().float().eval(),
            example=centre.expand(2, *self.input_shape_).contiguous(),
            task=self.task_,
            intervals=self._intervals(),
            feature_names=None if features is None else [str(name) for name in features],
            **self._names(),
        )

    def _state(self) -> dict[str, Any]:
        """What a subclass has learned beside the network, as JSON."""
        return {}

    def _set_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError
