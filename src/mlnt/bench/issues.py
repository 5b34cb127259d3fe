"""How well wrong labels are found, against cleanlab, on labels whose truth is known.

    data, noise: once, for both
    cleanlab: the same network by cross entropy, five folds -> probabilities out of sample -> scores
    mlnt: one run -> after each of its stages, what the noise model makes of the best model

All labels are judged, held-out ones too. Both get their best: of cleanlab's scores the one that
does best by the true labels, of ours the only one there is.

Axes: N samples, C classes.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from torch import Tensor, nn

from mlnt.bench.ledger import Ledger
from mlnt.bench.rows import free
from mlnt.config import Settings
from mlnt.data.dataset import Dataset, Split
from mlnt.data.prepare import Seeds, hold_out, prepare
from mlnt.data.sources import open_dataset
from mlnt.defaults import choose_settings
from mlnt.device import computing, drawing_from, pick_device, weight_type
from mlnt.errors import InputError
from mlnt.evaluation import found_errors, predict_probabilities
from mlnt.iterations import best_model
from mlnt.methods import CrossEntropy
from mlnt.models import build_model
from mlnt.origin import commit, machine_name
from mlnt.recipes import Recipe
from mlnt.training import Stage, Trainer, model_name

FOLDS = 5
NOISES = ("none", "symmetric:0.4", "asymmetric:0.4")


@dataclass(frozen=True)
class IssuesRow:
    """One system on one set of labels."""

    data: str
    noise: str
    seed: int
    labels: int
    wrong: float  # % of the labels
    system: str
    seconds: float  # of training so far, and of judging the labels
    auroc: float | None
    ap: float | None
    precision_at_wrong: float | None  # % wrong among as many of the worst as there are wrong ones
    estimated: float  # % of the labels
    interval: tuple[float, float] | None  # of that estimate
    flagged: int
    flagged_wrong: float | None  # % of them
    detail: str = ""
    commit: str = ""
    given: str = ""  # settings that are not those of the data

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.data, self.noise, self.given, self.seed


@dataclass(frozen=True)
class IssuesResult:
    machine: str
    torch: str
    date: str
    rows: tuple[IssuesRow, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    def to_rich(self) -> Iterator[RenderableType]:
        yield f"{self.machine}, torch {self.torch}; mean (± standard deviation) over seeds"
        groups: dict[tuple[str, ...], dict[str, list[IssuesRow]]] = {}
        for row in self.rows:
            by_system = groups.setdefault(row.key[:-1], {})
            by_system.setdefault(row.system, []).append(row)
        for (data, noise, given), by_system in groups.items():
            first = next(iter(by_system.values()))
            # Names and spreads on two lines: so it fits into 80 columns.
            table = Table(
                title=f"{data}, noise {noise}: {_mean(first, 'wrong', between=' ± ')} % of "
                f"{first[0].labels:,} labels wrong, n={len(first)}{given and '; ' + given}",
                title_style="",
                box=SIMPLE_HEAD,
                padding=(0, 1, 0, 0),
            )
            table.add_column("found by", min_width=14)
            for heading in ("seconds", "AUROC", "AP", "P@wrong", "estimate", "flagged", "right"):
                table.add_column(heading, justify="right", no_wrap=True)
            for system, rows in by_system.items():
                table.add_row(
                    system,
                    _mean(rows, "seconds"),
                    _mean(rows, "auroc", 3),
                    _mean(rows, "ap", 3),
                    _mean(rows, "precision_at_wrong"),
                    _mean(rows, "estimated"),
                    _mean(rows, "flagged", 0),
                    _mean(rows, "flagged_wrong"),
                )
            yield table
        yield (
            "P@wrong: % wrong among as many of the worst as there are wrong labels; estimate: % of "
            "wrong labels, as estimated; right: % of the flagged labels that are wrong. cleanlab's "
            "AUROC, AP and P@wrong are of the score of its own that does best by the true labels."
        )


def run_issues(
    data: str | Path = "digits",
    device: str = "auto",
    noises: Sequence[str] = NOISES,
    labels: str | None = None,
    seeds: int = 1,
    preset: str | None = None,
    done: Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
    **settings: Any,
) -> IssuesResult:
    """Compare on each noise and seed; `tell` hears what is next.

    labels  FILE:KEY of noisy labels whose true ones are known; then no noise is put in
    done    JSON, rewritten after each; what it holds is kept and not measured again
    """
    cleanlab()  # better now than after minutes of training
    place = pick_device(device)
    result = IssuesResult(
        machine=machine_name(place),
        torch=torch.__version__,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    ledger = Ledger(done)
    result = replace(result, **ledger.read(result, _row_from, ("machine",)))
    dataset = open_dataset(str(data), labels=labels)
    name = Path(data).name  # not where it lies on this machine
    there = {row.key for row in result.rows}
    named_settings = {**settings, **({"preset": preset} if preset else {})}
    changed = ", ".join(f"{name}={value}" for name, value in sorted(named_settings.items()))
    for noise in ("none",) if labels else noises:
        said = Path(labels).name if labels else noise
        for seed in range(seeds):
            if (name, said, changed, seed) in there:
                continue
            given = {**settings, "noise": noise, "seed": seed, "device": device}
            chosen = choose_settings(dataset, place, preset, given).settings
            tell(f"{name}, {said}, seed {seed}")
            rows = _compare(dataset, chosen, place)
            named = [replace(r, data=name, noise=said, seed=seed, given=changed) for r in rows]
            result = replace(result, rows=(*result.rows, *named))
            ledger.write(result)
    return result


def cleanlab() -> Any:
    """The package, which only this comparison needs."""
    try:
        import cleanlab.count
        import cleanlab.filter
        import cleanlab.rank

        return cleanlab
    except Exception as error:
        raise InputError(f"the comparison needs cleanlab (pip install cleanlab): {error}") from None


@dataclass(frozen=True)
class _Case:
    """Noisy data on its device."""

    dataset: Dataset
    settings: Settings
    device: torch.device

    def new_model(self) -> nn.Module:
        encoder, classes = self.dataset.encoder, len(self.dataset.classes)
        model = build_model(self.settings.model, encoder, classes, self.settings.weights)
        return model.to(device=self.device, dtype=weight_type(self.settings))

    def trainer(self, train: Split, validation: Split) -> Trainer:
        dtype = weight_type(self.settings)
        generator = torch.Generator(self.device).manual_seed(Seeds.of(self.settings.seed).training)
        train, validation = train.to(self.device, dtype), validation.to(self.device, dtype)
        return Trainer(train, validation, None, self.settings, generator)


def _compare(dataset: Dataset, settings: Settings, device: torch.device) -> list[IssuesRow]:
    prepared, _ = prepare(dataset, settings)
    train, validation = prepared.train, prepared.validation
    assert validation is not None
    if not isinstance(train.inputs, Tensor) or not isinstance(validation.inputs, Tensor):
        raise InputError("the comparison keeps its data in memory, not pictures on disk")
    everything = Split(
        torch.cat([train.inputs, validation.inputs]), torch.cat([train.labels, validation.labels])
    )
    truths = [
        split.labels if split.true_labels is None else split.true_labels
        for split in (train, validation)
    ]
    case, wrong_N = _Case(prepared, settings, device), everything.labels != torch.cat(truths)
    rows: list[IssuesRow] = []
    with drawing_from(Seeds.of(settings.seed).weights, device), computing(settings, device):
        rows += _cleanlab_row(case, everything, wrong_N)
        free(device)
        rows += _own_rows(case, wrong_N)
        free(device)
    return rows


def _own_rows(case: _Case, wrong_N: Tensor) -> Iterator[IssuesRow]:
    """After each stage of one run: what is known of the labels, and the time it took so far."""
    assert case.dataset.validation is not None
    trainer = case.trainer(case.dataset.train, case.dataset.validation)
    recipe = Recipe(trainer, case.new_model, case.dataset.classes).begun()
    led = recipe.mlnt()
    assert led.judge is not None
    seconds = 0.0
    for stage in recipe.stages_of(led):
        seconds += stage.seconds
        began = time.perf_counter()
        model = best_model(stage)
        answers_NC = predict_probabilities(model, trainer.train.inputs)
        judged = led.judge(model, answers_NC, stage.is_led)
        score_N = judged.wrong.cpu()  # copying waits for the GPU
        name = model_name(stage.stage.method, "teacher", stage.stage.iteration)
        yield _row(
            system=f"mlnt after {name.replace('mlnt teacher, ', '')}",
            seconds=seconds + time.perf_counter() - began,
            score_N=score_N,
            wrong_N=wrong_N,
            estimated=judged.noise_rate,
            interval=judged.noise_interval,
            flagged_N=score_N > 0.5,
        )


def _cleanlab_row(case: _Case, everything: Split, wrong_N: Tensor) -> Iterator[IssuesRow]:
    probabilities_NC, seconds = _out_of_sample(case, everything)
    labels = everything.labels.numpy()
    scores = dict(_cleanlab_scores(labels, probabilities_NC))
    truth = {name: found_errors(score_N, wrong_N)["ap"] or 0.0 for name, score_N in scores.items()}
    best = max(truth, key=lambda name: truth[name])
    found = cleanlab().filter.find_label_issues(labels, probabilities_NC)
    count = cleanlab().count.num_label_issues(labels, probabilities_NC)
    yield _row(
        system=f"cleanlab, {FOLDS} folds of cross entropy",
        seconds=seconds,
        score_N=scores[best],
        wrong_N=wrong_N,
        estimated=count / len(labels),
        interval=None,
        flagged_N=torch.from_numpy(found),
        detail=best,
    )


def _out_of_sample(case: _Case, everything: Split) -> tuple[np.ndarray, float]:
    """Probabilities [N, C], each by a network that never saw the sample; seconds of training."""
    from sklearn.model_selection import StratifiedKFold

    assert isinstance(everything.inputs, Tensor)
    settings, seed = case.settings, case.settings.seed
    probabilities_NC = np.zeros((len(everything), len(case.dataset.classes)))
    seconds = 0.0
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    labels = everything.labels.numpy()
    for number, (inside, outside) in enumerate(folds.split(np.zeros(len(labels)), labels)):
        generator = torch.Generator().manual_seed(Seeds.of(seed).split + number)
        part = replace(case.dataset, train=everything.take(torch.from_numpy(inside)))
        part = hold_out(part, settings.validation_share, generator)
        assert part.validation is not None
        trainer = case.trainer(part.train, part.validation)
        method = CrossEntropy(case.new_model(), settings)
        stage = trainer.run(Stage("cross_entropy", 0), method)
        inputs = everything.inputs[torch.from_numpy(outside)].to(case.device)
        if inputs.is_floating_point():
            inputs = inputs.to(weight_type(settings))
        found = predict_probabilities(best_model(stage), inputs)
        probabilities_NC[outside] = found.double().cpu().numpy()
        seconds += stage.seconds
    return probabilities_NC, seconds


def _cleanlab_scores(
    labels: np.ndarray, probabilities_NC: np.ndarray
) -> Iterator[tuple[str, Tensor]]:
    """Every score that cleanlab offers for one model, higher for more suspicious labels."""
    quality = cleanlab().rank.get_label_quality_scores
    for method in ("self_confidence", "normalized_margin", "confidence_weighted_entropy"):
        for adjusted in (False, True):
            if adjusted and method == "confidence_weighted_entropy":
                continue  # it has none
            found = quality(labels, probabilities_NC, method=method, adjust_pred_probs=adjusted)
            yield f"{method}{', adjusted' if adjusted else ''}", torch.from_numpy(-found)


def _row(
    system: str,
    seconds: float,
    score_N: Tensor,
    wrong_N: Tensor,
    estimated: float,
    interval: tuple[float, float] | None,
    flagged_N: Tensor,
    detail: str = "",
) -> IssuesRow:
    found = found_errors(score_N, wrong_N)
    count = int(wrong_N.sum())
    worst = score_N.argsort(descending=True, stable=True)[:count]
    return IssuesRow(
        data="",
        noise="",
        seed=0,
        labels=len(wrong_N),
        wrong=100 * count / len(wrong_N),
        system=system,
        seconds=seconds,
        auroc=found["auroc"],
        ap=found["ap"],
        precision_at_wrong=100 * float(wrong_N[worst].double().mean()) if count else None,
        estimated=100 * float(estimated),
        interval=None if interval is None else (100 * interval[0], 100 * interval[1]),
        flagged=int(flagged_N.sum()),
        flagged_wrong=100 * float(wrong_N[flagged_N].double().mean()) if flagged_N.any() else None,
        detail=detail,
        commit=commit(),
    )


def _row_from(interval: Sequence[float] | None, **others: Any) -> IssuesRow:
    """As JSON has it: there are no tuples."""
    pair = None if interval is None else (interval[0], interval[1])
    return IssuesRow(interval=pair, **others)


def _mean(rows: Sequence[IssuesRow], name: str, digits: int = 1, between: str = "\n±") -> str:
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    if not values:
        return "–"
    spread = f"{between}{np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"
