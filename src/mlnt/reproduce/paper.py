"""The paper's own figures, from paper.json."""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from mlnt.reproduce.experiments import Experiment, Line, swept_value


@dataclass(frozen=True)
class Published:
    value: float
    error: float | None = None  # standard error, where the paper gives it

    def __str__(self) -> str:
        return f"{self.value:.2f}" + ("" if self.error is None else f" ± {self.error:.2f}")


Key = tuple[str, str, str, int, str, str]  # table, method, model, iteration, noise, setting


@cache
def published() -> dict[Key, Published]:
    """Every figure of the paper's tables."""
    text = resources.files("mlnt.reproduce").joinpath("paper.json").read_text(encoding="utf-8")
    return {
        _key(row): Published(row["value"], row.get("error")) for row in json.loads(text)["figures"]
    }


def _key(row: dict[str, Any]) -> Key:
    return (
        row["table"], row["method"], row["model"], row["iteration"], row["noise"],
        row.get("setting", ""),
    )  # fmt: skip


def find_published(experiment: Experiment, line: Line, noise: str) -> Published | None:
    """What the paper has for a line of an experiment; None where it gives no figure."""
    setting = line.setting
    if setting and experiment.figure == "sweep":
        # A sweep passes through the tables at one value at most: M = 10.
        if swept_value(setting)[1] != experiment.paper_value:
            return None
        setting = ""
    for table in experiment.paper:
        key = (table, line.method, line.model, line.iteration, noise, setting)
        if key in published():
            return published()[key]
    return None
