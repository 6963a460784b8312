"""Small tables and models that attacks start from, made once for each process."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from random import Random
from typing import NamedTuple

from tools.campaign.children import rehearsed

__all__ = ["QUICK", "Workshop", "workshop"]

QUICK = ("--target=y", "--epochs=3", "--method=bedl", "--hidden=3", "--device=cpu")


class Workshop(NamedTuple):
    """What there is.

    Attributes:
        folder: where all of it is, and what children print.
        table: rows to learn from, classes and numbers.
        models: two model folders, of the seeds 1 and 2.
        predictions: what each of them predicts, as the bytes of a CSV file.
    """

    folder: Path
    table: Path
    models: tuple[Path, Path]
    predictions: tuple[bytes, bytes]

    def bytes_of(self, model: Path) -> dict[str, bytes]:
        """The files of a model folder."""
        return {path.name: path.read_bytes() for path in sorted(model.iterdir())}


@functools.cache
def workshop() -> Workshop:
    """Made in this process once, removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix="bedl-workshop-"))
    atexit.register(shutil.rmtree, folder, True)
    random = Random(0)
    lines = ["a,b,colour,y"]
    for _ in range(60):
        a, b = random.gauss(0, 1), random.gauss(0, 1)
        lines.append(f"{a:.4f},{b:.4f},{random.choice(['red', 'blue'])},{2 * a - b:.4f}")
    table = folder / "t.csv"
    table.write_text("\n".join(lines) + "\n")
    models, predictions = [], []
    for seed in (1, 2):
        model, out = folder / f"m{seed}", folder / f"p{seed}.csv"
        rehearsed("fit", table, *QUICK, f"--seed={seed}", "--out", model, logs=folder)
        rehearsed("predict", model, table, "--out", out, logs=folder)
        models.append(model)
        predictions.append(out.read_bytes())
    return Workshop(folder, table, (models[0], models[1]), (predictions[0], predictions[1]))
