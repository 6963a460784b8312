"""bayesianize on architectures nobody here wrote, built from their configurations without trained weights."""

import pytest
import torch
from torch import nn

import bedl
from bedl import Moments

pytestmark = pytest.mark.arch


def hugging_face(model, config, **settings):
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, model)(getattr(transformers, config)(num_labels=5, **settings))


def monai(name, **settings):
    return getattr(pytest.importorskip("monai.networks.nets"), name)(**settings)


STAGES = {"hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1]}
NETS = {
    "transformers ResNet": (
        lambda: hugging_face("ResNetForImageClassification", "ResNetConfig", embedding_size=16, **STAGES),
        (2, 3, 64, 64)),
    "transformers ConvNeXt": (
        lambda: hugging_face("ConvNextForImageClassification", "ConvNextConfig", **STAGES), (2, 3, 64, 64)),
    "transformers EfficientNet": (
        lambda: hugging_face("EfficientNetForImageClassification", "EfficientNetConfig", width_coefficient=0.25,
                             depth_coefficient=0.3, image_size=64, hidden_dim=320), (2, 3, 64, 64)),
    "transformers ViT": (
        lambda: hugging_face("ViTForImageClassification", "ViTConfig", hidden_size=32, num_hidden_layers=2,
                             num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8), (2, 3, 32, 32)),
    "monai ResNet": (lambda: monai("resnet10", spatial_dims=2, n_input_channels=3, num_classes=5), (2, 3, 64, 64)),
    "monai DenseNet": (
        lambda: monai("DenseNet", spatial_dims=2, in_channels=3, out_channels=5, init_features=16, growth_rate=8,
                      block_config=(2, 2, 2)), (2, 3, 64, 64)),
    "monai UNet": (
        lambda: monai("UNet", spatial_dims=2, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2),
                      num_res_units=2), (2, 1, 32, 32)),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2,
                                      enable_nested_tensor=False), (3, 5, 16)),
}  # fmt: skip
each_net = pytest.mark.parametrize("name", NETS)


def build(name):
    torch.manual_seed(0)
    make, shape = NETS[name]
    net = make()
    for module in net.modules():  # their own initialisation lets signals fade to 1e-35 in an untrained net
        if type(module) in (nn.Conv2d, nn.Linear):
            nn.init.kaiming_normal_(module.weight)
    return net, torch.randn(shape)


def output(result):
    return getattr(result, "logits", result)


@each_net
def test_unchanged_forward(name):
    net, x = build(name)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0  # running statistics that fit after one pass
    with torch.no_grad():
        net.train()(x)
    net.eval()
    assert bedl.check(net, x).ok, str(bedl.check(net, x))
    with torch.no_grad():
        plain = output(net(x))
        y = output(bedl.bayesianize(net)(x))
        certain = output(bedl.bayesianize(net, init_logvar=-float("inf"))(x))
    assert isinstance(y, Moments)
    assert y.shape == plain.shape
    assert (y.variance > 0).all()
    assert torch.isfinite(y.variance).all()
    torch.testing.assert_close(certain.loc, plain, rtol=1e-4, atol=1e-5)
    assert not certain.variance.any()


@each_net
def test_trains(name):
    net, x = build(name)
    net = bedl.bayesianize(net.train())
    y = output(net(x))
    (y.loc.square().mean() + y.variance.mean()).backward()
    for parameter_name, parameter in net.named_parameters():
        if parameter.grad is not None:
            assert torch.isfinite(parameter.grad).all(), parameter_name
    # "hidden" parameters exist that a classification forward does not use; every Gaussian layer that ran has gradients
    assert sum(p.grad is not None for p in net.parameters()) > 0.8 * sum(1 for _ in net.parameters())


@each_net
def test_guessed_input(name):
    net, _ = build(name)
    assert bedl.check(net.eval()).ok


@pytest.mark.slow
def test_resnet_can_be_captured_whole():
    """transformers' ResNet, converted, as one graph."""
    torch._dynamo.reset()
    net, x = build("transformers ResNet")
    net = bedl.bayesianize(net.eval())
    compiled = torch.compile(lambda x: net(x, return_dict=False)[0], fullgraph=True, backend="eager")
    y = net(x).logits
    torch.testing.assert_close(compiled(x).variance, y.variance)
