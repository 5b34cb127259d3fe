"""What the experiment is to reach: MLNT's teacher of the third iteration, best by validation."""

from collections.abc import Sequence
from dataclasses import dataclass

from mlnt.reproduce.paper import published
from mlnt.reproduce.recorded import Group, Recorded
from mlnt.reproduce.results import Spread

ITERATION, MODEL = 3, "teacher"
MOST_BELOW_BEST = 0.5  # of the last epoch, in every cell
MOST_MINUTES = 15.0  # of a cell: three iterations, the cross-entropy network included


@dataclass(frozen=True)
class Target:
    name: str
    data: str
    noise: str
    reach: float
    beside: str = ""  # what others have published, where the paper has no figure

    @property
    def paper(self) -> str:
        tables = {"symmetric": "table1", "asymmetric": "table2"}
        table = tables.get(self.noise.partition(":")[0], "")
        figure = published().get((table, "mlnt", MODEL, ITERATION, self.noise, ""))
        return self.beside if figure is None else str(figure)


TARGETS = (
    Target("CIFAR-10, symmetric 0.5", "cifar10", "symmetric:0.5", 90.65),
    Target("CIFAR-10, symmetric 0.7", "cifar10", "symmetric:0.7", 87.11),
    Target("CIFAR-10, symmetric 0.9", "cifar10", "symmetric:0.9", 62.0),
    Target("CIFAR-10, asymmetric 0.4", "cifar10", "asymmetric:0.4", 92.30),
    Target("CIFAR-10, clean", "cifar10", "symmetric:0", 93.8),
    Target(
        "CIFAR-10N, worst; no clean label used",
        "cifar10n",
        "worst",
        88.0,
        "none (published with CIFAR-10N, other architectures: cross entropy 77.7; "
        "two networks each: Co-teaching+ 83.3, ELR+ 91.1, DivideMix 92.6)",
    ),
)


@dataclass(frozen=True)
class Reached:
    """What the runs came to, over their seeds."""

    best: Spread
    last: Spread
    minutes: Spread
    alone: Spread  # those of the minutes that a run had its GPU to itself

    @property
    def n(self) -> int:
        return len(self.best.values)

    @property
    def falls(self) -> list[float]:
        """last − best of each seed."""
        return [last - best for best, last in zip(self.best.values, self.last.values, strict=True)]


def reached(groups: Sequence[Group], target: Target) -> Reached:
    """By the fast schedule; with n = 0 where nothing was run."""
    runs = [
        run
        for group in groups
        if (group.data, group.noise, group.schedule) == (target.data, target.noise, "")
        for run in group.of("mlnt")
    ]
    return reached_by(runs)


def reached_by(runs: Sequence[Recorded]) -> Reached:
    found = [
        (figures, run)
        for run in runs
        for figures in run.summary["models"]
        if (figures["method"], figures["model"], figures["iteration"]) == ("mlnt", MODEL, ITERATION)
    ]
    best, last = (Spread(tuple(figures[name] for figures, _ in found)) for name in ("best", "last"))
    minutes = Spread(tuple(run.minutes for _, run in found))
    alone = Spread(tuple(run.minutes for _, run in found if not run.shared_gpu))
    return Reached(best, last, minutes, alone)
