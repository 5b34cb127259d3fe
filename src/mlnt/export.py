"""`mlnt export`: the best model of a run as one file that runs without mlnt.

    raw inputs -> encoding -> network -> softmax -> class probabilities

Class names, and what else one needs to use it, travel in the file. It is read back and compared
with the model of the run before it appears.

Axes: B batch, C channels or classes, D columns, L words.
"""

import contextlib
import importlib
import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlnt import __version__
from mlnt.data.columns import columns_to_json
from mlnt.data.encoding import Encoder, ImageEncoder, TableEncoder
from mlnt.data.image_files import CROP, SIZE
from mlnt.data.text_encoding import PAD, UNKNOWN, TextEncoder
from mlnt.errors import InputError, did_you_mean, first_line
from mlnt.evaluation import predict_probabilities
from mlnt.models import OwnModel
from mlnt.prediction import load_model
from mlnt.runs import RunFolder

TOLERANCE = 1e-4  # of a probability
CHECKED_BATCHES = (1, 2, 7)
LARGE = 2**20  # values of an input; of such the last batch is left out
METADATA = "metadata.json"  # in what torch.export writes
INPUT, OUTPUT = "input", "probabilities"
OPSET = 17  # of ONNX: what most runtimes have understood for years

Run = Callable[[Tensor], Tensor]  # raw inputs to probabilities


def export_model(
    run_folder: str | Path,
    to: str,
    out: str | Path | None = None,
    model: OwnModel | str | None = None,
) -> Path:
    """Write the best model of a run as a file of the format `to`; returns where it lies.

    to     onnx, or torch-export
    out    the file to write; in the run folder if not given
    model  the network of a run that was trained with one's own, as in `predict`
    """
    if to not in FORMATS:
        raise InputError(
            f"unknown format {to!r}{did_you_mean(to, FORMATS)} (known: {', '.join(FORMATS)})"
        )
    run, chosen = RunFolder.open(run_folder), FORMATS[to]
    path = run.file(chosen.file_name) if out is None else Path(out)
    if path.exists():
        raise InputError(f"{path} exists already; choose another name with --out")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}")
    for name in chosen.packages:
        _package(name)
    encoder, classes, network = load_model(run, model=model)
    batches = CHECKED_BATCHES if math.prod(encoder.shape) <= LARGE else CHECKED_BATCHES[:2]
    samples = [random_inputs(encoder, size, torch.Generator()) for size in batches]
    # As `mlnt predict` computes it, and in the numbers of the run.
    expected = [
        predict_probabilities(
            network, raw if isinstance(encoder, TextEncoder) else encoder.encode(raw)
        )
        for raw in samples
    ]
    # Runtimes compute in float32, whatever the run did.
    deployable = Deployable(network.float(), encoder).requires_grad_(False).eval()
    metadata = describe(encoder, classes)

    def write_and_check(aside: Path) -> None:
        try:
            with _quiet(), torch.no_grad():
                chosen.write(deployable, samples[1], metadata, aside)
                exported = chosen.load(aside)
                found = [exported(raw) for raw in samples]
            _check_equal(found, expected, to)
        except BaseException as error:
            aside.unlink(missing_ok=True)
            if isinstance(error, InputError | OSError) or not isinstance(error, Exception):
                raise
            # Networks of other libraries may do anything, and so may the exporters with them.
            raise InputError(
                f"this network cannot be written as {to}: {first_line(error)}"
            ) from None

    RunFolder(path.parent).write(path.name, write_and_check)
    return path


class Deployable(nn.Module):
    """Raw inputs to class probabilities.

    images  float32 [B, C, H, W], pixels as they came
    tables  float64 [B, D], numbers as they came
    texts   int64 [B, L], the numbers of words: splitting a text is beyond what these files express
    """

    mean: Tensor
    std: Tensor
    bent: Tensor

    def __init__(self, network: nn.Module, encoder: Encoder) -> None:
        super().__init__()
        self.network = network
        self.is_text = isinstance(encoder, TextEncoder)
        if not isinstance(encoder, TextEncoder):
            axes = (-1, *(1 for _ in encoder.shape[1:]))
            for name, values in (("mean", encoder.mean), ("std", encoder.std)):
                value = torch.tensor(values, dtype=raw_type(encoder)).reshape(axes)
                self.register_buffer(name, value)
        self.is_bent = isinstance(encoder, TableEncoder) and bool(encoder.bent)
        if isinstance(encoder, TableEncoder) and encoder.bent:
            self.register_buffer("bent", torch.tensor(encoder.bent))

    def forward(self, inputs: Tensor) -> Tensor:
        encoded = inputs if self.is_text else ((inputs - self.mean) / self.std).float()
        if self.is_bent:
            encoded = encoded.asinh().where(self.bent, encoded)
        return self.network(encoded).softmax(dim=1)


def raw_type(encoder: Encoder) -> torch.dtype:
    """Of raw inputs. A date in seconds, say, has no room in float32 before it is standardised."""
    return {"image": torch.float32, "table": torch.float64, "text": torch.int64}[encoder.kind]


def random_inputs(encoder: Encoder, size: int, generator: torch.Generator) -> Tensor:
    """Raw inputs [size, ...] that look like the training data to the network."""
    if isinstance(encoder, TextEncoder):
        shape = (size, encoder.length)
        words_BL = torch.randint(UNKNOWN, encoder.vocabulary_size, shape, generator=generator)
        count_B1 = torch.randint(1, encoder.length + 1, (size, 1), generator=generator)
        return words_BL.where(torch.arange(encoder.length) < count_B1, PAD)
    noise = torch.randn(size, *encoder.shape, generator=generator, dtype=torch.float64)
    return torch.from_numpy(encoder.decode(noise)).to(raw_type(encoder))


def describe(encoder: Encoder, classes: tuple[str, ...]) -> dict[str, str]:
    """What travels in the file: each value a text, lists as JSON."""
    kind = str(raw_type(encoder)).removeprefix("torch.")
    shape = ", ".join(map(str, encoder.shape))
    found = {
        "mlnt": __version__,
        "kind": encoder.kind,
        "classes": json.dumps(classes),
        "output": f"float32 [batch, {len(classes)}]: a probability for each of the classes",
    }
    if isinstance(encoder, ImageEncoder):
        found["input"] = f"{kind} [batch, {shape}]: pixels as the training data had them"
        if encoder.from_files:
            found["input"] += (
                f"; RGB from 0 to 255, upright, the shorter side resized to "
                f"{round(encoder.shape[1] * SIZE / CROP)}, the middle of it"
            )
    elif isinstance(encoder, TableEncoder):
        found["input"] = f"{kind} [batch, {shape}]: the columns, as the training data had them"
        found["columns"] = json.dumps(encoder.columns)
        if encoder.made_of:
            found["input"] += (
                " once categories are columns of 0 and 1, missing numbers filled, and columns "
                "say where they were"
            )
            found["made_of"] = json.dumps(columns_to_json(encoder.made_of))
    else:
        found["input"] = f"{kind} [batch, {shape}]: the numbers of the words of each text"
        pattern, finds = encoder.pattern, "what word_pattern, a regular expression, finds"
        if encoder.by_character:
            finds = (
                "characters and pairs of neighbours: all groups of all matches of word_pattern, "
                "a regular expression, less those that are empty"
            )
        found["tokenising"] = (
            f"lower-case the text; its words are {finds}; "
            f"word i of the vocabulary, from 0, has the number i + 2; any other word is {UNKNOWN}, "
            f"and so is a text without words; cut at length, or fill up with {PAD} behind"
        )
        found["word_pattern"] = pattern.pattern
        found["length"] = str(encoder.length)
        found["vocabulary"] = json.dumps(encoder.words)
    return found


def write_onnx(model: nn.Module, example: Tensor, metadata: dict[str, str], path: Path) -> None:
    onnx = _package("onnx")
    try:
        content = _traced(model, example)
    except Exception:  # of operators it lacks, such as pooling of 25 pixels to 2
        content = _captured(model, example)
    proto = onnx.load_from_string(content)
    onnx.helper.set_model_props(proto, metadata)
    onnx.checker.check_model(proto, full_check=True)
    path.write_bytes(proto.SerializeToString())


def _traced(model: nn.Module, example: Tensor) -> bytes:
    """By the older exporter: 0.3 seconds where the newer takes 8 to 25, and a GRU stays a GRU."""
    file: Any = io.BytesIO()  # which it takes, though its types say paths alone
    with _no_graphs_printed():
        torch.onnx.export(
            model,
            (example,),
            file,
            dynamo=False,
            opset_version=OPSET,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_axes={INPUT: {0: "batch"}, OUTPUT: {0: "batch"}},
        )
    return file.getvalue()


def _captured(model: nn.Module, example: Tensor) -> bytes:
    """By the newer exporter, which knows more operators and will outlive the older."""
    _package("onnxscript")
    program: Any = torch.onnx.export(
        model,
        (example,),
        dynamo=True,
        input_names=[INPUT],
        output_names=[OUTPUT],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        verbose=False,
    )
    return program.model_proto.SerializeToString()


def load_onnx(path: Path) -> Run:
    runtime = _package("onnxruntime")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda raw: torch.from_numpy(session.run([OUTPUT], {INPUT: raw.numpy()})[0])


def write_torch(model: nn.Module, example: Tensor, metadata: dict[str, str], path: Path) -> None:
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(model, (example,), dynamic_shapes=(batch,))
    text = json.dumps(metadata)
    torch.export.save(program, path, extra_files={METADATA: text})


def load_torch(path: Path) -> Run:
    return torch.export.load(path).module()


class Format(NamedTuple):
    file_name: str  # in the run folder
    packages: tuple[str, ...]  # beyond those that mlnt always has
    write: Callable[[nn.Module, Tensor, dict[str, str], Path], None]
    load: Callable[[Path], Run]


FORMATS = {
    "onnx": Format("model.onnx", ("onnx", "onnxruntime"), write_onnx, load_onnx),
    "torch-export": Format("model.pt2", (), write_torch, load_torch),
}


def _check_equal(found: list[Tensor], expected: list[Tensor], to: str) -> None:
    for given, wanted in zip(found, expected, strict=True):
        if given.shape != wanted.shape:
            raise InputError(
                f"as {to} the model gives {list(given.shape)}, not {list(wanted.shape)}; "
                "no file is written"
            )
        difference = float((given - wanted).abs().max())
        if not difference <= TOLERANCE:  # also where it is NaN
            raise InputError(
                f"as {to} the model gives probabilities that differ by {difference:.2g} from the "
                f"run's in a batch of {len(wanted)}, the limit is {TOLERANCE:g}; no file is "
                "written"
            )


def _package(name: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except Exception as error:  # one built for another numpy may raise anything
        raise InputError(
            f"{name} cannot be used here ({first_line(error)}); export needs it: "
            "pip install onnx onnxruntime onnxscript"
        ) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporters talk about themselves, in warnings and logs."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _no_graphs_printed() -> Iterator[None]:
    """Where the older exporter fails it prints all it has, in spite of verbose=False.

    In torch 2.13 it asks whether a function is true, in the place of what that returns.
    """
    name = "_jit_onnx_log"
    before = getattr(torch._C, name, None)
    setattr(torch._C, name, lambda *texts: None)
    try:
        yield
    finally:
        setattr(torch._C, name, before)
