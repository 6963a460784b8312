"""The names of `import bedl`, and when PyTorch is imported for them."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

import bedl


@pytest.mark.parametrize("name", bedl.__all__)
def test_every_name_of_the_facade_is_there(name: str) -> None:
    assert getattr(bedl, name).__name__ == name
    assert name in dir(bedl)


@pytest.mark.parametrize("package", [bedl, bedl.data, bedl.deploy, bedl.metrics], ids=lambda package: package.__name__)
def test_names_are_those_of_the_stub(package: ModuleType) -> None:
    """Read line by line, unlike `bedl._utils.imports`: in its order, without the packages, which are attributes."""
    stub = Path(str(package.__file__)).with_suffix(".pyi").read_text()
    found = re.findall(r"^from (\S+) import (\w+) as (\w+)$", stub, re.MULTILINE)
    assert len(found) == stub.count(" import ")
    assert all(name == again for _, name, again in found)
    values = {
        name: getattr(import_module(home), name, None) or import_module(f"{home}.{name}") for home, name, _ in found
    }
    assert package.__all__ == [name for name, value in values.items() if not isinstance(value, ModuleType)]
    for name, value in values.items():
        assert getattr(package, name) is value
        assert name in dir(package)


def test_a_star_import_brings_no_rooms() -> None:
    brought: dict = {}
    exec("from bedl import *", brought)
    assert {"Moments", "fit"} < set(brought)
    assert "nn" not in brought
    assert bedl.nn.GaussianLinear is brought["GaussianLinear"]


def test_an_extra_that_is_missing_is_named() -> None:
    program = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import bedl\n"
        "try: bedl.BEDLRegressor\n"
        "except ImportError as error: print(error)"
    )
    assert run(program).strip() == "bedl.BEDLRegressor needs sklearn: pip install 'bedl[sklearn]'"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        bedl.nothing  # noqa: B018


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_importing_bedl_does_not_import_torch() -> None:
    assert run("import sys, bedl, bedl._utils.errors; print('torch' in sys.modules)").strip() == "False"


def test_moments_come_with_their_rules_whichever_room_is_imported_first() -> None:
    program = (
        "from bedl.moments import Moments; import torch; print(float(torch.relu(Moments(torch.zeros(1), 1.0)).loc))"
    )
    assert abs(float(run(program)) - 0.3989) < 1e-4


def test_a_module_that_is_imported_later_has_its_version_now() -> None:
    code = "from bedl._utils.imports import deferred_import\n"
    code += "with deferred_import('pandas'):\n import pandas\n print(pandas.__version__)"
    code += "\nimport sys; assert 'pandas' not in sys.modules"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == version("pandas")
