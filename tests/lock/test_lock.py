"""Refits give the numbers that they gave, and public names the signatures: what a rearrangement must not change.

`python -m tests.lock` records both anew; a change of either is then seen in the diff, and belongs into CHANGELOG.md.
"""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest

from bedl.methods import registry
from tests.lock import api, refits
from tests.lock.__main__ import API, REFITS

RECORDED = json.loads(REFITS.read_text())
FITS = refits.refits()


def test_refits_are_all_recorded() -> None:
    assert sorted(FITS) == sorted(RECORDED)


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_refit_gives_the_recorded_predictions(name: str) -> None:
    needs = [] if name.startswith("engine/") else registry.get(name.split("/")[0]).needs
    if missing := [package for package in needs if importlib.util.find_spec(package) is None]:
        pytest.skip(f"needs {missing}")
    # Few steps on few rows: what processors round otherwise has not grown by then; a changed draw is off by far more.
    np.testing.assert_allclose(FITS[name](), RECORDED[name], rtol=5e-3, atol=5e-4)


def test_public_names_have_the_recorded_signatures() -> None:
    assert api.snapshot() == json.loads(API.read_text())
