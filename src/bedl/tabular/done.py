"""Which files were predicted before: known by what was read and what was written, not by their names alone."""

from __future__ import annotations

from pathlib import Path

from bedl.rows import Row, RowFile

__all__ = ["DONE", "Done", "look", "proof"]

DONE = "done.jsonl"
READ = ("file", "bytes", "time")
WRITTEN = ("predictions", "bytes of predictions", "time of predictions")

Look = tuple[int | None, int | None]


def look(path: Path) -> Look:
    """What tells a file from another of the same name: its size and its time; None and None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None, None
    return found.st_size, found.st_mtime_ns


def proof(part: Path, read: Look, target: Path) -> Row:
    """The row that says so: these predictions are of that file.

    Args:
        part: the file that was predicted.
        read: how it looked before it was read. One that changes meanwhile looks different at the next run.
        target: its predictions, in their place.
    """
    return dict(zip((*READ, *WRITTEN), (_text(part), *read, _text(target.name), *look(target)), strict=True))


class Done:
    """The rows of a folder of predictions, one for each file that was predicted.

    A row is written when its predictions are in their place, and counts as long as both files look as they did. So
    whatever a kill leaves behind, and whatever a lost worker puts there later, is done again.

    Args:
        folder: the folder of predictions.
    """

    def __init__(self, folder: Path):
        self._rows = RowFile(folder / DONE, key=(*READ, *WRITTEN))
        self._read: dict[str, set[tuple[object, ...]]] = {}
        for row in self._rows.rows():
            self._read.setdefault(row[WRITTEN[0]], set()).add(tuple(row[name] for name in READ))

    def has(self, part: Path, target: Path) -> bool:
        """Whether the predictions of a file as it is now are in their place."""
        row = proof(part, look(part), target)
        return None not in row.values() and self._rows.has(row)  # a file that is not there is none that was done

    def changed(self, part: Path, target: Path) -> bool:
        """Whether these predictions were made before, though of another file."""
        before = self._read.get(_text(target.name))
        return before is not None and (_text(part), *look(part)) not in before

    def add(self, row: Row) -> None:
        """Keep what `proof` says."""
        self._rows.add(row)


def _text(path: Path | str) -> str:
    """A path as JSON can hold it, also one whose bytes are no UTF-8."""
    return str(path).encode(errors="backslashreplace").decode()
