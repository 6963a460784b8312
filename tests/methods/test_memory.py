"""Memory of a fit of many classes: bounded, whatever their number."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from bedl import BEDLClassifier
from bedl.estimators import fit

PEAK = """
    import resource, sys
    def peak():  # bytes. Linux counts what the parent held before it became this process among ru_maxrss
        if sys.platform == "darwin":
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with open("/proc/self/status") as status:
            return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
"""

FIT = """
    import numpy as np
    from bedl import BEDLClassifier
    rows, classes, columns = {rows}, {classes}, {columns}
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(rows, columns)), np.arange(rows) % classes
    before = peak()
    model = BEDLClassifier(epochs=1, random_state=0, device="cpu").fit(X, y)
    assert model.predict_proba(X[:2]).shape == (2, classes)
    print(before, peak())
"""


def peak(**sizes: int) -> tuple[float, float]:
    """GB before a fit in a process of its own, and at most."""
    code = textwrap.dedent(PEAK) + textwrap.dedent(FIT.format(**sizes))
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=1500)
    before, most = (int(word) / 2**30 for word in found.stdout.split())
    return before, most


@pytest.mark.parametrize("classes", [30, 100])  # with a committee, and without
def test_classes_without_end_fit_in_memory(classes: int) -> None:
    before, most = peak(rows=700, classes=classes, columns=4)  # was 8.8 GB
    assert most - before < 0.6


@pytest.mark.slow
def test_a_thousand_classes_of_20000_rows_fit_in_2_gb() -> None:
    assert peak(rows=20_000, classes=1000, columns=4)[1] < 2


def test_networks_that_do_not_fit_side_by_side_are_trained_in_groups(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    y, options = (X[:, 0] > 0).astype(int), {"method": "bedl", "ensemble": 5, "epochs": 3, "batch_size": 32}
    sizes: list[int] = []
    real = fit.fit_replicas

    def counted(methods, *rest, **more):
        sizes.append(len(methods))
        return real(methods, *rest, **more)

    monkeypatch.setattr(fit, "fit_replicas", counted)
    whole = BEDLClassifier(**options, random_state=0, device="cpu").fit(X, y)
    each = fit.memory_of(whole.method_.members[0].float(), 32, (3,))
    whole.method_.double()
    monkeypatch.setattr(fit, "MAX_REPLICA_BYTES", 2 * each)
    parts = BEDLClassifier(**options, random_state=0, device="cpu", checkpoint=tmp_path).fit(X, y)
    assert sizes == [5, 2, 2, 1]
    assert sorted({row["member"] for row in parts.history_}) == [0, 1, 2, 3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["from-0", "from-2", "from-4"]
    np.testing.assert_allclose(parts.predict_proba(X), whole.predict_proba(X), atol=1e-4)  # nothing is drawn


def test_the_estimate_of_memory_is_no_less_than_what_is_taken() -> None:
    code = textwrap.dedent(PEAK) + textwrap.dedent(WIDE)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    estimated, taken = map(float, found.stdout.split())
    assert 0.3 * estimated < taken < estimated


WIDE = """
    import numpy as np
    from bedl import BEDLRegressor
    from bedl.estimators import fit as train
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 20))
    BEDLRegressor(method="bedl", hidden_layers=(8,), epochs=1, ensemble=2, device="cpu", random_state=0).fit(X, X[:, 0])
    before = peak()
    options = {"method": "bedl", "hidden_layers": (1500, 1500), "epochs": 1, "batch_size": 128, "device": "cpu"}
    model = BEDLRegressor(**options, ensemble=5, random_state=0).fit(X, X[:, 0])
    taken = peak() - before
    print(5 * train.memory_of(model.method_.members[0], 128, (20,)), taken)
"""
