"""Kernels of wide networks: against wide random networks, quadrature, plain loops and neural-tangents."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import integrate, stats
from torch import Tensor

from bedl import BEDLClassifier, BEDLRegressor
from bedl import _kernels as native
from bedl._kernels import inference
from bedl.methods import Problem, registry
from bedl.methods.baselines import wide_kernels as kernels
from bedl.methods.baselines.wide_kernels import (
    Convolution,
    DenseKernel,
    ImageKernel,
    Residual,
    image_of,
    relu,
    relu_covariance,
)
from tests.closeness import assert_same_up_to_rounding


@pytest.mark.parametrize("a, b, c", [(1.0, 2.0, 0.5), (0.3, 0.3, -0.29), (2.0, 1.0, -1.4), (1.0, 1.0, 0.999)])
def test_the_covariance_of_rectified_normals_is_that_of_quadrature(a: float, b: float, c: float) -> None:
    slope, spread = c / a, math.sqrt(b - c * c / a)

    def given(u: float) -> float:  # E[relu(v) | u]
        r = slope * u / spread
        return u * (slope * u * stats.norm.cdf(r) + spread * stats.norm.pdf(r)) * stats.norm.pdf(u, 0, math.sqrt(a))

    truth = integrate.quad(given, 0, 15 * math.sqrt(a))[0]
    found = relu_covariance(*(torch.tensor(x, dtype=torch.float64) for x in (a, b, c)))
    assert found.item() == pytest.approx(truth, rel=1e-6, abs=1e-9)


def test_the_dense_kernel_is_that_of_wide_networks() -> None:
    torch.manual_seed(0)
    x, weight, bias, width, draws = torch.randn(4, 3).double(), 1.79, 0.83, 128, 2000
    h = x.expand(draws, 4, 3)
    for fan_in, out in ((3, width), (width, width), (width, 1)):
        w = math.sqrt(weight / fan_in) * torch.randn(draws, fan_in, out).double()
        z = h @ w + math.sqrt(bias) * torch.randn(draws, 1, out).double()
        h = torch.relu(z)
    found = DenseKernel(2, weight, bias)(x, x)
    check_covariance(z[..., 0], found, finite=3.0 / width)
    torch.testing.assert_close(DenseKernel(2, weight, bias).diagonal(x), found.diagonal())


def test_a_convolutional_kernel_is_that_of_wide_networks() -> None:
    torch.manual_seed(0)
    x, channels, draws = torch.randn(3, 2, 4, 4).double(), 32, 2000
    layers = [Convolution(3, 1.5, 0.2), Residual([relu, Convolution(2, 0.7, 0.1), relu, Convolution(3, 1.0, 0.3)]),
              relu, Convolution(3, 1.2, 0.1, stride=2), relu, Convolution(None, 1.1, 0.4)]  # fmt: skip
    outputs = []
    for _ in range(draws):
        h = conv(x, channels, 3, 1.5, 0.2)
        h = h + conv(torch.relu(conv(torch.relu(h), channels, 2, 0.7, 0.1)), channels, 3, 1.0, 0.3)
        h = conv(torch.relu(h), channels, 3, 1.2, 0.1, stride=2)
        outputs.append(conv(torch.relu(h), 1, h.shape[-1], 1.1, 0.4, same=False)[:, 0, 0, 0])
    kernel = ImageKernel((2, 4, 4), layers)
    found = kernel(x.flatten(1), x.flatten(1))
    check_covariance(torch.stack(outputs), found, finite=4.0 / channels)
    torch.testing.assert_close(kernel.diagonal(x.flatten(1)), found.diagonal())


def conv(x: Tensor, channels: int, size: int, weight: float, bias: float, stride: int = 1, same: bool = True) -> Tensor:
    """A convolution with fresh weights of variance weight/(size² fan-in)."""
    w = torch.randn(channels, x.shape[1], size, size).double() * math.sqrt(weight / x.shape[1]) / size
    front, back = ((size - 1) // 2, size // 2) if same else (0, 0)
    b = math.sqrt(bias) * torch.randn(channels).double()
    return F.conv2d(F.pad(x, (front, back, front, back)), w, b, stride)


def check_covariance(draws: Tensor, kernel: Tensor, finite: float) -> None:
    """Products of outputs average to the kernel: five standard errors, and what a finite width changes."""
    for i in range(len(kernel)):
        for j in range(len(kernel)):
            product = draws[:, i] * draws[:, j]
            error = product.std().item() / math.sqrt(len(draws))
            size = math.sqrt(kernel[i, i] * kernel[j, j])
            assert product.mean().item() == pytest.approx(kernel[i, j].item(), abs=5 * error + finite * size)


def test_the_published_residual_kernel_is_what_loops_give() -> None:
    """k ← k + E[relu relu] of the convolved k: one block, a 2 × 2 image, a window of 4 with 1 before and 2 after."""
    torch.manual_seed(1)
    x = torch.randn(2, 4).double()
    method = registry.get("residual-cnn-gp")(Problem("regression", 1, (4,)), blocks=1)
    weight, bias = 7.27, 4.69

    def convolved(k: np.ndarray) -> np.ndarray:
        windows = [[k[max(i - 1, 0) : i + 3, max(j - 1, 0) : j + 3].sum() for j in range(2)] for i in range(2)]
        return weight * np.array(windows) + bias

    def rectified(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        angle = np.arccos(np.clip(c / np.sqrt(a * b), -1, 1))
        return np.sqrt(a * b) * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)

    maps = [np.outer(*pair).diagonal().reshape(2, 2) for pair in ((x[0], x[0]), (x[1], x[1]), (x[0], x[1]))]
    after = [convolved(k) for k in maps]
    steps = (after[0] / 2, after[1] / 2, rectified(*after))
    again = [convolved(k + step) for k, step in zip(maps, steps, strict=True)]
    truth = weight * rectified(*again).mean() + bias
    assert method.kernel(x[:1], x[1:]).item() == pytest.approx(truth, rel=1e-10)


NETWORKS = {
    "convnet-gp": lambda: registry.get("convnet-gp")(Problem("regression", 1, (64,)), depth=3).kernel.layers,
    "residual-cnn-gp": lambda: registry.get("residual-cnn-gp")(Problem("regression", 1, (64,)), blocks=3).kernel.layers,
    "resnet-gp": lambda: registry.get("resnet-gp")(Problem("regression", 1, (64,)), blocks=2).kernel.layers,
    "nested": lambda: [
        Residual([Convolution(2, 0.7, 0.1, 3), Residual([relu, Convolution(4, 1.1)])], [Convolution(1, stride=3)]),
        relu, Convolution(None, 1.3, 0.2), relu,
    ],
}  # fmt: skip


@pytest.mark.skipif(not native.is_built(), reason="the kernels are not built, or switched off")
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("image", [(1, 8, 8), (3, 5, 2), (2, 1, 9)])
def test_the_kernel_in_c_is_its_reference_up_to_rounding(
    monkeypatch, network: str, image: tuple[int, int, int]
) -> None:
    """Equal images, opposite ones, an empty one; more and fewer than go side by side."""
    torch.manual_seed(0)
    x, z = torch.randn(19, math.prod(image)).double(), torch.randn(3, math.prod(image)).double()
    x[1], x[2], x[3], z[0] = x[0], -x[0], 0.0, x[5]
    kernel = ImageKernel(image, NETWORKS[network]())
    assert kernel._program(kernel._images(x)) is not None
    found = kernel(x, x), kernel(x, z), kernel(z, x)
    monkeypatch.setattr(inference, "_library", None)
    for one, other in zip(found, (kernel(x, x), kernel(x, z), kernel(z, x)), strict=True):
        assert_same_up_to_rounding(one, other, ulps=200)
    assert_same_up_to_rounding(found[0].diagonal(), kernel.diagonal(x), ulps=200)
    assert_same_up_to_rounding(found[2].T.contiguous(), found[1], ulps=200)


@pytest.mark.skipif(not native.is_built(), reason="the kernels are not built, or switched off")
def test_what_is_no_number_stays_none_in_c_and_troubles_nobody_else() -> None:
    x = torch.randn(4, 9).double()
    x[2, 4] = math.nan
    found = ImageKernel((1, 3, 3), [Convolution(3, 9.0, 1.0), relu, Convolution(None, 1.0, 1.0)])(x, x)
    expected = torch.zeros(4, 4, dtype=torch.bool)
    expected[2], expected[:, 2] = True, True
    assert torch.equal(found.isnan(), expected)


@pytest.mark.skipif(not native.is_built(), reason="the kernels are not built, or switched off")
def test_rectified_normals_in_c_are_those_of_quadrature() -> None:
    """One place, one convolution of 1 before the ReLU: the covariance of two numbers is their product and a bias."""
    x, z, bias = 1.1, -0.9, 0.4
    a, b, c = x * x + bias, z * z + bias, x * z + bias
    layers = [Convolution(1, 1.0, bias), relu, Convolution(None)]
    found = ImageKernel((1, 1, 1), layers)(torch.tensor([[x]]).double(), torch.tensor([[z]]).double())
    slope, spread = c / a, math.sqrt(b - c * c / a)

    def given(u: float) -> float:
        r = slope * u / spread
        return u * (slope * u * stats.norm.cdf(r) + spread * stats.norm.pdf(r)) * stats.norm.pdf(u, 0, math.sqrt(a))

    assert found.item() == pytest.approx(integrate.quad(given, 0, 15 * math.sqrt(a))[0], rel=1e-8)


def test_covariances_have_derivatives_by_the_images() -> None:
    """As attacks ask for them: PyTorch does the work where somebody wants gradients."""
    kernel = ImageKernel((1, 3, 3), [Convolution(3, 9.0, 1.0), relu, Convolution(None, 1.0, 1.0)])
    x, z = torch.randn(2, 9).double().requires_grad_(), torch.randn(3, 9).double()
    assert torch.autograd.gradcheck(lambda x: kernel(x, z), (x,))


def test_a_layer_of_ones_own_goes_through_pytorch() -> None:
    """One that doubles: the kernel in C does not know it, and the answer has it."""
    layers = [Convolution(3, 9.0, 1.0), relu, Convolution(None)]
    doubled = [*layers, lambda pairs: pairs.map(lambda part: 2 * part)]
    x = torch.randn(5, 9).double()
    assert_same_up_to_rounding(
        ImageKernel((1, 3, 3), doubled)(x, x), 2 * ImageKernel((1, 3, 3), layers)(x, x), ulps=200
    )


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_library", None)
    x, z = torch.randn(7, 9).double(), torch.randn(5, 9).double()
    kernel = ImageKernel((1, 3, 3), [Convolution(3, 9.0, 1.0), relu, Convolution(None, 1.0, 1.0)])
    whole = kernel(x, z), kernel.diagonal(x), kernel(x, x.clone())
    monkeypatch.setattr(kernels, "MAX_BLOCK_NUMEL", 20)
    torch.testing.assert_close(kernel(x, z), whole[0])
    torch.testing.assert_close(kernel.diagonal(x), whole[1])
    torch.testing.assert_close(kernel(x, x), whole[2])  # of which half is computed


@pytest.mark.reference
def test_the_dense_kernel_is_neural_tangents_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # a part of it that is not needed, and asks for TensorFlow
    name = "neural_tangents.experimental"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    stax = pytest.importorskip("neural_tangents.stax", reason="pip install neural-tangents", exc_type=ImportError)
    x = np.random.default_rng(0).normal(size=(5, 3))
    layers = [part for _ in range(3) for part in (stax.Dense(1, math.sqrt(1.79), math.sqrt(0.83)), stax.Relu())]
    _, _, kernel = stax.serial(*layers, stax.Dense(1, math.sqrt(1.79), math.sqrt(0.83)))
    truth = np.asarray(kernel(x, x, "nngp"))
    found = DenseKernel(3, 1.79, 0.83)(torch.from_numpy(x), torch.from_numpy(x))
    np.testing.assert_allclose(found.numpy(), truth, rtol=1e-5)


def test_images_are_squares_or_named() -> None:
    X, y = np.random.default_rng(0).normal(size=(30, 10)), np.arange(30.0)
    with pytest.raises(ValueError, match=r"10 columns are no square one.*'nngp'"):
        BEDLRegressor(method="convnet-gp").fit(X, y)
    with pytest.raises(ValueError, match=r"of 10 numbers, not \(1, 3, 3\)"):
        BEDLClassifier(method="resnet-gp", method_options={"image": (1, 3, 3)}).fit(X, y > 10)
    assert image_of("resnet-gp", Problem("regression", 1, (3, 5, 7)), None) == (3, 5, 7)
    assert image_of("resnet-gp", Problem("regression", 1, (10,), image_shape=(2, 5)), None) == (1, 2, 5)
