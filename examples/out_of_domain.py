"""Classification with out-of-domain detection: does the network notice digits, or pictures, it has never seen?

Trained on the digits 0 to 6. Foreign inputs: the digits 7 to 9, and known digits in negative and with shuffled pixels.
AUROC: how often a foreign input is less sure than a familiar one; 0.5 is chance, below 0.5 is worse than chance.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import bedl
from bedl import BEDLClassifier, metrics

QUICK = "--quick" in sys.argv

X, y = load_digits(return_X_y=True)
X = X.astype(np.float32)
known = y < 7
X_train, X_test, y_train, y_test = train_test_split(X[known], y[known], test_size=0.3, random_state=0)
foreign = {
    "unseen digits": X[~known],
    "negatives": 16 - X_test,
    "shuffled pixels": np.random.default_rng(0).permuted(X_test, axis=1),
}

# The default pulls evidence for wrong classes down *at the data*. The second makes up inputs that are off the data,
# and asks for no evidence there; 0.3 was chosen for this example, with its foreign inputs in view. The third asks for
# evidence on the data and for none off it.
perturbed = {"method": "bedl", "method_options": {"regularizer": bedl.PAC(on="perturbed", strength=0.3)}}
for name, method in {"default": {}, "on perturbed copies": perturbed, "evidence": {"method": "evidence"}}.items():
    settings = {"standardize": "shared", "epochs": 4 if QUICK else 12, "random_state": 0}  # all pixels have one scale
    model = BEDLClassifier(**method, **settings)
    model.fit(X_train, y_train)
    print(f"{name}: accuracy {model.score(X_test, y_test):.3f}")
    familiar = model.uncertainty(X_test)
    for kind, inputs in foreign.items():
        unsure = model.uncertainty(inputs)
        total, epistemic = (metrics.auroc(familiar[part], unsure[part]) for part in ("total", "epistemic"))
        print(f"  auroc, {kind}: total {total:.3f}, epistemic {epistemic:.3f}")
