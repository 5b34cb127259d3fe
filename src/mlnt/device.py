"""Which device to compute on, and in which numbers."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

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
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
            deterministic = torch.backends.cudnn.deterministic  # the user's wish
            tf32 = settings.precision == "auto"
            stack.enter_context(
                torch.backends.cudnn.flags(
                    enabled=True,
                    benchmark=not deterministic,
                    deterministic=deterministic,
                    allow_tf32=tf32,
                )
            )
            matmul = torch.backends.cuda.matmul
            stack.callback(setattr, matmul, "allow_tf32", matmul.allow_tf32)
            matmul.allow_tf32 = tf32 and matmul.allow_tf32
        yield


def record(
    step: Callable[[], object], device: torch.device, generators: Sequence[torch.Generator] = ()
) -> torch.cuda.CUDAGraph:
    """One step as a CUDA graph. Where that fails, streams and generators are as they were."""
    default = torch.cuda.default_generators[
        torch.cuda.current_device() if device.index is None else device.index
    ]
    before = [(generator, generator.clone_state()) for generator in {*generators, default}]
    stream = torch.cuda.current_stream(device)
    graph = torch.cuda.CUDAGraph()
    try:
        for generator in generators:
            graph.register_generator_state(generator)
        # Other threads, such as those of a data loader, may go on using the GPU.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            step()
    except BaseException:
        torch.cuda.set_stream(stream)
        for generator, state in before:
            generator.graphsafe_set_state(state)
        raise
    return graph
