"""What torchrun says in the environment to the processes it starts."""

import os
import socket

from mlnt.errors import InputError


def launched() -> bool:
    """Whether torchrun, or somebody alike, started this process as one of several."""
    return _number("WORLD_SIZE", 1) > 1 and "RANK" in os.environ


def processes_here() -> int:
    """How many processes torchrun started on this machine."""
    return _number("LOCAL_WORLD_SIZE", 1)


def rank_here() -> int:
    """Which of them this one is."""
    return _number("LOCAL_RANK", 0)


def restarts() -> int:
    """How often torchrun started the processes again after one had ended."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0)


def restarted() -> bool:
    return restarts() > 0


def job() -> str | None:
    """Names what torchrun was called for once; stays over its restarts. None without it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    return f"{os.environ['TORCHELASTIC_RUN_ID']}-{socket.gethostname()}-{os.getppid()}"


def _number(variable: str, least: int) -> int:
    """A variable of the environment; the least it could be where it is not set."""
    text = os.environ.get(variable, str(least))
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise InputError(
            f"the environment variable {variable} must be a whole number from {least} on, got "
            f"{text!r}; torchrun sets it: unset it to start one process alone"
        )
    return number
