"""What each experiment consists of, as data: methods, noise, what is swept, the paper's tables."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlnt.config import SINGLE_STAGE, fields_by_name
from mlnt.schedule import ITERATED

# Down the tables: the baselines, the two ablations of MLNT, MLNT itself.
METHODS = (
    "cross_entropy", "forward", "forward_true", "cnn_crf", "joint_optimization",
    *SINGLE_STAGE, "mean_teacher", "iterative", "mlnt",
)  # fmt: skip
# The stage that counts of methods without mentors: joint_optimization ends with a network on the
# labels found.
STAGES = {"cross_entropy": 0, "joint_optimization": 2}
# Methods beside MLNT whose runs begin with cross entropy.
BEGUN_BY_IT = ("forward", "iterative", "mean_teacher")
# What a run of MLNT begins with, and what it is called in pictures.
FIRST_STAGES = {"contrastive": "contrastive features", "cross_entropy": "cross entropy"}

SYMMETRIC = tuple(f"symmetric:{rate}" for rate in ("0", "0.1", "0.3", "0.5", "0.7", "0.9"))
ASYMMETRIC = tuple(f"asymmetric:{rate}" for rate in ("0.1", "0.2", "0.3", "0.4", "0.5"))
# The four of the paper's Table 3. Its figure of M does not say which rates it shows: these too.
REPRESENTATIVE = ("symmetric:0.3", "symmetric:0.7", "asymmetric:0.2", "asymmetric:0.4")


@dataclass(frozen=True)
class Line:
    """One line of a table: a model, and the swept setting it was trained with."""

    method: str
    model: str
    iteration: int
    setting: str = ""  # "sets=5"


@dataclass(frozen=True)
class Experiment:
    title: str
    data: str  # which data the full experiment needs; see `places.find_place`
    noises: tuple[str, ...]
    methods: tuple[str, ...] = ("cross_entropy", "mlnt")
    swept: str = ""  # a setting of mlnt that takes each of `values`
    values: tuple[float, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    paper: tuple[str, ...] = ()  # tables in paper.json
    paper_value: float | None = None  # of the swept setting, in those tables
    figure: str = ""  # progress, sweep or filtered
    flat: bool = False  # one cell per seed, in OUT/seed-0

    def settings_of(self, method: str) -> list[str]:
        """What is swept over, as in Line.setting; [""] where nothing is."""
        if method != "mlnt" or not self.swept:
            return [""]
        return [f"{self.swept}={value:g}" for value in self.values]

    def lines(self, iterations: int, begun_without_labels: bool = False) -> Iterator[Line]:
        """Every line of the table, from top to bottom. A sweep shows its last iteration alone."""
        if begun_without_labels:
            yield Line("contrastive", "student", 0)
        for method in self.methods:
            for setting in self.settings_of(method):
                if method not in ITERATED:
                    yield Line(method, "student", STAGES.get(method, 1))
                    continue
                for iteration in range(iterations if setting else 1, iterations + 1):
                    yield Line(method, "student", iteration, setting)
                    yield Line(method, "teacher", iteration, setting)


def held_by(method: str) -> tuple[str, ...]:
    """The methods whose runs hold the figures of this one, the first to be asked first."""
    if method == "contrastive":
        return ("mlnt", *(name for name in METHODS if name != "mlnt"))
    return ("mlnt", "cross_entropy", *BEGUN_BY_IT) if method == "cross_entropy" else (method,)


def swept_value(setting: str) -> tuple[str, float]:
    """("sets", 5.0) from "sets=5"."""
    name, _, value = setting.partition("=")
    return name, float(value)


def symbol_of(name: str) -> str:
    """The paper's symbol of a setting, or its name: M, ρ, τ, order."""
    return fields_by_name()[name].metadata["symbol"] or name


EXPERIMENTS = {
    "table1": Experiment(
        "Table 1: symmetric label noise", "cifar10", SYMMETRIC, METHODS, paper=("table1",)
    ),
    "table2": Experiment(
        "Table 2: asymmetric label noise", "cifar10", ASYMMETRIC, METHODS, paper=("table2",)
    ),
    "table3": Experiment(
        "Table 3: first-order approximation (order=1) and full optimization (order=2)",
        "cifar10",
        REPRESENTATIVE,
        ("mlnt",),
        swept="order",
        values=(1, 2),
        settings={"iterations": 1},
        paper=("table3",),
    ),
    "table4": Experiment(
        "Table 4: real label noise",
        "clothing1m",
        ("real",),
        # Nobody knows the true matrix there, nor has cnn_crf a figure in the paper.
        tuple(method for method in METHODS if method not in ("forward_true", "cnn_crf")),
        paper=("table4",),
    ),
    "progress": Experiment(
        "Accuracy by epoch; asymmetric noise, 40 %",
        "cifar10",
        ("asymmetric:0.4",),
        settings={"iterations": 1},
        paper=("table2",),
        figure="progress",
    ),
    "sweep-m": Experiment(
        "Accuracy by M, the number of synthetic label sets (M=0: cross entropy)",
        "cifar10",
        REPRESENTATIVE,
        swept="sets",
        values=(5, 10, 15),
        settings={"iterations": 1},
        paper=("table1", "table2"),
        paper_value=10,
        figure="sweep",
    ),
    # The text does not say at which ρ and τ the tables were made, nor which rates and which τ its
    # figures show: three rates, and five values up to the most that makes sense of a label.
    "sweep-rho": Experiment(
        "Accuracy by ρ, the share of labels replaced in each set; asymmetric noise",
        "cifar10",
        ("asymmetric:0.2", "asymmetric:0.3", "asymmetric:0.4"),
        ("mlnt",),
        swept="rho",
        values=(0.1, 0.2, 0.3, 0.4, 0.5),
        settings={"iterations": 1},
        paper=("table2",),
        figure="sweep",
    ),
    "sweep-tau": Experiment(
        "Accuracy by τ, the mentor's threshold; second iteration, asymmetric noise",
        "cifar10",
        ("asymmetric:0.2", "asymmetric:0.3", "asymmetric:0.4"),
        ("mlnt",),
        swept="tau",
        values=(0.1, 0.2, 0.3, 0.4, 0.5),
        settings={"iterations": 2},
        paper=("table2",),
        figure="sweep",
    ),
    "filtered": Experiment(
        "Images that the mentor filtered out",
        "images",
        ("asymmetric:0.4",),
        settings={"iterations": 2},
        figure="filtered",
    ),
    "cifar10n": Experiment(
        "CIFAR-10N: labels by people", "cifar10n", ("aggregate", "random1", "worst"), METHODS
    ),
    "digits": Experiment(
        "digits, symmetric 70 %, clean validation", "digits", ("symmetric:0.7",), flat=True
    ),
    "hausa-news": Experiment(
        "Hausa news headlines, labels by distant supervision", "hausa-news", ("real",), flat=True
    ),
}
