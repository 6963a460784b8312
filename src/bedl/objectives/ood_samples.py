"""Off-manifold copies of inputs: things that look like the data from afar, and are not.

A perturbation is a function ``(x, generator) -> x`` of the same shape. None of them needs other data.
`PAC(on="perturbed")` uses them to say "here you do not know" about places that the training set does not cover. Random
numbers are drawn where the generator is and given where the inputs are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from bedl._utils.errors import BEDLError
from bedl.moments import Moments
from bedl.nn.calling import has_parts, map_parts
from bedl.objectives.base import Batch


def draw_uniform(x: Tensor, *shape: int, generator: Generator | None) -> Tensor:
    """Uniform numbers in [0, 1) where `x` is; drawn where the generator is."""
    device = generator.device if generator is not None else x.device
    return torch.rand(shape, generator=generator, device=device, dtype=x.dtype).to(x.device)


def draw_integer(high: int, generator: Generator | None) -> int:
    """A whole number from 0 to high - 1."""
    device = generator.device if generator is not None else torch.device("cpu")
    return int(torch.randint(high, (), generator=generator, device=device))


def channel_range(x: Tensor) -> tuple[Tensor, Tensor]:
    """Least and greatest value of each channel over the batch. shapes: (1, channels, 1, 1)"""
    return x.amin((0, 2, 3), keepdim=True), x.amax((0, 2, 3), keepdim=True)


# Copies of images that are no data: digits turned into strokes, scenes into patches, and noise of every size.
#
# Each kind is a function ``(x, generator) -> x`` of images of shape (n, channels, height, width), of any size and range
# of values. What lies outside the picture is what its edge shows.


def noisy(x: Tensor, generator: Generator | None = None, sizes: tuple[float, float] = (0.15, 1.0)) -> Tensor:
    """Noise of a random size, from single pixels to patches, within each channel's range over the batch.

    Args:
        x: images. shape: (n, channels, height, width)
        generator: source of randomness.
        sizes: least and greatest standard deviation of the noise, in units of the range.
    """
    n, channels, height, width = x.shape
    low, high = channel_range(x)
    grain = 1 + draw_integer(max(1, min(height, width) // 4), generator)
    uniform = draw_uniform(x, n, channels, -(-height // grain), -(-width // grain), generator=generator)
    noise = F.interpolate((2 * uniform - 1) * math.sqrt(3), size=(height, width), mode="nearest")
    least, most = (math.log(size) for size in sizes)
    size = torch.exp(least + (most - least) * draw_uniform(x, n, 1, 1, 1, generator=generator))
    return (x + size * (high - low) * noise).clamp(low, high)


def turned(x: Tensor, generator: Generator | None = None) -> Tensor:
    """Each image turned by a quarter, to the left or to the right; turned over, too, every other time.

    Images that are not square are turned upside down, and over every other time.

    Args:
        x: images. shape: (n, channels, height, width)
        generator: source of randomness.
    """
    if x.shape[-1] != x.shape[-2]:
        choices = [x.flip(-2), x.flip((-1, -2))]
    else:
        left, right = x.rot90(1, (-2, -1)), x.rot90(3, (-2, -1))
        choices = [left, right, left.flip(-1), right.flip(-1)]
    number = (draw_uniform(x, len(x), generator=generator) * len(choices)).long().clamp(max=len(choices) - 1)
    return torch.stack(choices)[number, torch.arange(len(x), device=x.device)]


def moved(x: Tensor, generator: Generator | None = None) -> Tensor:
    """Each image turned by 45° to 315°, sheared, and seen from half to twice the distance.

    Args:
        x: images. shape: (n, channels, height, width)
        generator: source of randomness.
    """
    angle, size, stretch, shear = draw_uniform(x, 4, len(x), generator=generator)
    angle = math.pi * (0.25 + 1.5 * angle)
    size, stretch, shear = torch.exp(math.log(4) * (size - 0.5)), torch.exp(stretch - 0.5), shear - 0.5
    cos, sin = angle.cos() * size, angle.sin() * size
    rows = torch.stack([cos * stretch, shear * cos - sin, 0 * cos, sin * stretch, shear * sin + cos, 0 * cos], -1)
    return _seen_at(x, F.affine_grid(rows.reshape(-1, 2, 3), list(x.shape), align_corners=False))


def warped(x: Tensor, generator: Generator | None = None, reach: tuple[float, float] = (0.5, 1.0)) -> Tensor:
    """Each image as on crumpled paper: every place is taken from another one. What is bent less is often still data.

    Args:
        x: images. shape: (n, channels, height, width)
        generator: source of randomness.
        reach: least and greatest distance between the two, in units of half the picture.
    """
    size = reach[0] + (reach[1] - reach[0]) * draw_uniform(x, len(x), 1, 1, 1, generator=generator)
    return _seen_at(x, _straight(x) + _field(x, 3 + draw_integer(3, generator), generator) * size)


def joined(x: Tensor, generator: Generator | None = None) -> Tensor:
    """A part of one image, up to a straight cut, beside a part of another one that is `turned`.

    Turned, because halves of two images of one class often fit together as they are.

    Args:
        x: images. shape: (n, channels, height, width)
        generator: source of randomness.
    """
    return torch.where(_side(x, generator), x, turned(_partners(x, generator), generator))


def grafted(x: Tensor, generator: Generator | None = None) -> Tensor:
    """Parts of two images, cut off straight, each turned by any angle and moved, the brighter one at each pixel.

    Beyond the cuts the darkest value of each channel is taken: of strokes on a ground, other strokes are made.

    Args:
        x: images. shape: (n, channels, height, width)
        generator: source of randomness.
    """
    low = channel_range(x)[0]
    parts = (torch.where(_side(part, generator), part, low) for part in (x, _partners(x, generator)))
    return torch.maximum(*(_placed(part, generator, turn=math.pi, shift=0.15, zoom=1.3) for part in parts))


def jittered(
    x: Tensor,
    generator: Generator | None = None,
    shift: float = 0.05,
    turn: float = 8.0,
    zoom: float = 0.08,
    warp: float = 0.04,
    share: float = 0.5,
) -> Tensor:
    """Images a little elsewhere, turned, sheared, larger or smaller and bent: what they show stays what it is.

    This is no copy off the data but an augmentation of them, for ``BEDL(…, augment=jittered)``. Images are not
    mirrored: many things, letters and digits among them, are others in a mirror (`mirrored`). Some are left as they
    are, since an image that is moved is also blurred a little: a network that has only seen such takes sharp ones for
    foreign.

    Args:
        x: images. shape: (n, channels, height, width)
        generator: source of randomness.
        shift: at most so far, in units of the picture.
        turn: at most by so many degrees.
        zoom: at most so much larger or smaller, and twice as much sheared.
        warp: places are bent by so much, in units of half the picture.
        share: of the images that are varied.

    Example:
        >>> image = torch.zeros(1, 1, 28, 28)
        >>> image[..., 10:18, 10:18] = 1.0
        >>> other = jittered(image, torch.Generator().manual_seed(0), share=1.0)
        >>> other.shape, bool((other != image).any()), bool(other[0, 0, 13, 13] > 0.9)
        (torch.Size([1, 1, 28, 28]), True, True)
    """
    right, down, angle, size, shear = 2 * draw_uniform(x, 5, len(x), generator=generator) - 1
    angle, size, shear = math.radians(turn) * angle, 1 + zoom * size, 2 * zoom * shear
    cos, sin = angle.cos() * size, angle.sin() * size
    rows = torch.stack([cos, shear * cos - sin, 2 * shift * right, sin, shear * sin + cos, 2 * shift * down], -1)
    places = F.affine_grid(rows.reshape(-1, 2, 3), list(x.shape), align_corners=False)
    varied = draw_uniform(x, len(x), 1, 1, 1, generator=generator) < share
    return torch.where(varied, _seen_at(x, places + warp * _field(x, 5, generator)), x)


def mirrored(x: Tensor, generator: Generator | None = None) -> Tensor:
    """Every other image seen in a mirror, left and right exchanged: an augmentation for pictures of things.

    Args:
        x: images. shape: (n, channels, height, width)
        generator: source of randomness.

    Example:
        >>> x = torch.arange(4.0).expand(100, 1, 1, 4)
        >>> y = mirrored(x, torch.Generator().manual_seed(0))
        >>> {tuple(row.tolist()) for row in y[:, 0, 0]} == {(0.0, 1.0, 2.0, 3.0), (3.0, 2.0, 1.0, 0.0)}
        True
    """
    return torch.where(draw_uniform(x, len(x), 1, 1, 1, generator=generator) < 0.5, x.flip(-1), x)


def _partners(x: Tensor, generator: Generator | None) -> Tensor:
    """The same images in another order. shape: (n, channels, height, width)"""
    return x[draw_uniform(x, len(x), generator=generator).argsort()]


def _placed(x: Tensor, generator: Generator | None, turn: float, shift: float, zoom: float) -> Tensor:
    """Each image turned by up to so many radians, shifted by shares of the picture, larger or smaller by a factor."""
    angle, size, right, down = 2 * draw_uniform(x, 4, len(x), generator=generator) - 1
    angle, size = turn * angle, torch.exp(math.log(zoom) * size)
    cos, sin = angle.cos() * size, angle.sin() * size
    rows = torch.stack([cos, -sin, 2 * shift * right, sin, cos, 2 * shift * down], -1)
    return _seen_at(x, F.affine_grid(rows.reshape(-1, 2, 3), list(x.shape), align_corners=False))


def _side(x: Tensor, generator: Generator | None) -> Tensor:
    """Places on one side of a line through about the middle, another one for each image. shape: (n, 1, h, w)"""
    angle, offset = draw_uniform(x, 2, len(x), 1, 1, generator=generator)
    column, row = _straight(x).unbind(-1)  # shapes: (1, h, w)
    angle = 2 * math.pi * angle
    return (angle.cos() * column + angle.sin() * row > 0.4 * (offset - 0.5))[:, None]


def _straight(x: Tensor) -> Tensor:
    """Where each place of an image is, from -1 to 1. shape: (1, h, w, 2)"""
    same = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]], dtype=x.dtype, device=x.device)
    return F.affine_grid(same, [1, 1, *x.shape[-2:]], align_corners=False)


def _field(x: Tensor, cells: int, generator: Generator | None) -> Tensor:
    """Smooth random displacements of about unit size. shape: (n, h, w, 2)"""
    noise = 2 * draw_uniform(x, len(x), 2, cells, cells, generator=generator) - 1
    return F.interpolate(noise, size=x.shape[-2:], mode="bicubic", align_corners=False).permute(0, 2, 3, 1)


def _seen_at(x: Tensor, places: Tensor) -> Tensor:
    return F.grid_sample(x, places, padding_mode="border", align_corners=False)


# Off-manifold copies of inputs: things that look like the data from afar, and are not.
#
# A perturbation is a function ``(x, generator) -> x`` of the same shape. None of them needs other data.
# `PAC(on="perturbed")` uses them to say "here you do not know" about places that the training set does not cover.


Perturbation = Callable[[Tensor, Generator | None], Tensor]


def shuffle_blocks(x: Tensor, generator: Generator | None = None, blocks: int = 4) -> Tensor:
    """Cut each image into `blocks` × `blocks` tiles and put them in another order, anew for each image.

    Rows and columns left over at the lower and right edge stay where they are.

    Args:
        x: images. shape: (n, channels, height, width)
        generator: source of randomness.
        blocks: tiles per side.

    Example:
        >>> image = torch.arange(16.0).reshape(1, 1, 4, 4)
        >>> shuffled = shuffle_blocks(image, torch.Generator().manual_seed(0), blocks=2)
        >>> bool((shuffled != image).any()), bool((shuffled.sort().values.sum() == image.sum()))
        (True, True)
    """
    n, _, height, width = x.shape
    blocks = min(blocks, height, width)
    h, w = height // blocks, width // blocks
    inner = x[..., : h * blocks, : w * blocks]
    tiles = F.unfold(inner, (h, w), stride=(h, w))  # shape: (n, channels·h·w, blocks²)
    order = draw_uniform(x, n, 1, blocks * blocks, generator=generator).argsort(-1)
    tiles = tiles.gather(-1, order.expand_as(tiles))
    result = x.clone()
    result[..., : h * blocks, : w * blocks] = F.fold(tiles, inner.shape[-2:], (h, w), stride=(h, w))
    return result


def shuffle_quarters(x: Tensor, generator: Generator | None = None) -> Tensor:
    """`shuffle_blocks` with two tiles per side: larger parts stay whole. x: shape (n, channels, height, width)"""
    return shuffle_blocks(x, generator, blocks=2)


def smooth_blobs(x: Tensor, generator: Generator | None = None, coarseness: tuple[int, int] = (3, 8)) -> Tensor:
    """Smooth random blobs that fill the batch's range of values, from flat clouds to sharp islands.

    Args:
        x: images; only their shape and range are used. shape: (n, channels, height, width)
        generator: source of randomness.
        coarseness: least and greatest number of bumps per side.
    """
    n, channels, height, width = x.shape
    low, high = channel_range(x)
    cells = coarseness[0] + draw_integer(coarseness[1] - coarseness[0] + 1, generator)
    # Only a sum of uniforms is needed: three are as good as normal here.
    noise = draw_uniform(x, 3, n, channels, cells, cells, generator=generator).sum(0) - 1.5
    clouds = F.interpolate(noise, size=(height, width), mode="bicubic", align_corners=False)
    sharpness = 1 + 14 * draw_uniform(x, n, 1, 1, 1, generator=generator)
    shift = draw_uniform(x, n, 1, 1, 1, generator=generator) - 0.5
    return low + (high - low) * torch.sigmoid(sharpness * (clouds + shift))


def maximum_of_two(x: Tensor, generator: Generator | None = None) -> Tensor:
    """The brighter of two images at each pixel, one of them or both flipped or turned.

    Args:
        x: images. shape: (n, channels, height, width)
        generator: source of randomness.
    """
    partner = x[draw_uniform(x, len(x), generator=generator).argsort()]
    square = x.shape[-1] == x.shape[-2]
    turns = [lambda t: t.flip(-1), lambda t: t.flip(-2), lambda t: t.flip((-1, -2))]
    if square:
        turns += [lambda t: t.rot90(1, (-2, -1)), lambda t: t.rot90(3, (-2, -1)), lambda t: t.transpose(-1, -2)]
    own = [lambda t: t, *turns]
    return torch.maximum(own[draw_integer(len(own), generator)](x), turns[draw_integer(len(turns), generator)](partner))


def invert_contrast(x: Tensor, generator: Generator | None = None) -> Tensor:
    """Dark for bright, within each channel's range over the batch.

    Args:
        x: images. shape: (n, channels, height, width)
        generator: not used; nothing is random here.

    Example:
        >>> invert_contrast(torch.tensor([0.0, 0.25, 1.0]).reshape(1, 1, 1, 3)).flatten()
        tensor([1.0000, 0.7500, 0.0000])
    """
    low, high = channel_range(x)
    return low + high - x


def permute_columns(x: Tensor, generator: Generator | None = None) -> Tensor:
    """Permute each column by itself across rows: every column keeps its values, what held them together is gone.

    Args:
        x: a table. shape: (*tables, n, columns)
        generator: source of randomness.
    """
    return x.gather(-2, draw_uniform(x, *x.shape, generator=generator).argsort(-2))


def outside_range(x: Tensor, generator: Generator | None = None, reach: float = 1.0) -> Tensor:
    """Push some values of each row, at least one, outside the column's range over the batch.

    Each column is pushed with probability 1/2, by up to `reach` times the width of its range.

    Args:
        x: a table, or several. shape: (*tables, n, columns)
        generator: source of randomness.
        reach: how far.
    """
    low, high = x.amin(-2, keepdim=True), x.amax(-2, keepdim=True)
    width = torch.where(high > low, high - low, 1.0)
    distance = (0.05 + 0.95 * draw_uniform(x, *x.shape, generator=generator)) * reach * width
    up = draw_uniform(x, *x.shape, generator=generator) < 0.5
    score = draw_uniform(x, *x.shape, generator=generator)
    chosen = (score < 0.5) | (score == score.amin(-1, keepdim=True))
    return torch.where(chosen, torch.where(up, high + distance, low - distance), x)


class one_of:
    """A perturbation that does one of several, chosen anew for each batch.

    Example:
        >>> one_of(permute_columns, outside_range)(torch.rand(5, 2), None).shape
        torch.Size([5, 2])
    """

    def __init__(self, *kinds: Perturbation):
        if not kinds:
            raise ValueError("one_of needs at least one perturbation")
        self.kinds = kinds

    def __call__(self, x: Tensor, generator: Generator | None = None) -> Tensor:
        return self.kinds[draw_integer(len(self.kinds), generator)](x, generator)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(getattr(kind, '__name__', repr(kind)) for kind in self.kinds)})"


class each_of(one_of):
    """A perturbation that does all of several, each with its share of the batch: the mean over a batch is steadier.

    Example:
        >>> each_of(permute_columns, outside_range)(torch.rand(5, 2), None).shape
        torch.Size([5, 2])
    """

    def __call__(self, x: Tensor, generator: Generator | None = None) -> Tensor:
        device = generator.device if generator is not None else torch.device("cpu")
        order = torch.rand(len(self.kinds), generator=generator, device=device).argsort().tolist()
        shares = zip(order, x.tensor_split(len(self.kinds)), strict=True)
        return torch.cat([self.kinds[kind](share, generator) for kind, share in shares if len(share)])


class as_images:
    """A perturbation of images for rows of a table that are images: pixels as columns, channel by channel, row by row.

    Args:
        perturbation: of images.
        shape: of one of them, (height, width) or (channels, height, width).

    Example:
        >>> as_images(invert_contrast, (2, 2))(torch.tensor([[0.0, 0.25, 0.5, 1.0]]), None)
        tensor([[1.0000, 0.7500, 0.5000, 0.0000]])
    """

    def __init__(self, perturbation: Perturbation, shape: tuple[int, ...]):
        self.perturbation, self.shape = perturbation, (1, *shape)[-3:]

    def __call__(self, x: Tensor, generator: Generator | None = None) -> Tensor:
        return self.perturbation(x.reshape(-1, *self.shape), generator).reshape(x.shape)

    def __repr__(self) -> str:
        return f"as_images({getattr(self.perturbation, '__name__', self.perturbation)!r}, {self.shape})"


def around_and_beyond(
    x: Tensor, generator: Generator | None = None, reach: float = 3.0, sizes: tuple[float, float] = (0.1, 2.0)
) -> Tensor:
    """Rows that are no data, each of one of three kinds: near by, with noise of a random size, which reaches into gaps;
    some columns anywhere, up to far outside; or each column from another row.

    Args:
        x: a table, or several. shape: (*tables, n, columns)
        generator: source of randomness.
        reach: how much of what is anywhere lies far outside: half of it beyond 0.58 · reach standard deviations.
        sizes: least and greatest standard deviation of the noise, in units of the columns' own.
    """
    row, table = (*x.shape[:-1], 1), x.shape
    loc = x.mean(-2, keepdim=True)
    std = (x - loc).square().mean(-2, keepdim=True).sqrt()
    std = torch.where(std > 0, std, 1.0)
    rand = functools.partial(draw_uniform, x, generator=generator)
    kind, size, share = rand(*row), sizes[0] * torch.exp(math.log(sizes[1] / sizes[0]) * rand(*row)), rand(*row)
    uniform, score = 2 * rand(*table) - 1, rand(*table)  # of which each row uses what its kind needs
    near, mixed = kind < 0.5, kind >= (0.75 if x.shape[-1] > 1 else 1.0)
    normal = torch.erfinv(uniform.clamp(-1 + 2e-6, 1 - 2e-6)) * math.sqrt(2)
    around = torch.addcmul(x, torch.where(near, size, 0.0) * std, normal)
    bounded = uniform * 0.999
    anywhere = torch.addcmul(loc, std * reach, bounded * torch.rsqrt(1 - bounded.square()))
    another = x.gather(-2, ((0.5 + 0.5 * uniform) * x.shape[-2]).long().clamp_max_(x.shape[-2] - 1))
    # of a row that is far away some columns change, at least one; of one that is mixed all; of one near by none
    most = torch.where(near, -1.0, torch.where(mixed, 1.0, torch.maximum(share, score.amin(-1, keepdim=True))))
    return torch.where(score <= most, torch.where(mixed, another, anywhere), around)


around_and_beyond.many_tables = True  # type: ignore[attr-defined]  # see `takes_batched`


def beyond(x: Tensor, generator: Generator | None = None) -> Tensor:
    """`around_and_beyond` within the range of the columns, with others in place of copies that may be data: copies that
    are nearer to the data than nine out of ten of its rows are to each other. x: shape (*tables, n, columns)
    """
    copies = around_and_beyond(x, generator, sizes=(0.7, 2.0))
    copies = copies.clamp(x.amin(-2, keepdim=True), x.amax(-2, keepdim=True))
    std = x.std(-2, correction=0, keepdim=True)
    scale = torch.where(std > 0, std, 1.0)
    own, other = x / scale, copies / scale
    apart = torch.cdist(own, own) + torch.diag_embed(x.new_full(x.shape[:-1], math.inf))
    usual = apart.amin(-1, keepdim=True).quantile(0.9, -2, keepdim=True)
    near = (torch.cdist(other, own).amin(-1, keepdim=True) <= usual).to(x.dtype)
    order = (near + draw_uniform(x, *near.shape, generator=generator)).argsort(
        -2
    )  # at random, those that are far first
    count = (1 - near).sum(-2, keepdim=True).clamp_min(1)
    rank = torch.arange(x.shape[-2], device=x.device).view(-1, 1) % count
    return copies.gather(-2, order.gather(-2, rank.long()).expand_as(copies))


beyond.many_tables = True  # type: ignore[attr-defined]


def takes_batched(perturbation: Perturbation | None) -> bool:
    """Whether a perturbation makes copies of many tables in one call: it says so by an attribute `many_tables`."""
    return bool(getattr(perturbation, "many_tables", False))


def with_copies(
    batch: Batch, perturbation: Perturbation | None, generator: Generator | None = None, share: float = 1.0
) -> Batch:
    """The batch with perturbed copies of its inputs, or of a share of them, unless it has some; a noisy input's copy is
    as noisy.
    """
    if batch.perturbed is not None:
        return batch
    if perturbation is None and has_parts(batch.x):
        raise BEDLError(
            "there is no default perturbation for several inputs: give one that takes and returns all of them, "
            "PAC(on='perturbed', perturbation=lambda x, generator: …)"
        )
    if perturbation is None and isinstance(batch.x, Tensor) and not batch.x.is_floating_point():
        raise BEDLError(
            f"there is no default perturbation for inputs of type {batch.x.dtype}, such as tokens: give one, "
            "PAC(on='perturbed', perturbation=lambda x, generator: …), or stay with the data (on='data')"
        )
    x, kind = batch.x, perturbation or perturbation_for(batch.x)
    if share < 1 and takes_batched(kind):
        x = x[..., : math.ceil(share * x.shape[-2]), :]
    elif share < 1:
        x = map_parts(lambda part: part[: math.ceil(share * len(part))], x)
    return batch._replace(perturbed=varied(x, kind, generator))


def varied(x: Tensor | Moments, perturbation: Perturbation, generator: Generator | None = None) -> Tensor | Moments:
    """Perturbed inputs; noisy ones stay as noisy as they are. x: shape (n, *input)"""
    if isinstance(x, Moments):
        return Moments(perturbation(x.loc, generator), x.variance)
    return perturbation(x, generator)


IMAGE = each_of(
    *(shuffle_blocks, shuffle_quarters, smooth_blobs, maximum_of_two, invert_contrast, noisy, turned, moved, warped),
    *(joined, grafted),
)
TABLE = one_of(permute_columns, outside_range)


def perturbation_for(x: Tensor | Moments) -> Perturbation:
    """The perturbation that fits an input of this shape: `IMAGE` for (n, c, h, w), `TABLE` for (n, d).

    A table of one column is only pushed outside its range: permuting it gives the same points back.
    """
    if x.ndim == 4:
        return IMAGE
    if x.ndim == 2:
        return TABLE if x.shape[1] > 1 else outside_range
    raise BEDLError(
        f"there is no default perturbation for inputs of shape {tuple(x.shape)}: give one, "
        "PAC(on='perturbed', perturbation=lambda x, generator: …)"
    )
