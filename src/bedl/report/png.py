"""Small images as data URIs."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["data_uri", "encode"]

SIDE = 128  # larger images are thinned out: they are shown small


def encode(image: NDArray[np.uint8]) -> bytes:
    """An image as a PNG file. shape: (H, W), (1, H, W) or (3, H, W)

    >>> encode(np.zeros((2, 2), np.uint8))[:4]
    b'\\x89PNG'
    """
    pixels = image[0] if image.ndim == 3 and len(image) == 1 else image
    colour = pixels.ndim == 3
    lines = np.moveaxis(pixels, 0, -1) if colour else pixels
    height, width = lines.shape[:2]
    filtered = np.zeros((height, 1 + lines[0].size), np.uint8)  # each line starts with its filter type, 0 is none
    filtered[:, 1:] = lines.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if colour else 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def data_uri(image: NDArray[np.uint8]) -> str:
    """The image inline, for the src of an img; of large ones, every k-th pixel. shape: as for `encode`"""
    step = max(1, -(-max(image.shape[-2:]) // SIDE))
    return "data:image/png;base64," + base64.b64encode(encode(image[..., ::step, ::step])).decode("ascii")
