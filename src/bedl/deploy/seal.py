"""A checksum at the end of an ONNX file, over everything before it, that NumPy-only rooms can check.

Fields of a protobuf message may stand in any order: the last bytes of a sealed file are one more entry of the model's
metadata, with the SHA-256 of all bytes before them. Programs that read ONNX see an entry among others.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["is_sealed", "sealed"]

KEY = b"bedl.sha256"
DIGITS = 64
# ModelProto.metadata_props (field 14) = {key (field 1): KEY, value (field 2): 64 digits}, each with its length
_ENTRY = bytes([0x0A, len(KEY)]) + KEY + bytes([0x12, DIGITS])
_START = bytes([0x72, len(_ENTRY) + DIGITS]) + _ENTRY
LENGTH = len(_START) + DIGITS
_CHUNK = 2**22


def sealed(content: bytes) -> bytes:
    """The bytes of an ONNX file with their checksum."""
    return content + _START + hashlib.sha256(content).hexdigest().encode()


def is_sealed(path: Path) -> bool | None:
    """Whether the checksum at the end of a file is that of what comes before; None: there is none at the end.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "model.onnx")
        ...     for content in (sealed(b"model"), sealed(b"model")[1:], b"model"):
        ...         _ = path.write_bytes(content)
        ...         print(is_sealed(path))
        True
        False
        None
    """
    left = path.stat().st_size - LENGTH
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while left > 0:
            part = file.read(min(left, _CHUNK))
            if not part:
                return False
            digest.update(part)
            left -= len(part)
        end = file.read()
    if not end.startswith(_START):
        return None
    return end == _START + digest.hexdigest().encode()
