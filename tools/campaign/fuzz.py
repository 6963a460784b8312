"""Tables of all sorts through fit, predict, evaluate, report: a result or a line with a remedy, nothing left over."""

from __future__ import annotations

import csv
import math
import re
import warnings
from pathlib import Path
from random import Random
from typing import Any

from tools.campaign.ledger import Fault
from tools.campaign.tables import Made, made, written
from tools.campaign.verbs import said

TRIES = 20_000
SECONDS = 120


def prepare() -> None:
    """What takes long to import, before the first try."""


def attempt(number: int, folder: Path) -> str:
    """One table through all verbs, then another that is nearly the same."""
    random = Random(number)
    table = made(random)
    path, honest = written(random, table, folder, "t")
    target = random.choice(table.names[-1:] * 3 + table.names + ["nothing"] * (random.random() < 0.02))
    before = {path.name}
    model = folder / "m"
    with warnings.catch_warnings(record=True) as stray:
        warnings.simplefilter("always")
        fitted = said("fit", path, f"--target={target}", "--out", model, *_options(random, table))
        _clean(folder, before | ({"m"} if fitted.code == 0 else set()), "fit")
        if fitted.code:
            _check_warnings(stray)
            return f"refused by fit ({fitted.code})"
        other, kept = path, honest
        if random.random() < 0.5:
            other, kept = written(random, _changed(random, table), folder, "u")
        outcome = _used(
            random, model, other, table.rows if kept and other == path else None, before | {other.name, "m"}
        )
        _check_warnings(stray)
    return outcome


def _options(random: Random, table: Made) -> list[str]:
    words = ["--epochs=1", "--method=bedl", "--hidden=3", f"--seed={random.randrange(3)}", "--device=cpu"]
    unsure = {
        "--task": ["classification", "regression", "count", "multilabel"], "--decimal": [".", ","], "--ensemble": ["2"],
        "--date-order": ["dmy", "mdy"], "--na-values": ["?", "-999"],
        "--holdout": ["0", "0.5", "0.99", "0.1"], "--ignore": table.names, "--categorical": table.names,
        "--likelihood": ["normal", "count", "log-normal", "logit-normal"], "--target": table.names,
        "--group": table.names, "--time": table.names, "--weight": table.names,
    }  # fmt: skip
    for option, values in unsure.items():
        if random.random() < 0.06:
            words.append(f"{option}={random.choice(values)}")
    return words + (["--drop-missing-target"] if random.random() < 0.8 else [])


def _changed(random: Random, table: Made) -> Made:
    """The table as it may come the next day."""
    names, columns = list(table.names), [list(texts) for texts in table.columns]
    what = random.choice(["shuffle", "drop", "add", "values", "rename", "fewer", "types"])
    if what == "shuffle":
        order = random.sample(range(len(names)), len(names))
        names, columns = [names[i] for i in order], [columns[i] for i in order]
    elif what == "drop" and len(names) > 1:
        place = random.randrange(len(names))
        del names[place], columns[place]
    elif what == "add":
        names.append("more")
        columns.append(["1"] * table.rows)
    elif what == "rename":
        names[random.randrange(len(names))] = random.choice(["other", names[0].upper(), names[0] + " "])
    elif what == "fewer":
        n = random.choice([0, 1, 2])
        columns = [texts[:n] for texts in columns]
    elif what == "values" and table.rows:
        for _ in range(random.randint(1, 5)):
            texts = random.choice(columns)
            texts[random.randrange(table.rows)] = random.choice(
                ["1e15", "-1e30", "1e300", "new", "", "inf", "0", "x" * 99]
            )
    return Made(names, columns)


def _used(random: Random, model: Path, path: Path, rows: int | None, before: set[str]) -> str:
    """A fitted model asked for predictions, scores and a page."""
    folder = model.parent
    more = [f"{option}={random.choice(values)}" for option, values in {
        "--handle-unknown": ["warn", "ignore", "error"], "--extra": ["ignore"], "--on-foreign-values": ["clip", "keep"],
        "--coverage": ["0.5", "0.99"],
    }.items() if random.random() < 0.3]  # fmt: skip
    out = folder / f"o{random.choice(['.csv', '.csv', '.tsv', '.jsonl', '.parquet'])}"
    predicted = said("predict", model, path, "--out", out, *more)
    expected = before | ({out.name} if predicted.code == 0 else set())
    _clean(folder, expected, "predict")
    if predicted.code == 0:
        _check_predictions(out, rows, "--on-foreign-values=keep" in more)
    scored = said("evaluate", model, path, *more, *random.choice([[], ["--json"]]))
    _clean(folder, expected, "evaluate")
    page = said("report", model, path, "--out", folder / "p.html", *more)
    _clean(folder, expected | ({"p.html"} if page.code == 0 else set()), "report")
    if page.code == 0 and not (folder / "p.html").read_text().rstrip().endswith("</html>"):
        raise Fault("the page is cut short")
    if predicted.code and page.code == 0:
        raise Fault(f"there is a page of what could not be predicted: {predicted.err}")
    return "predicted" + ("" if scored.code == 0 else ", not scored") if predicted.code == 0 else "fitted, then refused"


def _check_predictions(path: Path, rows: int | None, may_be_infinite: bool) -> None:
    """As many rows as there were, and numbers that are some."""
    table = _read(path)
    count = len(next(iter(table.values())))
    if rows is not None and count != rows:
        raise Fault(f"{count} predictions of {rows} rows")
    for name, values in table.items():
        wrong = [value for value in values if value is None or (isinstance(value, float) and not math.isfinite(value))]
        if wrong and not may_be_infinite:
            raise Fault(f"predicted {name!r} holds {wrong[0]}")


def _read(path: Path) -> dict[str, list[Any]]:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return pq.read_table(path).to_pydict()
    if path.suffix == ".jsonl":
        import json

        lines = [json.loads(line) for line in path.read_text().split("\n") if line]
        return {name: [line[name] for line in lines] for name in lines[0]}
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
    return {name: [_number(line[name]) for line in lines] for name in lines[0] if name != "prediction"}


def _number(text: str) -> float | str:
    return float(text) if re.fullmatch(r"[-+\d.eE]+|-?inf|nan", text or "nan") else text


def _clean(folder: Path, expected: set[str], verb: str) -> None:
    found = {path.name for path in folder.iterdir()}
    if found != expected:
        raise Fault(f"{verb} left {sorted(found - expected)} and lost {sorted(expected - found)}")


def _check_warnings(stray: list[Any]) -> None:
    """What bedl warns of is for the user; what libraries warn of from within is not."""
    for warning in stray:
        if not issubclass(warning.category, UserWarning) or "bedl" not in str(warning.filename):
            raise Fault(f"stray {warning.category.__name__}: {warning.message} ({warning.filename}:{warning.lineno})")
