"""Each parser as a function of the bytes of a file, and small files to begin with.

A parser may raise InputError, and of a picture PictureError. Anything else is a finding.
"""

import contextlib
import gzip
import io
import json
import pickle
import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from mlnt.config import Settings
from mlnt.data import (
    array_files,
    cifar10,
    clothing1m,
    fashion_mnist,
    label_files,
    label_tables,
    noise,
    picture_tables,
    tables,
)
from mlnt.data.array_pickle import load_pickle
from mlnt.data.encoding import TableEncoder, encoder_to_json
from mlnt.data.huggingface import is_saved_dataset, read_saved
from mlnt.data.pictures import PictureError, read_picture
from mlnt.data.reading import read
from mlnt.errors import InputError
from mlnt.gallery import read_gallery
from mlnt.label_issues import COLUMNS, read_label_issues
from mlnt.models import read_weights
from mlnt.networks import MLP
from mlnt.packing import pack
from mlnt.prediction import load_model
from mlnt.report import charts
from mlnt.report.findings import read_findings
from mlnt.runs import RunFolder


@dataclass(frozen=True)
class Parser:
    read: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]

    def __call__(self, content: bytes) -> None:
        with contextlib.suppress(InputError, PictureError):
            self.read(content)


@cache
def _folder() -> Path:
    """One for the whole process; it goes with it."""
    memory = Path("/dev/shm")  # files there take no time
    place = memory if memory.is_dir() else None
    made = tempfile.TemporaryDirectory(prefix="mlnt-fuzz-", dir=place)
    _KEPT.append(made)
    return Path(made.name)


_KEPT: list[tempfile.TemporaryDirectory] = []


def _file(name: str, content: bytes) -> Path:
    path = _folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _csv(content: bytes) -> None:
    path = _file("table.csv", content)
    for reading in (
        lambda: tables.read_table(path, None, None),
        lambda: label_tables.read_labels(path, None).in_order(),
        lambda: picture_tables.read_picture_paths(path, None),
        lambda: read(path),
    ):
        with contextlib.suppress(InputError):
            reading()


def _label_text(content: bytes) -> None:
    given = label_files.read_label_file(_file("labels.txt", content))
    label_files.sorted_classes(given.in_order())


def _npy(content: bytes) -> None:
    label_files.label_names(array_files.read_npy(_file("labels.npy", content)))


def _npz(content: bytes) -> None:
    read(_file("arrays.npz", content))


def _pickle(content: bytes) -> None:
    load_pickle(io.BytesIO(content), "it")


def _pt(content: bytes) -> None:
    for name in label_files.read_pt(_file("labels.pt", content)).values():
        label_files.label_names(name)


def _weights(content: bytes) -> None:
    read_weights(_file("weights.pt", content))


def _cifar_batch(content: bytes) -> None:
    cifar10.read_pickled(content, 2, "it")


def _archive(content: bytes) -> None:
    cifar10.cifar10(_file("cifar-10-binary.tar.gz", content), records=1)


def _idx(content: bytes) -> None:
    name = "train-images-idx3-ubyte"
    packed = content[:2] == b"\x1f\x8b"
    for suffix in ("", ".gz"):
        (_folder() / f"{name}{suffix}").unlink(missing_ok=True)
    _file(f"{name}.gz" if packed else name, content)
    fashion_mnist._read_idx(_folder(), name, axes=3)


def _matrix(content: bytes) -> None:
    path = _file("matrix.csv", content)
    parsed = noise.parse_noise(f"matrix:{path}", ("a", "b"))
    parsed.apply(torch.tensor([0, 1]), torch.Generator())


def _config(content: bytes) -> None:
    _file("run/config.json", content)
    if not (_folder() / "run" / "best.safetensors").exists():
        _file("run/best.safetensors", _weights_of_run())
    load_model(RunFolder.open(_folder() / "run"))


def _state(content: bytes) -> None:
    _file("run/config.json", _config_of_run())
    _file("run/best.safetensors", content)
    load_model(RunFolder.open(_folder() / "run"))


def _checkpoint(content: bytes) -> None:
    _file("checkpointed/config.json", b"{}")
    _file("checkpointed/checkpoints/mlnt-1.safetensors", content)
    RunFolder.open(_folder() / "checkpointed").checkpoints.load("mlnt-1")


def _metrics(content: bytes) -> None:
    _file("measured/config.json", b"{}")
    _file("measured/metrics.jsonl", content)
    run = RunFolder.open(_folder() / "measured")
    with run.expect_intact():
        charts.drawings(charts.curves(run.read_metrics()))


def _issues(content: bytes) -> None:
    path = _file("label_issues.csv", content)
    with contextlib.suppress(InputError):
        read_label_issues(path, 20)
    findings = read_findings(path, ("x", "=y"), 1)
    with RunFolder(_folder()).expect_intact():
        findings.labels_in_order()
        findings.by_class()
        charts.histogram(findings.histogram(40), findings.threshold)


def _gallery(content: bytes) -> None:
    read_gallery(_file("gallery.jsonl", content))


def _lists(content: bytes) -> None:
    """The three files, one after the other, with a NUL between them."""
    names = (clothing1m.NOISY, clothing1m.PARTS["train"][0], clothing1m.NAMES)
    for name in names:
        (_folder() / "lists" / name).unlink(missing_ok=True)
    for name, part in zip(names, content.split(b"\0\0", 2), strict=False):
        _file(f"lists/{name}", part)
    for reading in (clothing1m.read_lists, clothing1m.class_names):
        with contextlib.suppress(InputError):
            reading(_folder() / "lists")


def _picture(content: bytes) -> None:
    read_picture(_file("picture.png", content), 32, 28)


def _saved(content: bytes) -> None:
    """What Hugging Face saves: its description, then the Arrow file, a NUL between them."""
    info, _, arrow = content.partition(b"\0")
    _file("saved/dataset_info.json", info)
    _file("saved/state.json", b'{"_data_files": [{"filename": "data.arrow"}]}')
    _file("saved/data.arrow", arrow)
    if is_saved_dataset(_folder() / "saved"):
        read_saved(_folder() / "saved")


def _table_seeds() -> list[bytes]:
    return [
        b"a,b,label\n1,2,x\n3,4,y\n",
        'text,label\n"a ""quoted"",\nword",x\nß,y\n'.encode(),
        b"path,label\na/b.png,x\n../c.png,y\n",
        b"\xef\xbb\xbf,a\r\n0,nan\r\n1,-inf\r\n",
    ]


def _array_seeds() -> list[bytes]:
    found = []
    for values in (np.arange(3), np.array(["a", "b"]), np.ones((2, 2), order="F")):
        file = io.BytesIO()
        np.save(file, values)
        found.append(file.getvalue())
    return found


def _npz_seeds() -> list[bytes]:
    found = []
    for write in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        write(file, X=np.ones((4, 2)), y=np.arange(4))
        found.append(file.getvalue())
    return found


def _pickle_seeds() -> list[bytes]:
    value = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], "name": "x"}
    return [pickle.dumps(value, protocol) for protocol in (2, 4, 5)]


def _pt_seeds() -> list[bytes]:
    found = []
    for is_zip in (True, False):
        for value in (
            {"clean_label": np.arange(3), "worse_label": np.arange(3)},
            {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)},
        ):
            file = io.BytesIO()
            torch.save(value, file, _use_new_zipfile_serialization=is_zip)
            found.append(file.getvalue())
    return found


def _batch_seeds() -> list[bytes]:
    value = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2]}
    return [pickle.dumps(value, 2)]


def _archive_seeds() -> list[bytes]:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in cifar10.BINARY.files:
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = 3073
            archive.addfile(member, io.BytesIO(bytes(3073)))
    return [gzip.compress(file.getvalue(), level) for level in (0, 9)]


def _idx_seeds() -> list[bytes]:
    plain = bytes([0, 0, 8, 3]) + struct.pack(">III", 2, 2, 2) + bytes(8)
    return [plain, gzip.compress(plain)]


@cache
def _weights_of_run() -> bytes:
    return save({name: value.contiguous() for name, value in MLP(2, 2).state_dict().items()})


def _config_of_run() -> bytes:
    encoder = TableEncoder(("a", "b"), (0.0, 0.0), (1.0, 1.0))
    config = {
        "settings": {**vars(Settings()), "model": "mlp"},
        "own_model": "",
        "data": {
            "classes": ["x", "y"],
            "encoder": encoder_to_json(encoder),
            "label_column": None,
            "text_column": None,
        },
    }
    return json.dumps(config).encode()


def _config_seeds() -> list[bytes]:
    image = {"kind": "image", "shape": [1, 8, 8], "mean": [0], "std": [1]}
    text = {"kind": "text", "words": ["a", "b"], "length": 3, "rarities": [1, 2.5]}
    found = [json.loads(_config_of_run()) for _ in range(3)]
    for config, encoder, model in zip(found[1:], (image, text), ("small_conv", "bag"), strict=True):
        config["data"]["encoder"], config["settings"]["model"] = encoder, model
    return [json.dumps(config).encode() for config in found]


def _checkpoint_seeds() -> list[bytes]:
    tensors: dict[str, torch.Tensor] = {}
    content = {"history": [{"epoch": 1}], "models": {"student": {"w": torch.ones(2)}}, "n": 3}
    text = json.dumps(pack(content, tensors))
    return [save(tensors, {"content": text})]


def _metrics_seeds() -> list[bytes]:
    rows = [
        {"method": method, "iteration": n, "epoch": e, "student": {"test": 50.0, "validation": 1}}
        for method, n in (("cross_entropy", 0), ("mlnt", 1))
        for e in (1, 2)
    ]
    return ["".join(f"{json.dumps(row)}\n" for row in rows).encode()]


def _issues_seeds() -> list[bytes]:
    head = ",".join(COLUMNS)
    return [f"{head}\r\n1,text,x,'=y,0.1,0.9,0.9,no\r\n0,,x,x,0.9,0.9,0.1,yes\r\n".encode()]


def _gallery_seeds() -> list[bytes]:
    rows = [
        {"index": 3, "picture": "data:image/png;base64,iVBO", "text": "a/b.png"},
        {"index": 4, "row": [["a", "1.5"]], "more": 2},
    ]
    return ["".join(f"{json.dumps(row)}\n" for row in rows).encode()]


def _picture_seeds() -> list[bytes]:
    found = []
    picture = Image.linear_gradient("L").resize((12, 9))
    for form in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "PPM", "TIFF"):
        for mode in ("L", "RGB"):
            file = io.BytesIO()
            picture.convert(mode).save(file, form)
            found.append(file.getvalue())
    return found


def _saved_seeds() -> Iterator[bytes]:
    import pyarrow

    for kind, columns in (
        ("string", {"text": ["a", "b"], "label": [0, 1]}),
        ("float64", {"number": [0.5, 1.5], "label": [0, 1]}),
    ):
        name = next(iter(columns))
        features = {
            name: {"dtype": kind, "_type": "Value"},
            "label": {"names": ["x", "y"], "_type": "ClassLabel"},
        }
        table, file = pyarrow.table(columns), io.BytesIO()
        with pyarrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
        yield json.dumps({"features": features}).encode() + b"\0" + file.getvalue()


PARSERS = {
    "csv": Parser(_csv, _table_seeds),
    "label-text": Parser(_label_text, lambda: [b"x y\n1 2", "ß\n٣".encode(), b"-1 9999999999"]),
    "npy": Parser(_npy, _array_seeds),
    "npz": Parser(_npz, _npz_seeds),
    "pickle": Parser(_pickle, _pickle_seeds),
    "pt": Parser(_pt, _pt_seeds),
    "weights": Parser(_weights, _pt_seeds),
    "cifar-batch": Parser(_cifar_batch, _batch_seeds),
    "cifar-archive": Parser(_archive, _archive_seeds),
    "idx": Parser(_idx, _idx_seeds),
    "matrix": Parser(_matrix, lambda: [b"0.9,0.1\n0.2,0.8\n", b"1,0\n0,1"]),
    "config": Parser(_config, _config_seeds),
    "safetensors": Parser(_state, lambda: [_weights_of_run()]),
    "checkpoint": Parser(_checkpoint, _checkpoint_seeds),
    "metrics": Parser(_metrics, _metrics_seeds),
    "label-issues": Parser(_issues, _issues_seeds),
    "gallery": Parser(_gallery, _gallery_seeds),
    "clothing1m": Parser(_lists, lambda: [b"a/x.jpg 1\nb.jpg 2\0\0a/x.jpg\nb.jpg\0\0Shirt\nHat\n"]),
    "picture": Parser(_picture, _picture_seeds),
    "huggingface": Parser(_saved, lambda: list(_saved_seeds())),
}
