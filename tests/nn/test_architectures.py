"""bayesianize on architectures, most of which nobody here wrote: see `architectures.py`."""

import pytest
import torch

import bedl
from bedl import Moments
from tests.nn.architectures import ARCHITECTURES, build, output

pytestmark = pytest.mark.arch

SLOW_TO_GUESS = ("transformers ResNet", "monai DenseNet", "monai UNet")
REFUSED = {"Fourier transform"}  # which asks something that a random value cannot answer
BIG = {"monai SwinUNETR", "monai ResNet"}
NETS = [pytest.param(name, marks=[pytest.mark.slow] * (name in BIG)) for name in ARCHITECTURES if name not in REFUSED]
each_net = pytest.mark.parametrize("name", NETS)


def built(name):
    library = name.split()[0]
    if library in ("transformers", "monai"):
        pytest.importorskip(library)
    return build(name)


@each_net
def test_unchanged_forward(name):
    net, inputs = built(name)
    report = bedl.check(net, *inputs)
    assert report.ok, str(report)
    with torch.no_grad():
        plain = output(net(*inputs))
        y = output(bedl.bayesianize(net)(*inputs))
        certain = output(bedl.bayesianize(net, init_logvar=-float("inf"))(*inputs))
    assert isinstance(y, Moments)
    assert y.shape == plain.shape
    assert (y.variance > 0).all()
    assert torch.isfinite(y.variance).all()
    torch.testing.assert_close(certain.loc, plain, rtol=1e-4, atol=1e-4)  # products are summed in another order
    assert not certain.variance.any()


@each_net
def test_trains(name):
    net, inputs = built(name)
    net = bedl.bayesianize(net.train())
    y = output(net(*inputs))
    (y.loc.square().mean() + y.variance.mean()).backward()
    for parameter_name, parameter in net.named_parameters():
        if parameter.grad is not None:
            assert torch.isfinite(parameter.grad).all(), parameter_name
    # "hidden" parameters exist that a classification forward does not use; every Gaussian layer that ran has gradients
    assert sum(p.grad is not None for p in net.parameters()) > 0.8 * sum(1 for _ in net.parameters())


@pytest.mark.parametrize(
    "name", ["transformers ViT", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_TO_GUESS)]
)
def test_guessed_input(name):
    net, _ = built(name)
    assert bedl.check(net).ok


@pytest.mark.filterwarnings("ignore:.*isinstance")
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_answered_is_found_beforehand(name):
    net, inputs = built(name)
    assert not bedl.check(net, *inputs).ok


@pytest.mark.slow
def test_resnet_can_be_captured_whole():
    """transformers' ResNet, converted, as one graph."""
    torch._dynamo.reset()
    net, (x,) = built("transformers ResNet")
    net = bedl.bayesianize(net)
    compiled = torch.compile(lambda x: net(x, return_dict=False)[0], fullgraph=True, backend="eager")
    y = net(x).logits
    torch.testing.assert_close(compiled(x).variance, y.variance)
