"""Names that are imported when they are first used; each package lists its own once, in a stub.

`__init__.pyi`, beside the `__init__.py` that calls `lazy_names`, says where each name comes from. Type checkers read
it, and so does this module at run time: `from bedl.heads import Normal as Normal` is a public name; `from bedl import
heads as heads` is a package, reached as an attribute and no part of a star import (it might hide `torch.nn`).
"""

from __future__ import annotations

import ast
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

_EXTRA_OF = {
    "lightning_fabric": "train", "sklearn": "sklearn", "pandas": "sklearn",
    "onnx": "export", "onnxruntime": "export", "onnxscript": "export",
}  # fmt: skip


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from the stub that lies beside its `__init__.py`.

    >>> import bedl.deploy
    >>> _, _, names = lazy_names("bedl.deploy")
    >>> "OnnxModel" in names
    True
    """
    home_of = _homes(package)
    packages = {name for name, home in home_of.items() if _is_package(f"{home}.{name}")}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = home_of[name]
        try:
            with gc_paused():
                value = import_module(f"{home}.{name}") if name in packages else getattr(import_module(home), name)
        except ModuleNotFoundError as error:
            missing = str(error.name).split(".")[0]
            if missing not in _EXTRA_OF:
                raise
            raise ImportError(f"{package}.{name} needs {missing}: pip install 'bedl[{_EXTRA_OF[missing]}]'") from error
        setattr(sys.modules[package], name, value)  # the next look-up finds it at once
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names, [name for name in home_of if name not in packages]


@contextmanager
def gc_paused() -> Iterator[None]:
    """No search for garbage inside the block: imports make many objects that stay, and hardly any garbage.

    The searches would take a tenth of the time of importing PyTorch and what comes with it.

    >>> with gc_paused():
    ...     gc.isenabled()
    False
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Later(ModuleType):
    """Stands in for a module until something of it is used."""

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":  # scikit-learn 1.6 asks pandas for it, and for nothing else
            from importlib.metadata import version

            return version(self.__name__)
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


@contextmanager
def deferred_import(*names: str) -> Iterator[None]:
    """Modules that others import inside the block are loaded when they are first used, if ever.

    For a library that imports another for a function that hardly anybody calls. What is loaded already stays so, and
    behind the block modules are imported as always.

    >>> with deferred_import("this"):
    ...     import this
    >>> "this" in sys.modules
    False
    """
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update({name: _Later(name) for name in absent})
    try:
        yield
    finally:
        for name in absent:
            if isinstance(sys.modules.get(name), _Later):
                del sys.modules[name]


def _homes(package: str) -> dict[str, str]:
    """The module that each name of the package's stub comes from."""
    module = sys.modules[package]
    path = os.path.join(os.path.dirname(str(module.__file__)), "__init__.pyi")
    stub = module.__loader__.get_data(path)  # type: ignore[union-attr]  # as the code was read: from a zip file, too
    imports = [line for line in ast.parse(stub).body if isinstance(line, ast.ImportFrom)]
    return {name.name: str(line.module) for line in imports for name in line.names}


def _is_package(name: str) -> bool:
    """Whether there is a package of this name within bedl; nothing is imported to find out."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.path.isdir(os.path.join(root, *name.split(".")[1:]))


# pyarrow, without what it would bring along.


def block_pandas_import() -> None:
    """Lets pyarrow look for pandas in vain, once: it would import it with the first array, for half a second, and
    nothing here hands it a frame.
    """
    if "pandas" in sys.modules:
        return
    blocker: Any = _PandasBlocker()
    sys.meta_path.insert(0, blocker)
    try:
        import pyarrow

        pyarrow.array([])
    except ModuleNotFoundError:
        pass  # no pyarrow: the verb itself says so
    finally:
        sys.meta_path.remove(blocker)


class _PandasBlocker:
    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)
