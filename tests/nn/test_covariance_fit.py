"""The pieces of the fit: factors that are known are found, and what outputs see is what the layer multiplies."""

import pytest
import torch

from bedl import GaussianConv1d, GaussianConv2d, GaussianConv3d, GaussianLinear
from bedl.nn import GaussianConvTranspose1d, GaussianConvTranspose2d
from bedl.nn.correction import as_layer_has_it, fitted_factor, outputs_first, refinement, seen_by


def test_the_fit_recovers_a_factor():
    torch.manual_seed(0)
    own, independent = torch.rand(3, 500), torch.rand(3, 500)
    truth = torch.tensor([0.05, 1.0, 30.0])
    found = fitted_factor(own, independent, own, truth[:, None] * independent, 10**9)
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-5)
    nothing = torch.zeros(1, 5)
    assert fitted_factor(nothing, nothing, nothing, nothing, 10).item() == 1
    smaller = fitted_factor(own, independent, own / 2, 0 * own, 10)  # no factor makes it as small: the least there is
    assert (smaller < 1e-4).all()
    assert (smaller >= 0).all()


def test_refinement_comes_closer_and_stays_positive():
    """Variances of 4 inputs, of which the second comes with a covariance and the last with none at all."""
    torch.manual_seed(0)
    squares, v, own = torch.rand(3, 4), torch.rand(400, 4), torch.rand(3, 400)
    v[:, 3] = 0
    total = own + (squares * torch.tensor([1.0, 4.0, 1.0, 1.0])) @ v.T
    factor, common = refinement(squares[..., None], v[..., None], own, total)
    before = ((own + squares @ v.T) / total).log().square().mean()
    assert ((own + squares * factor @ v.T + common[:, None]) / total).log().square().mean() < before / 20
    assert (factor[:, 1] > factor[:, [0, 2]].amax(1)).all()
    assert (factor > 0).all()
    assert (common < 0.1).all()  # there is none
    assert (factor[:, 3] == 1).all()
    nothing = torch.zeros(3, 400)
    factor, common = refinement(squares[..., None], 0 * v[..., None], nothing, nothing)
    assert (factor == 1).all()
    assert not common.any()


def test_what_outputs_have_in_common_is_found():
    torch.manual_seed(0)
    squares, v = torch.rand(3, 4), torch.rand(400, 4) * torch.rand(400, 1) ** 4  # some inputs hardly vary
    total = squares @ v.T + torch.tensor([0.3, 0.1, 0.0])[:, None]
    _, common = refinement(squares[..., None], v[..., None], torch.zeros(3, 400), total)
    torch.testing.assert_close(common, torch.tensor([0.3, 0.1, 0.0]), rtol=0.05, atol=2e-3)


CONVOLUTIONS = {
    "linear": (lambda: GaussianLinear(6, 4), (3, 5, 6)),
    "1-d": (lambda: GaussianConv1d(4, 6, 3, padding=2, dilation=2, groups=2), (3, 4, 9)),
    "2-d": (lambda: GaussianConv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0)), (3, 2, 7, 6)),
    "same, reflected": (lambda: GaussianConv2d(2, 3, 3, padding="same", padding_mode="reflect"), (3, 2, 7, 6)),
    "3-d": (lambda: GaussianConv3d(2, 2, 2, padding=1), (2, 2, 3, 4, 3)),
    "transposed 1-d": (lambda: GaussianConvTranspose1d(4, 6, 3, 2, padding=1, output_padding=1, groups=2), (3, 4, 5)),
    "transposed 2-d": (lambda: GaussianConvTranspose2d(2, 3, (3, 2), (2, 3), dilation=(2, 1)), (2, 2, 4, 5)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_what_outputs_see_times_the_weights_is_the_layer(name):
    """Patches against PyTorch's own convolution with the same weights."""
    torch.manual_seed(0)
    layer, v = CONVOLUTIONS[name][0](), torch.rand(CONVOLUTIONS[name][1])
    weight = torch.rand_like(layer.weight_mean)
    expected = layer.with_weights({"weight": weight, "bias": None}).forward(v)
    channel = -1 if name == "linear" else 1
    seen, at = seen_by(layer, v, expected.shape[2:])
    own = outputs_first(layer, weight)
    groups = getattr(layer, "groups", 1)
    own = own.reshape(groups, own.shape[0] // groups, own.shape[1], -1)
    found = torch.einsum("goik,mgik->gom", own, seen.unflatten(1, (groups, -1))).flatten(0, 1)
    torch.testing.assert_close(found, expected.movedim(channel, 0).flatten(1)[:, at])
    assert torch.equal(as_layer_has_it(layer, outputs_first(layer, weight)), weight)
