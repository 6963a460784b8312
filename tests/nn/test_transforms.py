"""torch.compile, torch.export, torch.func, autocast, deepcopy, DDP."""

import copy
import os
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import bedl
from bedl import GaussianConv2d, GaussianLinear, Moments

needs_compiler = pytest.mark.skipif(
    not (shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++"))
    or os.environ.get("ATEN_CPU_CAPABILITY") == "default",
    reason="torch.compile needs a C++ compiler, and writes code for vectors that PyTorch has to know, too",
)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        convolution = GaussianConv2d(channels, channels, 3, padding=1, bias=False)
        self.body = nn.Sequential(convolution, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))

    def forward(self, x):
        return torch.relu(x + self.body(x))


def small_resnet():
    torch.manual_seed(0)
    return nn.Sequential(
        GaussianConv2d(1, 8, 3, stride=2), nn.ELU(), Residual(8), nn.MaxPool2d(2), nn.GELU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.LayerNorm(8), GaussianLinear(8, 3),
    )  # fmt: skip


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(GaussianLinear(1, 16), nn.ReLU(), GaussianLinear(16, 3))


def assert_same(a, b, tolerance=2e-5):
    torch.testing.assert_close(a.loc, b.loc, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(a.variance, b.variance, rtol=10 * tolerance, atol=tolerance)


@needs_compiler
@pytest.mark.parametrize("make, shape, random", [
    (mlp, (4, 1), False), (mlp, (4, 1), True),
    pytest.param(small_resnet, (4, 1, 16, 16), False, marks=pytest.mark.slow),
    pytest.param(small_resnet, (4, 1, 16, 16), True, marks=pytest.mark.slow),
])  # fmt: skip
def test_compile_whole(make, shape, random):
    torch._dynamo.reset()
    net = make()
    compiled = torch.compile(copy.deepcopy(net), fullgraph=True)
    x = torch.randn(shape)
    x = Moments(x, 0.1) if random else x
    expected, result = net(x), compiled(x)
    assert isinstance(result, Moments)
    assert_same(result, expected)
    for y in (expected, result):
        (y.loc.square().sum() + y.variance.sum()).backward()
    for (name, p), q in zip(net.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=2e-3, atol=2e-4, msg=name)


@pytest.mark.slow
def test_the_whole_graph_can_be_captured():
    """What torch.compile(fullgraph=True) needs before it compiles: no operation falls out of the graph."""
    torch._dynamo.reset()
    net = small_resnet()
    x = Moments(torch.randn(4, 1, 16, 16), 0.1)
    assert_same(torch.compile(copy.deepcopy(net), fullgraph=True, backend="aot_eager")(x), net(x))


@pytest.mark.parametrize("operation", [
    lambda h, x: h - x, lambda h, x: h / (1 + x * x), lambda h, x: x - h, lambda h, x: x / h.exp(), lambda h, x: h - 1,
    lambda h, x: h.chunk(2, -1)[1].unflatten(-1, (1, 2)), lambda h, x: h.norm(dim=-1), lambda h, x: h.split(2, -1)[0],
])  # fmt: skip
def test_methods_that_are_written_in_python_stay_in_the_graph(operation):
    """Compilers look them up in another way: `__rsub__` and `__rdiv__`, `unflatten`, `norm` and `split`."""
    torch._dynamo.reset()
    h, x = Moments(torch.randn(3, 4), 0.3), torch.randn(3, 4)
    assert_same(torch.compile(operation, fullgraph=True, backend="eager")(h, x), operation(h, x))


@needs_compiler
def test_compile_sees_user_rules():
    torch._dynamo.reset()
    net = nn.Sequential(GaussianLinear(2, 2), nn.Tanhshrink())
    with bedl.use_rules({nn.functional.tanhshrink: bedl.rules.quadrature(nn.functional.tanhshrink)}):
        assert_same(torch.compile(net, fullgraph=True)(torch.ones(1, 2)), net(torch.ones(1, 2)))


@pytest.mark.parametrize("make, shape, random", [
    (mlp, (4, 1), False), (mlp, (4, 1), True),
    pytest.param(small_resnet, (4, 1, 16, 16), False, marks=pytest.mark.slow),
    pytest.param(small_resnet, (4, 1, 16, 16), True, marks=pytest.mark.slow),
])  # fmt: skip
def test_export_with_dynamic_batch(make, shape, random):
    net = make().eval()

    def example(n):
        torch.manual_seed(n)
        x = torch.randn(n, *shape[1:])
        return Moments(x, 0.1) if random else x

    batch = torch.export.Dim("batch", min=1, max=512)
    dims = {0: batch}
    program = torch.export.export(net, (example(4),), dynamic_shapes=([dims, dims] if random else dims,))
    for n in (1, 7):
        with torch.no_grad():
            assert_same(program.module()(example(n)), net(example(n)))


def test_export_round_trips_through_a_file(tmp_path):
    net = mlp().eval()
    torch.export.save(torch.export.export(net, (torch.ones(2, 1),)), tmp_path / "net.pt2")
    result = torch.export.load(tmp_path / "net.pt2").module()(torch.ones(2, 1))
    assert isinstance(result, Moments)
    assert_same(result, net(torch.ones(2, 1)))


@pytest.mark.slow
def test_onnx_agrees_with_eager(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    net = small_resnet().eval()
    x = torch.randn(5, 1, 16, 16)
    path = tmp_path / "net.onnx"
    torch.onnx.export(net, (x,), path, dynamic_shapes=({0: torch.export.Dim("batch")},), dynamo=True, verbose=False)
    session = runtime.InferenceSession(path)
    for n in (1, 5):
        loc, variance = session.run(None, {session.get_inputs()[0].name: x[:n].numpy()})
        with torch.no_grad():
            assert_same(Moments(torch.from_numpy(loc), torch.from_numpy(variance)), net(x[:n]), 1e-4)


def test_vmap_over_stacked_parameters():
    nets = []
    for seed in range(3):
        torch.manual_seed(seed)
        nets.append(
            nn.Sequential(GaussianLinear(4, 8), nn.ReLU(), GaussianLinear(8, 8), nn.ELU(), GaussianLinear(8, 2))
        )
    parameters, buffers = torch.func.stack_module_state(nets)
    base = copy.deepcopy(nets[0]).to("meta")
    x = torch.randn(5, 4)

    def call(p, b, x):
        return torch.func.functional_call(base, (p, b), (x,))

    stacked = torch.func.vmap(call, (0, 0, None))(parameters, buffers, x)
    assert isinstance(stacked, Moments)
    for i, net in enumerate(nets):
        assert_same(stacked[i], net(x))

    def loss(p, b, x):
        y = call(p, b, x)
        return y.loc.square().sum() + y.variance.sum()

    gradients = torch.func.vmap(torch.func.grad(loss), (0, 0, None))(parameters, buffers, x)
    for i, net in enumerate(nets):
        y = net(x)
        (y.loc.square().sum() + y.variance.sum()).backward()
        for name, p in net.named_parameters():
            torch.testing.assert_close(gradients[name][i], p.grad, rtol=1e-4, atol=1e-5)


def test_vmap_over_moments_themselves():
    x = Moments(torch.randn(6, 3), torch.rand(6, 3))
    y = torch.func.vmap(lambda row: torch.relu(row).sum())(x)
    torch.testing.assert_close(y.loc, torch.relu(x).sum(1).loc)
    torch.testing.assert_close(y.variance, torch.relu(x).sum(1).variance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_variances_in_float32(dtype):
    net = small_resnet().eval()
    x = torch.randn(4, 1, 16, 16)
    seen = []
    for module in net.modules():
        module.register_forward_hook(lambda m, i, o: seen.append(o.variance.dtype) if isinstance(o, Moments) else None)
    with torch.no_grad():
        expected = net(x)
        with torch.autocast("cpu", dtype):
            result = net(x)
    assert set(seen) == {torch.float32}
    torch.testing.assert_close(result.loc.float(), expected.loc, rtol=0.05, atol=0.05)
    torch.testing.assert_close(result.variance, expected.variance, rtol=0.1, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_whole_nets_in_half_precision(dtype):
    net, twin = mlp(), mlp().to(dtype)
    x = torch.linspace(-1, 1, 5)[:, None]
    result = twin(x.to(dtype))
    assert (result.dtype, result.variance.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(result.loc.float(), net(x).loc, rtol=0.05, atol=0.05)
    torch.testing.assert_close(result.variance, net(x).variance, rtol=0.1, atol=1e-3)


def test_float64():
    result = mlp().double()(torch.ones(2, 1, dtype=torch.float64))
    assert result.variance.dtype is torch.float64


def test_deepcopy_and_state_dict():
    net = small_resnet().eval()
    twin = copy.deepcopy(net)
    x = torch.randn(2, 1, 16, 16)
    assert_same(twin(x), net(x), 0)
    with torch.no_grad():
        twin[0].weight_logvar.add_(1)
    assert not torch.equal(twin(x).variance, net(x).variance)


DDP = """
    import os, sys
    import torch, torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from bedl import GaussianLinear

    rank, store, find_unused = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "True"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = nn.Sequential(GaussianLinear(3, 8), nn.ReLU(), GaussianLinear(8, 2))
    x = torch.randn(8, 3)
    y = net(x)
    (y.loc.square() + y.variance).sum(1).mean().backward()
    expected = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    ddp = DistributedDataParallel(net, find_unused_parameters=find_unused)
    y = ddp(x[rank * 4 : rank * 4 + 4])
    (y.loc.square() + y.variance).sum(1).mean().backward()
    for p, g in zip(net.parameters(), expected):
        torch.testing.assert_close(p.grad, g)
    print("same gradients")
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("find_unused", [pytest.param(False, marks=pytest.mark.slow), True])
def test_ddp_gives_the_gradients_of_one_process(tmp_path, find_unused):
    script = tmp_path / "ddp.py"
    script.write_text(textwrap.dedent(DDP))
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(tmp_path / "store"), str(find_unused)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [p.communicate(timeout=120)[0] for p in processes]
    assert all(p.returncode == 0 for p in processes), outputs
    assert all("same gradients" in output for output in outputs)
