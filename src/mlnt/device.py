"""Which device to compute on, and in which numbers."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from mlnt.config import Settings
from mlnt.errors import InputError, first_line

CUBLAS, STEADY = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"

ONE_AT_A_TIME = threading.RLock()  # of the threads of this process


def _unlock_in_child() -> None:
    """The thread that held it is not there any more, and would be waited for for ever."""
    global ONE_AT_A_TIME
    ONE_AT_A_TIME = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)

BESIDE_TENSORS = 2 * 2**30  # bytes of a GPU: more than CUDA takes for one process


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise InputError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = first_line(error)
        raise InputError(f"device {name!r} cannot be used: {reason}") from None
    return device


def may_be_cuda(name: str) -> bool:
    """Whether `pick_device` may give a GPU for this name; asked without using one."""
    return name.startswith("cuda") or (name == "auto" and torch.cuda.is_available())


def is_shared(device: torch.device) -> bool:
    """Whether others hold much of the GPU's memory now: what is timed then may take longer.

    Nobody tells whether they compute, nor is little of theirs told from CUDA's own.
    """
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device) > BESIDE_TENSORS


@contextlib.contextmanager
def drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Within: what uses the process-wide generators (initial weights, dropout) draws from a seed.

    Afterwards they are as they were; those of other devices are not touched. Another thread that
    would draw from them too, and so change what either draws, waits.
    """
    is_cuda = device.type == "cuda"
    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[device] if is_cuda else []):
        torch.default_generator.manual_seed(seed)
        if is_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def prepare_deterministic() -> None:
    """What cuBLAS must know before its first use; InputError if that may have been already."""
    if CUBLAS in os.environ:
        return
    if torch.cuda.is_initialized():
        raise InputError(
            f"deterministic must be known before this process uses the GPU; set {CUBLAS}={STEADY} "
            "before Python starts"
        )
    os.environ[CUBLAS] = STEADY


@contextlib.contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Within: on a GPU only algorithms that give the same bits each time."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    fill = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # nothing here reads such memory
    try:
        yield
    except RuntimeError as error:
        operation, found, _ = str(error).partition(" does not have a deterministic implementation")
        if found:
            raise InputError(
                f"{operation} has no deterministic form on a GPU; train without --deterministic, "
                "or with --device cpu"
            ) from None
        if CUBLAS in str(error):
            raise InputError(
                f"deterministic needs {CUBLAS}={STEADY}, got {os.environ.get(CUBLAS)!r}; set it "
                "before Python starts"
            ) from None
        raise
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
        memory.fill_uninitialized_memory = fill


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
            if settings.deterministic:
                stack.enter_context(deterministic_algorithms())
            deterministic = settings.deterministic or torch.backends.cudnn.deterministic
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


def is_out_of_memory(error: BaseException) -> bool:
    """torch says on a CPU by a RuntimeError like any other that there is no more memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return type(error) is RuntimeError and "can't allocate memory" in str(error)
