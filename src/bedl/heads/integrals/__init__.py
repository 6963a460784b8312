"""The integrals behind classification, f ~ N(m, diag v), without sampling: an exponential race.

`nodes` says what the race is and how exact, and holds what it is made of; `kl` is what
training asks of it, `spread` the uncertainties, `divergence` the expected KL to a flat Dirichlet, `evidence` the
entropy that is left once lambda is known.
"""

from __future__ import annotations

from bedl.heads.integrals import export
from bedl.heads.integrals.kl import (
    CURVES,
    EVIDENCE_FLOOR,
    LOG_FLOOR,
    dirichlet_entropy,
    dirichlet_kl,
    expected_dirichlet_kl,
    log_marginal,
    log_marginal_and_expected_kl,
)
from bedl.heads.integrals.moments import expected_data_entropy, softmax_spread
from bedl.heads.integrals.nodes import LOG_EXPONENTIAL, log_mean_softmax

__all__ = [
    "CURVES",
    "EVIDENCE_FLOOR",
    "LOG_EXPONENTIAL",
    "LOG_FLOOR",
    "dirichlet_entropy",
    "dirichlet_kl",
    "expected_data_entropy",
    "expected_dirichlet_kl",
    "export",
    "log_marginal",
    "log_marginal_and_expected_kl",
    "log_mean_softmax",
    "softmax_spread",
]
