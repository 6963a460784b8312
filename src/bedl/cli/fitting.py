"""From a table to a model folder, in steps that an interrupted fit can take up again.

Everything happens in `<name>.partial`: run.json says what is being made, data/ holds the encoded table, checkpoints/
the training. Whatever is there and complete is not made again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from bedl import tasks
from bedl.cli.model_folder import (
    CARD,
    WEIGHTS,
    ModelCard,
    ModelFolderError,
    ModelFolderExistsError,
    checksum,
    partial_of,
    put_in_place,
    read_json,
    refuse_taken,
    write_card,
    write_json,
)
from bedl.cli.predicting import batch_rows
from bedl.data import Table, TableEncoder, encode_to_memmap

__all__ = ["FitSettings", "Fitting", "Rows"]

RUN = "run.json"
FEWEST = 20  # rows; of fewer none are held out
SMALL = 2**16  # weights of a layer
Advance = Callable[[int], object]


@dataclass(frozen=True)
class FitSettings:
    """What was asked for. A fit is resumed only with the same."""

    data: str
    target: str
    task: str = "auto"
    ignore: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    drop_missing_target: bool = False
    holdout: float = 0.1
    epochs: int | None = None
    ensemble: int = 1
    hidden: tuple[int, ...] = (50,)
    seed: int = 0


@dataclass(frozen=True)
class Rows:
    """The encoded table: rows to learn from, and rows held out for the scores, if any. Memory-mapped."""

    x: np.ndarray
    y: np.ndarray
    held_x: np.ndarray | None = None
    held_y: np.ndarray | None = None

    @property
    def counts(self) -> dict[str, int]:
        return {"training": len(self.x), "held_out": 0 if self.held_x is None else len(self.held_x)}


class Fitting:
    """A fit under way, in its partial folder.

    Args:
        table: what to learn from.
        settings: how.
        place: the folder to be.
        overwrite: replace a model that is there, and start anew where a fit was interrupted.
        resume: go on with a fit that was interrupted.
    """

    def __init__(self, table: Table, settings: FitSettings, place: Path, *, overwrite: bool, resume: bool):
        self.table, self.settings, self.place, self.partial = table, settings, place, partial_of(place)
        refuse_taken(place, overwrite)
        self.encoder: TableEncoder | None = None
        self._stamp = {"settings": _plain(asdict(settings)), "data": _data_stamp(table)}
        self._fresh = not self.partial.exists()
        if resume:
            self._take_up()
        elif not self._fresh:
            self._refuse_or_clear(overwrite)

    def _take_up(self) -> None:
        if not (self.partial / RUN).is_file():
            raise ModelFolderError(
                f"there is no interrupted fit in {self.partial} to resume. Leave out --resume to start one"
            )
        run = read_json(self.partial / RUN)
        for what, now in self._stamp.items():
            before = run.get(what, {})
            different = [key for key in now if before.get(key) != now[key]]
            if different:
                key = different[0]
                raise ModelFolderError(
                    f"{self.partial} is of a fit with {key.replace('_', '-')} {before.get(key)!r}, now {now[key]!r}: "
                    "resume with the same data and options, or start anew (--overwrite)"
                )
        if run.get("encoder") is not None:
            self.encoder = TableEncoder.from_dict(run["encoder"])

    def _refuse_or_clear(self, overwrite: bool) -> None:
        if not overwrite:
            raise ModelFolderExistsError(
                f"{self.partial} holds a fit that was interrupted. Go on with it (--resume), or start anew "
                "(--overwrite)"
            )
        if not (self.partial / RUN).is_file() and any(self.partial.iterdir()):
            raise ModelFolderExistsError(f"{self.partial} is not of bedl. Move it away, or choose another name (--out)")
        shutil.rmtree(self.partial)

    # -- the steps --------------------------------------------------------------------------------
    def decide(self, advance: Advance) -> TableEncoder:
        """How the table is read. Bad tables end here, and leave nothing behind."""
        if self.encoder is None:
            s = self.settings
            self.encoder = TableEncoder.fit(
                self.table, s.target, s.task, s.ignore, s.categorical,
                drop_missing_target=s.drop_missing_target, progress=advance,
            )  # fmt: skip
            self.partial.mkdir(exist_ok=True)
            write_json(self.partial / RUN, {**self._stamp, "encoder": self.encoder.to_dict()})
        return self.encoder

    def encode(self, advance: Advance) -> Rows:
        """The table as numbers on disk, some rows of it held out."""
        assert self.encoder is not None
        folder = self.partial / "data"
        try:
            if not (folder / "complete").exists():
                shutil.rmtree(folder, ignore_errors=True)
                x, y = encode_to_memmap(self.table, self.encoder, folder, advance)
                _split(x, y, self.settings, tasks.get(self.encoder.task).column == "class", folder)
                (folder / "complete").touch()
        except BaseException as error:
            if isinstance(error, Exception):
                self.discard()
            raise
        parts = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in _names(folder)]
        return Rows(*parts)

    def train(self, rows: Rows, device: str, callbacks: tuple[Any, ...]) -> Any:
        """The fitted estimator; goes on from a checkpoint that is there."""
        import bedl.estimators

        assert self.encoder is not None
        s, task = self.settings, tasks.get(self.encoder.task)
        estimator = getattr(bedl.estimators, task.estimator)(
            s.hidden, **task.options, standardize="shared" if self.encoder.image_shape else True, ensemble=s.ensemble,
            epochs="auto" if s.epochs is None else s.epochs, device=device,
            checkpoint=self.partial / "checkpoints", callbacks=callbacks, random_state=s.seed,
        )  # fmt: skip
        with _threads(self.encoder.n_features, s.hidden):
            return estimator.fit(rows.x, rows.y)

    def finish(self, estimator: Any, rows: Rows, scores: dict[str, float]) -> ModelCard:
        """Everything written, what is no longer needed removed, and the folder put in its place."""
        assert self.encoder is not None
        estimator.save(self.partial / WEIGHTS, overwrite=True)
        card = ModelCard(
            task=self.encoder.task,
            target=self.encoder.target,
            data=self.table.name,
            encoder=self.encoder.to_dict(),
            weights=checksum(self.partial / WEIGHTS),
            rows=rows.counts,
            scores={name: value if np.isfinite(value) else None for name, value in scores.items()},
            notes=self.encoder.notes,
            settings=self._stamp["settings"],
            versions=_versions(),
        )
        write_card(self.partial, card)
        for path in list(self.partial.iterdir()):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in (CARD, WEIGHTS):
                path.unlink()
        put_in_place(self.partial, self.place)
        return card

    def discard(self) -> None:
        """Gives up on a fit that this call began: nothing of it remains, unless something was learned already."""
        if self._fresh and not any((self.partial / "checkpoints").rglob("*.safetensors")):
            shutil.rmtree(self.partial, ignore_errors=True)


@contextmanager
def _threads(n_features: int, hidden: tuple[int, ...]) -> Iterator[None]:
    """One thread for a network whose steps are too small to share: several would mostly wait for each other.

    Measured on a busy machine with two cores, for 64 features and 50 hidden units: 2.5 s and 13 s an epoch.
    """
    import torch

    widths, before = (n_features, *hidden), torch.get_num_threads()
    small = max(a * b for a, b in zip(widths, (*hidden, 1), strict=True)) < SMALL
    if small and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# -- helpers ------------------------------------------------------------------------------------------
def _names(folder: Path) -> list[str]:
    names = ["features", "targets"]
    return names + [f"held_{name}" for name in names] if (folder / "held_features.npy").exists() else names


def _split(x: np.ndarray, y: np.ndarray, settings: FitSettings, classes: bool, folder: Path) -> None:
    """Some rows at random, from every class where there are classes, moved to files of their own."""
    from bedl.estimators.inputs import held_out

    n = len(x)
    count = round(settings.holdout * n) if n >= FEWEST else 0
    if not count:
        return
    kept, out = held_out(n, count, settings.seed, np.asarray(y) if classes else None)
    step = batch_rows(x.shape[1])
    for chosen, prefix in ((out, "held_"), (kept, "kept_")):
        for source, name in ((x, "features"), (y, "targets")):
            path = folder / f"{prefix}{name}.npy"
            shape = (len(chosen), *source.shape[1:])
            copy = np.lib.format.open_memmap(path, mode="w+", dtype=source.dtype, shape=shape)
            for start in range(0, len(chosen), step):
                copy[start : start + step] = source[chosen[start : start + step]]
            copy.flush()
    for name in ("features", "targets"):
        os.replace(folder / f"kept_{name}.npy", folder / f"{name}.npy")


def _data_stamp(table: Table) -> dict[str, Any]:
    """What tells whether the data is still the same."""
    stamp: dict[str, Any] = {"rows of the table": table.n_rows}
    path = Path(table.name)
    if table.default_target is None and path.is_file():
        stamp |= {"bytes of the file": path.stat().st_size, "time of the file": path.stat().st_mtime_ns}
    return stamp


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}


def _versions() -> dict[str, str]:
    import platform

    from bedl import __version__

    found = {"bedl": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "scikit-learn", "pyarrow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
