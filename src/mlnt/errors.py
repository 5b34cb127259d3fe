"""What a user did that cannot work, said in one line."""

import difflib
import itertools
import reprlib
from collections.abc import Iterable

LONGEST_WORD, MOST_OPTIONS = 100, 5000


class InputError(ValueError):
    """A mistake in what the user gave: says what came, what is allowed and what to do.

    The command line prints it as one line and exits with status 2.
    """


class Busy(InputError):
    """Another process trains into this run folder."""


class TrainingError(RuntimeError):
    """Training cannot go on (a loss that is not finite); says where and what is left."""


class StorageError(TrainingError):
    """A run folder cannot be read or written to; what it held before is still there."""


class Stopped(Exception):
    """Asked to stop, by the clock or a signal; a run folder holds what training has reached."""


def check_share(name: str, value: float) -> None:
    """Raise InputError unless `value` is a number that lies in [0, 1]."""
    try:
        is_share = bool(0 <= value <= 1)
    except (TypeError, ValueError, RuntimeError):  # a text, None, several numbers
        got = " ".join(reprlib.repr(value).split())
        raise InputError(f"{name} must be one number in [0, 1], got {got}") from None
    if not is_share:
        raise InputError(f"{name} must lie in [0, 1], got {value:g}{percent_hint(value)}")


def percent_hint(value: float) -> str:
    """Someone who writes 50 for a share means 0.5; who writes 2 hardly means 0.02."""
    return f"; did you mean {value / 100:g}?" if 5 <= value <= 100 else ""


def first_line(error: BaseException) -> str:
    """Of what an error says; its kind where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def kind_and_reason(error: BaseException) -> str:
    """`RuntimeError: what it says`, in one line; of an error that says nothing its kind alone."""
    kind, reason = type(error).__name__, first_line(error)
    return kind if reason == kind else f"{kind}: {reason}"


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing if no option comes close."""
    # Looking takes the square of the length: what is no word is not looked for.
    words = (option for option in options if len(option) <= LONGEST_WORD)
    if len(word) > LONGEST_WORD:
        return ""
    close = difflib.get_close_matches(word, list(itertools.islice(words, MOST_OPTIONS)), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
