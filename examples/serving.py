"""A model as a service: a request, a refusal, and the drift gauge before and after inputs change.

python examples/serving.py
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
from fastapi.testclient import TestClient

import bedl
from bedl.deploy.serve import create_app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller run")
    epochs = 5 if parser.parse_args().quick else 40
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"area": rng.uniform(30, 200, 300), "rooms": rng.integers(1, 7, 300)})
    table = X.assign(price=1000 * X["area"] + 5000 * rng.normal(size=300))
    model = bedl.tabular.fit(table, target="price", method="evidence", epochs=epochs, device="cpu", seed=0)
    with TestClient(create_app(model, reference=table)) as client:
        answer = client.post("/predict", json={"rows": [{"area": 80, "rooms": 3}]})
        print("one row:", {k: round(v) for k, v in answer.json()["predictions"][0].items()})
        refused = client.post("/predict", json={"rows": [{"area": "large", "rooms": 3}]})
        print(f"refused ({refused.status_code}):", refused.json()["error"])
        for what, rows in (("usual", X), ("far larger", X.assign(area=10 * X["area"]))):
            text = pd.concat([rows] * 10).to_csv(index=False).encode()
            client.post("/predict", content=text, headers={"Content-Type": "text/csv"})
            lines = client.get("/metrics").text.splitlines()
            share = next(line.split()[1] for line in lines if line.startswith("bedl_epistemic_share "))
            print(f"epistemic share after 3,000 {what} rows: {float(share):.3f}")


if __name__ == "__main__":
    main()
