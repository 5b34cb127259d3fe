"""Run folders of a stranger: settings, encoders and classes that lie; files damaged; links."""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from mlnt.checkpoints import checksum_of
from mlnt.config import fields_by_name
from mlnt.training import Stage

from .case import KINDS, Case, damage

NEW = b"a,b\n" + b"1,2\n" * 3
PREDICT = ("predict", "{here}/run", "{here}/new.csv")
REPORT, ISSUES = ("report", "{here}/run"), ("issues", "{here}/run")
EXPORT = ("export", "{here}/run", "--to", "torch-export")
RESUME = ("train", "--resume", "{here}/run")
REGIONS = 6


def cases() -> Iterator[Case]:
    yield from _settings()
    for name, change in CONFIGS.items():
        yield _changed(f"config/{name}", "config.json", change, PREDICT)
        if name.startswith(("image", "text", "classes", "model", "std")):
            yield _changed(f"exported/{name}", "config.json", change, EXPORT)
    for name, text in RAW.items():
        for file, command in (("config.json", PREDICT), ("summary.json", REPORT)):
            yield _replaced(f"{file}/{name}", file, text, command)
        # A line that has no end was torn by a kill, and is passed over.
        yield _replaced(f"metrics.jsonl/{name}", "metrics.jsonl", text + b"\n", REPORT)
        yield _replaced(f"gallery.jsonl/{name}", "gallery.jsonl", text, REPORT)
    for name, text in ISSUES_FILES.items():
        yield _replaced(f"label_issues.csv/{name}", "label_issues.csv", text, ISSUES)
        yield _replaced(f"reported/{name}", "label_issues.csv", text, REPORT)
    for name, text in REPORTED.items():
        yield _replaced(f"reported/{name}", "label_issues.csv", text, REPORT)
    for name, rows in METRICS.items():
        text = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        yield _replaced(f"metrics/{name}", "metrics.jsonl", text, REPORT)
    for name, entry in GALLERY.items():
        yield _replaced(f"gallery/{name}", "gallery.jsonl", json.dumps(entry).encode(), REPORT)
    for name, source in SOURCES.items():
        yield _changed(
            f"source/{name}",
            "config.json",
            lambda config, s=source: config.update(source=s),
            RESUME,
            is_finished=False,
        )
    for name, content in CHECKPOINTS.items():
        yield Case(
            f"checkpoint/{name}", RESUME, {}, lambda here, c=content: _unfinished(here, c), "table"
        )
    yield from _links()
    yield from _damaged_files()


def _settings() -> Iterator[Case]:
    """Every setting with values of the wrong type, and beyond its range."""
    for name in fields_by_name():
        for word, value in {"none": None, "list": [1], "text": "\x00x", "huge": 10**400}.items():
            yield _changed(
                f"setting/{name}-{word}",
                "config.json",
                lambda config, n=name, v=value: config["settings"].update({n: v}),
                PREDICT,
            )


def _changed(
    name: str,
    file: str,
    change: Callable[[Any], Any],
    command: tuple[str, ...],
    is_finished: bool = True,
) -> Case:
    def prepare(here: Path) -> None:
        path = here / "run" / file
        if not is_finished:
            (here / "run" / "summary.json").unlink()
        value = json.loads(path.read_text(encoding="utf-8"))
        change(value)
        path.write_text(json.dumps(value), encoding="utf-8")

    return Case(name, command, {"new.csv": NEW}, prepare, "table")


def _replaced(name: str, file: str, content: bytes, command: tuple[str, ...]) -> Case:
    return Case(
        name,
        command,
        {"new.csv": NEW},
        lambda here: (here / "run" / file).write_bytes(content),
        "table",
    )


def _damaged_files() -> Iterator[Case]:
    """Each file of a whole run, damaged in every region."""
    for file, commands in {
        "config.json": (PREDICT, REPORT),
        "summary.json": (REPORT,),
        "metrics.jsonl": (REPORT,),
        "gallery.jsonl": (REPORT,),
        "label_issues.csv": (ISSUES, REPORT),
        "best.safetensors": (PREDICT,),
    }.items():
        for command, region, kind in itertools.product(commands, range(REGIONS), KINDS):

            def prepare(
                here: Path, file: str = file, region: int = region, kind: str = kind
            ) -> None:
                path = here / "run" / file
                path.write_bytes(damage(file, path.read_bytes(), region, REGIONS, kind))

            name = f"damaged/{command[0]}/{file}/{region}-{kind}"
            yield Case(name, command, {"new.csv": NEW}, prepare, "table")


def _encoder(**changes: Any) -> Callable[[Any], Any]:
    return lambda config: config["data"]["encoder"].update(changes)


def _image(**changes: Any) -> Callable[[Any], Any]:
    encoder = {"kind": "image", "shape": [1, 8, 8], "mean": [0.0], "std": [1.0], **changes}
    return lambda config: config["data"].update(encoder=encoder)


def _text(**changes: Any) -> Callable[[Any], Any]:
    encoder = {"kind": "text", "words": ["a"], "length": 3, **changes}
    return lambda config: config["data"].update(encoder=encoder)


def _set(**changes: Any) -> Callable[[Any], Any]:
    return lambda config: config["settings"].update(changes)


def _data(**changes: Any) -> Callable[[Any], Any]:
    return lambda config: config["data"].update(changes)


CONFIGS: dict[str, Callable[[Any], Any]] = {
    "unknown-setting": _set(rho_=0.5),
    "settings-list": lambda config: config.update(settings=[1, 2]),
    "settings-missing": lambda config: config.pop("settings"),
    "model-imported": _set(model="os:system"),
    "model-of-a-file": _set(model="../../evil:build"),
    "model-of-a-stranger": _set(model="torchvision:../../x"),
    "model-other": _set(model="small_conv"),
    "model-empty": _set(model=""),
    "own-model": lambda config: config.update(own_model="Evil"),
    "own-model-list": lambda config: config.update(own_model=[1]),
    "precision": _set(precision="float16"),
    "no-encoder": lambda config: config["data"].pop("encoder"),
    "encoder-list": _data(encoder=[]),
    "kind-unknown": _encoder(kind="sound"),
    "kind-list": _encoder(kind=["table"]),
    "kind-other": _encoder(kind="image"),
    "more-fields": _encoder(secret=1),
    "columns-number": _encoder(columns=3),
    "columns-numbers": _encoder(columns=[1, 2]),
    "columns-none": _encoder(columns=[], mean=[], std=[]),
    "columns-many": _encoder(columns=["c"] * 50_000, mean=[0.0] * 50_000, std=[1.0] * 50_000),
    "mean-short": _encoder(mean=[0.0]),
    "mean-texts": _encoder(mean=["a", "b"]),
    "mean-nan": _encoder(mean=[float("nan"), 0.0]),
    "mean-huge": _encoder(mean=[10**400, 0]),
    "std-zero": _encoder(std=[0.0, 1.0]),
    "std-infinite": _encoder(std=[float("inf"), 1.0]),
    "image": _image(),
    "image-a-billion-channels": _image(shape=[10**9, 8, 8]),
    "image-4096-channels": _image(shape=[4096, 8, 8], mean=[0.0] * 4096, std=[1.0] * 4096),
    "image-a-million-wide": _image(shape=[1, 10**6, 10**6]),
    "image-negative": _image(shape=[1, -8, -8]),
    "image-flat": _image(shape=[8]),
    "image-text": _image(shape="188"),
    "image-truth": _image(shape=[True, 8, 8]),
    "text": _text(),
    "text-a-billion-long": _text(length=10**9),
    "text-negative": _text(length=-1),
    "text-float": _text(length=3.5),
    "text-words-number": _text(words=3),
    "text-words-numbers": _text(words=[1]),
    "text-many-words": _text(words=[str(n) for n in range(200_000)]),
    "classes-missing": lambda config: config["data"].pop("classes"),
    "classes-text": _data(classes="xyz"),
    "classes-numbers": _data(classes=[1, 2, 3]),
    "classes-one": _data(classes=["x"]),
    "classes-none": _data(classes=[]),
    "classes-twice": _data(classes=["x", "x", "y"]),
    "classes-many": _data(classes=[str(n) for n in range(500_000)]),
    "classes-no-text": _data(classes=["\ud800", "y", "z"]),
    "classes-one-more": _data(classes=["x", "y", "z", "w"]),
    "label-column-list": _data(label_column=[1]),
    "text-column-number": _data(text_column=3),
    # Names are names: they are escaped where they are shown.
    "fine/classes-formulas": _data(classes=["=cmd()", "+1+1", "@x"]),
    "fine/classes-escapes": _data(classes=["\x1b[2J", "a\nb", "\u202ex"]),
}

RAW = {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "object": b"{}",
    "text": b'"x"',
    "nan": b"NaN",
    "two": b"{}{}",
    "nested-lists": b"[" * 200_000,
    "nested-objects": b'{"a":' * 200_000,
    "closed-lists": b"[" * 100_000 + b"]" * 100_000,
    "digits": b"9" * 100_000,
    "1e400": b'{"data": 1e400, "method": 1e400}',
    "no-text": b'{"data": "\xff"}',
    "utf-16": '{"data": 3}'.encode("utf-16"),
    "nuls": bytes(5000),
    "surrogates": b'{"data": "\\ud800", "index": "\\ud800"}',
    "40-MB": b" " * 40_000_000,
    "comment": b"/* x */ {}",
}

HEADER = b"index,sample,given,suggested,given_probability,suggested_probability,score,kept\n"
ROW = b"0,,0,1,0.1,0.8,0.85,no\n"
ISSUES_FILES = {
    "empty": b"",
    "header": HEADER,
    "other-header": b"a,b\n1,2\n",
    "fewer-cells": HEADER + b"0,,0\n",
    "more-cells": HEADER + ROW.replace(b"no", b"no,x"),
    "words": HEADER + ROW.replace(b"0.85", b"high"),
    "probability-words": HEADER + ROW.replace(b"0.1", b"low"),
    "nuls": HEADER + bytes(100),
    "no-text": HEADER + b"\xff" * 100,
    "utf-16": (HEADER + ROW).decode().encode("utf-16"),
    "cell-of-200-kB": HEADER + b"0," + b"a" * 200_000 + b",0,1,0.1,0.8,0.85,no\n",
    "open-quote": HEADER + b'0,"' + ROW * 10_000,
}
# What `mlnt issues` only shows may be any number; the report wants each label once.
REPORTED = {
    "nan": HEADER + ROW.replace(b"0.85", b"nan"),
    "infinite": HEADER + ROW.replace(b"0.85", b"inf"),
    "index-negative": HEADER + b"-1" + ROW[1:],
    "index-2^63": HEADER + b"9223372036854775808" + ROW[1:],
    "index-digits": HEADER + b"9" * 5000 + ROW[1:],
    "index-twice": HEADER + ROW + ROW,
    "class-unknown": HEADER + ROW.replace(b",0,1,", b",dog,1,"),
    "probability-nan": HEADER + ROW.replace(b"0.1", b"nan"),
}


def _row(**changes: Any) -> dict[str, Any]:
    return {"method": "mlnt", "iteration": 1, "epoch": 1, "student": {"validation": 50}, **changes}


METRICS = {
    "numbers": [1, 2],
    "lists": [[], []],
    "nothing-in-them": [{}],
    "no-epoch": [{"method": "mlnt", "iteration": 1, "student": {"validation": 50}}],
    "accuracy-huge": [_row(student={"validation": 1e308}), _row(student={"validation": -1e308})],
    "accuracy-text": [_row(student={"validation": "x"})],
    "accuracy-nan": [_row(student={"validation": float("nan")})],
    "student-list": [_row(student=[1])],
    "epoch-huge": [_row(epoch=10**300)],
    "epoch-negative": [_row(epoch=-1)],
    "epoch-text": [_row(epoch="x")],
    "iteration-text": [_row(iteration="x")],
    "method-number": [_row(method=3)],
    "fine/many-iterations": [_row(iteration=n) for n in range(1, 5000)],
}

GALLERY = {
    "number": 3,
    "list": [1],
    "no-index": {},
    "index-text": {"index": "x"},
    "picture-address": {"index": 0, "picture": "http://127.0.0.1/x.png"},
    "picture-script": {"index": 0, "picture": "javascript:alert(1)"},
    "picture-svg": {"index": 0, "picture": "data:image/svg+xml;base64,AAAA"},
    "picture-breaks-out": {"index": 0, "picture": 'data:image/png;base64,A" onerror="x'},
    "picture-number": {"index": 0, "picture": 3},
    "text-number": {"index": 0, "text": 3},
    "row-number": {"index": 0, "row": 3},
    "row-numbers": {"index": 0, "row": [[1, 2]]},
    "row-long": {"index": 0, "row": [["a", "b", "c"]]},
    "more-text": {"index": 0, "more": "x"},
}


def _packed(content: object, tensors: dict | None = None) -> bytes:
    tensors, text = tensors or {"0": torch.ones(1)}, json.dumps(content)
    return save(tensors, {"content": text, "sha256": checksum_of(text, tensors)})


# What a run names as its data is given to `train`: nothing else of it may be.
SOURCES = {
    "none": None,
    "number": 3,
    "list": ["data"],
    "empty": {},
    "data-none": {"data": None},
    "data-number": {"data": 3},
    "data-list": {"data": ["digits"]},
    "data-missing": {"data": "/nowhere/x.csv"},
    "data-a-device": {"data": "/dev/zero"},
    "download": {"data": "cifar10", "download": True},
    "out": {"data": "digits", "out": "/tmp/other"},
    "resume": {"data": "digits", "resume": False},
    "model": {"data": "digits", "model": "os:system"},
    "watchers": {"data": "digits", "watchers": [1]},
    "deadline": {"data": "digits", "deadline": 0},
    "other-data": {"data": "digits"},
    "labels-of-a-device": {"data": "digits", "labels": "/dev/zero"},
}


def _progress(history: object, steps: object) -> object:
    return {"pairs": [["progress", {"pairs": [["history", history]]}], ["steps", steps]]}


CHECKPOINTS: dict[str, bytes] = {
    "empty": b"",
    "noise": bytes(range(200)),
    "no-metadata": save({"0": torch.ones(1)}),
    "no-json": save({"0": torch.ones(1)}, {"content": "{"}),
    "nested": save({"0": torch.ones(1)}, {"content": "[" * 100_000}),
    "number": _packed(3),
    "nothing": _packed({"pairs": []}),
    "no-tensor": _packed({"tensor": "7"}),
    "tensor-list": _packed({"tensor": [1]}),
    "pairs-number": _packed({"pairs": 3}),
    "pairs-of-lists": _packed({"pairs": [[[1], 2]]}),
    "progress-number": _packed({"pairs": [["progress", 3]]}),
    "history-number": _packed(_progress(3, 3)),
    "history-of-numbers": _packed(_progress([3], 3)),
    "steps-number": _packed(_progress([], 3)),
    "steps-empty": _packed(_progress([], {"pairs": []})),
    "epoch-only": _packed(_progress([], {"pairs": [["epoch", {"pairs": [["done", 0]]}]]})),
}


def _unfinished(here: Path, content: bytes) -> None:
    """The run as if it had been interrupted, with a stranger's checkpoint of its first stage."""
    run = here / "run"
    (run / "summary.json").unlink()
    (run / "checkpoints").mkdir()
    first = Stage("cross_entropy", 0).file_name
    (run / "checkpoints" / f"{first}.safetensors").write_bytes(content)


def _links() -> Iterator[Case]:
    """Every file of a run as a link, a pipe or a folder."""

    def put(make: Callable[[Path], object], name: str) -> Callable[[Path], object]:
        def prepare(here: Path) -> None:
            path = here / "run" / name
            path.parent.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)
            make(path)

        return prepare

    kinds: dict[str, Callable[[Path], object]] = {
        "link-out": lambda path: path.symlink_to("/etc/passwd"),
        "link-to-itself": lambda path: path.symlink_to(path.name),
        "link-to-a-device": lambda path: path.symlink_to("/dev/zero"),
        "pipe": os.mkfifo,
        "folder": Path.mkdir,
    }
    for file, command in {
        "config.json": PREDICT,
        "best.safetensors": PREDICT,
        "label_issues.csv": ISSUES,
        "summary.json": REPORT,
        "metrics.jsonl": REPORT,
        "gallery.jsonl": REPORT,
        ".report.html.part.html": REPORT,
        "report.html": REPORT,
        ".lock": RESUME,
        "checkpoints/x.safetensors": RESUME,
    }.items():
        for kind, make in kinds.items():
            if not (kind == "folder" and file.startswith(("checkpoints", "metrics"))):
                yield Case(
                    f"link/{file}/{kind}", command, {"new.csv": NEW}, put(make, file), "table"
                )
