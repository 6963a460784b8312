"""bedl.check."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bedl


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.act = nn.Tanhshrink()
        self.head = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        x = self.act(self.conv(x))
        x = x.cummax(-1).values
        return self.head(torch.fft.fft(x).real.mean((2, 3)) * self.scale)


def test_every_missing_rule_is_listed_at_once_and_nothing_runs():
    net = Odd()
    report = bedl.check(net)
    assert not report.ok
    missing = {(op.path, op.function) for op in report.unsupported}
    assert {
        ("act", "torch.nn.functional.tanhshrink"),
        ("Odd", "torch.fft.fft"),
        ("Odd", "torch.Tensor.cummax"),
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
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanhshrink())
    assert not bedl.check(net, torch.zeros(1, 4)).ok
    with bedl.use_rules({F.tanhshrink: bedl.rules.quadrature(F.tanhshrink)}):
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
            if type(y) is not torch.Tensor:
                raise RuntimeError("only tensors here")
            return y

    report = bedl.check(nn.Sequential(Fails()), torch.zeros(1, 3))
    assert not report.ok
    assert "only tensors here" in report.failure
    assert "not checked to the end" in str(report)
    assert "every one" not in str(report)
    assert "'0'" in str(report)


def test_a_network_that_reads_values_is_run_on_real_ones():
    """`.item()` has no answer on the meta device, and a made tensor without a device lies on another."""

    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x, lengths):
            longest = int(lengths.max().item())
            h = self.layer(x) + torch.zeros(x.shape[1], 4)
            return self.last(h[:, :longest].mean(1))

    report = bedl.check(Reads(), torch.randn(2, 5, 3), torch.tensor([2, 4]))
    assert report.ok, str(report)
    assert report.compared
    assert {"linear", "mean"} <= {op.function.rpartition(".")[2] for op in report.operations}


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


class Skips(nn.Module):
    """Drops its skip connection where what it gets is no tensor."""

    def __init__(self, asks):
        super().__init__()
        self.first, self.second, self.asks = nn.Linear(4, 4), nn.Linear(4, 4), asks

    def forward(self, x):
        h = self.first(x)
        y = self.second(h)
        return y + h if self.asks(h) else y


def by_name(x):
    return further(x)


def further(x):
    return isinstance(x, torch.Tensor) or by_name(None) is None


ASKS = {
    "isinstance": lambda x: isinstance(x, torch.Tensor),
    "is_tensor": torch.is_tensor,
    "jit": lambda x: torch.jit.isinstance(x, torch.Tensor),
    "by name": lambda x: by_name(x),
}


@pytest.mark.parametrize("asks", ASKS.values(), ids=ASKS)
def test_functions_that_a_module_holds_or_names_take_moments_for_tensors(asks):
    assert bedl.check(nn.Sequential(nn.Linear(4, 4), nn.Sequential(Skips(asks), nn.Linear(4, 1)))).ok


class Hidden:
    """An object that asks: nobody looks into it."""

    def __init__(self, asks):
        self.asks = asks

    def __call__(self, x):
        return self.asks(x)


@pytest.mark.parametrize("asks", list(ASKS.values())[:3], ids=list(ASKS)[:3])
@pytest.mark.parametrize("example", [(), (torch.zeros(3, 4),), (torch.randn(3, 4),)], ids=["none", "zeros", "values"])
def test_another_network_than_the_plain_one_is_caught(asks, example):
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Skips(Hidden(asks)), nn.Linear(4, 1)))
    report = bedl.check(net, *example)
    assert not report.ok
    assert report.compared
    assert report.parting == "1.0"
    assert "'1.0'" in str(report)
    assert bedl.check(bedl.bayesianize(net), *example).parting == "1.0"


def test_where_code_in_the_middle_parts_the_outer_module_is_named():
    class Gated(nn.Module):
        def __init__(self, asks):
            super().__init__()
            self.first, self.second, self.asks = nn.Linear(4, 4), nn.Linear(4, 4), asks

        def forward(self, x):
            h = self.first(x)
            return self.second(2 * h if self.asks(h) else h)

    def asks(x):
        return torch.is_tensor(x)

    assert bedl.check(nn.Sequential(Gated(Hidden(asks)), nn.Linear(4, 1))).parting == "0"


def test_the_same_network_passes_in_every_mode():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(36, 2),
    )  # fmt: skip
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    for mode in (True, False):
        report = bedl.check(net.train(mode), torch.zeros(2, 1, 8, 8))
        assert report, str(report)
        assert report.compared
        assert net.training is mode
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


class Asks(Skips):
    """As its parent, but that its own method asks, in one of several ways."""

    def __init__(self, how):
        super().__init__(None)
        self.how = how

    def helped(self, h, scale=1.0, *, otherwise=0.0):
        return scale * h if isinstance(h, (int, torch.Tensor)) else otherwise

    def forward(self, x):
        h = self.first(x)
        y = self.second(h)
        if self.how == "isinstance":
            return y + h if isinstance(h, torch.Tensor | int) else y
        if self.how == "is_tensor":
            return y + h if torch.is_tensor(h) else y
        if self.how == "jit":
            return y + h if torch.jit.isinstance(h, torch.Tensor) else y
        return y + self.helped(h, 2.0)


@pytest.mark.parametrize("how", ["isinstance", "is_tensor", "jit", "a method"])
def test_methods_that_ask_take_moments_for_a_tensor(how):
    net = nn.Sequential(nn.Linear(4, 4), Asks(how)).eval()
    x = torch.randn(3, 4)
    report = bedl.check(net, x)
    assert report.ok, str(report)
    converted = bedl.bayesianize(net, init_logvar=-60.0)
    torch.testing.assert_close(converted(x).loc, net(x), rtol=1e-5, atol=1e-5)
    copied = copy.deepcopy(converted)
    torch.testing.assert_close(copied(x).loc, net(x), rtol=1e-5, atol=1e-5)
    assert type(net[1]) is Asks  # the class, and networks that were not converted, are as they were
    torch.testing.assert_close(bedl.deterministic(converted)(x), net(x))


def test_a_report_is_true_where_it_is_ok():
    assert bedl.check(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    assert not bedl.check(nn.Sequential(nn.Linear(3, 3), nn.Tanhshrink()))


def test_padding_with_copies_is_no_longer_called_exact():
    def answers(mode):
        net = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.Conv1d(2, 2, 3, padding=1, padding_mode=mode))
        report = bedl.check(net, torch.zeros(1, 1, 8))
        return {op.answer for op in report.operations if op.function.endswith("pad")}

    assert all("independent" in answer for answer in answers("reflect") | answers("replicate") | answers("circular"))
    assert bedl.rules.approximation(bedl.rules.TABLE["shape"]["pad"], (None, (1, 1)), {}) is None


def test_it_says_how_far_off_standard_deviations_are_and_where():
    """An average over positions, behind convolutions: the pool is where the covariances are lost."""
    torch.manual_seed(0)
    convolutions = [layer for n in (1, 6) for layer in (nn.Conv2d(n, 6, 3, padding=1), nn.ReLU())]
    averaged = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    report = bedl.check(averaged, torch.rand(8, 1, 8, 8))
    ratios = dict(report.ratios)
    assert ratios["3"] == pytest.approx(1, abs=0.25)
    assert ratios["4"] < 0.5
    assert "× as large as those of drawn weights" in str(report)
    assert re.search(r"arises in '4' \(0\.\d+ ×\)", str(report))
    exact = bedl.check(nn.Sequential(nn.Linear(4, 50)), torch.rand(20, 4))
    assert dict(exact.ratios)["Sequential"] == pytest.approx(1, abs=0.05)
    assert "drawn weights" not in str(exact)


class Cut(nn.Module):
    """Gives Moments on without their gradient, where the plain network keeps it."""

    def __init__(self, share):
        super().__init__()
        self.a, self.b, self.share = nn.Linear(4, 8), nn.Linear(8, 2), share

    def forward(self, x):
        h = self.a(x)
        if isinstance(h, bedl.Moments):
            h = bedl.Moments(self.share * h.loc + (1 - self.share) * h.loc.detach(), h.variance)
        return self.b(torch.relu(h))


@pytest.mark.parametrize(("share", "how"), [(0.0, "missing"), (0.5, "different")])
def test_gradients_that_are_lost_are_found_by_a_backward(share, how):
    net = nn.Sequential(nn.Linear(4, 4), Cut(share))
    report = bedl.check(net, torch.randn(6, 4))
    assert not report.ok
    assert dict(report.gradients) == {"0": how, "1.a": how}
    assert f"gradients of '0', '1.a' are {how}" in str(report)
    assert not bedl.check(Cut(1.0), torch.randn(6, 4)).gradients


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Conv2d(1, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.PReLU(), nn.Conv2d(8, 2, 1)),
        nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)),
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1), nn.Softplus()),
    ],
    ids=["instance norm", "zeros", "transformer", "layer norm"],
)
def test_gradients_without_variances_are_the_plain_ones(net):
    for layer in net.modules():
        if getattr(layer, "bias", None) is not None:
            nn.init.zeros_(layer.bias)
    x = {"Conv2d": torch.zeros(1, 1, 8, 8), "Linear": torch.randn(3, 8)}.get(type(next(iter(net.children()))).__name__)
    x = torch.randn(2, 5, 8) if x is None else x
    if x.dim() == 4:
        x[..., 3:5, :] = 1.0  # a picture with a black background
    report = bedl.check(net, x)
    assert report.compared
    assert report.ok, str(report)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.inner(x) * self.scale


def test_the_report_ends_in_one_of_three_ways():
    x = torch.randn(6, 4)
    fine = bedl.check(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)), x)
    assert fine.verdict == "fine"
    assert fine.points == ("1.weight", "1.bias")
    assert str(fine).endswith("every one has a rule: fine")
    own = bedl.check(nn.Sequential(Own(), nn.Linear(4, 2)), x)
    shared = nn.Linear(4, 4)
    for otherwise, said in (
        (own, "0.scale"),
        (bedl.check(nn.Sequential(shared, nn.ReLU(), shared), x), "0 is called 2 times"),
        (bedl.check(nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), nn.ReLU()), x),
         "SpectralNorm of '0' is dropped"),
    ):  # fmt: skip
        assert otherwise.ok
        assert otherwise.verdict == "fine, but trained otherwise"
        assert said in str(otherwise)
        assert str(otherwise).endswith("fine, but trained otherwise")
    wrong = bedl.check(nn.Sequential(nn.Linear(4, 4), nn.Tanhshrink()), x)
    assert wrong.verdict == "wrong"
    assert str(wrong).endswith("1 without a rule: wrong")


def test_ratios_are_those_of_the_variances_as_they_are():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)]
    net, x = bedl.bayesianize(nn.Sequential(*layers)), torch.rand(8, 1, 8, 8)
    before = bedl.check(net, x)
    assert before.at_start
    net[0].weight_logvar.data.fill_(-2.0)  # now all of the spread is from the convolution, whose weights are shared
    after = bedl.check(net, x)
    assert not after.at_start
    assert dict(after.ratios)["Sequential"] < 0.8 * dict(before.ratios)["Sequential"]
    assert "variances: as they are now" in str(after)


class Aliased(nn.Module):
    """Changes a tensor under another name."""

    def __init__(self, alias):
        super().__init__()
        self.a, self.o, self.alias = nn.Linear(4, 6), nn.Linear(6, 1), alias

    def forward(self, x):
        h = self.a(x)
        self.alias(h).mul_(3)
        h[:, 2:4] += 1.0
        return self.o(h)


ALIASES = [lambda h: h.contiguous(), lambda h: h.flatten(1), lambda h: h.cpu(), lambda h: +h, lambda h: h[:, 1:]]


@pytest.mark.parametrize("alias", ALIASES, ids=["contiguous", "flatten", "cpu", "positive", "slice"])
def test_in_place_under_another_name_is_the_same_in_check_in_training_and_in_pytorch(alias):
    net, x = Aliased(alias), torch.randn(5, 4)
    report = bedl.check(net, x)
    assert report.ok, str(report)
    found = bedl.bayesianize(net)(x)
    torch.testing.assert_close(found.loc, net(x))
    found.loc.sum().backward()
