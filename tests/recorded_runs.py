"""Run folders as if they had been trained, for tests of what is written down."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from mlnt.config import make_settings

MODELS = [("cross_entropy", 0, "student")]
MODELS += [("mlnt", i, model) for i in (1, 2, 3) for model in ("student", "teacher")]


def make_run(
    folder: Path,
    best: float = 91.0,
    *,
    preset: str = "cifar10-fast",
    data: str = "cifar10",
    labels: str | None = None,
    last: float | None = None,
    finished: bool = True,
    minutes: float = 10.0,
    shared_gpu: bool = False,
    config: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """MLNT's last teacher has `best`, every model before it one point less than the next."""
    noise = "none" if labels else settings.pop("noise", "symmetric:0.5")
    validation = "noisy" if labels else "clean"
    chosen = make_settings(preset, **{"noise": noise, "validation": validation, **settings})
    made = {
        "mlnt": "0.1.0",
        "settings": dataclasses.asdict(chosen),
        "data": {"name": data, "is_known": True, "samples": {"train": 45000},
                 "fingerprint": f"f{chosen.seed}", "classes": ["a", "b"], "encoder": {}},
        "noise": {"asked": noise, "wrong_in_train": 45.1},
        "source": {"data": "/home/somebody/data", "labels": labels},
        "job": "/home/somebody/job",
        "machine": "NVIDIA H200",
        "commit": "0123456789abcdef0123456789abcdef01234567",
        **(config or {}),
    }  # fmt: skip
    folder.mkdir(parents=True)
    _write(folder / "config.json", made)
    rows = [
        {"method": method, "iteration": iteration, "epoch": epoch,
         "student": {"test": 80.0 + epoch}, "teacher": {"test": 82.0 + epoch}}
        for method, iteration in (("cross_entropy", 0), ("mlnt", 1), ("mlnt", 2), ("mlnt", 3))
        for epoch in (1, 2, 3)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "best.safetensors").write_bytes(b"weights")
    (folder / "label_issues.csv").write_text("index\n")
    if finished:
        figures = summary(best, best if last is None else last, minutes)
        _write(folder / "summary.json", figures | ({"shared_gpu": True} if shared_gpu else {}))
    return folder


def summary(best: float, last: float, minutes: float) -> dict[str, Any]:
    steps = range(len(MODELS) - 1, -1, -1)
    return {
        "models": [
            {"method": method, "iteration": iteration, "model": model, "best": best - step,
             "last": last - step, "peak": best - step}
            for (method, iteration, model), step in zip(MODELS, steps, strict=True)
        ],
        "filters": [
            {"after_iteration": i, "tau": None, "kept": 20000 + i, "of": 45000, "rescued": {},
             "wrong_among_kept": 3.14, "wrong_among_dropped": 92.6}
            for i in (1, 2)
        ],
        "found_errors": {"auroc": 0.9876, "ap": 0.9765},
        "memorised_noise": {"cross_entropy student": 33.33, "mlnt iteration 3 teacher": 1.25},
        "noise": {"asked": "symmetric:0.5", "wrong_in_train": 45.1},
        "seconds": 60 * minutes,
    }  # fmt: skip


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
