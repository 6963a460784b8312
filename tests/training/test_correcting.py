"""Networks whose positions share draws are corrected after training, unless that is not wanted."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bedl
from bedl import GaussianConv2d, GaussianLinear
from bedl.nn import GaussianLayer
from bedl.training import fit, loop
from bedl.training.loop import shares_draws


def averaged():
    torch.manual_seed(0)
    return nn.Sequential(
        GaussianConv2d(1, 4, 3, padding=1), nn.ReLU(), GaussianConv2d(4, 4, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), GaussianLinear(4, 2),
    )  # fmt: skip


def data(n=64):
    g = torch.Generator().manual_seed(0)
    x = torch.rand(n, 1, 6, 6, generator=g)
    return x, (x.mean((1, 2, 3)) > 0.5).long()


def factors(net):
    layers = [layer for layer in net.modules() if isinstance(layer, GaussianLayer)]
    return [layer.covariance_factor for layer in layers if layer.covariance_factor is not None]


def is_corrected(net):
    return bool(factors(net))


def trained(**options):
    method = bedl.BEDL(averaged(), bedl.Dirichlet(2), regularizer=None)
    fit(method, data(), batch_size=16, **{"epochs": 1, **options}, fabric={"accelerator": "cpu"})
    return method


def drawn_std(net, x, draws=400):
    with torch.no_grad(), bedl.sampled(net), torch.random.fork_rng():
        torch.manual_seed(1)
        return torch.stack([net(x) for _ in range(draws)]).std(0)


def ratio(method, x):
    with torch.no_grad():
        return float((method.net(x).variance.sqrt().log() - drawn_std(method.net, x).log()).mean().exp())


def test_a_network_that_averages_is_right_after_fit(monkeypatch):
    monkeypatch.setattr(loop, "MIN_STEPS", 4)
    x, _ = data(16)
    assert ratio(trained(correct=False), x) < 0.8
    assert ratio(trained(), x) == pytest.approx(1, abs=0.05)


def test_outputs_stay_as_sure_as_they_were_learned_to_be():
    x, y = data(64)
    plain, corrected = trained(correct=False), trained(correct=True)
    stds = [method.net(x).variance.sqrt().log().mean().exp().item() for method in (plain, corrected)]
    assert stds[1] == pytest.approx(stds[0], rel=0.01)
    scores = [method.predict(x).log_prob(y).mean().item() for method in (plain, corrected)]
    assert scores[1] == pytest.approx(scores[0], abs=0.01)


def test_methods_that_draw_are_left_alone(monkeypatch):
    """What they predict is that of the draws already, and comes from the weights' variances as they are."""
    monkeypatch.setattr(loop, "MIN_STEPS", 1)

    class Drawn(bedl.methods.Method):
        def __init__(self, net):
            super().__init__()
            self.net, self.head = net, bedl.Dirichlet(2)

        def forward(self, x):
            with bedl.sampled(self.net):
                return self.head(bedl.Moments(self.net(x), torch.ones(len(x), 2)))

        def loss(self, batch):
            return -batch.mean(self(batch.x).log_prob(batch.y))

    method = Drawn(averaged())
    fit(method, data(), epochs=1, batch_size=16, fabric={"accelerator": "cpu"})
    assert not is_corrected(method.net)


@pytest.mark.parametrize(
    ("options", "corrected"),
    [
        ({"epochs": 2}, False),
        ({"correct": True}, True),
        ({"epochs": 26, "correct": False}, False),
        ({"epochs": 26}, True),
    ],
    ids=["few steps", "asked for", "not wanted", "by itself"],
)
def test_when_a_network_is_corrected(options, corrected):
    assert is_corrected(trained(**options).net) is corrected


def test_more_training_starts_from_the_weights_as_they_are():
    """Factors belong to the weights they were fitted for: they are taken back before, and fitted again after."""
    once, twice = trained(correct=True), trained(correct=True)
    before = [
        layer.covariance_factor.clone() for layer in twice.net if getattr(layer, "covariance_factor", None) is not None
    ]
    fit(twice, data(), epochs=1, batch_size=16, correct=False, fabric={"accelerator": "cpu"})
    assert is_corrected(twice.net)  # nobody asked to have them taken back
    fit(once, data(), epochs=1, batch_size=16, correct=True, fabric={"accelerator": "cpu"})
    assert any(not torch.equal(a, b) for a, b in zip(before, factors(once.net), strict=True))


def test_which_networks_share_draws():
    assert shares_draws(averaged())
    assert not shares_draws(nn.Sequential(GaussianLinear(3, 3), GaussianLinear(3, 3)))
    assert not shares_draws(nn.Sequential(GaussianConv2d(1, 3, 1), GaussianConv2d(3, 3, 1)))


def test_what_cannot_be_afforded_is_said(monkeypatch, caplog):
    monkeypatch.setattr(loop, "MIN_STEPS", 1)
    monkeypatch.setattr(loop, "MAX_WEIGHT_DRAWS", 1e3)
    assert not is_corrected(trained(correct="auto").net)
    assert "correct_variances" in caplog.text
    with pytest.raises(ValueError, match="correct must be"):
        trained(correct="yes")


def test_a_corrected_network_is_saved_and_loaded(tmp_path):
    corrected, fresh = trained(correct=True), bedl.BEDL(averaged(), bedl.Dirichlet(2), regularizer=None)
    x, _ = data(8)
    bedl.training.save_weights(corrected, tmp_path / "corrected.safetensors")
    bedl.training.save_weights(fresh, tmp_path / "fresh.safetensors")
    bedl.training.load_weights(fresh, tmp_path / "corrected.safetensors")
    assert torch.equal(fresh.predict(x).probabilities, corrected.predict(x).probabilities)
    bedl.training.load_weights(corrected, tmp_path / "fresh.safetensors")
    assert not is_corrected(corrected.net)


def test_a_finished_run_that_is_taken_up_again_is_corrected_again(tmp_path):
    one, two = (trained(correct=True, checkpoint=tmp_path / "run") for _ in range(2))
    x, _ = data(8)
    assert torch.equal(one.predict(x).probabilities, two.predict(x).probabilities)


def test_inputs_that_were_not_learned_from_are_preferred():
    """The factors are those of `correct_variances` on the validation set's inputs."""
    held_out = torch.rand(20, 1, 6, 6, generator=torch.Generator().manual_seed(1)) + 0.2
    method = trained(correct=True, validation=(held_out, torch.zeros(20).long()))
    found = [factor.clone() for factor in factors(method.net)]
    bedl.nn.correct_variances(method.net, held_out, draws=loop.DRAWS, keep=True)
    for a, b in zip(found, factors(method.net), strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)  # weights' variances were rounded on the way


def test_replicas_are_corrected_each_on_its_own_inputs():
    methods = [bedl.BEDL(averaged(), bedl.Dirichlet(2), regularizer=None) for _ in range(2)]
    sets = [data(64), data(40)]
    bedl.training.fit_replicas(methods, sets, epochs=1, batch_size=16, correct=True, device="cpu")
    for method, (x, _) in zip(methods, sets, strict=True):
        assert ratio(method, x[:16]) == pytest.approx(1, abs=0.1)
    assert not torch.equal(factors(methods[0].net)[0], factors(methods[1].net)[0])
    bedl.training.fit_replicas(methods, sets, epochs=1, batch_size=16, device="cpu")
    assert not any(is_corrected(method.net) for method in methods)  # taken back, and few steps
