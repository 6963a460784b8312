"""From a table to a model folder, in steps that an interrupted fit can take up again.

Everything happens in `<name>.partial`: run.json says what is being made, data/ holds the encoded table, checkpoints/
the training, model/ the model. Whatever is there and complete is not made again, and all of it stays until the model is
in its place: whenever a fit is killed, --resume goes on, or the model is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import bedl
from bedl import tasks
from bedl.data import DataError, Table, TableEncoder
from bedl.data.survey import Progress
from bedl.errors import ModelFileError, option
from bedl.files import OutputExistsError
from bedl.tabular.encoded import EncodedTable, encode
from bedl.tabular.folder import ModelCard, read_json, write_files, write_json
from bedl.tabular.place import partial_of, put_in_place, refuse_taken, remove

__all__ = ["FitRun", "FitSettings"]

RUN = "run.json"
SMALL = 2**16  # weights of a layer
MOST_EPOCHS = 200  # whose losses are kept for the page
LEAST, MOST = 1.0, 60.0  # seconds between checkpoints: tiny epochs need none, a power cut costs at most a minute


@dataclass(frozen=True)
class FitSettings:
    """What was asked for; `bedl.tabular.fit` explains it. A fit is resumed only with the same."""

    data: str
    target: str | tuple[str, ...]
    task: str = "auto"
    ignore: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    drop_missing_target: bool = False
    holdout: float = 0.1
    epochs: int | None = None
    ensemble: int = 1
    hidden: tuple[int, ...] | None = None
    seed: int = 0
    method: str = "auto"
    decimal: str = "auto"
    class_weight: str | None = None


class FitRun:
    """A fit under way, in its partial folder; its place has to be locked.

    Args:
        table: the table to learn from.
        settings: what was asked for.
        place: the folder that the model is to be in.
        overwrite: whether to replace a model that is there, and start anew where a fit was interrupted.
        resume: whether to go on with a fit that was interrupted.
    """

    def __init__(self, table: Table, settings: FitSettings, place: Path, *, overwrite: bool, resume: bool):
        self.table, self.settings, self.place, self.partial = table, settings, place, partial_of(place)
        refuse_taken(place, overwrite)
        self.encoder: TableEncoder | None = None
        self._stamp = {"settings": _plain(asdict(settings)), "data": _data_stamp(table)}
        self._forget_nothing_begun()
        self._fresh = not self.partial.exists()
        if resume:
            self._take_up()
        elif not self._fresh:
            self._refuse_or_clear(overwrite)

    def _forget_nothing_begun(self) -> None:
        """A kill right at the beginning leaves an empty folder, or one with a piece of run.json."""
        if self.partial.is_dir() and all(
            path.name.startswith(f".{Path(RUN).stem}.") for path in self.partial.iterdir()
        ):
            remove(self.partial, self.place)

    def _take_up(self) -> None:
        if not (self.partial / RUN).is_file():
            raise ModelFileError(
                f"there is no interrupted fit in {self.partial} to resume. Leave out {option('resume')} to start one"
            )
        run = read_json(self.partial / RUN)
        for what, now in self._stamp.items():
            before = run.get(what, {})
            different = [key for key in now if before.get(key) != now[key]]
            if different:
                key = different[0]
                raise ModelFileError(
                    f"{self.partial} is of a fit with {key.replace('_', '-')} {before.get(key)!r}, now {now[key]!r}: "
                    f"resume with the same data and options, or start anew ({option('overwrite', True)})"
                )
        if run.get("encoder") is not None:
            self.encoder = TableEncoder.from_dict(run["encoder"])

    def _refuse_or_clear(self, overwrite: bool) -> None:
        if not overwrite:
            raise OutputExistsError(
                f"{self.partial} holds a fit that was interrupted. Go on with it ({option('resume', True)}), or start "
                f"anew ({option('overwrite', True)})"
            )
        if not (self.partial / RUN).is_file() and any(self.partial.iterdir()):
            raise OutputExistsError(
                f"{self.partial} is not of bedl. Move it away, or choose another name ({option('out')})"
            )
        remove(self.partial, self.place)

    # -- the steps --------------------------------------------------------------------------------
    def decide(self, progress: Progress) -> TableEncoder:
        """How the table is read. Bad tables end here, and leave nothing behind."""
        if self.encoder is None:
            s = self.settings
            self.encoder = TableEncoder.fit(
                self.table, s.target, s.task, s.ignore, s.categorical,
                drop_missing_target=s.drop_missing_target, progress=progress, decimal=s.decimal,
            )  # fmt: skip
            if s.class_weight is not None and tasks.get(self.encoder.task).column != "class":
                raise DataError(f"class_weight is for classes, and {self.encoder.task} has none. Leave it out")
            try:
                self.partial.mkdir(exist_ok=True)
                write_json(self.partial / RUN, {**self._stamp, "encoder": self.encoder.to_dict()})
            except BaseException:  # a stop as well: there is nothing yet that could be resumed
                self._forget_nothing_begun()
                raise
        return self.encoder

    def encode(self, progress: Progress) -> EncodedTable:
        """The table as numbers on disk, some rows of it held out."""
        assert self.encoder is not None
        s = self.settings
        with self._discarded_on_error():
            return encode(self.table, self.encoder, self.partial / "data", s.holdout, s.seed, progress)

    def train(self, rows: EncodedTable, device: str, callbacks: tuple[Any, ...]) -> Any:
        """The fitted estimator; goes on from a checkpoint that is there."""
        import bedl.estimators
        from bedl.training import Checkpoints

        assert self.encoder is not None
        s, task = self.settings, tasks.get(self.encoder.task)
        with self._discarded_on_error(), _threads(self.encoder.n_features, s.hidden or (64, 64)):
            estimator = getattr(bedl.estimators, task.estimator)(
                s.hidden or "auto", image_shape=self.encoder.image_shape, ensemble=s.ensemble,
                epochs="auto" if s.epochs is None else s.epochs, device=device, callbacks=callbacks,
                checkpoint=Checkpoints(self.partial / "checkpoints", every_seconds=MOST, least_seconds=LEAST),
                random_state=s.seed, method=s.method, **self._options(),
            )  # fmt: skip
            return estimator.fit(rows.x, rows.y)

    def _options(self) -> dict[str, Any]:
        """What the estimator of the task takes beside the rest."""
        assert self.encoder is not None
        weight = self.settings.class_weight
        return {**tasks.get(self.encoder.task).options, **({} if weight is None else {"class_weight": weight})}

    def finish(
        self, estimator: Any, rows: EncodedTable, scores: dict[str, float], notes: Sequence[str] = ()
    ) -> ModelCard:
        """Everything written, what is no longer needed removed, and the folder put in its place."""
        assert self.encoder is not None
        card = ModelCard(
            task=self.encoder.task,
            target=self.encoder.target,
            data=self.table.name,
            encoder=self.encoder.to_dict(),
            weights="",
            rows=rows.counts,
            scores={name: value if np.isfinite(value) else None for name, value in scores.items()},
            notes=[*self.encoder.notes, *notes],
            settings=self._stamp["settings"],
            versions=_versions(),
            training=_training(estimator),
        )
        card = write_files(self.partial, estimator, card)
        put_in_place(self.partial, self.place)
        return card

    @contextmanager
    def _discarded_on_error(self) -> Iterator[None]:
        """Errors give up on the fit; an interrupt keeps it, to be resumed."""
        try:
            yield
        except Exception:
            self.discard()
            raise

    def discard(self) -> None:
        """Gives up on a fit that this call began: nothing of it remains, unless something was learned already."""
        if self._fresh and self.partial.exists() and not any((self.partial / "checkpoints").rglob("*.safetensors")):
            remove(self.partial, self.place)


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


def _training(estimator: Any) -> dict[str, Any]:
    """What was chosen, and the course of the members' mean loss, of at most `MOST_EPOCHS` epochs."""
    found: dict[str, Any] = {"chosen": estimator.chosen_}
    for name in ("loss", "val_nll"):
        by_epoch: dict[int, list[float]] = {}
        for row in estimator.history_:
            if name in row:
                by_epoch.setdefault(int(row["epoch"]), []).append(float(row[name]))
        means = [round(float(np.mean(by_epoch[epoch])), 5) for epoch in sorted(by_epoch)]
        if means and np.isfinite(means).all():
            found[name] = means[:: -(-len(means) // MOST_EPOCHS)]
    return found


def _data_stamp(table: Table) -> dict[str, Any]:
    """What tells whether the data is still the same."""
    stamp: dict[str, Any] = {"rows of the table": table.n_rows}
    if table.digest is not None:
        stamp["checksum of the table"] = table.digest
    path = Path(table.name)
    if table.default_target is None and path.is_file():
        stamp |= {"bytes of the file": path.stat().st_size, "time of the file": path.stat().st_mtime_ns}
    return stamp


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}


def _versions() -> dict[str, str]:
    import platform

    found = {"bedl": bedl.__version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "scikit-learn", "pyarrow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
