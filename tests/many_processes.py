"""Four processes train in worlds of one, two and four, and write what came.

    python many_processes.py FOLDER [slow]

Every case is a trajectory of weights and losses; tests/test_distributed.py compares them. The
processes are forked from one that has loaded everything, as torchrun would have started them.
"""

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from mlnt.config import SINGLE_STAGE, make_settings
from mlnt.data.dataset import Split
from mlnt.data.image_files import FaultLog, ImageFiles
from mlnt.data.pictures import PathTable, PictureError
from mlnt.distributed import ALL_ALONE, World, join
from mlnt.evaluation import extract_features, predict_probabilities
from mlnt.methods import (
    CNNCRF,
    MLNT,
    Clean,
    Contrastive,
    CrossEntropy,
    Forward,
    Iterative,
    JointOptimization,
    MeanTeacher,
    Method,
    Rates,
    single_stage,
)
from mlnt.networks import GRU
from mlnt.steps import Steps

PROCESSES = 4
STEPS = 50
CLASSES = 3


class Coupled(nn.Module):
    """Samples of a batch depend on each other by more than batch norm; unseen at first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(8, CLASSES)
        self.gain = nn.Parameter(torch.zeros(()))
        for parameter in self.last.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1)).relu()
        hidden = hidden - hidden.mean(dim=0) if self.training else hidden
        return self.last(hidden * (1 + self.gain))


class Functional(nn.Module):
    """Batch norm without a layer of its own, beside dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1))
        if self.training:
            hidden = F.batch_norm(hidden, None, None, training=True)
        return self.last(F.dropout(hidden.relu(), 0.3, self.training))


def read(path: str, size: int, crop: int) -> np.ndarray:
    number = int(path.rpartition("/")[2])
    if number % 7 == 0:
        raise PictureError("a multiple of seven")
    return np.random.default_rng(number).integers(256, size=(3, crop, crop)).astype(np.uint8)


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


def deep() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 5),
        nn.BatchNorm1d(5),
        nn.Linear(5, CLASSES),
    )


NETWORKS = {
    "conv": conv,
    "deep": deep,
    "coupled": Coupled,
    "functional": Functional,
    "rgb": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, CLASSES)
    ),
    "gru": lambda: GRU(20, CLASSES, 6),
}


@dataclass(frozen=True)
class Case:
    name: str
    method: str = "mlnt"
    network: str = "conv"
    dtype: torch.dtype = torch.float64
    steps: int = STEPS
    sizes: tuple[int, ...] = (1, 2, 4)
    settings: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("plain", settings={"engine": "plain"}),
    Case("folded", settings={"engine": "folded"}),
    Case("float32", dtype=torch.float32, sizes=(1, 4), settings={"engine": "plain"}),
    # Fewer sets than processes: a grid of sets and rows, which do not come out even.
    Case(
        "grid-plain",
        network="deep",
        steps=5,
        settings={"engine": "plain", "sets": 2, "batch_size": 9},
    ),
    Case(
        "grid-folded",
        network="deep",
        steps=5,
        settings={"engine": "folded", "sets": 2, "batch_size": 9},
    ),
    Case(
        "grid-plain-2", network="deep", steps=2, settings={"engine": "plain", "sets": 1, "order": 2}
    ),
    Case(
        "grid-folded-2",
        network="deep",
        steps=2,
        settings={"engine": "folded", "sets": 1, "order": 2},
    ),
    Case("coupled", network="coupled", steps=3, settings={"engine": "plain", "sets": 2}),
    # Pictures that each process reads some of, and some of which cannot be read.
    Case("pictures", "cross_entropy", "rgb", steps=3),
    Case("blanked-pictures", "mean_teacher", "rgb", steps=3, settings={"cutout": 2}),
    Case("dropout", "cross_entropy", "functional", steps=3),
    Case("contrastive", "contrastive", "deep", steps=3),
)
SLOW_CASES = (
    Case("grid-50-plain", network="deep", settings={"engine": "plain", "sets": 2, "batch_size": 9}),
    Case(
        "grid-50-folded", network="deep", settings={"engine": "folded", "sets": 2, "batch_size": 9}
    ),
    Case(
        "uneven", network="deep", steps=8, settings={"engine": "folded", "sets": 5, "batch_size": 9}
    ),
    Case("summed", network="deep", steps=8, settings={"engine": "plain", "update": "summed"}),
    Case(
        "mse",
        network="deep",
        steps=8,
        settings={"engine": "folded", "sets": 2, "consistency": "mse"},
    ),
    Case("cross-entropy", "cross_entropy", "deep"),
    Case("text", "cross_entropy", "gru", steps=8),
    Case("forward", "forward", "deep", steps=8),
    Case("joint", "joint_optimization", "deep", steps=8),
    Case("crf", "cnn_crf", "deep", steps=8),
    *(Case(name, name, "deep", steps=8) for name in SINGLE_STAGE),
    Case("mean-teacher", "mean_teacher", "deep", steps=8),
    Case("iterative", "iterative", "deep", steps=8),
)


def make_steps(case: Case, world: World) -> Steps:
    torch.manual_seed(0)
    given = {"batch_size": 8, "sets": 4, "crop_padding": 1, "flip": True, **case.settings}
    settings = make_settings("digits", precision="float64", **given)
    draw = torch.Generator().manual_seed(1)
    shape = (30, 5) if case.network == "gru" else (30, 1, 4, 4)
    inputs = torch.randn(*shape, generator=draw, dtype=case.dtype)
    if case.network == "rgb":
        paths = PathTable.of("/nowhere", [str(number) for number in range(30)])
        inputs = ImageFiles(
            paths, FaultLog(10), size=4, crop=4, workers=0, read=read, dtype=case.dtype
        )
    if case.network == "gru":
        inputs = torch.randint(1, 20, shape, generator=draw)
        settings = replace(settings, crop_padding=0, flip=False)
    train = Split(inputs, torch.randint(CLASSES, (30,), generator=draw))
    features_ND = torch.randn(30, 5, generator=draw)
    generator = torch.Generator().manual_seed(2)
    model = NETWORKS[case.network]().to(case.dtype)
    labels, true = train.labels, (train.labels + (torch.arange(30) % 5 == 0)) % CLASSES
    method: Method
    if case.method == "mlnt":
        mentor = NETWORKS[case.network]().to(case.dtype)
        method = MLNT(model, settings, features_ND, mentor, generator)
    elif case.method == "forward":
        method = Forward(model, settings, torch.eye(CLASSES) * 0.7 + 0.1)
    elif case.method == "joint_optimization":
        method = JointOptimization(model, settings, labels, CLASSES)
    elif case.method == "cnn_crf":
        clean = Clean(train.inputs[:10], true[:10], labels[:10])
        method = CNNCRF(model, settings, clean, CLASSES, generator)
    elif case.method in SINGLE_STAGE:
        method = single_stage(case.method)(model, settings, 30, CLASSES)
    elif case.method == "contrastive":
        method = Contrastive(model, settings, train.inputs[:2], generator)
    else:
        kinds = {
            "cross_entropy": CrossEntropy, "mean_teacher": MeanTeacher, "iterative": Iterative,
        }  # fmt: skip
        method = kinds[case.method](model, settings)
    kept = torch.arange(0, 30, 2)
    return Steps(train, method, settings, generator, kept, world)


def checkpoint(folder: Path, of_size: dict[int, World]) -> None:
    """Five steps by four processes, five by one, five by four, against fifteen by one."""
    case, rank = CASES[0], of_size[4].rank
    rates = [Rates(lr=0.05, eta=0.05, gamma=0.9, lam=0.3)] * 5
    state = None
    for size in (4, 1, 4):
        steps = make_steps(case, of_size[size])
        if state is not None:
            steps.load_state(state)
        steps.run(rates)
        state = steps.state()
    save_file(state["models"]["teacher"], folder / f"resumed-{rank}.safetensors")
    if rank == 0:
        steps = make_steps(case, ALL_ALONE)
        steps.run(rates * 3)
        save_file(steps.state()["models"]["teacher"], folder / "whole.safetensors")


def trajectory(case: Case, world: World) -> dict[str, Tensor]:
    """Losses of all steps, weights and buffers at the end, and what the model says and sees."""
    steps = make_steps(case, world)
    rates = [Rates(lr=0.05, eta=0.05, gamma=0.9, lam=0.3) for _ in range(case.steps)]
    found = {f"loss.{name}": values for name, values in steps.run(rates).items()}
    steps.renew_teacher()
    for name, model in steps.method.models.items():
        found |= {f"{name}.{key}": value for key, value in model.state_dict().items()}
    student, inputs = steps.method.models["student"], steps.train.inputs
    found["probabilities"] = predict_probabilities(student, inputs, world)
    found["features"] = extract_features(student, inputs[:3], world)
    if isinstance(inputs, ImageFiles):
        steps.share_faults()
        found["faults"] = torch.tensor(sorted(int(Path(p).name) for p in inputs.faults.found))
    found["drawn"] = torch.rand(1)  # the generators of all go on alike
    return {name: value.clone().contiguous() for name, value in found.items()}


def worlds() -> dict[int, World]:
    everybody = join()
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    half = everybody.rank // 2
    two = World(everybody.rank % 2, 2, halves[half], local_size=4)
    return {1: ALL_ALONE, 2: two, 4: everybody}


def train_all(folder: Path, cases: tuple[Case, ...]) -> None:
    of_size = worlds()
    rank = of_size[4].rank
    for number, case in enumerate(cases):
        for size in case.sizes:
            world = of_size[size]
            # Alone, each takes some of the cases; of the two halves too.
            turn = number % 4 == rank if size == 1 else size == 4 or number % 2 == rank // 2
            if turn:
                found = trajectory(case, world)
                save_file(found, folder / f"{case.name}-{size}-{world.rank}.safetensors")
    if cases is CASES:
        checkpoint(folder, of_size)


def fork(work: Callable[[], None]) -> int:
    """The number of a process that works, and ends with status 0 if nothing went wrong."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def serve(port_to: int, until_closed: int) -> None:
    """The store at which the processes meet; torchrun's otherwise."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(port_to, str(store.port).encode())
    os.read(until_closed, 1)


def main(folder: Path, cases: tuple[Case, ...]) -> int:
    torch.set_num_threads(1)
    trajectory(replace(CASES[0], steps=1), ALL_ALONE)  # loads what torch loads when it is needed
    port, port_to = os.pipe()
    until_closed, held_open = os.pipe()
    server = fork(lambda: (os.close(held_open), serve(port_to, until_closed)))
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.read(port, 10).decode(),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(PROCESSES), "LOCAL_WORLD_SIZE": str(PROCESSES),
    }  # fmt: skip
    workers = []
    for rank in range(PROCESSES):
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        workers.append(fork(lambda: train_all(folder, cases)))
    failed = [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers]
    os.close(held_open)
    os.waitpid(server, 0)
    return max(map(abs, failed))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), SLOW_CASES if sys.argv[2:] == ["slow"] else CASES))
