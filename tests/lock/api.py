"""The public names and their signatures."""

from __future__ import annotations

import importlib
import inspect

PACKAGES = [
    "bedl",
    *(f"bedl.{name}" for name in ("data", "deploy", "estimators", "heads", "methods", "nn", "objectives", "training")),
]
ALIASES = ["metrics", "predictive", "report", "rules", "tabular", "tasks"]


def snapshot() -> dict[str, str]:
    """Public name → signature; classes with their public methods."""
    import bedl

    packages = {name: importlib.import_module(name) for name in PACKAGES}
    packages |= {f"bedl.{name}": getattr(bedl, name) for name in ALIASES}
    found = {}
    for package, module in packages.items():
        for name in module.__all__:
            thing = getattr(module, name)
            found[f"{package}.{name}"] = _signature(thing)
            if inspect.isclass(thing):
                members = {k: v for k, v in vars(thing).items() if not k.startswith("_") and callable(v)}
                found |= {f"{package}.{name}.{k}": _signature(v) for k, v in members.items()}
    return found


def _signature(thing: object) -> str:
    if not callable(thing):
        return type(thing).__name__
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return ""
    return ", ".join(_shown(p) for p in parameters)


def _shown(parameter: inspect.Parameter) -> str:
    star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    simple = isinstance(parameter.default, bool | int | float | str | None | tuple)
    default = "" if parameter.default is inspect.Parameter.empty else f"={parameter.default!r}" if simple else "=…"
    return f"{star}{parameter.name}{default}"
