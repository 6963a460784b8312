"""What ends a command early: Ctrl-C and SIGTERM. Imports nothing: a command can be stopped while it imports."""

from __future__ import annotations

import signal


class Stopped(BaseException):
    """SIGTERM or Ctrl-C. No KeyboardInterrupt: Typer would end the process at some of those without a word.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int = signal.SIGINT):
        super().__init__(number)
        self.number = number


def exit_code(stop: BaseException) -> int:
    """What a process that was stopped ends with: 128 and the number of the signal."""
    return 128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT)


def listen() -> None:
    """Make signals that end the process exceptions, so that what is under way is put away first."""
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started us wants it ignored
        signal.signal(signal.SIGINT, _stop)


def stop_listening() -> None:
    """All is done, and what is left is Python's own end, which would let a signal look like a failure."""
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is _stop:
            signal.signal(number, signal.SIG_IGN)


_asked: list[int] = []


def asked_to_stop() -> Stopped | None:
    """The stop that was asked for, if one was: libraries may swallow the exception, and fail by it later."""
    return Stopped(_asked[0]) if _asked else None


def _stop(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
    _asked.append(number)
    raise Stopped(number)
