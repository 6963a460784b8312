"""A model as an HTTP service: rows as JSON, CSV or Arrow in, predictions with intervals out; `bedl serve` runs it.

Requests that wait while the model is busy are predicted together, in one batch. Nothing in a request is unpickled,
executed or taken for a path, and its size, its number of rows and its time are bounded.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import prometheus_client as prometheus
import pyarrow as pa
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

import bedl
from bedl._utils.errors import BEDLError, listed
from bedl.data import DataError, TableStream, open_table
from bedl.estimators.tabular import TabularModel

__all__ = ["ServeOptions", "create_app", "epistemic_shares", "serve"]

LOG = logging.getLogger("bedl.serve")
ARROW = "application/vnd.apache.arrow.stream"
TEXT = {"text/csv": ".csv", "text/tab-separated-values": ".tsv"}
HALF_LIFE = 1000  # rows, of the drift gauge
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True)
class ServeOptions:
    """Settings of a service.

    Attributes:
        coverage: nominal coverage of intervals, unless a request asks for another.
        table: further arguments of `TabularModel.predict`, such as ``{"extra": "ignore"}``.
        max_rows: rows of one request.
        max_bytes: size of the body of one request.
        timeout: seconds until a request is given up.
        max_queued_rows: rows that may wait for their prediction; beyond, requests are refused with status 429.
        batch_rows: rows that are predicted together.
    """

    coverage: float = 0.9
    table: Mapping[str, Any] = field(default_factory=dict)
    max_rows: int = 10_000
    max_bytes: int = 16 << 20
    timeout: float = 30.0
    max_queued_rows: int = 100_000
    batch_rows: int = 4096


class RequestError(BEDLError):
    """A request that cannot be answered; the message says what to change.

    Args:
        status: of the HTTP response.
        message: for the sender.
        row, column: the value at fault, counted from 1, if it is a single one.
    """

    def __init__(self, status: int, message: str, row: int | None = None, column: str | None = None):
        super().__init__(message)
        self.status, self.row, self.column = status, row, column


# -- bodies → tables --------------------------------------------------------------------------------------
def table_of_json(body: bytes, columns: Mapping[str, str], known: Sequence[str]) -> tuple[pa.Table, float | None]:
    """The rows of ``{"rows": [{column: value, …}, …], "coverage": 0.9}``, and the coverage if it is given.

    Args:
        body: the JSON document.
        columns: those that every row has to have, and what they hold, as `TableEncoder.to_dict` says it.
        known: further columns, which are left out.
    """
    try:
        document = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(422, f"the body is not valid JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
        raise RequestError(422, 'the body is an object with a list of rows: {"rows": [{column: value, …}, …]}')
    extra = sorted(set(document) - {"rows", "coverage"})
    if extra:
        raise RequestError(422, f"the body has the unknown field(s) {listed(extra)}. It takes rows and coverage")
    rows = document["rows"]
    allowed, required = {*columns, *known}, set(columns)
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise RequestError(422, f"row {number} is not an object of column names and values", number)
        if row.keys() != required:
            _check_keys(number, row, columns, allowed)
    arrays = {name: _array([row[name] for row in rows], name, kind) for name, kind in columns.items()}
    return pa.table(arrays), _coverage(document)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number; a missing value is null")


def _check_keys(number: int, row: Mapping[str, Any], columns: Mapping[str, str], allowed: set[str]) -> None:
    for name in columns:
        if name not in row:
            raise RequestError(
                422, f"row {number} lacks the column {listed([name])}. A missing value is null", number, name
            )
    for name in row:
        if name not in allowed:
            raise RequestError(
                422, f"row {number} has a column {listed([name])}, which training had not", number, name[:200]
            )


def _coverage(document: Mapping[str, Any]) -> float | None:
    if "coverage" not in document:
        return None
    coverage = document["coverage"]
    if isinstance(coverage, bool) or not isinstance(coverage, (int, float)):
        raise RequestError(422, "coverage is a number between 0 and 1")
    return coverage


def _array(values: list[Any], name: str, kind: str) -> pa.Array:
    """A column of JSON values of one type."""
    types = {type(value) for value in values} - {type(None)}
    if types == {int} and kind != "number" and all(abs(value or 0) < 1 << 63 for value in values):
        return pa.array(values, pa.int64())
    if types <= {int, float}:
        try:
            return pa.array([None if value is None else float(value) for value in values], pa.float64())
        except OverflowError:
            row = next(i for i, value in enumerate(values, 1) if isinstance(value, int) and abs(value) > 1e308)
            raise RequestError(422, f"column {listed([name])}, row {row}: the number is too large", row, name) from None
    if types <= {str}:
        try:
            return pa.array(values, pa.string())
        except UnicodeEncodeError:
            row = next(i for i, value in enumerate(values, 1) if value and not _encodable(value))
            raise RequestError(
                422, f"column {listed([name])}, row {row}: the text is not valid Unicode", row, name
            ) from None
    if types == {bool}:
        return pa.array(values, pa.bool_())
    row, value = next(
        (i, value)
        for i, value in enumerate(values, 1)
        if isinstance(value, (list, dict)) or (value is not None and _kind(value) != _kind(values[_first(values)]))
    )
    what = "a list or an object" if isinstance(value, (list, dict)) else f"a {_kind(value)}"
    other = (
        "" if isinstance(value, (list, dict)) else f", and row {_first(values) + 1} a {_kind(values[_first(values)])}"
    )
    raise RequestError(422, f"column {listed([name])}, row {row} holds {what}{other}. Send one type", row, name)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _first(values: list[Any]) -> int:
    return next(i for i, value in enumerate(values) if value is not None)


def _kind(value: Any) -> str:
    return "truth value" if isinstance(value, bool) else "number" if isinstance(value, (int, float)) else "text"


def table_of_text(body: bytes, suffix: str) -> pa.Table:
    """The rows of a CSV or TSV document in UTF-8, read as `bedl predict` reads files."""
    with tempfile.TemporaryDirectory(prefix="bedl-serve-") as folder:
        path = Path(folder) / f"rows{suffix}"
        path.write_bytes(body)
        try:
            batches = list(open_table(path).batches())
        except DataError as error:
            raise RequestError(422, str(error).replace(str(path), "the body")) from None
    if not batches:
        raise RequestError(422, "the body has column names and no rows")
    return pa.Table.from_batches(batches)


def table_of_arrow(body: bytes, columns: Mapping[str, str], known: Sequence[str]) -> pa.Table:
    """The rows of an Arrow IPC stream of plain columns: not compressed, not dictionary-encoded, not nested."""
    refused = "the Arrow stream {}. Cast the columns to numbers, strings, dates, timestamps or booleans"
    try:
        for message in pa.ipc.MessageReader.open_stream(body):
            if message.type == "dictionary":  # a few bytes could stand for gigabytes
                raise RequestError(422, refused.format("is dictionary-encoded"))
            if message.type == "record batch" and _is_compressed(message.metadata):
                raise RequestError(422, "the Arrow stream is compressed. Send it uncompressed")
        with pa.ipc.open_stream(body) as reader:
            schema = reader.schema
            if len(set(schema.names)) < len(schema.names):
                raise RequestError(422, "the Arrow stream has several columns of the same name")
            for name, kind in zip(schema.names, schema.types, strict=True):
                if not _is_plain(kind):
                    raise RequestError(422, refused.format(f"has a column {listed([name])} of type {kind}"), None, name)
            new = [name for name in schema.names if name not in columns and name not in known]
            if new:
                raise RequestError(422, f"training saw no column(s) {listed(new)}. Leave them out", None, new[0])
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, struct.error, UnicodeDecodeError) as error:
        raise RequestError(422, f"the body is not a valid Arrow IPC stream: {error}") from None
    return table.select([name for name in table.column_names if name in columns])


def _is_plain(kind: pa.DataType) -> bool:
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string,
             pa.types.is_large_string, pa.types.is_date, pa.types.is_timestamp, pa.types.is_null)  # fmt: skip
    return any(test(kind) for test in plain)


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether a record batch's buffers are compressed: field 3 of its header, the table that is field 2 of the message.

    Flatbuffers: https://github.com/apache/arrow/blob/main/format/Message.fbs
    """
    data = metadata.to_pybytes()

    def place(table: int, index: int) -> int:
        (vtable,) = struct.unpack_from("<i", data, table)
        start = table - vtable
        (size,) = struct.unpack_from("<H", data, start)
        offset = struct.unpack_from("<H", data, start + 4 + 2 * index)[0] if 4 + 2 * index < size else 0
        return table + offset if offset else 0

    (root,) = struct.unpack_from("<I", data, 0)
    header = place(root, 2)
    if not header:
        return False
    (offset,) = struct.unpack_from("<I", data, header)
    return bool(place(header + offset, 3))


# -- predictions → bodies ---------------------------------------------------------------------------------
def _as_json(columns: Mapping[str, Any]) -> Response:
    values = [column.tolist() if hasattr(column, "tolist") else list(column) for column in columns.values()]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
    return Response(json.dumps({"predictions": rows}), media_type="application/json")


def _as_text(columns: Mapping[str, Any]) -> Response:
    file = io.BytesIO()
    stream = TableStream(file, ".csv")
    stream.write(columns)
    stream.finish()
    return Response(file.getvalue(), media_type="text/csv; charset=utf-8")


def _as_arrow(columns: Mapping[str, Any]) -> Response:
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return Response(sink.getvalue().to_pybytes(), media_type=ARROW)


WRITERS: dict[str, Callable[[Mapping[str, Any]], Response]] = {
    "application/json": _as_json,
    "text/csv": _as_text,
    ARROW: _as_arrow,
}


def _writer(accept: str) -> Callable[[Mapping[str, Any]], Response]:
    """The first known type of an Accept header; its weights are not looked at."""
    for entry in accept.split(","):
        kind = entry.split(";")[0].strip().lower()
        if kind in WRITERS:
            return WRITERS[kind]
        if kind in ("", "*/*", "application/*"):
            return _as_json
        if kind == "text/*":
            return _as_text
    raise RequestError(406, f"predictions come as {listed(list(WRITERS))}")


def epistemic_shares(columns: Mapping[str, Any]) -> np.ndarray:
    """The epistemic share of each row's uncertainty, of variances or entropies; the mean over targets. shape: (n,)

    Example:
        >>> epistemic_shares({"data_std": [2.0], "distributional_std": [0.0], "model_std": [1.0]})
        array([0.2])
    """
    shares = []
    for name, values in columns.items():
        if not name.startswith(("data_std", "data_entropy")):
            continue
        power = 2 if name.startswith("data_std") else 1
        rest = name.removeprefix("data_")
        parts = [np.asarray(values, float), *(np.asarray(columns[f"{p}_{rest}"], float) for p in PARTS)]
        data, *epistemic = (part**power for part in parts)
        known = sum(epistemic)
        total = data + known
        shares.append(np.divide(known, total, out=np.zeros_like(data), where=total > 0))
    return np.mean(shares, 0) if shares else np.zeros(0)


PARTS = ("distributional", "model")


class Metrics:
    """What Prometheus asks for, in a registry of its own.

    Args:
        reference: epistemic share of a reference table; None: there is none.
    """

    def __init__(self, reference: float | None = None):
        self.registry = prometheus.CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self.requests = prometheus.Counter("bedl_requests", "Requests to /predict, by status.", ["status"], **own)
        self.rows = prometheus.Counter("bedl_rows", "Rows predicted.", **own)
        self.seconds = prometheus.Histogram("bedl_request_seconds", "Time of a request to /predict.", **own)
        sizes = (1, 4, 16, 64, 256, 1024, 4096, 16384)
        self.batches = prometheus.Histogram("bedl_batch_rows", "Rows predicted together.", buckets=sizes, **own)
        self.queued = prometheus.Gauge("bedl_queued_rows", "Rows that wait for their prediction.", **own)
        text = f"Mean epistemic share of the uncertainty, with a half-life of {HALF_LIFE} rows; a rise means drift."
        self.share = prometheus.Gauge("bedl_epistemic_share", text, **own)
        self.share.set(float("nan"))
        self._sum = self._weight = 0.0
        if reference is not None:
            prometheus.Gauge("bedl_epistemic_share_reference", "The same of the reference table.", **own).set(reference)

    def observe(self, columns: Mapping[str, Any]) -> None:
        """Rows that were predicted together."""
        shares = epistemic_shares(columns)
        n = len(next(iter(columns.values())))
        self.rows.inc(n)
        self.batches.observe(n)
        if len(shares):
            keep = 0.5 ** (n / HALF_LIFE)
            self._sum = keep * self._sum + (1 - keep) * float(shares.mean())
            self._weight = keep * self._weight + (1 - keep)
            self.share.set(self._sum / self._weight)


# -- batches ----------------------------------------------------------------------------------------------
@dataclass
class _Job:
    table: pa.Table
    coverage: float
    future: asyncio.Future[dict[str, Any]]


class Batcher:
    """Predicts tables of concurrent requests together, in one thread."""

    def __init__(self, model: TabularModel, options: ServeOptions, metrics: Metrics):
        self.model, self.options, self.metrics = model, options, metrics
        self.pool = ThreadPoolExecutor(1, "bedl-predict")
        self.queue: asyncio.Queue[_Job] = asyncio.Queue()
        self.worker: asyncio.Task[None] | None = None
        self.waiting = 0

    async def predict(self, table: pa.Table, coverage: float) -> dict[str, Any]:
        """The columns of the predictions."""
        if self.waiting + len(table) > self.options.max_queued_rows:
            raise RequestError(429, "too many rows are waiting. Try again in a moment")
        loop = asyncio.get_running_loop()
        if self.worker is None or self.worker.done() or self.worker.get_loop() is not loop:
            self.queue, self.waiting = asyncio.Queue(), 0  # mounted applications have no lifespan, so it starts here
            self.worker = loop.create_task(self._serve(self.queue))
        job = _Job(table, coverage, loop.create_future())
        self._wait(len(table))
        self.queue.put_nowait(job)
        return await job.future

    def _wait(self, rows: int) -> None:
        self.waiting += rows
        self.metrics.queued.set(self.waiting)

    async def _serve(self, queue: asyncio.Queue[_Job]) -> None:
        while True:
            jobs = [await queue.get()]
            rows = len(jobs[0].table)
            while not queue.empty() and rows < self.options.batch_rows:
                jobs.append(queue.get_nowait())
                rows += len(jobs[-1].table)
            self._wait(-rows)
            jobs = [job for job in jobs if not job.future.done()]  # some have been given up
            results = await asyncio.get_running_loop().run_in_executor(self.pool, self._predict, jobs)
            for job, result in zip(jobs, results, strict=True):
                if job.future.done():
                    continue
                if isinstance(result, Exception):
                    job.future.set_exception(result)
                else:
                    job.future.set_result(result)

    def _predict(self, jobs: list[_Job]) -> list[dict[str, Any] | Exception]:
        groups: dict[Any, list[int]] = {}
        for index, job in enumerate(jobs):
            groups.setdefault((job.coverage, job.table.schema), []).append(index)
        results: dict[int, dict[str, Any] | Exception] = {}
        for (coverage, _), members in groups.items():
            results.update(self._predict_group([jobs[i].table for i in members], coverage, members))
        return [results[i] for i in range(len(jobs))]

    def _predict_group(self, tables: list[pa.Table], coverage: float, members: list[int]) -> dict[int, Any]:
        try:
            columns = self._columns(pa.concat_tables(tables).combine_chunks(), coverage)
        except Exception as error:
            if len(tables) == 1:
                return {members[0]: error}
            # by themselves, so that the fault of one request is not that of others, and its row is its own
            parts = [self._predict_group([t], coverage, [i]) for t, i in zip(tables, members, strict=True)]
            return {i: result for part in parts for i, result in part.items()}
        self.metrics.observe(columns)
        ends = np.cumsum([len(table) for table in tables])
        starts = [0, *ends[:-1]]
        return {
            i: {name: values[start:end] for name, values in columns.items()}
            for i, start, end in zip(members, starts, ends, strict=True)
        }

    def _columns(self, table: pa.Table, coverage: float) -> dict[str, Any]:
        parts = list(self.model.stream(table, coverage=coverage, **self.options.table))
        return {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}


# -- the description --------------------------------------------------------------------------------------
def _column_schema(column: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """JSON Schema of a column of the encoder, and a value that it could hold."""
    kind, missing = column.get("kind"), bool(column.get("has_missing"))
    schema: dict[str, Any] = {}
    example: Any = None
    if kind == "number":
        schema, example = {"type": "number"}, column.get("mean", 0.0)
        if column.get("low") is not None:
            schema["description"] = f"from {column['low']:g} to {column['high']:g} in training"
    elif kind == "boolean":
        schema, example = {"type": "boolean"}, True
    elif kind == "date":
        day = date(1970, 1, 1) + timedelta(days=int(column.get("mean", 0)))
        schema, example = {"type": "string", "format": "date"}, day.isoformat()
    elif kind == "category":
        names = list(column.get("categories", ()))
        example = names[0] if names else None
        schema = {"type": "string"} if column.get("has_other") else {"enum": names}
        if column.get("has_other"):
            schema["examples"] = names[:20]
    if missing and "enum" in schema:
        schema["enum"] = [*schema["enum"], None]
    elif missing and "type" in schema:
        schema["type"] = [schema["type"], "null"]
    return schema, example


def _description(model: TabularModel, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON Schema of a row, and an example."""
    encoder = model.encoder.to_dict()
    columns = {column["name"]: _column_schema(column) for column in encoder["columns"]}
    row = {
        "type": "object",
        "title": f"Row of {name}",
        "properties": {key: schema for key, (schema, _) in columns.items()},
        "required": list(columns),
        "additionalProperties": False,
    }
    return row, {key: example for key, (_, example) in columns.items()}


def _openapi(app: FastAPI, model: TabularModel, row: dict[str, Any], example: dict[str, Any], found: Any) -> Any:
    """The OpenAPI document: what FastAPI knows, and the rows and predictions of this model."""
    from fastapi.openapi.utils import get_openapi

    about = f"Predicts {listed(model.encoder.target_columns)} ({model.task}), with intervals and kinds of uncertainty."
    card = model.card
    if card is not None and card.scores:
        about += " Scores of held-out rows: " + ", ".join(
            f"{key} {value:.4g}" for key, value in card.scores.items() if value is not None
        )
    document = get_openapi(title=app.title, version=bedl.__version__, description=about, routes=app.routes)
    prediction: dict[str, Any] = {"type": "object"}
    if found:
        kinds = {key: "number" if isinstance(value, (int, float)) else "string" for key, value in found.items()}
        prediction["properties"] = {key: {"type": kind} for key, kind in kinds.items()}
        prediction["required"] = list(found)
    error = {
        "type": "object",
        "properties": {
            "error": {"type": "string"},
            "row": {"type": "integer", "description": "counted from 1"},
            "column": {"type": "string"},
        },
        "required": ["error"],
    }
    request = {
        "type": "object",
        "properties": {
            "rows": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Row"}},
            "coverage": {"type": "number", "minimum": 0.01, "maximum": 0.999},
        },
        "required": ["rows"],
        "additionalProperties": False,
    }
    answer = {
        "type": "object",
        "properties": {"predictions": {"type": "array", "items": {"$ref": "#/components/schemas/Prediction"}}},
        "required": ["predictions"],
    }
    document.setdefault("components", {})["schemas"] = {"Row": row, "Prediction": prediction, "Error": error}
    operation = document["paths"]["/predict"]["post"]
    text = {"schema": {"type": "string"}}
    operation["requestBody"] = {
        "required": True,
        "content": {
            "application/json": {"schema": request, "example": {"rows": [example]}},
            "text/csv": text,
            "text/tab-separated-values": text,
            ARROW: {"schema": {"type": "string", "format": "binary"}},
        },
    }
    operation["responses"] = {
        "200": {
            "description": "a prediction for each row, in order",
            "content": {
                "application/json": {"schema": answer},
                "text/csv": text,
                ARROW: {"schema": {"type": "string", "format": "binary"}},
            },
        },
        **{
            status: {
                "description": text,
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            }
            for status, text in {
                "406": "no format of the Accept header is known",
                "408": "the body did not arrive in time",
                "413": "too many bytes or rows",
                "415": "unknown Content-Type or Content-Encoding",
                "422": "rows that cannot be predicted; the message names row and column",
                "429": "too many rows are waiting",
                "504": "no prediction in time",
            }.items()
        },
    }
    return document


# -- the application --------------------------------------------------------------------------------------
def create_app(
    model: TabularModel, options: ServeOptions | None = None, *, name: str | None = None, reference: Any = None
) -> FastAPI:
    """The service as an ASGI application, to run with uvicorn or to mount into another.

    Paths: ``/predict``, ``/health``, ``/metrics``, ``/openapi.json``, and a page for people at ``/``.

    Args:
        model: from `bedl.tabular.load` or `bedl.tabular.fit`.
        options: limits and defaults.
        name: of the model; that of its folder by default.
        reference: a table such as held-out rows, whose epistemic share stands beside the drift gauge.

    Example:
        >>> import bedl
        >>> from fastapi.testclient import TestClient
        >>> model = bedl.tabular.fit("iris", method="bedl", epochs=2, device="cpu")
        >>> with TestClient(create_app(model)) as client:
        ...     answer = client.post("/predict", content="sepal length (cm),sepal width (cm),petal length (cm),"
        ...                          "petal width (cm)\\n5.1,3.5,1.4,0.2\\n", headers={"Content-Type": "text/csv"})
        >>> answer.status_code, len(answer.json()["predictions"])
        (200, 1)
    """
    options = options or ServeOptions()
    name = name or Path(model.name).stem
    columns = {column["name"]: str(column["kind"]) for column in model.encoder.to_dict()["columns"]}
    known = [*model.encoder.to_dict().get("unused", ()), *model.encoder.target_columns]
    row, example = _description(model, name)
    share = None
    if reference is not None:
        parts = [epistemic_shares(part) for part in model.stream(reference, **options.table)]
        share = float(np.concatenate(parts).mean())
    metrics = Metrics(share)
    batcher = Batcher(model, options, metrics)
    first: dict[str, Any] = {}
    try:  # makes ready what is made at the first call, and says what predictions look like
        table, _ = table_of_json(json.dumps({"rows": [example]}).encode(), columns, known)
        answer = batcher._columns(table, options.coverage)
        first = {key: np.asarray(values)[0].item() for key, values in answer.items()}
    except BEDLError as error:
        LOG.warning("the example row of the description cannot be predicted: %s", error)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        if batcher.worker is not None:
            batcher.worker.cancel()

    app = FastAPI(title=name, version=bedl.__version__, lifespan=lifespan, docs_url=None, redoc_url=None)

    async def body_of(request: Request) -> bytes:
        limit = f"the body has more than {options.max_bytes} bytes. Send fewer rows at a time"
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > options.max_bytes:
            raise RequestError(413, limit)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > options.max_bytes:
                raise RequestError(413, limit)
        return bytes(body)

    async def answer_of(request: Request) -> Response:
        writer = _writer(request.headers.get("accept", "*/*"))
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise RequestError(415, "bodies are taken without Content-Encoding")
        kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
        if kind not in ("application/json", ARROW, *TEXT):
            raise RequestError(415, f"rows are taken as {listed(['application/json', ARROW, *TEXT])}")
        try:
            body = await asyncio.wait_for(body_of(request), options.timeout)
        except asyncio.TimeoutError:
            raise RequestError(408, f"the body did not arrive within {options.timeout:g} seconds") from None

        def read() -> tuple[pa.Table, float | None]:
            if kind == "application/json":
                return table_of_json(body, columns, known)
            return (table_of_arrow(body, columns, known) if kind == ARROW else table_of_text(body, TEXT[kind])), None

        small = kind == "application/json" and len(body) < 1 << 16
        table, coverage = read() if small else await asyncio.to_thread(read)
        coverage = _query_coverage(request, coverage, options.coverage)
        if not len(table):
            raise RequestError(422, "there are no rows to predict")
        if len(table) > options.max_rows:
            raise RequestError(413, f"{len(table)} rows are more than {options.max_rows}. Send fewer at a time")
        try:
            found = await asyncio.wait_for(batcher.predict(table, coverage), options.timeout)
        except asyncio.TimeoutError:
            raise RequestError(504, f"there was no prediction within {options.timeout:g} seconds. Try again") from None
        return writer(found) if len(table) < 1000 else await asyncio.to_thread(writer, found)

    @app.post("/predict", summary="Predict rows")
    async def predict(request: Request) -> Response:
        started = time.perf_counter()
        try:
            response = await answer_of(request)
        except RequestError as error:
            content = {"error": str(error), "row": error.row, "column": error.column}
            response = JSONResponse({k: v for k, v in content.items() if v is not None}, error.status)
            if error.status == 429:
                response.headers["Retry-After"] = "1"
        except BEDLError as error:
            response = JSONResponse({"error": str(error)}, 422)
        except Exception:
            LOG.exception("a prediction failed")
            response = JSONResponse({"error": "the prediction failed; the server's log says why"}, 500)
        metrics.seconds.observe(time.perf_counter() - started)
        metrics.requests.labels(str(response.status_code)).inc()
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    @app.get("/health", summary="Whether the service is up")
    async def health() -> dict[str, str]:
        return {"status": "ok", "model": name, "task": model.task, "bedl": bedl.__version__}

    @app.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
    async def read_metrics() -> Response:
        return Response(prometheus.generate_latest(metrics.registry), media_type=prometheus.CONTENT_TYPE_LATEST)

    page = (Path(__file__).parent / "serve.html").read_text("utf-8")

    @app.get("/", include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers=PAGE_HEADERS)

    document = _openapi(app, model, row, example, first)
    app.openapi = lambda: document  # type: ignore[method-assign]
    return app


def _query_coverage(request: Request, given: float | None, default: float) -> float:
    """The coverage of a request, in the body or as ``?coverage=0.95``."""
    text = request.query_params.get("coverage")
    if given is None and text is not None:
        try:
            given = float(text)
        except ValueError:
            raise RequestError(422, "coverage is a number between 0 and 1") from None
    if given is None:
        return default
    if not 0.01 <= given <= 0.999:
        raise RequestError(422, "coverage lies between 0.01 and 0.999")
    return float(given)


def serve(
    model: TabularModel,
    options: ServeOptions | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    name: str | None = None,
    reference: Any = None,
) -> None:
    """Serve a model until the process is stopped.

    Args:
        model, options, name, reference: as for `create_app`.
        host: address to listen at; "0.0.0.0" for all of this machine's.
        port: to listen at.
    """
    import uvicorn

    app = create_app(model, options, name=name, reference=reference)
    uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False, server_header=False)
