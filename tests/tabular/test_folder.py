"""Model folders: whole or refused, one writer at a time, and a way out of every state that a kill can leave."""

from __future__ import annotations

import numpy as np
import pandas
import pytest

from bedl import tabular
from bedl.errors import BEDLError

FRAME = pandas.DataFrame({"x": np.linspace(-1, 1, 60), "colour": ["red", "blue", "green"] * 20})
FRAME["y"] = 3 * FRAME["x"] + 1
QUICK = {"epochs": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def model() -> tabular.TabularModel:
    return tabular.fit(FRAME, target="y", **QUICK)


def test_one_flipped_bit_in_the_card_is_refused(model, tmp_path):
    card, random = model.save(tmp_path / "m") / "model.json", np.random.default_rng(0)
    content, said, refused = card.read_bytes(), model.predict(FRAME), 0
    for place, bit in zip(random.integers(0, len(content), 400), random.integers(0, 8, 400), strict=True):
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        card.write_bytes(damaged)
        try:
            again = tabular.load(tmp_path / "m")
        except BEDLError as error:
            assert "\n" not in str(error)
            refused += 1
        else:  # a space that became a tabulator
            pandas.testing.assert_frame_equal(again.predict(FRAME), said)
    assert refused > 300
