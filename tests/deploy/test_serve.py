"""The service answers as the model itself does, names what is wrong with a request, and never fails with a 5xx."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

import pandas as pd
import pyarrow as pa
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bedl.deploy.serve import ARROW, ServeOptions, create_app, epistemic_shares
from bedl.estimators import tabular
from tests.cli.verbs import spawn
from tests.report import browser

CSV = {"Content-Type": "text/csv"}


def houses(n: int = 120, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "area": rng.uniform(30, 200, n),
            "rooms": rng.integers(1, 7, n),
            "city": rng.choice(["Ulm", "Köln", '"quoted", <b>'], n),
            "garden": rng.random(n) < 0.5,
            "built": pd.Timestamp("2001-05-01") + pd.to_timedelta(rng.integers(0, 4000, n), "D"),
        }
    )
    frame.loc[::9, "area"] = np.nan
    frame["price"] = 1000 * frame["area"].fillna(100) * (1 + frame["garden"]) + 5000 * rng.normal(size=n)
    return frame


ROWS = houses(20, 1).drop(columns="price")


def documents(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return json.loads(frame.assign(built=frame["built"].dt.strftime("%Y-%m-%d")).to_json(orient="records"))


@pytest.fixture(scope="module")
def model() -> Any:
    return tabular.fit(houses(), target="price", method="bedl", epochs=3, device="cpu", seed=0)


@pytest.fixture(scope="module")
def app(model: Any) -> Any:
    options = ServeOptions(table={"handle_unknown": "error"}, max_rows=100, max_bytes=1 << 20)
    return create_app(model, options, name="houses", reference=houses(50, 2))


@pytest.fixture(scope="module")
def client(app: Any) -> Any:
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def arrow(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize("sent", ["json", "csv", "tsv", "arrow"])
@pytest.mark.parametrize("wanted", ["application/json", "text/csv", ARROW])
def test_predictions_are_those_of_the_model(client: Any, model: Any, sent: str, wanted: str) -> None:
    expected = model.predict(ROWS, coverage=0.8)
    if sent == "json":
        body, kind = json.dumps({"rows": documents(ROWS), "coverage": 0.8}).encode(), "application/json"
    elif sent == "arrow":
        body, kind = arrow(pa.Table.from_pandas(ROWS, preserve_index=False)), ARROW
    else:
        body = ROWS.to_csv(index=False, sep="," if sent == "csv" else "\t").encode()
        kind = "text/csv; charset=utf-8" if sent == "csv" else "text/tab-separated-values"
    answer = client.post("/predict?coverage=0.8", content=body, headers={"Content-Type": kind, "Accept": wanted})
    assert answer.status_code == 200, answer.text
    if wanted == "application/json":
        found = pd.DataFrame(answer.json()["predictions"])
    elif wanted == "text/csv":
        found = pd.read_csv(io.BytesIO(answer.content))
    else:
        found = pa.ipc.open_stream(answer.content).read_pandas()
    pd.testing.assert_frame_equal(found, expected, rtol=1e-4, check_dtype=False)


def test_concurrent_requests_each_get_their_own_rows_and_faults(client: Any, model: Any) -> None:
    expected = model.predict(ROWS)["prediction"]
    start = threading.Barrier(20)

    def ask(i: int) -> Any:
        rows = documents(ROWS)[: i + 1]
        if i % 5 == 4:
            rows[-1]["city"] = "Atlantis"
        start.wait()
        return client.post("/predict", json={"rows": rows})

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(ask, range(20)))
    for i, answer in enumerate(answers):
        if i % 5 == 4:
            assert answer.status_code == 422
            assert f"row {i + 1}" in answer.json()["error"]
            assert "Atlantis" in answer.json()["error"]
        else:
            found = [row["prediction"] for row in answer.json()["predictions"]]
            np.testing.assert_allclose(found, expected[: i + 1], rtol=1e-4)


def changed(**values: Any) -> dict[str, Any]:
    rows = documents(ROWS)[1:4]
    rows[2].update(values)
    return {"rows": rows}


@pytest.mark.parametrize(
    "document, row, column",
    [
        (changed(area="wide"), 3, "area"),
        (changed(area=10**400), 3, "area"),
        (changed(area=[1]), 3, "area"),
        (changed(city=None), 3, "city"),
        (changed(city="\ud800"), 3, "city"),
        (changed(built="yesterday"), 3, "built"),
        (changed(pool=True), 3, "pool"),
        (changed(area=1e300), 3, "area"),
        ({"rows": [{"area": 1}]}, 1, "rooms"),
        ({"rows": [3]}, 1, ""),
    ],
)
def test_a_fault_is_named_by_row_and_column(client: Any, document: Any, row: int, column: str) -> None:
    answer = client.post("/predict", content=json.dumps(document), headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert f"row {row}" in answer.json()["error"]
    assert column in answer.json()["error"]


def test_a_value_that_training_did_not_see_is_answered_by_default(model: Any) -> None:
    with TestClient(create_app(model)) as client, pytest.warns(UserWarning, match="Atlantis"):
        answer = client.post("/predict", json=changed(city="Atlantis"))
    assert answer.status_code == 200
    assert len(answer.json()["predictions"]) == 3


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"rows": []}', b'{"rows": [{"area": NaN}]}', b"9" * 5000]
)
@pytest.mark.parametrize("kind", ["application/json", "text/csv", ARROW])
def test_nonsense_is_refused(client: Any, body: bytes, kind: str) -> None:
    answer = client.post("/predict", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]


def test_limits(client: Any) -> None:
    rows = documents(ROWS)
    assert client.post("/predict", json={"rows": rows * 6}).status_code == 413
    assert client.post("/predict", content=b"x" * (1 << 21), headers=CSV).status_code == 413
    chunked = client.post("/predict", content=iter([b"x" * (1 << 20)] * 2), headers=CSV)
    assert chunked.status_code == 413
    assert client.post("/predict", content=b"", headers={"Content-Type": "application/x-pickle"}).status_code == 415
    assert client.post("/predict", content=b"", headers={**CSV, "Content-Encoding": "gzip"}).status_code == 415
    assert client.post("/predict", json={"rows": rows}, headers={"Accept": "image/png"}).status_code == 406
    for wrong in ("1", "0", "nan", "much"):
        assert client.post(f"/predict?coverage={wrong}", json={"rows": rows}).status_code == 422
    assert client.get("/predict").status_code == 405


def test_arrow_that_unpacks_to_more_than_was_sent_is_refused(client: Any) -> None:
    table = pa.Table.from_pandas(ROWS, preserve_index=False)
    for body, word in [
        (arrow(table, compression="zstd"), "compressed"),
        (arrow(table.set_column(2, "city", table["city"].dictionary_encode())), "dictionary"),
        (arrow(table.append_column("list", pa.array([[1]] * len(table)))), "list"),
    ]:
        answer = client.post("/predict", content=body, headers={"Content-Type": ARROW})
        assert answer.status_code == 422
        assert word in answer.json()["error"]


BODY = arrow(pa.Table.from_pandas(ROWS, preserve_index=False))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, len(BODY) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_damaged_arrow_never_breaks_the_service(client: Any, changes: list[tuple[int, int]]) -> None:
    body = bytearray(BODY)
    for place, value in changes:
        body[place] = value
    assert client.post("/predict", content=bytes(body), headers={"Content-Type": ARROW}).status_code in (200, 413, 422)


def test_a_slow_model_is_given_up_and_a_long_queue_refused(model: Any) -> None:
    class Slow(tabular.TabularModel):
        seconds = 0.0

        def stream(self, data: Any, **options: Any) -> Any:
            time.sleep(self.seconds)
            return super().stream(data, **options)

    slow = Slow(model.name, model.encoder, model.engine, model.card)
    slow_app = create_app(slow, ServeOptions(timeout=0.5, max_queued_rows=1))
    slow.seconds = 2.0
    with TestClient(slow_app) as client, ThreadPoolExecutor(6) as pool:
        body = {"rows": documents(ROWS)[:1]}
        answers = list(pool.map(lambda _: client.post("/predict", json=body).status_code, range(6)))
    assert set(answers) == {429, 504}


def test_metrics_tell_drift(client: Any, model: Any) -> None:
    def read() -> dict[str, float]:
        lines = [line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#"]
        return {name: float(value) for name, value in lines}

    before = read()
    usual = epistemic_shares(dict(model.predict(houses(50, 2))))
    np.testing.assert_allclose(before["bedl_epistemic_share_reference"], usual.mean(), rtol=1e-4)
    frame = model.predict(ROWS)
    np.testing.assert_allclose(epistemic_shares(dict(frame)), frame["epistemic_std"] ** 2 / frame["std"] ** 2, 1e-4)
    far = ROWS.assign(area=5e4)
    assert epistemic_shares(dict(model.predict(far))).mean() > usual.mean()
    for _ in range(100):
        client.post("/predict", content=far.to_csv(index=False).encode(), headers=CSV)
    after = read()
    assert after["bedl_rows_total"] - before["bedl_rows_total"] == 100 * len(far)
    assert after["bedl_epistemic_share"] > before["bedl_epistemic_share_reference"]
    assert after['bedl_requests_total{status="200"}'] >= 100


def test_the_description_is_that_of_the_model(client: Any) -> None:
    document = client.get("/openapi.json").json()
    row = document["components"]["schemas"]["Row"]["properties"]
    assert row["area"]["type"] == ["number", "null"]
    assert row["rooms"]["type"] == "number"
    assert row["city"] == {"enum": ['"quoted", <b>', "Köln", "Ulm"]}
    assert row["garden"] == {"type": "boolean"}
    assert row["built"] == {"type": "string", "format": "date"}
    content = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert client.post("/predict", json=content["example"]).status_code == 200
    prediction = client.post("/predict", json=content["example"]).json()["predictions"][0]
    assert list(document["components"]["schemas"]["Prediction"]["properties"]) == list(prediction)
    assert client.get("/health").json()["status"] == "ok"


def test_requests_made_from_the_description_are_answered(app: Any) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    checks = pytest.importorskip("schemathesis.checks")
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)

    for result in schema.get_all_operations():
        operation = result.ok()

        @given(case=operation.as_strategy())
        @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        def ask(case: Any) -> None:
            case.call_and_validate(checks=[checks.not_a_server_error])

        ask()


@pytest.mark.slow
@pytest.mark.skipif(bool(browser.MISSING), reason=f"{browser.MISSING} not found: pages are not tested")
@pytest.mark.parametrize("task", ["regression", "classification", "multilabel"])
def test_a_dropped_file_shows_bands(task: str, tmp_path: Path) -> None:
    frame = houses()
    target: Any = {"regression": "price", "classification": "city", "multilabel": ["garden", "lift"]}[task]
    frame["lift"] = frame["rooms"] > 3
    folder = tmp_path / "houses <b>"
    tabular.fit(frame, target=target, method="bedl", epochs=2, device="cpu").save(folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = spawn("serve", folder, "--port", port)
    base = f"http://127.0.0.1:{port}"
    window = None
    try:
        _wait_for(f"{base}/health", process)
        window = browser.Browser(tmp_path / "profile")
        for width in (1200, 400):
            window.open(f"{base}/", width=width)
            text = json.dumps(frame.head(30).to_csv(index=False))
            window.run(
                "(() => { const data = new DataTransfer();"
                f"data.items.add(new File([{text}], 'rows.csv', {{ type: 'text/csv' }}));"
                "document.dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true })); })()"
            )
            for _ in range(100):
                if window.run(
                    "!document.getElementById('result').hidden || document.getElementById('error').textContent"
                ):
                    break
                time.sleep(0.1)
            assert window.run("document.getElementById('error').textContent") == ""
            assert window.run("document.querySelectorAll('svg .band').length") == 30
            assert window.run("document.querySelectorAll('#table tr').length") == 31
            assert window.run("document.documentElement.scrollWidth") <= width
            assert window.run("document.querySelector('h1').textContent") == "houses <b>"
            assert window.log("browser") == []
            assert [url for url in window.requests() if not url.startswith((base, "data:", "chrome"))] == []
    finally:
        if window is not None:
            window.close()
        process.terminate()
        process.communicate(timeout=20)


def _wait_for(url: str, process: Any) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.2)
    raise AssertionError("the service did not start")
