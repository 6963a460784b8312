"""Data: tables that stream, their columns as numbers, standard data sets and their downloads. Needs no torch.

    table = open_table("houses.csv")
    encoder = TableEncoder.fit(table, target="price")
    for x, y in encoded_batches(table, encoder): ...

Names are loaded when they are first used, so that a command which needs little starts quickly. They are listed in
`__init__.pyi`.
"""

from bedl._utils.imports import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
