"""One file over HTTP, continued where an earlier attempt broke off."""

from __future__ import annotations

import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bedl.data.errors import DataError, DataFileError

__all__ = ["DownloadProgress", "Resuming"]

DownloadProgress = Callable[[str, int, int | None], object]
"""Called with (file name, bytes so far, bytes in all or None)."""

_MOST_BYTES = 1 << 30  # several times the largest data set
_CHUNK = 1 << 18


class Resuming:
    """A downloader for pooch that keeps what has arrived in `part`, and asks only for the rest.

    The sum of the whole is pooch's business, so a part that belongs to another version of the file is found out there;
    pooch then raises, and as `part` has been handed over by then, the next attempt starts afresh.
    """

    def __init__(self, part: Path, progress: DownloadProgress | None = None, attempts: int = 3, pause: float = 0.5):
        self.part, self.progress, self.attempts, self.pause = part, progress, attempts, pause

    def __call__(self, url: str, output_file: str, pooch: Any, check_only: bool = False) -> None:
        idle = 0  # attempts in a row that brought nothing
        while idle < self.attempts:
            before = self._size()
            try:
                self._continue(url)
                os.replace(self.part, output_file)
                return
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, DataFileError):
                    raise
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                    if error.code < 500:
                        raise DataFileError(
                            f"{url} answers {error.code} ({error.reason}). Has it moved? Give another base_url"
                        ) from None
                failure = str(error)
            idle = idle + 1 if self._size() <= before else 0
            time.sleep(self.pause * idle)
        kept = self._size()
        if not kept:
            self.part.unlink(missing_ok=True)
        remedy = f"{kept} bytes are kept; the next attempt continues from there" if kept else "Check the network"
        raise DataFileError(f"{url} could not be downloaded: {failure}. {remedy}")

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _continue(self, url: str) -> None:
        start = self._size()
        request = urllib.request.Request(url, headers={"User-Agent": "bedl", "Accept-Encoding": "identity"})
        if start:
            request.add_header("Range", f"bytes={start}-")
        try:
            response = urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as error:
            if error.code != 416:
                raise
            error.close()
            # The part is complete, or longer than the file: only a fresh start can tell.
            self.part.unlink(missing_ok=True)
            raise ConnectionError("the server has no more bytes than are here already") from None
        with response:
            start = start if response.status == 206 and _range_start(response) == start else 0
            length = response.headers.get("Content-Length")
            total = start + int(length) if length and length.isdecimal() else None
            self._receive(url, response, start, total)

    def _receive(self, url: str, response: Any, start: int, total: int | None) -> None:
        name, done = url.rsplit("/", 1)[-1], start
        with open(self.part, "ab" if start else "wb") as file:
            while chunk := response.read(_CHUNK):
                done += len(chunk)
                if done > _MOST_BYTES:
                    file.close()
                    self.part.unlink()
                    raise DataError(f"{url} is larger than {_MOST_BYTES >> 20} MiB, too large for a data set")
                file.write(chunk)
                if self.progress is not None:
                    self.progress(name, done, total)
        if total is not None and done < total:
            raise ConnectionError(f"it broke off after {done} of {total} bytes")


def _range_start(response: Any) -> int:
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(match[1]) if match else -1
