"""Published methods to compare with, a file for each family; all files here are imported, and so registered."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
