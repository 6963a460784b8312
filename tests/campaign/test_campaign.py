"""A small part of each attack of the campaign; `make test-campaign` makes all of it."""

from __future__ import annotations

import os

import pytest
from tools.campaign import damage, fuzz, kills, pairs, rows, signals, surroundings
from tools.campaign.__main__ import tried
from tools.campaign.children import call
from tools.campaign.ledger import Ledger, Try

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes are forked and stopped by signals")


def held(module, numbers):
    """What came of some tries; none of them found a fault."""
    getattr(module, "prepare", lambda: None)()
    tries = [tried(module, number) for number in numbers]
    assert [found.fault for found in tries if found.fault] == []
    return [found.outcome for found in tries]


def test_fuzzed_tables():
    outcomes = held(fuzz, range(12))
    assert any(outcome.startswith("predicted") for outcome in outcomes)
    assert any(outcome.startswith("refused") for outcome in outcomes)


def test_damaged_files(monkeypatch):
    monkeypatch.setattr(damage, "_MADE", ("folder", "estimator", "checkpoint"))  # an export takes long
    quick = [number for number in range(40) if damage.KINDS[number % len(damage.KINDS)] != "onnx"]
    outcomes = held(damage, quick)
    assert sum("refused" in outcome for outcome in outcomes) > len(quick) / 2


def test_kills(monkeypatch):
    monkeypatch.setattr(kills, "prepare", lambda: None)
    monkeypatch.setattr(kills, "VERBS", kills.VERBS[:-1])  # an export takes long
    first = [
        kills.places().index(place)
        for place in [("fit", 9), ("refit in two steps", 40), ("predict", 2), ("resumed fit", 7)]
    ]
    outcomes = held(kills, [*first, kills.INJECTED])
    assert all("killed" in outcome for outcome in outcomes)


def test_pairs():
    assert held(pairs, [0, 2]) == ["two new fits, 1 made", "a prediction during a fit"]


def test_signals():
    assert all("stopped by SIG" in outcome for outcome in held(signals, [1, 2]))


def test_surroundings():
    held(surroundings, [0, 2, 3, 6])


def test_many_rows(monkeypatch):
    monkeypatch.setattr(rows, "ROWS", 200_000)
    monkeypatch.setattr(rows, "FLAT", 1.5)  # caches are still being filled
    held(rows, [0, 1])


def test_a_forked_process_does_what_a_new_one_does(tmp_path):
    said = [call("--version", logs=tmp_path, fresh=fresh) for fresh in (False, True)]
    assert said[0] == said[1]
    assert said[0].out.startswith("bedl ")
    steps = [(os._exit, 7)]
    assert [call("--version", logs=tmp_path, before=steps, fresh=fresh).code for fresh in (False, True)] == [7, 7]
    assert call("no-such-verb", logs=tmp_path, after=steps).code == 2  # what comes after is for those that end well
    assert call("--version", logs=tmp_path, after=steps).code == 7
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_remembers_the_last_word(tmp_path):
    ledger = Ledger(tmp_path / "a.jsonl")
    ledger.add(Try(1, "fault", "wrong"))
    ledger.add(Try(1, "refused"))
    with ledger.path.open("a") as file:
        file.write('{"number": 2, "outco')  # cut short by a kill
    assert ledger.tries() == {1: Try(1, "refused")}
    assert ledger.summary() == "a: 1 tries, 1 held (1 refused)"
