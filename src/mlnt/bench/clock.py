"""How long calls take on a device."""

import itertools
import time
from collections.abc import Callable, Sequence

import torch


def durations_ms(calls: Sequence[Callable[[], object]], device: torch.device) -> list[float]:
    """Milliseconds of each call, made one after another.

    On CUDA by events in the stream: the GPU is waited for before the first and after the last
    call, never between them.
    """
    wait(device)
    if device.type != "cuda":
        times = []
        for call in calls:
            began = time.perf_counter()
            call()
            wait(device)
            times.append(1000 * (time.perf_counter() - began))
        return times
    with torch.cuda.device(device):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
        events[0].record()
        for call, event in zip(calls, events[1:], strict=True):
            call()
            event.record()
        wait(device)
    return [began.elapsed_time(ended) for began, ended in itertools.pairwise(events)]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
