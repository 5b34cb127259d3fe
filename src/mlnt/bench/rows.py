"""One row of the bench: a step is built, timed and freed before the next.

Axes: N samples, B batch, D features.
"""

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mlnt.bench.authors import AuthorsWay
from mlnt.bench.clock import durations_ms, wait
from mlnt.config import Settings, make_settings
from mlnt.data.batches import Batch
from mlnt.data.dataset import Split
from mlnt.data.encoding import ImageEncoder
from mlnt.distributed import ALL_ALONE, World
from mlnt.errors import kind_and_reason
from mlnt.methods import MLNT, CrossEntropy, Rates
from mlnt.methods.base import Method
from mlnt.models import build_model
from mlnt.steps import EAGER_STEPS, Steps

CLASSES = 10
SHAPES = {
    "small_conv": (1, 8, 8),
    "preact_resnet32": (3, 32, 32),
    "torchvision:resnet50": (3, 224, 224),
}
RATES = Rates(lr=0.01, eta=0.01, gamma=0.99, lam=0.5)  # so low that nothing diverges
CHUNKS = 5
SLOW_STEPS = 5  # timed steps of what takes hundreds of milliseconds


@dataclass(frozen=True)
class Case:
    """What to time."""

    name: str
    method: str  # cross_entropy | mlnt | authors
    model: str
    batch_size: int
    sets: int = 0  # of cross entropy
    order: int = 1
    engine: str = "auto"


@dataclass(frozen=True)
class Row:
    """What came out. `ms` is None where the step failed, and `error` says why."""

    name: str
    model: str
    batch_size: int
    sets: int
    order: int
    engine: str | None  # of our own MLNT
    ms: float | None = None  # median of the chunks; cross entropy: the mean of its two medians
    ratio: float | None = None  # to the cross-entropy step of the same model and batch
    chunks_ms: tuple[float, ...] = ()  # milliseconds per step of each chunk of the timed steps
    peak_gib: float | None = None  # most GPU memory allocated at once, by any step but the first
    # From building the network to the first timed step; in the first row libraries are loaded too.
    setup_s: float | None = None
    error: str | None = None


def time_case(case: Case, steps: int, device: torch.device) -> Row:
    """Build, warm up, time, free. A step that fails gives a row that says so."""
    engine = case.engine if case.method == "mlnt" else None
    row = Row(case.name, case.model, case.batch_size, case.sets, case.order, engine)
    free(device)
    try:
        return dataclasses.replace(row, **_measure(case, steps, device))
    except Exception as failure:  # out of memory, a network that cannot be had, …
        return dataclasses.replace(row, error=kind_and_reason(failure))


def _measure(case: Case, steps: int, device: torch.device) -> dict[str, Any]:
    """The figures of a row; the networks end with this function."""
    began = time.perf_counter()
    run = _runner(case, device)
    first, rest = _warm_ups(case, device)
    run(first)
    if device.type == "cuda":
        # Only now: before, a network was compared with its trace, in float64, and kernels were
        # tried. Of a ResNet-50 that takes more than its step of cross entropy.
        torch.cuda.reset_peak_memory_stats(device)
    run(rest)
    wait(device)
    setup = time.perf_counter() - began
    count = max(1, _timed_steps(case, steps) // CHUNKS)
    times = durations_ms([lambda: run(count)] * CHUNKS, device)
    chunks = tuple(duration / count for duration in times)
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return {
        "ms": statistics.median(chunks),
        "chunks_ms": chunks,
        "peak_gib": peak,
        "setup_s": setup,
    }


def bench_network(model: str, device: torch.device) -> nn.Module:
    shape = SHAPES[model]
    encoder = ImageEncoder(shape, (0.0,) * shape[0], (1.0,) * shape[0])
    return build_model(model, encoder, CLASSES).to(device)


@dataclass(frozen=True)
class _Materials:
    network: nn.Module
    train: Split
    features_ND: Tensor
    settings: Settings
    generator: torch.Generator


def _materials(case: Case, device: torch.device) -> _Materials:
    generator = torch.Generator(device).manual_seed(0)
    network = bench_network(case.model, device)
    shape, samples = SHAPES[case.model], 4 * case.batch_size
    train = Split(
        torch.randn(samples, *shape, device=device, generator=generator),
        torch.randint(CLASSES, (samples,), device=device, generator=generator),
    )
    as_cifar = shape == (3, 32, 32)
    settings = make_settings(
        batch_size=case.batch_size,
        sets=max(1, case.sets),
        order=case.order,
        engine=case.engine,
        crop_padding=4 if as_cifar else 0,
        flip=as_cifar,
    )
    width = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    features_ND = torch.randn(samples, width.in_features, device=device, generator=generator)
    return _Materials(network, train, features_ND, settings, generator)


def own_steps(case: Case, device: torch.device, world: World = ALL_ALONE) -> Steps:
    """Our own methods, as in training: batches drawn and augmented on the device."""
    m = _materials(case, device)
    method: Method
    if case.method == "cross_entropy":
        method = CrossEntropy(m.network, m.settings)
    else:
        method = MLNT(m.network, m.settings, m.features_ND, generator=m.generator)
    return Steps(m.train, method, m.settings, m.generator, world=world)


def _runner(case: Case, device: torch.device) -> Callable[[int], object]:
    """A function that makes so many steps.

    The authors' way runs as it is: eager, in float32, its batches drawn by indexing and not
    augmented.
    """
    if case.method != "authors":
        own = own_steps(case, device)
        return lambda count: own.run([RATES] * count)
    m = _materials(case, device)
    authors = AuthorsWay(m.network, m.settings, m.features_ND, m.generator)
    inputs_N = m.train.inputs
    assert isinstance(inputs_N, Tensor)

    def run(count: int) -> None:
        for _ in range(count):
            order_N = torch.randperm(len(m.train), generator=m.generator, device=device)
            indices_B = order_N[: case.batch_size]
            batch = Batch(indices_B, inputs_N[indices_B], m.train.labels[indices_B])
            authors.step(batch, batch, RATES)

    return run


def _warm_ups(case: Case, device: torch.device) -> tuple[int, int]:
    """Steps before the memory of any counts, and with it.

    A CUDA graph is recorded in the second part: its memory is all taken then, none as it is played
    back.
    """
    if device.type != "cuda":
        return 1, 1
    return (1, 2) if case.method == "authors" else (EAGER_STEPS, 12 - EAGER_STEPS)


def _timed_steps(case: Case, steps: int) -> int:
    is_slow = case.method == "authors" or case.order == 2
    return min(steps, SLOW_STEPS) if is_slow else steps


def free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
