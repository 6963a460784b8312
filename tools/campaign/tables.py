"""Tables from a number: CSV, TSV, gzip and Parquet, whole or damaged."""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tools.campaign.columns import column, name

__all__ = ["Made", "damaged", "made", "written"]

TYPED = ["string", "double", "float", "halffloat", "int64", "int8", "uint64", "bool", "date32", "timestamp", "zoned",
         "dictionary", "decimal", "list", "struct", "binary", "time", "duration", "null", "large_string"]  # fmt: skip


@dataclass
class Made:
    """A table: names, and the texts of each column."""

    names: list[str]
    columns: list[list[str]]

    @property
    def rows(self) -> int:
        return len(self.columns[0]) if self.columns else 0


def made(random: Random) -> Made:
    """A table of some columns and rows; often the last column follows from the first, as in life."""
    n = random.choice([0, 1, 2, 3, 5, 8] + [12, 20, 20, 25, 30, 30, 40, 40, 60, 60, 80, 120, 120] * 3)
    width = random.choice([1, 2, 2, 3, 3, 3, 4, 4, 5, 8, 15])
    odd = random.random() < 0.4  # else all but one column are such as most tables have
    columns = [column(random, n, odd or random.random() < 1 / (2 * width)) for _ in range(width)]
    table = Made([name(random, i) for i in range(width)], columns)
    if random.random() < (0.3 if odd else 0.8) and width > 1:
        table.columns[-1] = [_follows(text) for text in table.columns[0]]
    return table


def _follows(text: str) -> str:
    try:
        return f"{2 * float(text):g}"
    except ValueError:
        return text[:1] or "none"


def written(random: Random, table: Made, folder: Path, stem: str) -> tuple[Path, bool]:
    """The table in a file of some format; and whether it is an honest one, whose rows are all there."""
    kind = random.choice([".csv"] * 8 + [".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".parquet", ".pq"])
    path = folder / f"{stem}{kind}"
    if kind in (".parquet", ".pq"):
        content: bytes | None = _parquet(random, table)
        if content is None:
            path, kind = folder / f"{stem}.csv", ".csv"
            content = _text(random, table, ",")[0]
        honest = True
    else:
        mark = "\t" if kind.startswith(".tsv") else random.choice([","] * 20 + [";", ";", "|", "\t", " "])
        content, honest = _text(random, table, mark)
    assert content is not None
    if random.random() < 0.12:
        content, honest = damaged(random, content), False
    path.write_bytes(gzip.compress(content, mtime=0) if kind.endswith(".gz") else content)
    if kind.endswith(".gz") and random.random() < 0.1:
        path.write_bytes(damaged(random, path.read_bytes()))
        honest = False
    return path, honest


def _text(random: Random, table: Made, mark: str) -> tuple[bytes, bool]:
    file = io.StringIO()
    end = random.choice(["\n"] * 20 + ["\r\n"] * 8 + ["\r"])
    quoting = random.choice([csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    writer = csv.writer(file, delimiter=mark, lineterminator=end, quoting=quoting)
    honest = True
    writer.writerow(table.names)
    for i in range(table.rows):
        row = [texts[i] for texts in table.columns]
        if random.random() < 0.0005:
            row, honest = random.choice([row[:-1], [*row, "more"], []]), False
        writer.writerow(row)
    text = file.getvalue()
    if random.random() < 0.05:
        text, honest = (
            random.choice([text + end * 3, text.rstrip(end), "# a comment" + end + text, end + text, text + '"']),
            False,
        )
    coding = random.choice(["utf-8"] * 40 + ["utf-8-sig", "utf-8-sig", "latin-1", "utf-16", "cp1252"])
    return text.encode(coding, errors="replace"), honest and coding.startswith("utf-8")


def damaged(random: Random, content: bytes) -> bytes:
    """The same bytes with some of them changed, lost, repeated, or another's."""
    data = bytearray(content)
    for _ in range(random.choice([1, 1, 1, 3, 20])):
        place = random.randrange(len(data) + 1)
        what = random.choice(["flip", "cut", "insert", "remove", "repeat", "zeros"])
        if what == "flip" and place < len(data):
            data[place] ^= 1 << random.randrange(8)
        elif what == "cut":
            del data[place:]
        elif what == "insert":
            data[place:place] = random.choice(
                [b"\x00", b'"', b"\n", b",", b"\xff\xfe", b"\xc3", b"\r", random.randbytes(7)]
            )
        elif what == "remove":
            del data[place : place + random.randint(1, 50)]
        elif what == "repeat":
            data[place:place] = data[place : place + random.randint(1, 50)]
        elif what == "zeros":
            data[place : place + 8] = bytes(8)
    return bytes(data)


def _parquet(random: Random, table: Made) -> bytes | None:
    """The table with types that a file of another program may have; None if it cannot be one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not table.rows and random.random() < 0.5:
        return None
    arrays = [_typed(random, texts) for texts in table.columns]
    sink = io.BytesIO()
    try:
        pq.write_table(pa.Table.from_arrays(arrays, table.names), sink, row_group_size=random.choice([None, 1, 7]))
    except (pa.ArrowException, ValueError, NotImplementedError):
        return None
    return sink.getvalue()


def _typed(random: Random, texts: list[str]) -> Any:
    """The texts as a column of some Arrow type: as they are, if they can be read so, else something of that type."""
    import pyarrow as pa

    plain = pa.array([None if text in ("", "NA") else text for text in texts], pa.string())
    kind = random.choice(TYPED[:5] * 2 + TYPED)
    kinds = {
        "timestamp": pa.timestamp("ns"), "zoned": pa.timestamp("us", "Europe/Berlin"), "time": pa.time64("us"),
        "decimal": pa.decimal128(20, 4), "dictionary": pa.dictionary(pa.int8(), pa.string()), "bool": pa.bool_(),
        "halffloat": pa.float16(), "float": pa.float32(), "double": pa.float64(), "duration": pa.duration("s"),
    }  # fmt: skip
    target: Any = kinds.get(kind)
    n = len(texts)
    if kind == "list":
        return pa.array([[random.random()] for _ in range(n)], pa.list_(pa.float64()))
    if kind == "struct":
        return pa.array([{"a": 1} for _ in range(n)], pa.struct([("a", pa.int64())]))
    try:
        if target is None:
            target = getattr(pa, kind)()
        return plain.cast(target)
    except (pa.ArrowException, AttributeError):
        pass
    numbers = [random.choice([None, random.randint(0, 100), random.gauss(0, 1)]) for _ in range(n)]
    try:
        return pa.array(numbers, pa.float64()).cast(target, safe=False)
    except pa.ArrowException:
        return plain
