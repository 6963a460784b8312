"""What is said where something is wrong: each sentence names what to do."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import bedl
from bedl._utils.errors import BEDLError
from bedl.training import fit, fit_replicas

X, LABELS = torch.randn(16, 4), torch.arange(16) % 3
IMAGES = torch.randn(4, 1, 6, 6)


def classifier():
    return bedl.BEDL(bedl.GaussianLinear(4, 3), bedl.Dirichlet(3))


def test_channels_that_come_first():
    method = bedl.BEDL(bedl.bayesianize(nn.Conv2d(1, 3, 3, padding=1)), bedl.Dirichlet(3))
    with pytest.raises(ValueError, match=r"for channels first: Dirichlet\(…, dim=1\)"):
        method.predict(IMAGES)


class Says(nn.Module):
    """A network that returns its outputs wrapped up."""

    def __init__(self, wrap):
        super().__init__()
        self.linear, self.wrap = nn.Linear(4, 3), wrap

    def forward(self, x):
        return self.wrap(self.linear(x))


@pytest.mark.parametrize("wrap", [lambda f: {"a": f, "b": f}, lambda f: (f, f)])
def test_outputs_that_are_wrapped_up(wrap):
    net = Says(wrap)
    with pytest.raises(BEDLError, match=r"BEDL\(net, head, output=…\)"):
        bedl.BEDL(bedl.bayesianize(net), bedl.Dirichlet(3)).predict(X)
    assert "BEDL(net, head, output=…)" in str(bedl.check(net, X))
    for plain in (lambda f: f, lambda f: {"logits": f}):
        assert "output=…" not in str(bedl.check(Says(plain), X))


@pytest.mark.parametrize("wrap", [np.asarray, pandas.DataFrame])
def test_arrays_in_place_of_tensors(wrap):
    with pytest.raises(TypeError, match=r"takes a tensor, not .*torch\.as_tensor\(x, dtype=torch\.float32\)"):
        classifier().predict(wrap(X.numpy()))
    assert len(classifier().predict(bedl.Moments(X, 0.1))) == len(X)


def test_tokens_are_not_perturbed_by_default():
    net = bedl.bayesianize(nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(20, 3)))
    method = bedl.BEDL(net, bedl.Dirichlet(3), bedl.PAC(on="perturbed"))
    with pytest.raises(BEDLError, match=r"such as tokens: give one, PAC\(.*on='data'"):
        fit(method, (torch.randint(0, 10, (16, 5)), LABELS), epochs=1, fabric={"accelerator": "cpu"})


@pytest.mark.parametrize("callbacks", [[print], print])
def test_a_function_as_callback(callbacks):
    with pytest.raises(TypeError, match=r"is no callback: derive a class from bedl\.training\.Callback"):
        fit(classifier(), (X, LABELS), epochs=1, callbacks=callbacks, fabric={"accelerator": "cpu"})
    with pytest.raises(TypeError, match="is no callback"):
        fit_replicas([classifier(), classifier()], (X, LABELS), epochs=1, callbacks=callbacks)


@pytest.mark.parametrize("scale, shift", [(1e-3, 0.0), (2e5, 0.0), (1.0, 2e5)])
def test_targets_that_normal_can_hardly_learn(scale, shift):
    method = bedl.BEDL(bedl.GaussianLinear(4, 2), bedl.Normal(1))
    y = shift + scale * X[:, :1]
    with pytest.warns(UserWarning, match=r"Train on \(y - y\.mean\(\)\) / y\.std\(\)"):
        fit(method, (X, y), epochs=1, fabric={"accelerator": "cpu"})
    with pytest.warns(UserWarning, match="BEDLRegressor does both"):
        fit_replicas([method], (X, y), epochs=1)


def test_targets_that_are_fine(recwarn):
    head = bedl.Normal(1)
    for y in (X[:, 0], 5 + 3 * X, torch.full((9, 1), 3.0), X[:, :1].double()):
        assert head.scaling_warning(y) is None
    assert bedl.Normal(1, beta=1e8).scaling_warning(1e-3 * X) is None  # who says so knows that they are small
    bedl.BEDLRegressor(epochs=1, method="bedl", device="cpu").fit(X.numpy(), 2e5 * X[:, 0].numpy())
    assert not recwarn.list


def test_class_weights_of_the_estimator(tmp_path):
    x, y = X.numpy(), np.where(np.arange(16) < 3, 7, 9)
    quick = {"epochs": 2, "method": "bedl", "device": "cpu", "random_state": 0}
    by_class = bedl.BEDLClassifier(class_weight={7: 2.0, 9: 1.0}, **quick).fit(x, y)
    by_point = bedl.BEDLClassifier(**quick).fit(x, y, sample_weight=np.where(y == 7, 2.0, 1.0))
    np.testing.assert_array_equal(by_class.predict_proba(x), by_point.predict_proba(x))
    by_class.save(tmp_path / "m.bedl")
    assert bedl.BEDLClassifier.load(tmp_path / "m.bedl").class_weight == {7: 2.0, 9: 1.0}
    with pytest.raises(ValueError, match="needs to see all points"):
        bedl.BEDLClassifier(class_weight="balanced", **quick).partial_fit(x, y)


@pytest.mark.parametrize(
    ("act", "remedy"),
    [
        (lambda y: y.numpy(), r"take either, the tensors y\.loc and y\.variance"),
        (lambda y: float(y[0, 0]), r"take either, the tensors y\.loc and y\.variance"),
        (lambda y: nn.functional.cross_entropy(y, LABELS), r"the head's: method = bedl\.BEDL\(net"),
        (lambda y: nn.MSELoss()(y, X[:, :3]), r"Of the means alone: mse_loss\(y\.loc"),
        (lambda y: y.backward(), r"no loss: call backward\(\) of a tensor"),
        (lambda y: y.argmax(-1), r"y\.loc\.argmax"),
    ],
    ids=["numpy", "float", "cross-entropy", "squares", "backward", "argmax"],
)
def test_what_is_asked_of_random_outputs_has_a_remedy_of_its_own(act, remedy):
    with pytest.raises(bedl.UnsupportedOperationError, match=remedy) as error:
        act(bedl.GaussianLinear(4, 3)(X))
    assert "register_rule" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (lambda net, head: (head, net), r"not \(Dirichlet, GaussianLinear\); they are the other way round"),
        (lambda net, head: (net, bedl.Dirichlet), r"not \(GaussianLinear, the class Dirichlet\)"),
        (lambda net, head: (nn.Linear, head), r"not \(the class Linear, Dirichlet\)"),
        (lambda net, head: (net, nn.Linear(3, 3)), r"not \(GaussianLinear, Linear\)"),
    ],
)
def test_what_a_method_is_made_of(arguments, says):
    with pytest.raises(TypeError, match=says):
        bedl.BEDL(*arguments(bedl.GaussianLinear(4, 3), bedl.Dirichlet(3)))


def test_complex_inputs():
    with pytest.raises(TypeError, match="view_as_real"):
        classifier().predict(X.to(torch.complex64))
    with pytest.raises(TypeError, match="view_as_real"):
        bedl.Moments(X, 1.0) * 1j


class Spectrum(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), Amplitudes())

    def forward(self, x):
        return self.block(x)


class Amplitudes(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x).real


def test_paths_are_those_of_the_network():
    method = bedl.BEDL(bedl.bayesianize(Spectrum()), bedl.Dirichlet(3))
    with pytest.raises(bedl.UnsupportedOperationError, match=r"in module 'block\.1'"):
        fit(method, (X, LABELS), epochs=1, fabric={"accelerator": "cpu"})
    with pytest.raises(bedl.UnsupportedOperationError, match=r"in module 'block\.1'"):
        method.predict(X)
