"""Copies of images that are no data: digits turned into strokes, scenes into patches, and noise of every size.

Each kind is a function ``(x, generator) -> x`` of images of shape (n, channels, height, width), of any size and range
of values. What lies outside the picture is what its edge shows.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from bedl.objectives.drawing import channel_range, draw_integer, draw_uniform

__all__ = ["grafted", "jittered", "joined", "mirrored", "moved", "noisy", "turned", "warped"]


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
