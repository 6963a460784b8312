"""bedl.check."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bedl


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.act = nn.Softsign()
        self.head = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        x = self.act(self.conv(x))
        x = x.cumprod(-1)
        return self.head(torch.fft.fft(x).real.mean((2, 3)) * self.scale)


def test_every_missing_rule_is_listed_at_once_and_nothing_runs():
    net = Odd()
    report = bedl.check(net)
    assert not report.ok
    missing = {(op.path, op.function) for op in report.unsupported}
    assert {
        ("act", "torch.nn.functional.softsign"),
        ("Odd", "torch.fft.fft"),
        ("Odd", "torch.Tensor.cumprod"),
    } <= missing
    assert ("conv", "torch.nn.functional.conv2d") in {
        (op.path, op.function) for op in report.operations if op.supported
    }
    assert ("head", "torch.nn.functional.linear") in {
        (op.path, op.function) for op in report.operations if op.supported
    }
    assert ("", "Odd") in report.kept
    text = str(report)
    assert "no rule" in text
    assert "without a rule" in text
    assert type(net.conv) is nn.Conv2d


def test_example_inputs_and_user_rules():
    net = nn.Sequential(nn.Linear(4, 3), nn.Softsign())
    assert not bedl.check(net, torch.zeros(1, 4)).ok
    with bedl.use_rules({F.softsign: bedl.rules.quadrature(F.softsign)}):
        report = bedl.check(net, torch.zeros(1, 4))
    assert report.ok
    assert "Gauss–Hermite" in str(report)


def test_a_rule_that_refuses_its_arguments_counts_as_missing():
    class Bounded(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x).clamp(max=self.layer(x))

    report = bedl.check(Bounded())
    assert "its bounds are random" in report.unsupported[0].answer


def test_an_early_end_is_not_a_pass():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            y = self.layer(x)
            if not isinstance(y, torch.Tensor):
                raise RuntimeError("only tensors here")
            return y

    report = bedl.check(nn.Sequential(Fails()), torch.zeros(1, 3))
    assert not report.ok
    assert "only tensors here" in report.failure
    assert "not checked to the end" in str(report)
    assert "every one" not in str(report)
    assert "'0'" in str(report)


def test_no_input_can_be_guessed():
    with pytest.raises(bedl.BEDLError, match="Pass an example"):
        bedl.check(nn.LSTM(3, 4))
    with pytest.raises(TypeError, match=r"nn\.Module"):
        bedl.check(F.relu)


def test_gaussian_nets_are_checked_as_they_are():
    net = nn.Sequential(nn.Linear(3, 3), bedl.GaussianLinear(3, 2))
    report = bedl.check(net)
    assert [op.path for op in report.operations] == ["1"]
    assert report.kept == (("0", "Linear"),)
