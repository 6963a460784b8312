"""The pieces a page is made of: text, ticks, frames, marks, pictures."""

import math
import struct
import zlib
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedl.evaluation.report import ResultsError, layout, svg
from bedl.evaluation.report.layout import data, number, table, text


@given(st.text(max_size=120))
def test_escaped_text_comes_back_as_text_and_nothing_else(value):
    root = ElementTree.fromstring(f'<a b="{text(value)}">{text(value)}</a>')
    assert list(root) == []
    assert root.text == root.get("b") or (root.text is None and root.get("b") == "")
    assert len(root.text or "") <= 80


@given(st.text(max_size=120))
def test_text_can_be_written_and_holds_no_direction_marks(value):
    escaped = text(value)
    escaped.encode("utf-8")
    assert not set(escaped) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\x00\n\r")


def test_text_keeps_scripts_of_all_directions_and_marks_their_end():
    assert data("שלום") == "<bdi>שלום</bdi>"
    assert text("\ud800") == "\ufffd"
    assert len(text("w" * 10**7)) == 80


@given(st.floats(-1e300, 1e300))
def test_numbers_are_right_to_their_digits(value):
    shown = float(number(value).replace("−", "-").replace(",", ""))
    assert shown == pytest.approx(value, rel=1e-3)


def test_numbers_that_are_none():
    assert [number(x) for x in (math.nan, math.inf, -math.inf)] == ["–", "∞", "−∞"]


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_inside_and_evenly_spaced(low, span):
    high = low + span
    at = svg.ticks(low, high)
    assert 2 <= len(at) <= 9
    room = 1e-6 * span + 1e-9 * abs(low)
    assert low - room <= at[0]
    assert at[-1] <= high + room
    steps = np.diff(at)
    assert np.allclose(steps, steps[0], rtol=1e-3, atol=room)
    labels = svg.tick_labels(at)
    assert len(labels) == len(at)


@pytest.mark.parametrize(
    "at, labels",
    [
        ([0.0, 0.25, 0.5], ["0.00", "0.25", "0.50"]),
        ([-10.0, 0.0, 10.0], ["−10", "0", "10"]),
        ([2000.0, 2010.0], ["2000", "2010"]),
        ([1e6, 2e6], ["1M", "2M"]),
        ([10_000_000.0, 10_500_000.0], ["10M", "10.5M"]),
        ([1e-7, 2e-7], ["1e−7", "2e−7"]),
        ([], []),
    ],
)
def test_tick_labels(at, labels):
    assert svg.tick_labels(at) == labels


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=9), st.booleans())
def test_a_frame_holds_its_values(values, zero):
    values = np.abs(values) if zero else np.array(values)
    frame = svg.Frame.around(values, values, x_zero=zero, y_zero=zero)
    for pixels, top in ((frame.x(values), svg.WIDTH), (frame.y(values), svg.HEIGHT)):
        assert np.isfinite(pixels).all()
        assert pixels.min() >= 0
        assert pixels.max() <= top


def test_a_frame_that_cannot_be_drawn_is_refused():
    with pytest.raises(ResultsError, match="no plot"):
        svg.Frame(0, math.inf, 0, 1)


def parse(mark):
    return ElementTree.fromstring(f"<svg>{mark}</svg>")


def test_marks_lie_where_the_data_says():
    frame = svg.Frame(0, 10, 0, 100)
    circle = parse(svg.scatter(frame, [5], [50], "a", ["<tip>"])).find(".//circle")
    assert (float(circle.get("cx")), float(circle.get("cy"))) == ((58 + 396) / 2, (30 + 254) / 2)
    assert circle.get("data-tip") == "<tip>"
    assert parse(svg.line(frame, [0, 10], [0, 100])).find("path").get("d") == "M58.0 254.0L396.0 30.0"
    assert parse(svg.steps(frame, [0, 10], [0, 100])).find("path").get("d") == "M58.0 254.0H396.0V30.0"
    assert parse(svg.whiskers(frame, [0], [0], [100])).find("path").get("d") == "M58.0 254.0V30.0"
    assert parse(svg.band(frame, [0, 10], [0, 0], [100, 100])).find("path").get("d").count("L") == 3
    bars = parse(svg.bars(frame, [0, 5, 10], [50, 0])).findall(".//rect")
    assert [float(bar.get("height")) for bar in bars] == [112.0, 0.0]


def test_points_go_from_left_to_right_for_the_arrow_keys():
    frame = svg.Frame(0, 1, 0, 1)
    marks = parse(svg.scatter(frame, [0.9, 0.1, 0.5], [0, 0, 0], "a", ["c", "a", "b"])).findall(".//circle")
    assert [mark.get("data-tip") for mark in marks] == ["a", "b", "c"]


def test_tables_are_real_tables():
    root = ElementTree.fromstring(table("Ages", ["who", "age"], [["Ann", "30"], ["Bo", "40"]]))
    assert [cell.get("scope") for cell in root.iter("th")] == ["col", "col", "row", "row"]
    assert [cell.text for cell in root.iter("td")] == ["30", "40"]
    assert root.find(".//caption").text == "Ages"


def decode(content):
    """A PNG read by the book: chunks, their checksums, lines without a filter."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(content):
        (size,) = struct.unpack(">I", content[at : at + 4])
        kind, body = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        assert struct.unpack(">I", content[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + size
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert depth == 8
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert (lines[:, 0] == 0).all()
    return lines[:, 1:].reshape((height, width, 3) if colour == 2 else (height, width))


@pytest.mark.parametrize("shape", [(7, 5), (1, 7, 5), (3, 7, 5)])
def test_png_holds_the_pixels(shape):
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    expected = np.moveaxis(image, 0, -1) if shape[0] == 3 else image.reshape(7, 5)
    np.testing.assert_array_equal(decode(layout.encode(image)), expected)


def test_large_images_are_thinned_out():
    import base64

    uri = layout.data_uri(np.zeros((3, 1000, 700), np.uint8))
    pixels = decode(base64.b64decode(uri.split(",")[1]))
    assert max(pixels.shape) == 125


def decode_screenshot(content):
    """A browser's PNG, with the filters that it uses, as (height, width, 3)."""
    width, height, _, colour = struct.unpack(">IIBB", content[16:26])
    channels = {2: 3, 6: 4}[colour]
    body, at = b"", 8
    while at < len(content):
        (size,) = struct.unpack(">I", content[at : at + 4])
        if content[at + 4 : at + 8] == b"IDAT":
            body += content[at + 8 : at + 8 + size]
        at += 12 + size
    lines = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, -1)
    above = np.zeros((width, channels), np.int64)
    rows = []
    for line in lines:
        raw = line[1:].reshape(width, channels).astype(np.int64)
        above = _unfilter(int(line[0]), raw, above)
        rows.append(above[:, :3])
    return np.stack(rows)


def _unfilter(kind, raw, above):
    if kind in (0, 2):
        return (raw + (above if kind == 2 else 0)) % 256
    if kind == 1:
        return np.cumsum(raw, 0) % 256
    result, left, corner = np.empty_like(raw), np.zeros(raw.shape[1], np.int64), np.zeros(raw.shape[1], np.int64)
    for i, value in enumerate(raw):
        if kind == 3:
            guess = (left + above[i]) // 2
        else:  # the one of the three that is nearest to left + above − corner, by Paeth
            p = left + above[i] - corner
            near = np.abs(np.stack([p - left, p - above[i], p - corner])).argmin(0)
            guess = np.stack([left, above[i], corner])[near, np.arange(len(p))]
        left, corner = (value + guess) % 256, above[i]
        result[i] = left
    return result
