"""Networks whose positions share draws are corrected after training, unless that is not wanted."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bedl
from bedl import GaussianConv2d, GaussianLinear
from bedl.nn import GaussianLayer
from bedl.training import fit, loop
from tests.nn.trained_architectures import std_ratio, trained

SEVERAL = ["graph network", "GroupNorm ResNet", "WaveNet", "transformer encoder"]


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


def fitted(**options):
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
    assert ratio(fitted(correct=False), x) < 0.8
    assert ratio(fitted(), x) == pytest.approx(1, abs=0.05)


def test_outputs_stay_as_sure_as_they_were_learned_to_be():
    x, y = data(64)
    plain, corrected = fitted(correct=False), fitted(correct=True)
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

        def batch_loss(self, batch):
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
    assert is_corrected(fitted(**options).net) is corrected


def test_more_training_starts_from_the_weights_as_they_are():
    """Factors belong to the weights they were fitted for: they are taken back before, and fitted again after."""
    once, twice = fitted(correct=True), fitted(correct=True)
    before = [
        layer.covariance_factor.clone() for layer in twice.net if getattr(layer, "covariance_factor", None) is not None
    ]
    fit(twice, data(), epochs=1, batch_size=16, correct=False, fabric={"accelerator": "cpu"})
    assert is_corrected(twice.net)  # nobody asked to have them taken back
    fit(once, data(), epochs=1, batch_size=16, correct=True, fabric={"accelerator": "cpu"})
    assert any(not torch.equal(a, b) for a, b in zip(before, factors(once.net), strict=True))


def test_a_network_whose_standard_deviations_are_right_is_left_alone(monkeypatch):
    monkeypatch.setattr(loop, "MIN_STEPS", 4)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), GaussianLinear(36, 8), nn.ReLU(), GaussianLinear(8, 2))
    method = bedl.BEDL(net, bedl.Dirichlet(2), regularizer=None)
    fit(method, data(), epochs=1, batch_size=16, fabric={"accelerator": "cpu"})
    assert not is_corrected(net)
    assert bedl.nn.std_ratio(net, data()[0], draws=200) == pytest.approx(1, abs=0.02)


class Positions(nn.Module):
    """What a layer makes of positions, with nothing behind it but their mean."""

    def __init__(self):
        super().__init__()
        self.first, self.last = GaussianLinear(3, 8), GaussianLinear(8, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x))).mean(1)


def test_what_follows_the_last_layer_is_corrected_in_it():
    torch.manual_seed(0)
    net, x = Positions(), torch.rand(60, 12, 3)
    assert bedl.nn.std_ratio(net, x) < 0.5
    bedl.nn.correct_variances(net, x, draws=30)
    assert bedl.nn.std_ratio(net, x, seed=1) == pytest.approx(1, abs=0.05)
    assert bedl.nn.std_ratio(net, torch.rand(60, 12, 3), seed=2) == pytest.approx(1, abs=0.07)


@pytest.mark.parametrize("name", ["MLP-Mixer", *(pytest.param(name, marks=pytest.mark.slow) for name in SEVERAL)])
def test_networks_of_other_kinds_are_right_after_fit(name):
    """In the geometric mean, on inputs that they have not seen, as `fit` leaves them."""
    method, x = trained(name)
    assert 0.9 < std_ratio(method.net, x) < 1.1


def test_what_cannot_be_afforded_is_said(monkeypatch, caplog):
    monkeypatch.setattr(loop, "MIN_STEPS", 1)
    monkeypatch.setattr(loop, "MAX_WEIGHT_DRAWS", 1e3)
    assert not is_corrected(fitted(correct="auto").net)
    assert "correct_variances" in caplog.text
    with pytest.raises(ValueError, match="correct must be"):
        fitted(correct="yes")


def test_a_corrected_network_is_saved_and_loaded(tmp_path):
    corrected, fresh = fitted(correct=True), bedl.BEDL(averaged(), bedl.Dirichlet(2), regularizer=None)
    x, _ = data(8)
    bedl.training.save_weights(corrected, tmp_path / "corrected.safetensors")
    bedl.training.save_weights(fresh, tmp_path / "fresh.safetensors")
    bedl.training.load_weights(fresh, tmp_path / "corrected.safetensors")
    assert torch.equal(fresh.predict(x).probabilities, corrected.predict(x).probabilities)
    bedl.training.load_weights(corrected, tmp_path / "fresh.safetensors")
    assert not is_corrected(corrected.net)


def test_a_finished_run_that_is_taken_up_again_is_corrected_again(tmp_path):
    one, two = (fitted(correct=True, checkpoint=tmp_path / "run") for _ in range(2))
    x, _ = data(8)
    assert torch.equal(one.predict(x).probabilities, two.predict(x).probabilities)


def test_inputs_that_were_not_learned_from_are_preferred():
    """The factors are those of `correct_variances` on the validation set's inputs."""
    held_out = torch.rand(20, 1, 6, 6, generator=torch.Generator().manual_seed(1)) + 0.2
    method = fitted(correct=True, validation=(held_out, torch.zeros(20).long()))
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


class OneLayer(nn.Module):
    """Two functions of one layer's outputs are added as if independent, with no layer behind them."""

    def __init__(self):
        super().__init__()
        self.layer = GaussianLinear(36, 2)

    def forward(self, x):
        h = self.layer(x.flatten(1))
        return torch.stack([h, torch.nn.functional.softplus(4 + h), 2 * h], -1).sum(-1)


def test_what_the_correction_does_not_reach_is_said(monkeypatch, caplog):
    monkeypatch.setattr(loop, "MIN_STEPS", 4)
    torch.manual_seed(0)
    method = bedl.BEDL(OneLayer(), bedl.Dirichlet(2), regularizer=None)
    fit(method, data(), epochs=1, batch_size=16, fabric={"accelerator": "cpu"})
    assert "are 0.6" in caplog.text
    assert "does not change that" in caplog.text
