"""The names of `import bedl`, and when PyTorch is imported for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

import bedl


@pytest.mark.parametrize("name", bedl.__all__)
def test_every_name_of_the_facade_is_there(name: str) -> None:
    assert getattr(bedl, name).__name__ == name
    assert name in dir(bedl)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        bedl.nothing  # noqa: B018


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_importing_bedl_does_not_import_torch() -> None:
    assert run("import sys, bedl, bedl.errors; print('torch' in sys.modules)").strip() == "False"


def test_moments_come_with_their_rules_whichever_room_is_imported_first() -> None:
    program = (
        "from bedl.moments import Moments; import torch; print(float(torch.relu(Moments(torch.zeros(1), 1.0)).loc))"
    )
    assert abs(float(run(program)) - 0.3989) < 1e-4
