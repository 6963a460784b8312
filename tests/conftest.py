"""Distillation with fewer steps and rows: most tests ask what a fit gives, not how well it predicts."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator

import pytest

SHORT = {
    "bedl.methods.distilled.STEPS": 400,
    "bedl.estimators.distill.NEAR": 4000,
    "bedl.estimators.distill.MEMBER_STEPS": 50,
    "bedl.estimators.distill.TREES": 20,
}
FULL = {name: pkgutil.resolve_name(":".join(name.rsplit(".", 1))) for name in SHORT}


@pytest.fixture(scope="session", autouse=True)
def short_distillation() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SHORT.items():
            patch.setattr(name, value)
        yield


@pytest.fixture
def full_distillation(short_distillation: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what a prediction is worth."""
    for name, value in FULL.items():
        monkeypatch.setattr(name, value)
