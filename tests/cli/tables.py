"""Tables for the tests of the command line."""

from __future__ import annotations

import datetime

import numpy as np

__all__ = ["FLOWERS", "HOUSES", "csv"]


def csv(header: str, rows: list) -> str:
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


def _houses(n: int = 120) -> str:
    random = np.random.default_rng(0)
    rows = []
    for number in range(n):
        area, colour = round(random.uniform(30, 200), 1), random.choice(["red", "green", "blue"])
        day = datetime.date(2020, 1, 1) + datetime.timedelta(days=int(random.integers(1000)))
        age = "" if random.random() < 0.2 else int(random.integers(100))
        price = 1000 * area + 5000 * (colour == "red") + 10 * random.normal()
        rows.append([area, colour, day, age, f"id-{number}", f"{price:.2f}"])
    return csv("area,colour,sold,age,code,price", rows)


def _flowers(n: int = 120) -> str:
    random = np.random.default_rng(1)
    kinds = random.integers(3, size=n)
    x = random.normal(size=(n, 2)) * 0.3 + np.array([[0, 0], [2, 0], [0, 2]])[kinds]
    names = np.array(["iris", "rose", "tulip"])[kinds]
    return csv("length,width,kind", [[f"{a:.3f}", f"{b:.3f}", name] for (a, b), name in zip(x, names, strict=True)])


HOUSES, FLOWERS = _houses(), _flowers()
