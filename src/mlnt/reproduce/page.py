"""RESULTS.md and summary.csv, from what lies in the folder of results and nothing else."""

import csv
import io
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mlnt.data.known import NAMED
from mlnt.reproduce.experiments import EXPERIMENTS, METHODS, Experiment
from mlnt.reproduce.figures import PROGRESS
from mlnt.reproduce.naming import (
    NAMES,
    PAPER,
    RANDOM_WEIGHTS,
    changes_words,
    preset_and_changes,
)
from mlnt.reproduce.recorded import Group, Recorded, grouped, noise_words
from mlnt.reproduce.results import Row, Spread
from mlnt.reproduce.sheet import SHEET
from mlnt.reproduce.tables import NAMES as METHOD_NAMES
from mlnt.reproduce.tables import label, signed
from mlnt.reproduce.targets import (
    ITERATION,
    MODEL,
    MOST_BELOW_BEST,
    MOST_MINUTES,
    TARGETS,
    Target,
    reached,
    reached_by,
)
from mlnt.texts import harmless, markdown_cell, one_line

PAGE, TABLE = "RESULTS.md", "summary.csv"
COLUMNS = (
    "data", "noise", "method", "model", "iteration", "seed", "best", "last", "minutes", "machine",
    "commit",
)  # fmt: skip
FOLDERS = {"cifar10": "CIFAR10", "cifar10n": "CIFAR10"}  # as commands name them
NOT_RUN, NO_RUN, UNKNOWN = "not run", "no run had", "–"
SHORT_COMMIT = 10
TABLES = ("table1", "table2", "cifar10n")  # what the experiment consists of

OPENING = "# Results\n\nMade by `mlnt results` "  # by which a page is known to be one of ours
INTRODUCTION = f"""\
{OPENING}from the files in `{{results}}/`; docs/results.md says how, docs/reproduce.md
what the methods and the fast schedule are.

Test accuracy in %, mean ± standard error over n seeds. best: at the epoch chosen by validation;
last: after the last epoch. A run of MLNT is a cross-entropy network and three iterations, unless
its heading says otherwise. Where there is a line for contrastive features, which are learnt without
labels, all networks begin with them, cross entropy as well, unless it says otherwise; the paper's
begin with random weights. Behind its name stands what a line had otherwise than the schedule of
today has it.
"""
TO_REACH = f"""\
## What was to be reached

MLNT's {MODEL} of iteration {ITERATION}, fast schedule. last − best: the mean over the seeds.
minutes: the mean over the runs that had their GPU to themselves; shared: no run had.
"""
RAN = """\
## What was run

Number of seeds by the fast schedule of today, + by the paper's own; runs with other settings, as
their headings or lines say, are not counted, nor methods shown that have none. Every run of MLNT
holds cross entropy.
"""
FACTS = """\
## Each run

wrong: the share of the training labels that were really wrong. kept, dropped: the share of wrong
labels among the samples that the last mentor left in the class loss, and among the others. AUROC,
AP: of finding the wrong labels. memorised: the share of the wrong labels that a network gives back
at the end; cross entropy → the last model. All shares in %. minutes: of the whole run, cross
entropy included; shared: another process used the GPU at the same time.
"""


def to_csv(runs: Sequence[Recorded]) -> str:
    """One line for each model and seed: of cross entropy, which several runs hold, one as well."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for group, run in ((whole, one) for whole in grouped(runs) for one in whole.runs):
        for figures in run.summary["models"]:
            method = figures["method"]
            if all(run is not other for other in group.source(method)):
                continue
            told = ",".join([part for part in (run.schedule, *run.changes(method)) if part])
            method += f" ({told})" if told else ""
            names = (run.data, run.noise, method, figures["model"])
            numbers = (f"{figures['best']:.4f}", f"{figures['last']:.4f}", f"{run.minutes:.2f}")
            origin = (run.machine, run.origin("commit"))
            row = (*names, figures["iteration"], run.settings.seed, *numbers, *origin)
            writer.writerow([harmless(one_line(str(value))) for value in row])
    return file.getvalue()


def to_markdown(runs: Sequence[Recorded], results: Path) -> str:
    """The whole page; figures are shown where they lie in `results`."""
    groups = grouped(runs)
    introduction = INTRODUCTION.format(results=results.resolve().name)
    parts = [introduction, *_targets(groups)]
    for group in groups:
        parts += _group(group, results)
    parts += [*_figures(groups, results), *_ran(groups)]
    if runs:
        parts += [FACTS, _table(FACT_HEADINGS, [_facts(run) for run in runs])]
    return "\n".join(parts)


def _targets(groups: Sequence[Group]) -> Iterator[str]:
    """The goals of this project; nothing where no run is recorded that could reach one."""
    runs = [r for g in groups if g.data in NAMES and not g.schedule for r in g.of("mlnt")]
    if not runs:
        return
    yield TO_REACH
    headings = ("what", "paper", "to reach", "reached", "n", "last − best", "minutes", "yes or no")
    yield _table(headings, [_target(groups, target) for target in TARGETS])
    found = reached_by(runs)
    low, high = min(found.falls, default=math.nan), max(found.alone.values, default=math.nan)
    rules = (
        (f"last epoch at most {MOST_BELOW_BEST:g} below the best", low >= -MOST_BELOW_BEST,
         f"{signed(low)} at worst", found.n),
        (f"a run takes at most {MOST_MINUTES:g} minutes with a GPU to itself",
         high <= MOST_MINUTES, f"{high:.1f} at most", len(found.alone.values)),
    )  # fmt: skip
    none = NO_RUN if found.n else NOT_RUN
    lines = [
        (rule, text if n else none, str(n), _verdict(n, holds)) for rule, holds, text, n in rules
    ]
    yield _table(("in every fast run of MLNT", "found", "runs", "yes or no"), lines)


def _target(groups: Sequence[Group], target: Target) -> tuple[str, ...]:
    found = reached(groups, target)
    names = (target.name, target.paper or UNKNOWN, f"≥ {target.reach:.2f}")
    if not found.n:
        return (*names, NOT_RUN, "0", "", "", "")
    fall = Spread(tuple(found.falls)).mean
    alone = found.alone.values
    minutes = f"{found.alone.mean:.1f}" if alone else f"{found.minutes.mean:.1f}, shared"
    verdict = _verdict(found.n, found.best.mean >= target.reach)
    return (*names, str(found.best), str(found.n), signed(fall), minutes, verdict)


def _verdict(n: int, holds: bool) -> str:
    return "" if not n else "yes" if holds else "no"


def _ran(groups: Sequence[Group]) -> Iterator[str]:
    """How many seeds of each method there are under each noise; of what was run at all."""
    tables = []
    for experiment in (EXPERIMENTS[name] for name in TABLES):
        counts = {
            (group.noise, group.schedule, method): len(_seeds(group, method))
            for group in groups
            if group.data == experiment.data and group.noise in experiment.noises
            if group.schedule in ("", PAPER)
            for method in METHODS
        }
        if any(counts.values()):
            headings = (experiment.title, *(noise_words(noise) for noise in experiment.noises))
            ran = [
                m for m in experiment.methods if any(n for key, n in counts.items() if key[2] == m)
            ]
            lines = [_counts(experiment, method, counts) for method in ran]
            tables.append(_table(headings, lines))
    yield from [RAN, *tables] if tables else []


def _counts(experiment: Experiment, method: str, counts: dict[Any, int]) -> tuple[str, ...]:
    line = [METHOD_NAMES.get(method, method.replace("_", " "))]
    for noise in experiment.noises:
        fast, paper = (counts.get((noise, schedule, method), 0) for schedule in ("", PAPER))
        line.append(f"{fast} + {paper}" if paper else str(fast))
    return tuple(line)


def _seeds(group: Group, method: str) -> set[int]:
    return {run.settings.seed for run in group.source(method) if not run.changes(method)}


def _group(group: Group, results: Path) -> Iterator[str]:
    title = markdown_cell(group.title)
    yield f"## {title}\n"
    if wrong := _wrong_labels(group):
        yield f"{wrong}\n"
    rows = group.rows()
    headings = ["model", "n", "best", "lowest to highest", "last"]
    has_paper = any(row.paper is not None for row in rows)
    has_line = any(row.method == "contrastive" for row in rows)
    yield _table(
        (*headings, *(("paper", "difference") if has_paper else ())),
        [_models(row, has_paper, _settings_of(group, row, has_line)) for row in rows],
    )
    if commands := _commands(group):
        yield "Made by:\n\n```\n" + "\n".join(commands) + "\n```\n"
    for folder in dict.fromkeys(run.folder.parent for run in group.runs):
        for name, words in ((PROGRESS, "test accuracy by epoch"), (SHEET, "filtered examples")):
            if (folder / name).is_file():
                yield _picture(f"{title}: {words}", folder / name, results)


def _wrong_labels(group: Group) -> str:
    """The noise that was really there; "" where nobody knows the true labels."""
    parts = {"wrong_in_train": "training labels", "wrong_in_validation": "held-out labels"}
    told = []
    for name, words in parts.items():
        found = [run.summary["noise"].get(name) for run in group.runs]
        if values := tuple(value for value in found if value is not None):
            told.append(f"{Spread(values).mean:.1f} % of the {words}")
    return f"Wrong: {', '.join(told)}." if told else ""


def _figures(groups: Sequence[Group], results: Path) -> Iterator[str]:
    """Those of whole experiments, such as sweep-m."""
    folders = (group.runs[0].folder.relative_to(results).parts[0] for group in groups)
    places = [
        (results / folder / f"{name}.png", experiment.title)
        for folder in dict.fromkeys(folders)
        for name, experiment in EXPERIMENTS.items()
    ]
    found = [_picture(title, path, results) for path, title in places if path.is_file()]
    return iter(["## Figures\n", *found] if found else [])


def _picture(words: str, path: Path, results: Path) -> str:
    place = Path(results.resolve().name) / path.relative_to(results)
    return f"![{words}]({place.as_posix()})\n"


def _settings_of(group: Group, row: Row, has_line: bool) -> str:
    """Said of rows that were made otherwise than those of today, or begin otherwise than others in
    their table; `has_line`: it shows the features."""
    words = changes_words(group.source(row.method)[0].changes(row.method))
    if group.is_begun() and not group.is_begun(row.method):
        words = list(dict.fromkeys([RANDOM_WEIGHTS, *words]))
    elif group.is_begun() and not has_line:
        words.insert(0, "from contrastive features")
    return "".join(f", {word}" for word in words)


def _models(row: Row, has_paper: bool, settings: str) -> tuple[str, ...]:
    values = row.best.values
    spread = f"{min(values):.2f} to {max(values):.2f}" if len(values) > 1 else UNKNOWN
    name = label(row.line, short=False) + settings
    line = (name, str(row.n), str(row.best), spread, str(row.last))
    if not has_paper:
        return line
    return (*line, "" if row.paper is None else str(row.paper), signed(row.difference))


def _commands(group: Group) -> list[str]:
    """One for each method, as somebody would give it today who has the data in a folder."""
    commands = []
    for method in dict.fromkeys(run.settings.method for run in group.runs):
        runs = group.of(method)
        if group.experiment:
            commands.append(_reproduce(group, runs))
        else:
            commands += [_train(run, place) for run in runs if (place := _place_of(run))]
    return [one_line(command) for command in commands]


def _preset_and_changes(run: Recorded) -> tuple[str, list[str]]:
    return preset_and_changes(run.data, run.schedule, run.settings)


def _reproduce(group: Group, runs: Sequence[Recorded]) -> str:
    data, last = runs[0].data, max(run.settings.seed for run in runs)
    preset, changes = _preset_and_changes(runs[0])
    words = ["mlnt", "reproduce", group.experiment, "--data", FOLDERS.get(data, data)]
    words += ["--fast"] if preset == "cifar10-fast" else []
    words += ["--cells", f"{runs[0].settings.method}/{group.noise.replace(':', '-')}"]
    words += ["--seeds", str(last + 1)]
    return shlex.join([*words, *(text for change in changes for text in ("--set", change))])


def _place_of(run: Recorded) -> str:
    """DATA of its command; "" where it is not known, as of arrays from Python."""
    own = run.config.get("source", {}).get("data")
    return FOLDERS.get(run.data) or own or (run.data if run.data in NAMED else "")


def _train(run: Recorded, place: str) -> str:
    settings, (preset, changes) = run.settings, _preset_and_changes(run)
    words = ["mlnt", "train", place]
    for name, value in run.config.get("source", {}).items():
        if name != "data":
            words += [f"--{name.replace('_', '-')}", value]
    words += ["--preset", preset]  # without it the data would change some settings
    if settings.noise != "none":
        words += ["--noise", run.noise, "--validation", settings.validation]
    words += ["--method", settings.method, "--seed", str(settings.seed)]
    for name, _, value in (change.partition("=") for change in changes):
        if name != "validation" or settings.noise == "none":
            words += _option(name.replace("_", "-"), value)
    return shlex.join(words)


def _option(name: str, value: str) -> list[str]:
    """--epochs 3, --flip, --no-flip."""
    switches = {"True": [f"--{name}"], "False": [f"--no-{name}"]}
    return switches.get(value, [f"--{name}", value])


FACT_HEADINGS = (
    "run", "seed", "wrong", "kept", "dropped", "samples kept", "AUROC", "AP", "memorised",
    "minutes", "machine", "commit",
)  # fmt: skip


def _facts(run: Recorded) -> tuple[str, ...]:
    summary, found = run.summary, run.summary.get("found_errors", {})
    words = changes_words(run.changes(run.settings.method))
    title = ", ".join([grouped([run])[0].title, *words])
    last = (summary.get("filters") or [{}])[-1]
    commits = run.origin("commit").split(" and ")
    return (
        f"{run.settings.method}; {title}",
        str(run.settings.seed),
        _number(summary["noise"].get("wrong_in_train"), ".1f"),
        _number(last.get("wrong_among_kept"), ".1f"),
        _number(last.get("wrong_among_dropped"), ".1f"),
        f"{last['kept']:,} of {last['of']:,}" if last else UNKNOWN,
        _number(found.get("auroc"), ".3f"),
        _number(found.get("ap"), ".3f"),
        _memorised(run),
        f"{run.minutes:.1f}",
        run.machine,
        " and ".join(_short(commit) for commit in commits),
    )


def _memorised(run: Recorded) -> str:
    shares = run.summary.get("memorised_noise") or {}
    final = run.final
    iteration = f" iteration {final['iteration']}" if final["iteration"] else ""
    names = ("cross_entropy student", f"{final['method']}{iteration} {final['model']}")
    texts = [f"{shares[name]:.1f}" for name in dict.fromkeys(names) if name in shares]
    return " → ".join(texts) or UNKNOWN


def _short(commit: str) -> str:
    name, mark, _ = commit.partition("+")
    return name[:SHORT_COMMIT] + (f"{mark}changes" if mark else "")


def _number(value: Any, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)


def _table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    escaped = [[markdown_cell(text) for text in line] for line in (headings, *lines)]
    rule = ["---"] * len(headings)
    rows = [escaped[0], rule, *escaped[1:]]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
