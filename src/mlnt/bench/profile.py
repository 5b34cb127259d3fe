"""Where the time of an MLNT step goes on a GPU: its kernels by kind, and what they could reach.

record a step -> profile replays -> kernels by kind; bytes of batch norm at the measured
bandwidth, convolutions at the measured rate of a matrix product
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from rich.console import RenderableType
from rich.table import Table
from torch import Tensor, nn

from mlnt.bench.clock import durations_ms
from mlnt.bench.rows import RATES, SHAPES, Case, bench_network, own_steps
from mlnt.device import pick_device
from mlnt.errors import InputError
from mlnt.origin import about

STEPS = 5
KINDS = {
    "batch norm": r"^_(moments|normalise|gradient_sums|input_gradient|add_up|second)",
    "patches and ReLU": r"^_(fold|unfold|relu_back)",
    "convolution": r"conv|xmma|implicit_gemm|cudnn|dgrad|wgrad|fprop|nhwc|ReduceSplitK",
    "matrix product": r"gemm|nvjet|cublas|splitKreduce",
    "all parameters at once": r"multi_tensor|CatArray",
    "copies and fills": r"copy|fill|memset|memcpy",
}


@dataclass(frozen=True)
class KernelRow:
    name: str
    kind: str
    calls: float  # in a step
    ms: float


@dataclass(frozen=True)
class ProfileResult:
    machine: str
    commit: str
    torch: str
    date: str
    model: str
    batch_size: int
    sets: int
    step_ms: float  # less than the kernels' sum: some run side by side
    kernels: tuple[KernelRow, ...]
    bandwidth_tbs: float  # of a copy, read and written
    rate_tflops: float  # of a product of large bfloat16 matrices
    norm_gib: float  # least bytes of all batch norms of a step
    convolution_tflop: float  # operations of all convolutions of a step

    def by_kind(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for row in self.kernels:
            total[row.kind] = total.get(row.kind, 0.0) + row.ms
        return dict(sorted(total.items(), key=lambda item: -item[1]))

    def to_json(self) -> str:
        content = {**asdict(self), "by_kind_ms": self.by_kind()}
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    def to_rich(self) -> Iterator[RenderableType]:
        yield (
            f"{self.machine}, torch {self.torch}; {self.model}, batch {self.batch_size}, "
            f"M={self.sets}: {self.step_ms:.2f} ms a step, kernels one by one "
            f"{sum(row.ms for row in self.kernels):.2f} ms"
        )
        table = Table("kernels", "ms", title="by kind", title_style="")
        for kind, ms in self.by_kind().items():
            table.add_row(kind, f"{ms:.2f}")
        yield table
        table = Table("kernel", "calls", "ms", title="the longest", title_style="")
        for row in self.kernels[:20]:
            table.add_row(row.name[:70], f"{row.calls:.0f}", f"{row.ms:.2f}")
        yield table
        norm_ms = self.norm_gib * 2**30 / (self.bandwidth_tbs * 1e12) * 1000
        conv_ms = self.convolution_tflop / self.rate_tflops * 1000
        yield (
            f"batch norms move {self.norm_gib:.1f} GiB at least: {norm_ms:.2f} ms at the "
            f"{self.bandwidth_tbs:.2f} TB/s of a copy"
        )
        yield (
            f"convolutions are {self.convolution_tflop:.2f} TFLOP: {conv_ms:.2f} ms at the "
            f"{self.rate_tflops:.0f} TFLOP/s of a large matrix product"
        )


def run_profile(device: str = "auto", batch_size: int = 128, sets: int = 10) -> ProfileResult:
    """Profile the folded first-order step of preact_resnet32."""
    place = pick_device(device)
    if place.type != "cuda":
        raise InputError("--profile looks at CUDA kernels; there is no CUDA device here")
    model = "preact_resnet32"
    case = Case("mlnt", "mlnt", model, batch_size, sets, 1, "folded")
    steps = own_steps(case, place)
    steps.run([RATES] * 12)
    (step_ms,) = durations_ms([lambda: steps.run([RATES] * 50)], place)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        steps.run([RATES] * STEPS)
        torch.cuda.synchronize(place)
    norm, convolution = _work(bench_network(model, place), batch_size, SHAPES[model], sets, place)
    return ProfileResult(
        **about(place),
        model=model,
        batch_size=batch_size,
        sets=sets,
        step_ms=step_ms / 50,
        kernels=_kernels(profile),
        bandwidth_tbs=_bandwidth(place),
        rate_tflops=_rate(place),
        norm_gib=norm / 2**30,
        convolution_tflop=convolution / 1e12,
    )


def _kernels(profile: torch.profiler.profile) -> tuple[KernelRow, ...]:
    rows = [
        KernelRow(
            event.key, kind_of(event.key), event.count / STEPS,
            event.self_device_time_total / STEPS / 1000,
        )
        for event in profile.key_averages()
        if event.self_device_time_total > 0
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: -row.ms))


def kind_of(kernel: str) -> str:
    for kind, pattern in KINDS.items():
        if re.search(pattern, kernel, re.IGNORECASE):
            return kind
    return "other"


def _work(
    network: nn.Module, batch: int, shape: tuple[int, ...], sets: int, device: torch.device
) -> tuple[float, float]:
    """(least bytes of the batch norms, operations of the convolutions) of a first-order step.

    A batch norm of n numbers, two bytes each, reads and writes 3 n forward and 5 n back; M sets of
    gradients at one input 3 M n + 2 n back. Forward and back: M models and the class step; forward
    alone: θ and the teacher. A convolution of f operations is needed forward, for the input's and
    for the weight's gradient: 5 M + 5 times, of which the data's needs no input gradient.
    """
    numbers, operations, first = 0.0, 0.0, True

    def look(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal numbers, operations, first
        if isinstance(module, nn.Conv2d):
            taps = module.weight[0].numel()
            passes = 3 * sets + 4 if first else 5 * sets + 5
            operations += 2 * output.numel() * taps * passes
            first = False
        else:
            numbers += output.numel()

    watched = (nn.Conv2d, nn.BatchNorm2d)
    hooks = [m.register_forward_hook(look) for m in network.modules() if isinstance(m, watched)]
    with torch.no_grad():
        network(torch.zeros(batch, *shape, device=device))
    for hook in hooks:
        hook.remove()
    return 2 * numbers * (8 * sets + 3 * sets + 2 + 8 + 2 * 3), operations


def _bandwidth(device: torch.device) -> float:
    """TB/s of a copy of a gibibyte, read and written."""
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = durations_ms([lambda: target.copy_(source)] * 12, device)
    return 2 * 2**30 / (sorted(times)[6] / 1000) / 1e12


def _rate(device: torch.device) -> float:
    """TFLOP/s of a product of two 8192×8192 matrices of bfloat16 random numbers."""
    size = 8192
    left, right = torch.randn(2, size, size, device=device).to(torch.bfloat16)
    times = durations_ms([lambda: left @ right] * 12, device)
    return 2 * size**3 / (sorted(times)[6] / 1000) / 1e12
