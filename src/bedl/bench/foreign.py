"""Images that are none of a data set's classes, and which of the training's perturbations each of them resembles.

Letters are drawn with the DejaVu fonts (Debian's fonts-dejavu) by Pillow and put into the frame as MNIST's digits are:
20 pixels large, centred by mass. Letters that are also digits to a reader are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from bedl.bench.images import scaled
from bedl.bench.table import Root
from bedl.data.images import load_images

__all__ = ["RESEMBLES", "foreign_sets"]

FONTS = Path("/usr/share/fonts/truetype/dejavu")
FACES = "Sans Sans-Oblique Sans-ExtraLight SansCondensed Serif Serif-Italic SansMono SansMono-Bold".split()
LATIN, GREEK = "ACEFGHJKLMNPQRTUVWXYadefhkmnprtuwxy", "ΓΔΘΛΞΠΣΦΨΩαβγδεζηθκλμξπρστφχψω"
RESEMBLES = {  # the names of `bedl.objectives.perturbations.IMAGE`
    "fashion": "smooth_blobs, a little",
    "cifar-6-10": "none",
    "cifar-grey": "noisy and smooth_blobs, a little",
    "digits": "none",
    "turned": "turned (the same), moved",
    "upside-down": "moved, for some angles",
    "mirrored": "none; but 0, 1 and 8 stay digits",
    "inverted": "invert_contrast (the same)",
    "noise": "noisy, at its strongest",
    "latin": "grafted, a little",
    "greek": "grafted, a little",
    "strokes": "grafted and warped, a little",
}


def foreign_sets(
    dataset: str, test: np.ndarray, root: Root = None, most: int | None = None
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Foreign images by name, the paper's first, and why some are left out: what they are made of is not there.

    Args:
        dataset: ``mnist`` or ``cifar-1-5``.
        test: its test images, which some are made of. shape: (n, channels, height, width)
        root: where data sets are.
        most: of each set, no more than that.
    """
    makers = _of_digits(test, root, min(most or 2000, 2000)) if dataset == "mnist" else _of_scenes(test, root)
    found, left_out = {}, {}
    for name, make in makers.items():
        try:
            found[name] = np.ascontiguousarray(make()[:most])
        except (ImportError, OSError) as error:
            left_out[name] = str(error)
    return found, left_out


def _of_digits(test: np.ndarray, root: Root, drawn: int) -> dict[str, Callable[[], np.ndarray]]:
    return {
        "fashion": lambda: scaled(load_images("fashion_mnist", train=False, root=root)[0]),
        "cifar-grey": lambda: _grey(root),
        "turned": lambda: np.rot90(test, axes=(2, 3)),
        "upside-down": lambda: test[:, :, ::-1, ::-1],
        "mirrored": lambda: test[..., ::-1],
        "inverted": lambda: 1 - test,
        "noise": lambda: _noise(test),
        "latin": lambda: letters(LATIN, drawn, seed=1),
        "greek": lambda: letters(GREEK, drawn, seed=2),
        "strokes": lambda: strokes(drawn, seed=3),
    }


def _of_scenes(test: np.ndarray, root: Root) -> dict[str, Callable[[], np.ndarray]]:
    def others() -> np.ndarray:
        images, labels, _ = load_images("cifar10", train=False, root=root)
        return scaled(images[labels >= 5])

    def digits() -> np.ndarray:
        small = scaled(load_images("mnist", train=False, root=root)[0])
        return np.repeat(np.pad(small, ((0, 0), (0, 0), (2, 2), (2, 2))), 3, axis=1)

    return {
        "cifar-6-10": others,
        "digits": digits,
        "turned": lambda: np.rot90(test, axes=(2, 3)),
        "inverted": lambda: 1 - test,
        "noise": lambda: _noise(test),
    }


def _noise(test: np.ndarray) -> np.ndarray:
    return np.random.default_rng(4).random((min(len(test), 2000), *test.shape[1:]), dtype=np.float32)


def _grey(root: Root) -> np.ndarray:
    """CIFAR-10's test part in grey, without its outermost two pixels."""
    colours = scaled(load_images("cifar10", train=False, root=root)[0])
    return np.einsum("nchw,c->nhw", colours, [0.299, 0.587, 0.114])[:, None, 2:30, 2:30].astype(np.float32)


def letters(text: str, n: int, seed: int) -> np.ndarray:
    """Letters at random, slanted and turned a little, thin to bold. shape: (n, 1, 28, 28)"""
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    rng = np.random.default_rng(seed)
    fonts = [ImageFont.truetype(str(FONTS / f"DejaVu{face}.ttf"), 72) for face in FACES]
    images = []
    for _ in range(n):
        picture = Image.new("L", (160, 160), 0)
        font, letter = fonts[rng.integers(len(fonts))], text[rng.integers(len(text))]
        ImageDraw.Draw(picture).text((50, 30), letter, 255, font=font, stroke_width=int(rng.integers(3)))
        slant = rng.normal(0, 0.15)
        picture = picture.rotate(rng.normal(0, 6), Image.Resampling.BICUBIC)
        matrix = (1, slant, -80 * slant, 0, 1, 0)
        picture = picture.transform(picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)
        images.append(_framed(picture.filter(ImageFilter.GaussianBlur(1.5))))
    return np.stack(images)[:, None]


def strokes(n: int, seed: int) -> np.ndarray:
    """One to three curves of a pen, at random. shape: (n, 1, 28, 28)"""
    from PIL import Image, ImageDraw, ImageFilter

    rng = np.random.default_rng(seed)
    t = np.linspace(0, 1, 30)[:, None]
    images = []
    for _ in range(n):
        picture, start, width = Image.new("L", (160, 160), 0), rng.uniform(30, 130, 2), int(rng.integers(8, 18))
        for _ in range(rng.integers(1, 4)):
            a, b, end = rng.uniform(20, 140, (3, 2))
            curve = (1 - t) ** 3 * start + 3 * (1 - t) ** 2 * t * a + 3 * (1 - t) * t**2 * b + t**3 * end
            ImageDraw.Draw(picture).line([tuple(point) for point in curve], 255, width, joint="curve")
            start = end if rng.random() < 0.6 else rng.uniform(30, 130, 2)
        images.append(_framed(picture.filter(ImageFilter.GaussianBlur(2))))
    return np.stack(images)[:, None]


def _framed(picture: object) -> np.ndarray:
    """What is drawn, 20 pixels large, centred by mass. shape: (28, 28)"""
    from PIL import Image

    assert isinstance(picture, Image.Image)
    rows, columns = np.nonzero(np.asarray(picture) > 30)
    drawn = picture.crop((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1))
    size = 20 / max(drawn.size)
    small = drawn.resize([max(1, round(side * size)) for side in drawn.size], Image.Resampling.LANCZOS)
    ink = np.asarray(small, dtype=np.float32) / 255
    result = np.zeros((28, 28), np.float32)
    places = []
    for axis in (0, 1):
        middle = (ink.sum(1 - axis) * np.arange(ink.shape[axis])).sum() / ink.sum()
        places.append(int(np.clip(round(13.5 - middle), 0, 28 - ink.shape[axis])))
    result[places[0] : places[0] + ink.shape[0], places[1] : places[1] + ink.shape[1]] = ink
    return result.clip(0, 1)
