"""Figures that show that the fast paths compute what the plain ones compute, on this device.

    engines    the folded meta-gradient against the plain loops, network by network
    graph      steps recorded as a CUDA graph against eager ones; an interrupted run against a whole
    precision  accuracy after training in bfloat16 against float32

Axes: M sets, N samples, B batch, C classes, D features.
"""

import contextlib
import dataclasses
import importlib
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor, nn

from mlnt.api import train
from mlnt.config import make_settings
from mlnt.data.dataset import Split
from mlnt.device import computing, pick_device, weight_type
from mlnt.meta.folded import folded_meta_gradient, folded_network
from mlnt.meta.plain import plain_meta_gradient
from mlnt.methods import MLNT, Rates
from mlnt.networks import MLP, PreActResNet32
from mlnt.origin import about
from mlnt.steps import Steps

FLOAT64_LIMIT, DEEP_LIMIT = 1e-9, 1e-6  # torchvision's networks amplify rounding layer by layer
# In other numbers one ReLU that rounding turns on or off changes the gradient by percents: only
# gross errors can be told, beyond this and twice what the plain loops err in the same numbers.
GROSS_LIMIT = 0.1
NEGLIGIBLE = 1e-6  # share of the whole gradient below which a parameter's has no relative error
# After 20 steps. Where kernels differ between two runs, the rounding of float32 grows to percents.
LOSS_TOLERANCE, WEIGHT_TOLERANCE = 1e-3, 1e-3
NOISE_POINTS = 0.5  # a difference of accuracies within this is within the noise in any case

CLASSES, SETS, SIDE = 5, 3, 32
# All four change from step to step: a recording must not keep those it was made with.
RATES = [Rates(0.02 - 0.0005 * n, 0.001 * n, 0.9 + 0.004 * n, 0.02 * n) for n in range(20)]
USUAL = {"cuda": (3, 20), "cpu": (1, 2)}  # seeds and epochs of the trainings

Row = dict[str, Any]  # of a table


class _Sum(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        return self[0](x) + self[1](x)


class _Joined(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self[0](x), self[1](x)], dim=1)


def _conv(inputs: int, outputs: int, kernel: int, after: Any = nn.ReLU, **more: Any) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False, **more)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), after())


def _bottleneck(inputs: int, width: int) -> nn.Module:
    """As in ResNet-50, with a strided projection."""
    middle = (_conv(inputs, width, 1), _conv(width, width, 3, stride=2))
    long = nn.Sequential(*middle, _conv(width, 4 * width, 1, nn.Identity))
    short = _conv(inputs, 4 * width, 1, nn.Identity, stride=2)
    return nn.Sequential(_Sum([long, short]), nn.ReLU())


def _pooled(width: int, *layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "preact_resnet32": lambda: PreActResNet32(3, CLASSES),
    "bottlenecks": lambda: _pooled(64, _conv(3, 16, 3), _bottleneck(16, 8), _bottleneck(32, 16)),
    # Its dropout drops nothing: the engines draw their masks in another order.
    "vgg": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.0),
        nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(96, 32), nn.ReLU(), nn.Dropout(0.0), nn.Linear(32, CLASSES),
    ),
    "separable": lambda: _pooled(
        32, _conv(3, 16, 3, nn.SiLU), _conv(16, 16, 3, groups=16, stride=2), _conv(16, 32, 1)
    ),
    "concatenating": lambda: _pooled(
        24, _Joined([nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(3, 8, 1)]), nn.GroupNorm(2, 24),
        nn.GELU(), nn.Conv2d(24, 24, 3, padding=1, groups=3), nn.Tanh(),
    ),
    "mlp": lambda: MLP(20, CLASSES, 32, dropped=0),
}  # fmt: skip
IMAGES, OTHER_SHAPES = (8, 3, 8, 8), {"mlp": (8, 20), "resnet18": (8, 3, 64, 64)}


@dataclasses.dataclass(frozen=True)
class ExactnessResult:
    machine: str
    commit: str
    torch: str
    date: str
    engines: list[Row]
    graph: dict[str, Any]  # rows, or the reason why there are none
    precision: dict[str, Any]

    @property
    def ok(self) -> bool:
        """No figure is beyond its limit."""
        exact = all(row["ok"] for row in (*self.engines, *self.graph["rows"]))
        return exact and all(row["within_noise"] is not False for row in self.precision["rows"])

    def to_json(self) -> str:
        figures = {**dataclasses.asdict(self), "ok": self.ok}
        return json.dumps(figures, indent=2, ensure_ascii=False) + "\n"

    def to_rich(self) -> list[Table | str]:
        runs = self.graph["rows"]
        graph = self.graph["reason"] or f"relative differences after {len(RATES)} steps"
        trained = f"{self.precision['epochs']} epochs, n={self.precision['seeds']}"
        return [
            _table(f"folded against plain; {self.machine}, torch {self.torch}", self.engines),
            _table(f"CUDA graph: {graph}", runs) if runs else f"CUDA graph: {graph}",
            _table(f"test accuracy on digits, {trained}", self.precision["rows"]),
        ]


def _table(title: str, rows: list[Row]) -> Table:
    """Narrow enough for 80 columns: what is beyond a limit must be readable."""
    table = Table(
        title=title, title_style="", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    for name in rows[0]:
        table.add_column(name.replace("_", "\n"), no_wrap=True)
    for row in rows:
        table.add_row(*map(_short, row.values()))
    return table


def _short(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def run_exactness(
    device: str = "auto", seeds: int | None = None, epochs: int | None = None
) -> ExactnessResult:
    """All figures; `seeds` and `epochs` of the trainings, if not 3 and 20 (on a CPU 1 and 2)."""
    place = pick_device(device)
    kind = "cuda" if place.type == "cuda" else "cpu"
    seeds, epochs = seeds or USUAL[kind][0], epochs or USUAL[kind][1]
    # Initial weights come from the process-wide generators: seeded in here alone.
    with torch.random.fork_rng(devices=[place] if kind == "cuda" else []):
        engines = compare_engines(place)
        numbers = ("float32", "float64") if kind == "cuda" else ()
        runs = [row for each in numbers for row in compare_runs(place, each)]
    graph: Row = {"rows": runs, "reason": None if runs else "only on a CUDA device"}
    graph |= {"loss_tolerance": LOSS_TOLERANCE, "weight_tolerance": WEIGHT_TOLERANCE}
    precision = compare_precisions(device, seeds, epochs)
    return ExactnessResult(**about(place), engines=engines, graph=graph, precision=precision)


def compare_engines(device: torch.device) -> list[Row]:
    """Both engines against the plain loops in float64: in float64, on CUDA in other numbers too."""
    precisions = ("float64", "float32", "bfloat16") if device.type == "cuda" else ("float64",)
    cases = [(name, NETWORKS[name], precision) for name in NETWORKS for precision in precisions]
    with contextlib.suppress(Exception):  # built for another torch it raises RuntimeError
        library = importlib.import_module("torchvision.models")
        cases.append(("resnet18", lambda: library.resnet18(num_classes=CLASSES), "float64"))
    return [compare_gradients(*case, order, device) for case in cases for order in (1, 2)]


def compare_gradients(
    name: str, build: Callable[[], nn.Module], precision: str, order: int, device: torch.device
) -> Row:
    """error: in float64 the largest relative error of any parameter's gradient, else that of all as
    one vector; plain_error: that of the plain loops in the same numbers."""
    exact = precision == "float64"
    dtype = torch.float64 if exact else torch.float32
    shape, deep = OTHER_SHAPES.get(name, IMAGES), name not in NETWORKS
    torch.manual_seed(0)  # drawn on the CPU: the same on every device
    model, inputs = build(), torch.randn(shape)
    target_BC = torch.randn(shape[0], CLASSES).softmax(dim=1)
    synthetic_MB = torch.randint(CLASSES, (SETS, shape[0])).to(device)

    def gradient(engine: Callable[..., Any], dtype: torch.dtype) -> dict[str, Tensor]:
        tensors = (inputs.to(device, dtype), synthetic_MB, target_BC.to(device, dtype))
        return engine(model.to(device, dtype), *tensors, 0.01 if deep else 0.05, order)[1]

    bfloat16 = computing(make_settings(precision="bfloat16"), device)
    with bfloat16 if precision == "bfloat16" else steady():
        found, plain = (gradient(e, dtype) for e in (folded_meta_gradient, plain_meta_gradient))
    folded = folded_network(model) is not None  # else the plain loops were compared to themselves
    expected = plain if exact else gradient(plain_meta_gradient, torch.float64)
    one, two, other = (flat(g[n] for n in expected) for g in (found, plain, expected))
    least = NEGLIGIBLE * other.norm()  # a bias before a batch norm has a gradient of 0
    errors = [(found[n] - g).norm() / max(g.norm(), least) for n, g in expected.items()]
    error = float(torch.stack(errors).max()) if exact else relative(one, other)
    plain_error = relative(two, other)
    limit = DEEP_LIMIT if deep else FLOAT64_LIMIT if exact else GROSS_LIMIT + 2 * plain_error
    row: Row = {"network": name, "precision": precision, "order": order, "error": error}
    row |= {"limit": limit, "cosine": float(one @ other / one.norm() / other.norm())}
    return {**row, "plain_error": plain_error, "folded": folded, "ok": folded and error <= limit}


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors if t.is_floating_point()])


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@contextlib.contextmanager
def steady() -> Iterator[None]:
    """Without TF32, which keeps ten bits of a number, and with the same kernels in every run."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


class SteadySteps(Steps):
    # `Steps.run` lets cuDNN choose its kernels by the clock.
    def _step_on_device(self) -> None:
        with steady():
            super()._step_on_device()


def compare_runs(device: torch.device, precision: str) -> list[Row]:
    """A recorded run against others: the largest difference of a loss, those of all weights."""
    whole, rows = run_steps(device, precision), []
    for name, options in (("eager", {"graph": False}), ("interrupted", {"size": 10})):
        other = run_steps(device, precision, **options)
        losses = float((other["losses"] / whole["losses"] - 1).abs().max())
        weights = {n: relative(other[n], whole[n]) for n in ("student", "teacher", "statistics")}
        close = losses <= LOSS_TOLERANCE and all(w <= WEIGHT_TOLERANCE for w in weights.values())
        recorded = whole["recorded"] and (other["recorded"] or name == "eager")
        row = {"precision": precision, "recorded_against": name, "losses": losses, **weights}
        rows.append({**row, "recorded": recorded, "ok": recorded and close})
    return rows


def run_steps(device: torch.device, precision: str, graph: bool = True, size: int = 20) -> Row:
    """What the steps lead to; after `size` of them all is built anew, differently, and loaded."""
    steps, losses, recorded = new_steps(device, precision, graph, 0), [], True
    for begin in range(0, len(RATES), size):
        if begin > 0:
            state, steps = steps.state(), new_steps(device, precision, graph, begin)
            steps.load_state(state)
        losses.append(steps.run(RATES[begin : begin + size]))
        recorded = recorded and steps.graph is not None
    models, names = steps.method.models, ("meta_loss", "class_loss")
    return {
        "losses": torch.stack([torch.cat([found[name] for found in losses]) for name in names]),
        **{name: flat(model.parameters()) for name, model in models.items()},
        "statistics": flat(b for model in models.values() for b in model.buffers()),
        "recorded": recorded,
    }


def new_steps(device: torch.device, precision: str, graph: bool, seed: int) -> Steps:
    """MLNT on random images, cropped and flipped; the seed is that of weights and batches."""
    settings = make_settings(
        "cifar10", batch_size=32, sets=SETS, precision=precision, engine="folded", graph=graph
    )
    dtype = weight_type(settings)
    torch.manual_seed(0)
    images, labels_N = torch.randn(256, 3, SIDE, SIDE), torch.randint(CLASSES, (256,))
    split, features_ND = Split(images.to(device, dtype), labels_N.to(device)), torch.randn(256, 16)
    torch.manual_seed(seed)
    model = PreActResNet32(3, CLASSES).to(device, dtype)
    generator = torch.Generator(device).manual_seed(seed)
    method = MLNT(model, settings, features_ND.to(device), generator=generator)
    kept = torch.arange(0, 256, 2, device=device)  # as if by a mentor: a second stream of batches
    return SteadySteps(split, method, settings, generator, kept)


def compare_precisions(device: str, seeds: int, epochs: int) -> dict[str, Any]:
    """Test accuracy of the last iteration's teacher, best by validation and at the last epoch."""
    options: Row = {"noise": "symmetric:0.4", "epochs": epochs, "sets": 2, "device": device}
    values: Row = {epoch: {"bfloat16": [], "float32": []} for epoch in ("best", "last")}
    for precision in ("bfloat16", "float32"):
        for seed in range(seeds):
            models = train("digits", precision=precision, seed=seed, **options).summary["models"]
            teacher = [row for row in models if row["model"] == "teacher"][-1]
            for epoch in values:
                values[epoch][precision].append(teacher[epoch])
    rows = [{"epoch": epoch, **compare_accuracies(**values[epoch])} for epoch in values]
    return {"epochs": epochs, "seeds": seeds, "values": values, "rows": rows}


def compare_accuracies(bfloat16: list[float], float32: list[float]) -> Row:
    """Means with standard errors; one run of each does not tell how large the noise is."""
    from scipy.stats import t as student_t  # a second, which no other command should take

    count, difference = len(float32), statistics.mean(bfloat16) - statistics.mean(float32)
    row: Row = {}
    for name, values in (("bfloat16", bfloat16), ("float32", float32)):
        error = statistics.stdev(values) / math.sqrt(count) if count > 1 else None
        row |= {name: statistics.mean(values), f"{name}_error": error}
    both = math.hypot(row["bfloat16_error"], row["float32_error"]) if count > 1 else None
    within = None
    if both is not None:
        # Student's t for so few runs: three of each often show too little spread by chance.
        within = bool(abs(difference) <= max(student_t.ppf(0.975, count - 1) * both, NOISE_POINTS))
    return {**row, "difference": difference, "difference_error": both, "within_noise": within}
