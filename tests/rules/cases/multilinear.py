"""Operations that are affine in each operand, as data: the oracle differentiates the plain function.

An operand `random(shape)` is Moments, `plain(shape)` a tensor; the function is called with either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from bedl import Moments


@dataclass(frozen=True)
class Operand:
    shape: tuple[int, ...]
    is_random: bool

    def draw(self, generator: torch.Generator) -> torch.Tensor | Moments:
        loc = torch.randn(self.shape, generator=generator, dtype=torch.float64)
        if not self.is_random:
            return loc
        return Moments(loc, torch.rand(self.shape, generator=generator, dtype=torch.float64) + 0.05)


def random(*shape: int) -> Operand:
    return Operand(shape, True)


def plain(*shape: int) -> Operand:
    return Operand(shape, False)


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable
    operands: tuple[Operand, ...]


def every_mix(name: str, function: Callable, *shapes: tuple[int, ...]) -> list[Case]:
    """The function with each combination of random and deterministic operands, but all deterministic."""
    cases = []
    for mask in range(1, 2 ** len(shapes)):
        chosen = [bool(mask >> i & 1) for i in range(len(shapes))]
        label = "".join("r" if c else "d" for c in chosen)
        operands = tuple(Operand(s, c) for s, c in zip(shapes, chosen, strict=True))
        cases.append(Case(f"{name} {label}", function, operands))
    return cases


def moved(name: str, function: Callable, *shape: int) -> Case:
    return Case(name, function, (random(*(shape or (2, 3, 4))),))


INDEX = torch.tensor([[0, 2], [1, 0]])
MASK = torch.tensor([[True, False, True], [False, False, True]])


def averages(x: torch.Tensor | Moments) -> torch.Tensor:
    return torch.tensor([0.3, -0.2, 1.0], dtype=x.dtype)


def spreads(x: torch.Tensor | Moments) -> torch.Tensor:
    return torch.tensor([0.5, 2.0, 1.0], dtype=x.dtype)


AFFINE = [
    *every_mix("linear", F.linear, (2, 3), (4, 3), (4,)),
    *every_mix("linear 3d no bias", F.linear, (2, 2, 3), (4, 3)),
    *every_mix("conv1d", lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1), (2, 2, 6), (3, 2, 3), (3,)),
    *every_mix("conv2d", lambda x, w, b: F.conv2d(x, w, b, 2, 1), (1, 2, 4, 4), (2, 2, 3, 3), (2,)),
    *every_mix("conv2d same", lambda x, w: F.conv2d(x, w, padding="same"), (1, 2, 3, 4), (2, 2, 3, 1)),
    *every_mix("conv2d valid", lambda x, w: F.conv2d(x, w, padding="valid"), (1, 2, 3, 4), (2, 2, 3, 2)),
    *every_mix("conv2d dilated", lambda x, w: F.conv2d(x, w, dilation=2), (1, 1, 5, 5), (2, 1, 2, 2)),
    *every_mix("conv2d grouped", lambda x, w, b: F.conv2d(x, w, b, groups=2), (1, 4, 2, 3), (4, 2, 2, 1), (4,)),
    *every_mix("conv2d unbatched", F.conv2d, (2, 4, 4), (3, 2, 2, 2)),
    *every_mix("conv3d", F.conv3d, (1, 1, 3, 3, 3), (2, 1, 2, 2, 2)),
    *every_mix("conv_transpose1d", lambda x, w, b: F.conv_transpose1d(x, w, b, 2, 1, 1), (1, 2, 4), (2, 3, 3), (3,)),
    *every_mix("conv_transpose2d", lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, groups=2, dilation=2),
               (1, 2, 2, 2), (2, 2, 1, 2), (4,)),
    *every_mix("conv_transpose3d", F.conv_transpose3d, (1, 1, 2, 2, 2), (1, 2, 2, 2, 2)),
    *every_mix("bilinear", F.bilinear, (2, 3), (2, 2), (2, 3, 2), (2,)),
    *every_mix("matmul", torch.matmul, (2, 3, 4), (4, 2)),
    *every_mix("@", lambda a, b: a @ b, (3, 4), (4, 2)),
    *every_mix("mv", torch.mv, (3, 4), (4,)),
    *every_mix("dot", torch.dot, (4,), (4,)),
    *every_mix("bmm", torch.bmm, (2, 3, 4), (2, 4, 2)),
    *every_mix("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0), (3, 2), (3, 4), (4, 2)),
    *every_mix("baddbmm", torch.baddbmm, (2, 3, 2), (2, 3, 4), (2, 4, 2)),
    *every_mix("einsum", lambda a, b: torch.einsum("bij,bjk->bik", a, b), (2, 3, 2), (2, 2, 3)),
    *every_mix("einsum implicit", lambda a, b: torch.einsum("ij,jk", a, b), (3, 2), (2, 3)),
    *every_mix("einsum outer", lambda a, b: torch.einsum("i,j->ji", a, b), (3,), (2,)),
    *every_mix("einsum lonely sums", lambda a, b: torch.einsum("ijl,jk->i", a, b), (2, 3, 2), (3, 2)),
    *every_mix("einsum ...", lambda a, b: torch.einsum("...ij,...jk->...ik", a, b), (2, 3, 2), (2, 2, 3)),
    *every_mix("einsum ... implicit", lambda a, b: torch.einsum("...ij,jk", a, b), (2, 3, 2), (2, 3)),
    *every_mix("einsum ... broadcast", lambda a, b: torch.einsum("b...d, ...d -> b...", a, b), (2, 3, 2), (1, 2)),
    *every_mix("einsum ... ranks", lambda a, b: torch.einsum("...d,d...->...", a, b), (2, 3, 2), (2, 3)),
    moved("einsum ... one operand", lambda x: torch.einsum("i...->...i", x)),
    *every_mix("tensordot", lambda a, b: torch.tensordot(a, b, 2), (2, 3, 2), (3, 2, 2)),
    *every_mix("tensordot axes", lambda a, b: torch.tensordot(a, b, dims=([0], [1])), (2, 3), (2, 2)),
    *every_mix("outer", torch.outer, (3,), (2,)),
    *every_mix("inner", torch.inner, (2, 3), (4, 3)),
    *every_mix("kron", torch.kron, (2, 2), (1, 3)),
    moved("einsum one operand", lambda x: torch.einsum("ijk->kj", x)),
    moved("einsum diagonal", lambda x: torch.einsum("ii->i", x), 3, 3),
    Case("embedding", lambda w: F.embedding(INDEX, w), (random(4, 3),)),
]  # fmt: skip

SHAPE = [
    moved("flatten", lambda x: x.flatten(1)), moved("torch.flatten", lambda x: torch.flatten(x, 0, 1)),
    moved("reshape", lambda x: x.reshape(4, -1)), moved("view", lambda x: x.view(x.size(0), -1)),
    moved("permute", lambda x: x.permute(2, 0, 1)), moved("torch.permute", lambda x: torch.permute(x, (1, 0, 2))),
    moved("transpose", lambda x: x.transpose(1, 2)), moved("t", lambda x: x.t(), 2, 3), moved("T", lambda x: x.T, 2, 3),
    moved("mT", lambda x: x.mT), moved("movedim", lambda x: x.movedim(0, -1)),
    moved("squeeze", lambda x: x.squeeze(1), 2, 1, 3), moved("unsqueeze", lambda x: x.unsqueeze(-1)),
    moved("expand", lambda x: x.expand(2, 3, 4), 3, 1), moved("expand_as", lambda x: x.expand_as(torch.zeros(2, 3)), 3),
    moved("view_as", lambda x: x.view_as(torch.zeros(6, 4))), moved("repeat", lambda x: x.repeat(2, 1, 1)),
    moved("repeat_interleave", lambda x: x.repeat_interleave(2, 1)), moved("flip", lambda x: x.flip(1)),
    moved("roll", lambda x: torch.roll(x, 1, 2)), moved("narrow", lambda x: x.narrow(1, 1, 2)),
    moved("select", lambda x: x.select(2, 1)), moved("unbind", lambda x: x.unbind(1)[1]),
    moved("split", lambda x: x.split(2, 1)[1]), moved("torch.split", lambda x: torch.split(x, [1, 2], 1)[1]),
    moved("chunk", lambda x: x.chunk(2, 2)[1]), moved("tensor_split", lambda x: torch.tensor_split(x, 2, 2)[0]),
    moved("index_select", lambda x: x.index_select(1, INDEX[0])), moved("x[1]", lambda x: x[1]),
    moved("x[:, 1:]", lambda x: x[:, 1:]), moved("x[..., None, 0]", lambda x: x[..., None, 0]),
    moved("x[index]", lambda x: x[:, INDEX]), moved("x[mask]", lambda x: x[MASK], 2, 3, 2),
    moved("iteration", lambda x: list(x)[1]), moved("clone", lambda x: x.clone()),
    moved("contiguous", lambda x: x.transpose(0, 1).contiguous()), moved("unflatten", lambda x: x.unflatten(2, (2, 2))),
    moved("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), 1, 4, 2, 2), moved("tril", lambda x: x.tril()),
    moved("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), 1, 1, 2, 4),
    moved("channel_shuffle", lambda x: F.channel_shuffle(x, 2), 1, 4, 2, 2),
    moved("Tensor.unfold", lambda x: x.unfold(2, 2, 1)), moved("F.unfold", lambda x: F.unfold(x, 2), 1, 2, 3, 3),
    moved("F.fold", lambda x: F.fold(x, (3, 3), 2), 1, 4, 4), moved("gather", lambda x: x.gather(1, INDEX), 2, 3),
    Case("cat", lambda a, b: torch.cat([a, b], 1), (random(2, 3), random(2, 2))),
    Case("cat with a tensor", lambda a, b: torch.cat([a, b], 1), (plain(2, 3), random(2, 2))),
    Case("stack", lambda a, b: torch.stack([a, b], -1), (random(2, 3), plain(2, 3))),
    Case("hstack", lambda a, b: torch.hstack([a, b]), (random(2, 3), random(2, 3))),
    moved("pad", lambda x: F.pad(x, (1, 2, 0, 1))), moved("pad value", lambda x: F.pad(x, (1, 0), value=3.0)),
    moved("pad reflect", lambda x: F.pad(x, (1, 2), mode="reflect")),
    moved("pad circular", lambda x: F.pad(x, (1, 2), mode="circular")),
    moved("pad replicate", lambda x: F.pad(x, (1, 2), mode="replicate")),
    moved("sum", lambda x: x.sum()), moved("sum dim", lambda x: x.sum(1)), moved("mean", lambda x: x.mean()),
    moved("mean dims", lambda x: x.mean((1, 2), keepdim=True)), moved("torch.mean", lambda x: torch.mean(x, dim=-1)),
    moved("cumsum", lambda x: x.cumsum(1)), moved("diff", lambda x: x.diff(dim=1)),
    moved("second differences", lambda x: x.diff(n=2)), moved("none left", lambda x: torch.diff(x, n=5)),
    Case("diff with ends", lambda x, a, b: torch.diff(x, dim=0, prepend=a, append=b),
         (random(3, 2), plain(1, 2), random(2, 2))),
    moved("nearest", lambda x: F.interpolate(x, scale_factor=2)),
    moved("linear interpolation", lambda x: F.interpolate(x, scale_factor=1.7, mode="linear")),
    moved("bilinear interpolation", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), 1, 2, 3, 2),
    moved("bilinear corners", lambda x: F.interpolate(x, (5, 4), mode="bilinear", align_corners=True), 1, 1, 3, 2),
    moved("bicubic interpolation", lambda x: F.interpolate(x, (5, 4), mode="bicubic"), 1, 1, 3, 4),
    moved("trilinear interpolation", lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), 1, 1, 2, 2, 2),
]  # fmt: skip

ARITHMETIC = [
    *every_mix("+", lambda a, b: a + b, (2, 3), (2, 3)), *every_mix("+ broadcast", torch.add, (2, 1, 3), (4, 1)),
    *every_mix("−", lambda a, b: a - b, (2, 3), (3,)), *every_mix("×", lambda a, b: a * b, (2, 3), (2, 1)),
    *every_mix("torch.sub alpha", lambda a, b: torch.sub(a, b, alpha=3), (2, 3), (2, 3)),
    *every_mix("add alpha", lambda a, b: torch.add(a, b, alpha=-2), (2, 3), (2, 3)),
    *every_mix("addcmul", lambda a, b, c: torch.addcmul(a, b, c, value=2), (2, 3), (2, 3), (3,)),
    *every_mix("lerp", lambda a, b: torch.lerp(a, b, 0.3), (2, 3), (2, 3)),
    *every_mix("where", lambda a, b: torch.where(MASK, a, b), (2, 3), (2, 3)),
    moved("x + x", lambda x: x + x), moved("x − x", lambda x: x - x), moved("1 − x", lambda x: 1 - x),
    moved("2·x", lambda x: 2 * x), moved("x·2", lambda x: x * 2.5), moved("x/2", lambda x: x / 2),
    moved("−x", lambda x: -x),
    moved("x/t", lambda x: x / averages(x), 2, 3), moved("x + 3", lambda x: 3 + x + 1), moved("+x", lambda x: +x),
    moved("masked_fill", lambda x: x.masked_fill(MASK, 7.0), 2, 3),
    moved("where number", lambda x: torch.where(MASK, x, 1.0), 2, 3),
    moved("Tensor.where", lambda x: x.where(MASK, averages(x)), 2, 3),
]  # fmt: skip

AVERAGE = [
    moved("avg_pool1d", lambda x: F.avg_pool1d(x, 2)),
    moved("avg_pool1d padded", lambda x: F.avg_pool1d(x, 3, 2, 1)),
    moved("avg_pool1d border", lambda x: F.avg_pool1d(x, 3, 2, 1, count_include_pad=False)),
    moved("avg_pool2d", lambda x: F.avg_pool2d(x, 2), 1, 2, 4, 4),
    moved("avg_pool2d padded", lambda x: F.avg_pool2d(x, 3, 2, 1), 1, 2, 5, 4),
    moved("avg_pool2d border", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), 1, 2, 5, 4),
    moved("avg_pool2d ceil", lambda x: F.avg_pool2d(x, (2, 3), ceil_mode=True), 1, 2, 5, 4),
    moved("avg_pool2d divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3), 1, 2, 4, 4),
    moved("avg_pool2d unbatched", lambda x: F.avg_pool2d(x, 3, 2, 1), 2, 5, 4),
    moved("avg_pool3d", lambda x: F.avg_pool3d(x, 2, 1, 1), 1, 1, 2, 3, 2),
    moved("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 3), 1, 2, 7),
    moved("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (2, 3)), 1, 2, 5, 7),
    moved("adaptive_avg_pool2d 1", lambda x: F.adaptive_avg_pool2d(x, 1), 2, 2, 4, 3),
    moved("adaptive_avg_pool2d None", lambda x: F.adaptive_avg_pool2d(x, (None, 2)), 1, 2, 3, 4),
    moved("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, 2), 1, 1, 3, 2, 4),
    moved("batch_norm eval", lambda x: F.batch_norm(x, averages(x), spreads(x), spreads(x), averages(x))),
    moved("batch_norm eval 2d", lambda x: F.batch_norm(x, averages(x), spreads(x)), 2, 3, 2, 2),
    moved("instance_norm eval", lambda x: F.instance_norm(x, averages(x), spreads(x), use_input_stats=False)),
    moved("dropout eval", lambda x: F.dropout(x, 0.5, training=False)),
]  # fmt: skip

NODES = torch.tensor([0, 3, 3, 1, 0])  # where each of five messages goes, of four nodes
EACH = torch.tensor([[0, 1, 2], [3, 1, 2], [3, 0, 0], [1, 1, 1], [0, 0, 3]])
TWO, ONCE = torch.tensor([2, 0]), torch.tensor([[0, 1, 2], [3, 0, 1]])
INDEXING = [
    *every_mix("index_add", lambda x, y: x.index_add(0, NODES, y), (4, 3), (5, 3)),
    *every_mix("index_add alpha", lambda x, y: torch.index_add(x, 1, TWO, y, alpha=-0.5), (2, 3), (2, 2)),
    *every_mix("index_copy", lambda x, y: x.index_copy(0, TWO, y), (4, 3), (2, 3)),
    moved("index_fill", lambda x: x.index_fill(1, TWO, 7.0)),
    *every_mix("scatter_add", lambda x, y: x.scatter_add(0, EACH, y), (4, 3), (5, 3)),
    *every_mix("scatter", lambda x, y: torch.scatter(x, 0, ONCE, y), (4, 3), (2, 3)),
    moved("scatter value", lambda x: x.scatter(0, ONCE, 2.5), 4, 3),
    *every_mix("scatter_reduce sum", lambda x, y: x.scatter_reduce(0, EACH, y, "sum"), (4, 3), (5, 3)),
    *every_mix("scatter_reduce mean", lambda x, y: x.scatter_reduce(0, EACH, y, "mean"), (4, 3), (5, 3)),
    *every_mix("scatter_reduce mean without self",
               lambda x, y: torch.scatter_reduce(x, 0, EACH, y, "mean", include_self=False), (4, 3), (5, 3)),
]  # fmt: skip

CASES = AFFINE + SHAPE + ARITHMETIC + AVERAGE + INDEXING
