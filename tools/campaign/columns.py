"""Columns as people and programs write them, well and badly."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from random import Random

__all__ = ["KINDS", "column", "name"]

Maker = Callable[[Random, int], list[str]]


def _numbers(random: Random, n: int) -> list[str]:
    size = random.choice([1] * 8 + [1e-3, 1e3, 1e6, 1e-12, 1e12, 1e30, 1e-30, 1e37, 1e300])
    shift = random.choice([0, 0, 0, 10, 1e6]) * size
    return [f"{shift + size * random.gauss(0, 1):.{random.choice([3, 6, 17])}g}" for _ in range(n)]


def _whole(random: Random, n: int) -> list[str]:
    top = random.choice([1, 2, 5, 30, 1000, 2**31, 2**53, 2**63, 10**20])
    return [str(random.randint(random.choice([0, 0, -top]), top)) for _ in range(n)]


def _labels(random: Random, n: int) -> list[str]:
    words = random.choice([
        ["red", "green", "blue"], ["a", "b"], ["yes", "no"], ["true", "false"], ["True", "FALSE"],
        ["M", "F", "x", "?"], ["Zürich", "Łódź", "東京", "القاهرة"],
        ["😀", "\U0001f469\u200d\U0001f467", "é", "e\u0301"],
        [" a", "a", "a "], ["0", "1"], ["1.0", "1"], ["=1+1", "@cmd", "+x", "-y"], ["\x1b[2J", "\x07", "a\tb"],
        ["None", "null", "NaN"], ["<b>", "&amp;", "</script>"], ["x" * 5000, "y"], ["nan", "inf", "-inf"],
        ["a,b", 'say "hi"', "line\nbreak"], ["class", "target", "prediction"], ["\u202eabc", "\ufeff", "\u200b"],
        ["a;b", "c|d", "e:f"], ["'", "`", "$HOME", "%s", "{0}"], ["../x", "/etc", "C:\\"],
    ])  # fmt: skip
    return [random.choice(words) for _ in range(n)]


def _dates(random: Random, n: int) -> list[str]:
    form = random.choice(
        ["%Y-%m-%d", "%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%d.%m.%Y", "%m/%d/%y", "%H:%M", "%d %b %Y"]
    )
    zone = random.choice(["", "", "", "Z", "+02:00"])
    first = random.choice([datetime.datetime(2020, 1, 1), datetime.datetime(1, 1, 1), datetime.datetime(9998, 1, 1)])
    days = [random.randint(0, 360) + random.random() for _ in range(n)]
    return [(first + datetime.timedelta(days=day)).strftime(form) + zone for day in days]


def _written(random: Random, n: int) -> list[str]:
    forms = [
        "${:,.2f}",
        "{:,.0f}",
        "{:.1f} €",
        "{:.0f}%",
        "({:.2f})",
        "{:.2f}-",
        "1e{:.0f}",
        "{:.2f} USD",
        "£{:,.0f}",
        "'{:.0f}",
        "{:.0f} sq ft",
        "{:.1f}k",
        "{:.2f} million",
    ]
    form = random.choice(forms)
    texts = [form.format(random.uniform(0, random.choice([10, 10_000, 10**7]))) for _ in range(n)]
    if random.random() < 0.4:  # as in German
        texts = [text.translate(str.maketrans(".,", ",.")) for text in texts]
    return texts


def _sentences(random: Random, n: int) -> list[str]:
    words = "quiet,house,near,the,lake,needs,work,new,roof,two,gardens,$5,4.5%,naïve,😀".split(",")
    return [" ".join(random.choices(words, k=random.randint(0, 12))) for _ in range(n)]


def _odd(random: Random, n: int) -> list[str]:
    odd = "0x1F|1_000|٣|½|1e999|-0|+5|.5|5.|1 000|1e-400|NaN|inf|-Infinity|1,5|--1|| |NULL|#N/A|#REF!|TRUE".split("|")
    odd += ["9" * 400, "0001-01-01", "2020-02-30", "1.2.3", "\x00", "\ufeff1"]
    return [random.choice(odd) for _ in range(n)]


def _identifiers(random: Random, n: int) -> list[str]:
    start = random.choice([0, 1, 10**6])
    return [f"{random.choice(['', 'id-'])}{start + i}" for i in range(n)] if random.random() < 0.3 else [
        str(start + i) for i in range(n)]  # fmt: skip


def _constant(random: Random, n: int) -> list[str]:
    return [random.choice(["1", "a", "", "0", "2020-01-01", "true"])] * n


def _mostly_numbers(random: Random, n: int) -> list[str]:
    texts = _numbers(random, n)
    for _ in range(random.randint(1, max(1, n // 5))):
        if n:
            texts[random.randrange(n)] = random.choice(
                ["n/a", "missing", "-", "?", "1,5", "$3", "unknown", "\x00", "1e400"]
            )
    return texts


def _mixture(random: Random, n: int) -> list[str]:
    parts = [make(random, n) for make in random.sample(list(KINDS.values())[:8], 3)]
    return [random.choice(parts)[i] for i in range(n)]


KINDS: dict[str, Maker] = {
    "numbers": _numbers, "whole": _whole, "labels": _labels, "dates": _dates, "written": _written, "odd": _odd,
    "identifiers": _identifiers, "constant": _constant, "mostly numbers": _mostly_numbers, "mixture": _mixture,
    "sentences": _sentences,
}  # fmt: skip
_OFTEN = ["numbers"] * 6 + ["whole"] * 4 + ["labels"] * 4 + ["dates"] * 2 + list(KINDS)
_USUAL = ["numbers"] * 5 + ["whole"] * 3 + ["labels"] * 3 + ["dates"]


def column(random: Random, n: int, odd: bool = True) -> list[str]:
    """`n` texts of some kind, some of them missing, perhaps; `odd`: of any kind, else of a usual one."""
    texts = KINDS[random.choice(_OFTEN if odd else _USUAL)](random, n)
    share = random.choice([0, 0, 0, 0, 0.1, 0.5, 0.95, 1] if odd else [0, 0, 0, 0, 0.1])
    gap = random.choice(["", "", "NA", "NaN", "null", "?", " "] if odd else ["", "NA"])
    return [gap if random.random() < share else text for text in texts]


def name(random: Random, number: int) -> str:
    """The name of a column, mostly a harmless one."""
    odd = "| |a b|a,b|ü|東京|prediction|std|--out|-t|row|id|a\nb|\x1b[31m|=1+1|<script>|0|1.5|nan|None|a;b".split("|")
    odd += ["x" * 300, 'a"b', "target", "a\tb", "\ufeff", "p_red", "../a", "{x}", "%d"]
    return random.choice(odd) if random.random() < 0.05 else f"c{number}"
