"""Distillation with fewer steps and rows: most tests ask what a fit gives, not how well it predicts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

STEPS, NEAR = 2000, 20_000  # of the package


@pytest.fixture(scope="session", autouse=True)
def short_distillation() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bedl.methods.distilled.STEPS", 400)
        patch.setattr("bedl.estimators.distill.NEAR", 4000)
        yield


@pytest.fixture
def full_distillation(short_distillation: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what a prediction is worth."""
    monkeypatch.setattr("bedl.methods.distilled.STEPS", STEPS)
    monkeypatch.setattr("bedl.estimators.distill.NEAR", NEAR)
