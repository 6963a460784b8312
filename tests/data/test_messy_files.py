"""Forty files as people have them: what is read as numbers, dates, classes, texts, and what is asked."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from bedl.data import DataError, TableEncoder, open_table

ROWS = 40
T = [f"{0.5 * i + (i * 7 % 5):g}" for i in range(ROWS)]  # the target
A = [f"{i * 37 % 41 + 0.5:g}" for i in range(ROWS)]
KINDS = ["red", "blue", "green"]


def csv(separator: str = ",", end: str = "\n", head: str | None = None, **columns: list[str]) -> str:
    """A file of a column of numbers, others, and the target."""
    found = {"a": A, **columns, "t": T}
    lines = [head or separator.join(found), *(separator.join(row) for row in zip(*found.values(), strict=True))]
    return end.join(lines) + end


def each(pattern: str, start: int = 1, step: int = 1) -> list[str]:
    return [pattern.format(start + step * i) for i in range(ROWS)]


def with_holes(values: list[str], hole: str) -> list[str]:
    return [hole if i % 9 == 4 else value for i, value in enumerate(values)]


KIND = [KINDS[i % 3] for i in range(ROWS)]
DAYS = [f"{1 + i % 28:02d}" for i in range(ROWS)]
MONTHS = [f"{1 + i % 12:02d}" for i in range(ROWS)]

# name: the file, and what column "x" is
READ: dict[str, tuple[str | bytes, str]] = {
    "plain": (csv(x=each("{}")), "number"),
    "semicolons": (csv(";", x=each("{}")), "number"),
    "tabs": (csv("\t", x=each("{}")), "number"),
    "pipes": (csv("|", x=each("{}")), "number"),
    "decimal commas": (csv(";", a=[v.replace(".", ",") for v in A], x=each("{},25")), "number"),
    "Windows lines": (csv(end="\r\n", x=each("{}")), "number"),
    "no last line end": (csv(x=each("{}")).rstrip("\n"), "number"),
    "blank lines at the end": (csv(x=each("{}")) + "\n\n", "number"),
    "byte order mark": (b"\xef\xbb\xbf" + csv(x=each("{}")).encode(), "number"),
    "UTF-16": (csv(x=KIND).encode("utf-16"), "category"),
    "gzip": (gzip.compress(csv(x=each("{}")).encode()), "number"),
    "quoted": (csv(x=each('"{}"')), "number"),
    "quoted commas": (csv(x=each('"{},000,000"')), "number"),
    "spaces around values": (csv(x=each(" {} ")), "number"),
    "spaces around names": (csv(head="a, x ,t", x=each("{}")), "number"),
    "scientific": (csv(x=each("{}.5e-3")), "number"),
    "signs": (csv(x=each("+{}")), "number"),
    "dollars": (csv(x=each("${}.99")), "number"),
    "euros": (csv(x=each("{} €")), "number"),
    "percent": (csv(x=each("{}%")), "number"),
    "thousands with k": (csv(x=each("{}.5k")), "number"),
    "millions with m": (csv(x=each("{}.5m")), "number"),
    "square feet": (csv(x=each("{} sq ft", 800, 13)), "number"),
    "kilograms": (csv(x=each("{}kg")), "number"),
    "missing as empty": (csv(x=with_holes(each("{}"), "")), "number"),
    "missing as NA": (csv(x=with_holes(each("{}"), "NA")), "number"),
    "missing as question mark": (csv(x=with_holes(each("{}"), "?")), "number"),
    "missing as dash": (csv(x=with_holes(each("{}"), "-")), "number"),
    "missing as unknown": (csv(x=with_holes(each("{}"), "unknown")), "number"),
    "missing as NULL": (csv(x=with_holes(each("{}"), "NULL")), "number"),
    "ISO dates": (csv(x=[f"2023-{m}-{d}" for m, d in zip(MONTHS, DAYS, strict=True)]), "date"),
    "American dates": (csv(x=[f"{m}/{d}/2023" for m, d in zip(MONTHS, DAYS, strict=True)]), "date"),
    "German dates": (csv(x=[f"{d}.{m}.2023" for m, d in zip(MONTHS, DAYS, strict=True)]), "date"),
    "dates with months by name": (csv(x=[f"{d} Jul 2023" for d in DAYS]), "date"),
    "times": (csv(x=[f"2023-{m}-{d} 12:30:00" for m, d in zip(MONTHS, DAYS, strict=True)]), "date"),
    "colours": (csv(x=KIND), "category"),
    "yes and no": (csv(x=["yes" if i % 3 else "no" for i in range(ROWS)]), "category"),
    "true and false": (csv(x=["True" if i % 3 else "False" for i in range(ROWS)]), "boolean"),
    "accents": (csv(x=["Zürich" if i % 2 else "Genève" for i in range(ROWS)]), "category"),
    "one value": (csv(x=["same"] * ROWS), "left out"),
    "empty": (csv(x=[""] * ROWS), "left out"),
    "identifiers": (csv(x=each("id-{:05d}x", 1, 7919)), "left out"),
    "sentences": (
        csv(x=[f"{KINDS[i % 3]} sofa with {i % 4} cushions and a scratch on side {i % 7}" for i in range(ROWS)]),
        "text",
    ),
}  # fmt: skip
ENDINGS = {"tabs": ".tsv", "gzip": ".csv.gz"}


def kind_of(encoder: TableEncoder) -> str:
    by_name = {column.name.strip(): type(column).__name__ for column in encoder.encoded_columns}
    return by_name["x"].removesuffix("Column").lower() if "x" in by_name else "left out"


@pytest.mark.parametrize("name", READ)
def test_what_a_column_is(tmp_path: Path, name: str) -> None:
    content, expected = READ[name]
    file = tmp_path / f"messy{ENDINGS.get(name, '.csv')}"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    table = open_table(file, encoding="utf-16" if name == "UTF-16" else None)
    encoder = TableEncoder.fit(table, "t")
    assert kind_of(encoder) == expected
    batch = next(iter(table.batches(1000)))
    features = encoder.features(batch)
    assert features.shape == (ROWS, encoder.n_features)
    assert np.isfinite(features).all()
    np.testing.assert_allclose(encoder.targets(batch, 0).ravel(), [float(v) for v in T], rtol=1e-6)
    if expected == "left out":
        assert any("x" in note for note in encoder.notes)


ASKED: dict[str, tuple[str | bytes, str]] = {
    "no such target": (csv(head="a,u"), "no column"),
    "only a head": ("a,t\n", "row"),
    "nothing": ("", "empty"),
    "a ragged row": (csv() + "1,2,3,4\n", "row 41|columns"),
    "two columns of a name": (csv(head="a,a,t", x=each("{}")), "twice|several|same name|more than once"),
    "another encoding": (csv(x=KIND).replace("red", "r\xf6t").encode("latin-1"), "encoding"),
    "days or months": (csv(x=[f"{1 + i % 12:02d}/{1 + i % 11:02d}/2023" for i in range(ROWS)]), "date.order"),
    "thousands or decimals": (csv(x=each('"{},000"')), "decimal"),
    "a target with holes": (csv() + "1,\n", "missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked(tmp_path: Path, name: str) -> None:
    content, words = ASKED[name]
    file = tmp_path / "messy.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=words):
        TableEncoder.fit(open_table(file), "t")
