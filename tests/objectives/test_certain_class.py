"""What the paper's formulas imply, as docs/paper.md has it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from scipy.special import digamma, gammaln

from bedl import Moments
from bedl.evaluation import metrics
from bedl.heads import Dirichlet, Normal
from bedl.objectives import PAC


def searched(classes: int) -> float:
    """p of a class that is certain where −log p + √(1 + KL) is least, of counts (a, b, …, b), without any of bedl."""

    def cost(logs: np.ndarray) -> float:
        a = np.exp(np.r_[logs[0], np.full(classes - 1, logs[1])])
        total = a.sum()
        kl = gammaln(total) - gammaln(classes) - gammaln(a).sum() + (a - 1) @ (digamma(a) - digamma(total))
        return float(math.sqrt(1 + kl) - logs[0] + math.log(total))

    a, b = np.exp(scipy.optimize.minimize(cost, [0.5, 0.0], method="Nelder-Mead", options={"xatol": 1e-8}).x)
    return float(a / (a + (classes - 1) * b))


@pytest.mark.parametrize(("classes", "written"), [(2, 0.728), (3, 0.593), (5, 0.444), (10, 0.281), (100, 0.039)])
def test_a_certain_class_has_the_probability_of_the_page(classes: int, written: float) -> None:
    """By bedl's head and term, whose outputs may vary: no variance is the best."""
    head, term, label = Dirichlet(classes), PAC(delta=1.0), torch.tensor([0])
    mean = torch.zeros(1, classes, dtype=torch.double, requires_grad=True)
    log_variance = torch.full_like(mean, -3.0).detach().requires_grad_()
    optimizer = torch.optim.LBFGS([mean, log_variance], max_iter=200, line_search_fn="strong_wolfe")

    def objective() -> torch.Tensor:
        f = Moments(mean, log_variance.exp())
        bound = term.value(head.kl(f).mean() + head.complexity, n_train=1)
        loss = bound - head.log_marginal(f, label).mean()
        optimizer.zero_grad()
        loss.backward()
        return loss

    optimizer.step(objective)  # type: ignore[arg-type]
    p = head(Moments(mean, log_variance.exp())).probabilities[0].detach().numpy()
    assert p[0] == pytest.approx(searched(classes), abs=2e-3)
    assert p[0] == pytest.approx(written, abs=2e-3)
    if classes == 10:
        area = metrics.ecdf_auc([-(p * np.log(p)).sum()], classes)
        assert (round(area, 3), round(-math.log(p[0]), 2)) == (0.129, 1.27)


@pytest.mark.parametrize("beta", [1.0, 100.0])
def test_no_likelihood_exceeds_what_the_noise_allows(beta: float) -> None:
    """log p ≤ ½ log(beta / 2π), reached by a mean that is right and no other variance."""
    head, y = Normal(1, beta=beta), torch.linspace(-1, 1, 5)[:, None]
    right, most = torch.cat([y, torch.full_like(y, -40.0)], 1), 0.5 * math.log(beta / (2 * math.pi))
    torch.testing.assert_close(head.log_marginal(Moments(right, torch.zeros(5, 2)), y), torch.full((5,), most))
    for off, var in ((torch.tensor([0.01, 0.0]), 0.0), (torch.tensor([0.0, 38.0]), 0.0), (torch.zeros(2), 0.01)):
        assert bool((head.log_marginal(Moments(right + off, torch.full((5, 2), var)), y) < most).all())
