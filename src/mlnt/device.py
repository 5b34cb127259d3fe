"""Which device to compute on, and in which numbers."""

import contextlib
from collections.abc import Iterator

import torch

from mlnt.config import Settings
from mlnt.errors import InputError


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda", "mps"):
            raise InputError(f"device must be auto, cpu, cuda, cuda:N or mps, got {name!r}")
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {name!r} cannot be used: {reason}") from None
    return device


def weight_type(settings: Settings) -> torch.dtype:
    """The type that weights and statistics are kept in."""
    return torch.float64 if settings.precision == "float64" else torch.float32


def computes_in_bfloat16(settings: Settings, device: torch.device) -> bool:
    if settings.precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    return settings.precision == "bfloat16"


@contextlib.contextmanager
def computing(settings: Settings, device: torch.device) -> Iterator[None]:
    """Within: bfloat16 by autocast where the settings want it, and cuDNN's fastest algorithms.

    float32 asked for by name is all of float32: no TensorFloat-32, which has ten bits.
    """
    with contextlib.ExitStack() as stack:
        if computes_in_bfloat16(settings, device):
            # No cache of cast weights: they change within a step.
            stack.enter_context(
                torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)
            )
        if device.type == "cuda" and torch.backends.cudnn.is_available():
            stack.enter_context(
                torch.backends.cudnn.flags(
                    enabled=True, benchmark=True, allow_tf32=settings.precision == "auto"
                )
            )
        yield
