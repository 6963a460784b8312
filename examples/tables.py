"""Tables in, tables out: categories, dates and missing values; predictions, scores and a page, in Python."""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas

from bedl.estimators import tabular

QUICK = "--quick" in sys.argv

rng = np.random.default_rng(0)
n = 400 if QUICK else 2000
houses = pandas.DataFrame(
    {
        "area": rng.uniform(30, 200, n).round(1),
        "district": rng.choice(["old town", "harbour", "hills"], n),
        "sold": pandas.Timestamp("2020-01-01") + pandas.to_timedelta(rng.integers(0, 1000, n), unit="D"),
        "rooms": np.where(rng.random(n) < 0.2, np.nan, rng.integers(1, 7, n)),
    }
)
dear = houses["district"].map({"old town": 1.5, "harbour": 1.2, "hills": 1.0}).to_numpy(float)
# in thousands; large houses are sold for less predictable prices
houses["price"] = 2 * dear * houses["area"] + rng.normal(0, 0.15, n) * houses["area"]

train, test = houses[: n * 4 // 5], houses[n * 4 // 5 :]
model = tabular.fit(train, target="price", epochs=20 if QUICK else None)
print(*model.card.notes, sep="\n")

predictions = model.predict(test)
print(predictions.head(3).round(1).to_string())

scores = model.evaluate(test)
print(f"rmse: {scores['rmse']:.1f}, r2: {scores['r2']:.3f}")
print(f"coverage of 90% intervals: {scores['coverage']:.2f}")

with tempfile.TemporaryDirectory() as folder:
    foreign = test.assign(area=10 * test["area"])  # palaces, that no house was like
    print(f"auroc, palaces: {model.evaluate(test, ood=foreign)['ood_auroc_epistemic']:.2f}")
    page = model.report(test, Path(folder, "report.html"), ood=foreign)
    print(f"page: {page.stat().st_size / 1e3:.0f} kB")
    again = tabular.load(model.save(Path(folder, "houses-model")))
    print(f"largest change by saving: {abs(again.predict(test)['std'] - predictions['std']).max():.1e}")
