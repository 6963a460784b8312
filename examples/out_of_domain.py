"""Classification with out-of-domain detection: does the network notice digits, or pictures, it has never seen?

Trained on the digits 0 to 6. Foreign inputs: the digits 7 to 9, and known digits turned by 90°, in negative and with
shuffled pixels.
AUROC: how often a foreign input is less sure than a familiar one; 0.5 is chance, below 0.5 is worse than chance.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import bedl
from bedl import BEDLClassifier
from bedl.evaluation import metrics

QUICK = "--quick" in sys.argv

X, y = load_digits(return_X_y=True)
X = X.astype(np.float32)
known = y < 7
X_train, X_test, y_train, y_test = train_test_split(X[known], y[known], test_size=0.3, random_state=0)
foreign = {
    "unseen digits": X[~known],
    "turned": np.rot90(X_test.reshape(-1, 8, 8), axes=(1, 2)).reshape(X_test.shape),
    "negatives": 16 - X_test,
    "shuffled pixels": np.random.default_rng(0).permuted(X_test, axis=1),
}

# The default for images asks for evidence on the data, and for none on copies of them that are no data; it has to be
# told that the columns are pixels. The second is told to be unsure of wrong classes at the data; the third to have no
# evidence off the data, columns being columns.
methods = {
    "default": {"image_shape": (8, 8)},
    "the paper's": {"method": "bedl", "method_options": {"regularizer": bedl.PAC(evidence="misleading")}},
    "evidence, as a table": {"method": "evidence"},
}
for name, method in methods.items():
    settings = {"standardize": "shared", "epochs": 4 if QUICK else 20, "random_state": 0}  # all pixels have one scale
    model = BEDLClassifier((50,), **method, **settings)
    model.fit(X_train, y_train)
    print(f"{name}: accuracy {model.score(X_test, y_test):.3f}")
    familiar = model.uncertainty(X_test)
    for kind, inputs in foreign.items():
        unsure = model.uncertainty(inputs)
        total, epistemic = (metrics.auroc(familiar[part], unsure[part]) for part in ("total", "epistemic"))
        print(f"  auroc, {kind}: total {total:.3f}, epistemic {epistemic:.3f}")
