"""`mlnt.train`: from data to a trained model and a run folder.

data -> validation held out -> noise (experiments only) -> stages of the method -> run folder
"""

import contextlib
import math
import platform
import shlex
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mlnt import __version__
from mlnt.allocator import memory_kept
from mlnt.config import Settings, make_settings, settings_from
from mlnt.data.dataset import Dataset, Split
from mlnt.data.encoding import Encoder, encoder_to_json
from mlnt.data.fingerprint import fingerprint, fingerprint_of_inputs, other_fingerprints
from mlnt.data.frames import is_frame
from mlnt.data.image_files import ImageFiles
from mlnt.data.raw import Source
from mlnt.data.reading import read_new
from mlnt.data.sources import open_dataset
from mlnt.data.table_rows import as_one_text
from mlnt.device import (
    computing,
    drawing_from,
)
from mlnt.distributed import World, join
from mlnt.errors import InputError, StorageError, TrainingError
from mlnt.evaluation import predict_probabilities
from mlnt.files import exists
from mlnt.journal import RunJournal, SharedJournal, begin, going_on
from mlnt.label_issues import LabelIssues
from mlnt.launcher import job, restarted
from mlnt.models import WEIGHTS, is_imported
from mlnt.origin import commit, machine_name
from mlnt.outcome import Outcome, draw_report
from mlnt.ready import ModelSource, Ready, make_ready
from mlnt.recipes import run_recipe
from mlnt.runs import CONFIG, FAULTS, RunFolder
from mlnt.shelf import Shelf
from mlnt.training import Watcher

# What the source of a run folder may name: nothing else of `train` is a stranger's to choose.
SOURCE = {
    "data", "labels", "true_labels", "validation_data", "test_data", "label_column", "text_column",
    "drop_columns",
}  # fmt: skip


@dataclass(frozen=True)
class Training:
    """What `train` gives back."""

    model: nn.Module  # the best model, in eval mode
    encoder: Encoder  # from raw samples to what the model takes
    classes: tuple[str, ...]
    settings: Settings
    summary: dict[str, Any]  # as in summary.json
    history: list[dict[str, Any]]  # as in metrics.jsonl
    label_issues: LabelIssues
    folder: Path | None

    text_column: str | None = None  # of the texts that were trained on

    def predict_probabilities(self, samples: Any) -> Tensor:
        """Class probabilities [N, C] of raw samples: images, rows or texts.

        Of a data frame the columns that were trained on, by their names.
        """
        if is_frame(samples):
            raw, notes = read_new(samples, self.encoder, None, self.text_column)
            samples = raw.samples
            for note in notes:
                warnings.warn(note, stacklevel=2)
        return predict_probabilities(self.model, self.encoder.encode(samples)).cpu()


def train(
    data: Source | Dataset,
    *,
    out: str | Path | None = None,
    preset: str | None = None,
    model: ModelSource | None = None,
    labels: Any = None,
    true_labels: Any = None,
    validation_data: Source | None = None,
    test_data: Source | None = None,
    label_column: str | None = None,
    text_column: str | None = None,
    drop_columns: str | Sequence[str] | None = None,
    download: bool = False,
    resume: bool = False,
    deadline: float = math.inf,
    watchers: Sequence[Watcher] = (),
    shelf: str | Path | None = None,
    **settings: Any,
) -> Training:
    """Train on noisy labels.

    data     what `open_dataset` takes, or what it gave; the options up to `download` are its
    out      run folder to write; None writes nothing
    preset   a name in `mlnt.config.PRESETS`; chosen by the data if not given
    model    a name, a network (each stage starts from a copy of it), or a function that makes one
    resume   go on with an unfinished run that lies in `out`, begun with the same data and settings
    deadline by time.monotonic: stops before it, in the middle of an epoch too; raises `Stopped`
    shelf    folder in which runs on the same data, with these labels or others, keep the stages
             that they have in common; not with a network or weights of your own
    settings any setting of `mlnt.config.Settings` by its name: epochs=20, noise="symmetric:0.5"
    """
    began = time.perf_counter()
    world = join()
    if isinstance(model, str):
        settings["model"] = model
    options = {
        "labels": labels,
        "true_labels": true_labels,
        "validation": validation_data,
        "test": test_data,
        "label_column": label_column,
        "text_column": text_column,
        "drop_columns": as_one_text(drop_columns),
    }
    dataset = _opened(data, options, preset, settings, download, world)
    ready = make_ready(dataset, model, preset, settings, download, world)
    del dataset  # what was held out of it is a copy: the original need not stay in memory
    run = None
    if out is not None and world.leads:
        # torchrun has started all processes again: the run that they had begun goes on.
        resume = resume or (restarted() and RunFolder(out).is_of(job()))
        run = RunFolder.reserve(out, may_exist=resume)
    watchers = [w for w in watchers if world.leads or w.everywhere]
    trainer = ready.trainer(watchers, deadline, world)
    with contextlib.ExitStack() as stack:
        stack.enter_context(drawing_from(ready.seeds.weights, ready.device))
        ready.check(trainer.train)
        if run is not None:
            stack.enter_context(run.locked())
            journal = _begun(run, ready, _source(data, options), resume, shelf)
            stack.enter_context(
                _telling_what_is_left(journal, going_on(run.path, ready.settings.model))
            )
            trainer.journal = journal
            _report_faults_to(run, trainer.train)
        if world.size > 1:
            trainer.journal = SharedJournal(world, trainer.journal)
        for watcher in watchers:
            watcher.run_begins(ready.dataset, ready.settings, ready.reasons)
        stack.enter_context(computing(ready.settings, ready.device))
        if ready.device.type == "cpu":
            stack.enter_context(memory_kept())
        result = run_recipe(trainer, ready.new_model, ready.dataset.classes)
        outcome = Outcome.of(result, trainer, ready.dataset)
        summary = {**outcome.summary, "noise": ready.noise}
        # The rest, such as judging labels, is done again by a process that goes on: counted once.
        earlier = sum(stage.earlier for stage in result.stages)
        summary["seconds"] = earlier + time.perf_counter() - began
        if run is not None:
            summary["checkpoints"] = journal.cost()
            with run.writing():
                outcome.write(run, summary)
            draw_report(run)
    return Training(
        model=result.model,
        encoder=ready.dataset.encoder,
        classes=ready.dataset.classes,
        settings=ready.settings,
        summary=summary,
        history=[row for stage in result.stages for row in stage.history],
        label_issues=outcome.issues,
        folder=None if out is None else Path(out),
        text_column=ready.dataset.text_column,
    )


def _begun(
    run: RunFolder,
    ready: Ready,
    source: dict[str, Any],
    resume: bool,
    shelf: str | Path | None,
) -> RunJournal:
    """The journal of a run that begins or goes on; `shelf` as in `train`."""
    config = _config(ready.dataset, ready.settings, ready.noise, ready.own_model)
    config |= {"source": source, "reasons": dict(ready.reasons), "job": job()}
    config |= {"machine": machine_name(ready.device), "commit": commit()}
    shared = None
    if shelf is not None and ready.own_model is None and _is_ours(ready.settings):
        shared = Shelf(Path(shelf), config, fingerprint_of_inputs(ready.dataset.train))
    return begin(run, config, ready.settings, resume, shared)


def _is_ours(settings: Settings) -> bool:
    """Whether the settings say all about the network that training begins with."""
    return settings.weights in WEIGHTS and not is_imported(settings.model)


def _opened(
    data: Source | Dataset,
    options: dict[str, Any],
    preset: str | None,
    settings: dict[str, Any],
    download: bool,
    world: World,
) -> Dataset:
    if isinstance(data, Dataset):
        given = [name for name, value in options.items() if value is not None]
        if given:
            raise InputError(
                f"the data set is open already; give {', '.join(given)} to open_dataset"
            )
        return data
    # A misspelt setting should not cost the reading of the data.
    make_settings(preset or "cifar10", **settings)
    with world.leader_first() if download else contextlib.nullcontext():
        return open_dataset(data, **{**options, "download": download})


def resume_run(
    folder: str | Path,
    deadline: float = math.inf,
    watchers: Sequence[Watcher] = (),
    moved: Mapping[str, str] | None = None,
    **changes: Any,
) -> Training:
    """Go on with an unfinished run whose data was a name or a path.

    `moved` says where data, labels and so on lie now, by their names in `train`: they must be the
    same. `changes` are settings of the machine, such as workers; and model where that is
    package.module:function: a run folder must not say what to run.
    """
    run = RunFolder.open(folder)
    with run.expect_intact():
        config = run.read_json(CONFIG)
        source, settings = dict(config["source"]), config["settings"]
        if not source.keys() <= SOURCE or not all(
            isinstance(v, str | None) for v in source.values()
        ):
            raise ValueError(f"source may name {', '.join(sorted(SOURCE))} alone")
        if config["own_model"] or source["data"] is None:
            raise InputError(
                f"{folder} was begun from Python; call mlnt.train again with the same data and "
                "model, out and resume=True"
            )
        settings_from(settings)
    if is_imported(settings["model"]) and changes.get("model") != settings["model"]:
        raise InputError(f"{folder} was begun with a network of your own; name it: --model NAME")
    if added := [name for name in moved or {} if source.get(name) is None]:
        raise InputError(f"{folder} was begun without {added[0]}; only what has moved can be named")
    settings |= changes
    source |= moved or {}
    _check_there(source, folder)
    return train(
        **source, out=folder, resume=True, deadline=deadline, watchers=watchers, **settings
    )


def _check_there(source: Mapping[str, str | None], folder: str | Path) -> None:
    """Raise InputError where a run goes on with a file that somebody has moved or removed."""
    for name, place in source.items():
        files = [place, place.rpartition(":")[0]] if place else []  # labels may be FILE:KEY
        if place and Path(place).is_absolute() and not any(exists(Path(f)) for f in files if f):
            where = "DATA" if name == "data" else f"DATA --{name.replace('_', '-')} PLACE"
            raise InputError(
                f"{folder} was begun with {name}={place}, which is no longer there; say where it "
                f"is: mlnt train {where} --resume {shlex.quote(str(folder))}"
            )


def read_by_resuming(folder: str | Path, moved: Mapping[str, str] | None = None) -> dict[str, str]:
    """What going on with a run reads outside its folder, by its own word: shown before it does."""
    run = RunFolder.open(folder)
    with run.expect_intact():
        config = run.read_json(CONFIG)
        named = {**config["source"], **(moved or {})}
        named["weights"] = config["settings"].get("weights", "none")
        named["noise"] = config["settings"].get("noise", "none")
    is_file = {"weights": lambda v: v not in WEIGHTS, "noise": _is_matrix}
    return {k: str(v) for k, v in named.items() if v and is_file.get(k, lambda _: True)(v)}


def _is_matrix(noise: Any) -> bool:
    return str(noise).startswith("matrix:")


def _source(data: Source | Dataset, options: dict[str, Any]) -> dict[str, Any]:
    """Where the data came from, if from names and paths alone: then a run can be gone on with."""
    given = {k: v for k, v in options.items() if v is not None}
    if not all(isinstance(value, str | Path) for value in (data, *given.values())):
        return {"data": None}
    names = {"validation": "validation_data", "test": "test_data"}  # in `train`
    # A column may be called like a file that lies here.
    lasting = {k: str(v) if "_column" in k else _lasting(v) for k, v in given.items()}
    return {"data": _lasting(data), **{names.get(k, k): v for k, v in lasting.items()}}


def _lasting(place: Any) -> str:
    """A path that holds from any folder; what is no path, such as a name or FILE:KEY, as it is."""
    return str(Path(place).resolve()) if exists(Path(place)) else str(place)


def _report_faults_to(run: RunFolder, train_split: Split) -> None:
    if isinstance(train_split.inputs, ImageFiles):
        train_split.inputs.faults.file = run.file(FAULTS)


def _config(
    dataset: Dataset, settings: Settings, noise: dict[str, Any], own_model: Any
) -> dict[str, Any]:
    return {
        "mlnt": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "settings": asdict(settings),
        "own_model": _name_of_model(own_model),
        "data": {
            "name": dataset.name,
            "is_known": dataset.is_known,
            "label_column": dataset.label_column,
            "text_column": dataset.text_column,
            "classes": list(dataset.classes),
            "samples": {
                name: len(split)
                for name in ("train", "validation", "test")
                if (split := getattr(dataset, name)) is not None
            },
            "encoder": encoder_to_json(dataset.encoder),
            "fingerprint": fingerprint(dataset.train),
            "other_fingerprints": other_fingerprints(dataset),
        },
        "noise": noise,
    }


def _name_of_model(own_model: Any) -> str:
    """Empty for a network that mlnt can build again by its name."""
    if own_model is None:
        return ""
    return getattr(own_model, "__name__", type(own_model).__name__)


@contextlib.contextmanager
def _telling_what_is_left(journal: RunJournal, command: str) -> Iterator[None]:
    """What ends a training inside is told with the checkpoint that there is."""
    try:
        yield
    except StorageError as error:
        go_on = f"once that is mended, go on with: {command}"
        raise StorageError(f"{error}; {journal.last_good}; {go_on}") from None
    except TrainingError as error:
        raise TrainingError(f"{error}; {journal.last_good}") from None
