"""Work for a GPU that must not wait for it."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_waiting() -> Iterator[None]:
    """Inside, whatever waits for the GPU raises RuntimeError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode is a prototype
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
