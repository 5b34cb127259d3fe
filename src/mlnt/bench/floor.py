"""The convolution floor: what a step needs if nothing but its convolutions took time.

Every distinct convolution of a network is timed by itself, in channels-last memory, once for one
model and once for M models folded into the channels. The same tensors serve every repetition, so
caches are as warm as they get: in a real step a kernel is not faster.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mlnt.bench.clock import durations_ms

WARM_UPS = 5
REPETITIONS = 20  # on a GPU
CPU_REPETITIONS = 3


@dataclass(frozen=True)
class KernelTime:
    """Microseconds of one convolution, which the network has `count` times.

    None: not needed (no gradient goes back into the data) or not there (no shared input with
    groups). Fed by the data, the folded forms have one shared input too.
    """

    name: str
    count: int
    forward: float
    input_gradient: float | None
    weight_gradient: float
    folded_forward: float
    folded_input_gradient: float | None
    folded_weight_gradient: float
    shared_weight_gradient: float | None  # one input, the output gradients of M models


@dataclass(frozen=True)
class _Convolution:
    """All that decides the time of a convolution."""

    input_shape: tuple[int, ...]  # [B, C, H, W]
    weight_shape: tuple[int, ...]  # [O, C / groups, height, width]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    fed_by_data: bool

    @property
    def name(self) -> str:
        _, channels, height, width = self.input_shape
        outputs, _, *kernel = self.weight_shape
        name = f"{_by(kernel)} {channels}→{outputs}, {_by((height, width))}"
        strides = str(self.stride[0]) if len(set(self.stride)) == 1 else _by(self.stride)
        name += f", stride {strides}"
        if set(self.dilation) != {1}:
            name += f", dilation {_by(self.dilation)}"
        return name if self.groups == 1 else f"{name}, {self.groups} groups"


def convolution_floor(
    network: nn.Module, inputs: Tensor, sets: int, dtype: torch.dtype
) -> list[KernelTime]:
    """Times of every distinct nn.Conv2d of the network on a batch of such inputs."""
    found = _trace(network, inputs)
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        return [_time(each, count, sets, dtype, inputs.device) for each, count in found.items()]
    finally:
        torch.backends.cudnn.benchmark = before


def floor_of_cross_entropy(kernels: list[KernelTime]) -> float:
    """Milliseconds: Σ count · (forward + input gradient + weight gradient)."""
    return sum(k.count * _one_model(k) for k in kernels) / 1000


def floor_of_mlnt(kernels: list[KernelTime], sets: int) -> float:
    """Milliseconds of the convolutions of one first-order step of MLNT, M models folded or one by
    one, whichever is faster:

    inner   folded input gradient + weight gradient with shared input (folded with groups)
    meta    folded forward + input gradient + weight gradient
    θ, θ̃    a forward pass of one model each
    class   forward + input gradient + weight gradient of one model
    """
    total = 0.0
    for k in kernels:
        forward = min(k.folded_forward, sets * k.forward)
        weight = min(k.folded_weight_gradient, sets * k.weight_gradient)
        back = 0.0
        if k.folded_input_gradient is not None and k.input_gradient is not None:
            back = min(k.folded_input_gradient, sets * k.input_gradient)
        inner = back + min(weight, k.shared_weight_gradient or weight)
        meta = forward + back + weight
        total += k.count * (inner + meta + 2 * k.forward + _one_model(k))
    return total / 1000


def _one_model(k: KernelTime) -> float:
    return k.forward + (k.input_gradient or 0.0) + k.weight_gradient


def _trace(network: nn.Module, inputs: Tensor) -> Counter[_Convolution]:
    """The convolutions that one forward pass calls, equal ones counted, in order of first use."""
    found: Counter[_Convolution] = Counter()

    def remember(module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        found[
            _Convolution(
                tuple(arguments[0].shape),
                tuple(module.weight.shape),
                module.stride,
                _padding(module),
                module.dilation,
                module.groups,
                fed_by_data=not arguments[0].requires_grad,
            )
        ] += 1

    hooks = [
        module.register_forward_hook(remember)
        for module in network.modules()
        if isinstance(module, nn.Conv2d)
    ]
    was_training = network.training
    try:
        with torch.enable_grad():  # requires_grad tells what depends on weights from the data
            network.eval()(inputs)
    finally:
        network.train(was_training)
        for hook in hooks:
            hook.remove()
    return found


def _padding(module: nn.Conv2d) -> tuple[int, ...]:
    if module.padding == "valid":
        return (0, 0)
    if isinstance(module.padding, str):  # "same"
        return tuple(
            d * (k - 1) // 2 for d, k in zip(module.dilation, module.kernel_size, strict=True)
        )
    return tuple(module.padding)


def _time(
    each: _Convolution, count: int, sets: int, dtype: torch.dtype, device: torch.device
) -> KernelTime:
    def random(*shape: int) -> Tensor:
        values = torch.randn(shape, dtype=dtype, device=device)
        return values.contiguous(memory_format=torch.channels_last)

    def kernels(models_in: int, models: int, groups: int) -> list[Callable[[], object]]:
        """Forward, input gradient, weight gradient of `models` models with so many inputs."""
        batch, channels, height, width = each.input_shape
        outputs, *rest = each.weight_shape
        x = random(batch, models_in * channels, height, width)
        weight = random(models * outputs, *rest)
        where = (each.stride, each.padding, each.dilation, False, (0, 0), groups)

        def forward() -> Tensor:
            return torch.ops.aten.convolution(x, weight, None, *where)

        gradient = random(*forward().shape)

        def backward(mask: list[bool]) -> Callable[[], object]:
            return lambda: torch.ops.aten.convolution_backward(
                gradient, x, weight, None, *where, mask
            )

        return [forward, backward([True, False, False]), backward([False, True, False])]

    def times(functions: list[Callable[[], object]]) -> tuple[float, float | None, float]:
        forward, input_gradient, weight_gradient = functions
        return (
            microseconds(forward, device),
            None if each.fed_by_data else microseconds(input_gradient, device),
            microseconds(weight_gradient, device),
        )

    one = times(kernels(1, 1, each.groups))
    if each.groups > 1:
        return KernelTime(
            each.name, count, *one, *times(kernels(sets, sets, sets * each.groups)), None
        )
    if each.fed_by_data:
        folded = times(kernels(1, sets, 1))
        return KernelTime(each.name, count, *one, *folded, folded[2])
    folded = times(kernels(sets, sets, sets))
    shared = microseconds(kernels(1, sets, 1)[2], device)
    return KernelTime(each.name, count, *one, *folded, shared)


def microseconds(call: Callable[[], object], device: torch.device) -> float:
    """Mean time of one call among repetitions after warm-ups."""
    if device.type != "cuda":
        call()
        times = durations_ms([call] * CPU_REPETITIONS, device)
        return 1000 * sum(times) / CPU_REPETITIONS
    with torch.cuda.device(device):
        # Launching a kernel from Python can take longer than the kernel; a graph launches all its
        # repetitions at once. Warm-ups come first: in them cuDNN tries its kernels, which a
        # capture forbids.
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                call()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(REPETITIONS):
                call()
        graph.replay()
        return 1000 * durations_ms([graph.replay], device)[0] / REPETITIONS


def _by(numbers: Any) -> str:
    return "×".join(str(number) for number in numbers)
