"""A table in many files: each is predicted by itself, and the predictions are those of the whole table."""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas

import bedl.estimators.tabular
from bedl.data import open_table
from bedl.estimators.tabular.many_files import predict_parts

QUICK = {"epochs": 2} if "--quick" in sys.argv else {}

with tempfile.TemporaryDirectory() as place:
    folder = Path(place)
    bedl.tabular.fit("diabetes:train", device="cpu", **QUICK).export(folder / "model.onnx")
    table = pandas.concat([batch.to_pandas() for batch in open_table("diabetes:test").batches()], ignore_index=True)
    for number, start in enumerate(range(0, len(table), 20)):
        table.iloc[start : start + 20].to_parquet(folder / f"part-{number}.parquet")

    pattern, out = str(folder / "part-*.parquet"), folder / "predictions"
    print("files predicted:", len(predict_parts(folder / "model.onnx", pattern, out).written))
    (out / "part-2.parquet").unlink()  # as if it had been stopped
    print("and after a stop:", len(predict_parts(folder / "model.onnx", pattern, out).written))

    whole = bedl.tabular.load(folder / "model.onnx").predict(table)
    parts = pandas.concat([pandas.read_parquet(out / f"part-{number}.parquet") for number in range(5)])
    gap = np.abs(whole["prediction"].to_numpy() - parts["prediction"].to_numpy()).max() / whole["prediction"].std()
    print(f"rows: {len(parts)}, largest difference to the whole table, in standard deviations: {gap:.0e}")
