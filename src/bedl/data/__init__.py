"""Data: tables that stream, their columns as numbers, standard data sets and their downloads. Needs no torch.

    table = open_table("houses.csv")
    encoder = TableEncoder.fit(table, target="price")
    for x, y in encoded_batches(table, encoder): ...

Names are loaded when they are first used, so that a command which needs little starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bedl.data.download import DatasetInfo, PartCheck, fetch, list_datasets, verify
    from bedl.data.encoding import TableEncoder
    from bedl.data.errors import DataError, DataFileError, DataFileNotFoundError
    from bedl.data.images import load_images
    from bedl.data.places import data_root
    from bedl.data.streaming import encode_to_memmap, encoded_batches
    from bedl.data.tables import BUILTIN_NAMES, Table, open_table
    from bedl.data.uci import UCIData, UCISplit, load_uci, uci_names
    from bedl.data.writing import TableStream, TableWriter

__all__ = [
    # tables, in and out
    "BUILTIN_NAMES",
    "Table",
    "TableStream",
    "TableWriter",
    "open_table",
    # columns → numbers
    "TableEncoder",
    "encode_to_memmap",
    "encoded_batches",
    # standard data sets
    "UCIData",
    "UCISplit",
    "load_images",
    "load_uci",
    "uci_names",
    # downloads
    "DatasetInfo",
    "PartCheck",
    "data_root",
    "fetch",
    "list_datasets",
    "verify",
    # errors
    "DataError",
    "DataFileError",
    "DataFileNotFoundError",
]

_HOMES = {
    "download": ("DatasetInfo", "PartCheck", "fetch", "list_datasets", "verify"),
    "encoding": ("TableEncoder",),
    "errors": ("DataError", "DataFileError", "DataFileNotFoundError"),
    "images": ("load_images",),
    "places": ("data_root",),
    "streaming": ("encode_to_memmap", "encoded_batches"),
    "tables": ("BUILTIN_NAMES", "Table", "open_table"),
    "uci": ("UCIData", "UCISplit", "load_uci", "uci_names"),
    "writing": ("TableStream", "TableWriter"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
