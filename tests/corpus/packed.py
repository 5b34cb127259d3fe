"""IDX files, CIFAR-10's archive and pickles, Clothing1M's lists, sets saved by Hugging Face."""

import gzip
import io
import json
import pickle
import struct
import tarfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache

import numpy as np

from .arrays import Runs, TakesMemory
from .case import QUICK, Case, Content, damaged, noise
from .pictures import encoded

COMMAND = ("train", "{here}/d", "--out", "{here}/out", *QUICK)
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def cases() -> Iterator[Case]:
    for name, content in idx_files().items():
        yield _idx(f"idx/{name}", {IMAGES: content})
    for name, content in gzip_files().items():
        yield _idx(f"gzip/{name}", {f"{IMAGES}.gz": content})
    for name, labels in {"none": idx([0]), "too-many": idx([99]), "bytes": b"\1" * 99}.items():
        yield _idx(f"idx/labels-{name}", {LABELS: labels})
    for name, content in archives().items():
        yield _folder(f"cifar/{name}", {"cifar-10-binary.tar.gz": content})
    for name, content in batches().items():
        yield _folder(f"cifar/{name}", {"data_batch_1": content})
    for name, files in lists().items():
        yield _folder(f"clothing1m/{name}", files)
        if name.startswith("path"):
            yield Case(f"checked/{name}", ("data", "check", "{here}/d"), _below(files))
    for name, files in saved_sets().items():
        yield _folder(f"saved/{name}", files)
        yield Case(f"checked/saved-{name}", ("data", "check", "{here}/d"), _below(files))


def _below(files: Mapping[str, Content]) -> dict[str, Content]:
    return {f"d/{name}": content for name, content in files.items()}


def _folder(name: str, files: Mapping[str, Content]) -> Case:
    return Case(name, COMMAND, _below(files))


def idx(shape: list[int], content: bytes | None = None) -> bytes:
    body = bytes(int(np.prod(shape))) if content is None else content
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body


def _idx(name: str, files: Mapping[str, Content]) -> Case:
    labels = bytes([0, 1, 2] * 4)
    whole = {
        f"{part}-{what}": content
        for part in ("train", "t10k")
        for what, content in (
            ("images-idx3-ubyte", idx([12, 2, 2])),
            ("labels-idx1-ubyte", idx([12], labels)),
        )
    }
    kept = {n: c for n, c in whole.items() if f"{n}.gz" not in files}
    return _folder(name, {**kept, **files})


def idx_files() -> dict[str, bytes]:
    whole = idx([12, 2, 2])
    found = {
        "empty": b"",
        "magic-alone": whole[:4],
        "claims-2^32-pictures": idx([2**32 - 1, 2, 2], bytes(48)),
        "claims-2^96-values": idx([2**32 - 1] * 3, bytes(48)),
        "claims-nothing": idx([0, 2, 2]),
        "no-width": idx([12, 2, 0], b""),
        "one-more": idx([13, 2, 2], bytes(48)),
        "one-byte-more": whole + b"\0",
        "one-byte-less": whole[:-1],
        "floats": bytes([0, 0, 13, 3]) + whole[4:],
        "four-axes": bytes([0, 0, 8, 4]) + whole[4:],
        "no-axes": bytes([0, 0, 8, 0]),
        "255-axes": bytes([0, 0, 8, 255]) + whole[4:],
        "fewer-pictures": idx([11, 2, 2]),
    }
    return found | {f"noise-{n}": noise(f"idx{n}", 60) for n in range(5)}


@cache
def _zeros(times: int) -> bytes:
    """Thirty million of them, so many times over: parts of a packed file may follow each other."""
    return gzip.compress(bytes(30_000_000), 1, mtime=0) * times


def gzip_files() -> dict[str, Content]:
    packed = gzip.compress(idx([12, 2, 2]), mtime=0)
    found = {
        "empty": b"",
        "bomb": lambda: _zeros(10),
        "bomb-that-claims-it": lambda: (
            gzip.compress(idx([300_000, 30, 1000], b""), mtime=0) + _zeros(300)
        ),
        "not-packed": idx([12, 2, 2]),
        "trailing-noise": packed + noise("gzip", 40),
    }
    return found | dict(damaged("gzip", packed, 5))


def archives() -> dict[str, Content]:
    names = [f"data_batch_{n}.bin" for n in range(1, 6)] + ["test_batch.bin"]

    def packed(change: Callable[[tarfile.TarInfo], None] = lambda member: None) -> bytes:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as made:
            for name in names:
                member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                member.size = 3073
                change(member)
                made.addfile(member, io.BytesIO(bytes(max(member.size, 0))))
        return gzip.compress(file.getvalue(), 1, mtime=0)

    def link(kind: bytes, to: str) -> bytes:
        def change(member: tarfile.TarInfo) -> None:
            member.type, member.linkname, member.size = kind, to or member.name, 0

        return packed(change)

    whole = packed()
    found = {
        "archive-empty": b"",
        "archive-of-nothing": gzip.compress(bytes(10_240), mtime=0),
        "archive-too-small": whole,
        "archive-links-to-itself": link(tarfile.LNKTYPE, ""),
        "archive-links-out": link(tarfile.SYMTYPE, "/etc/passwd"),
        "archive-links-up": link(tarfile.SYMTYPE, "../../x"),
        "archive-device": link(tarfile.CHRTYPE, "x"),
        "archive-pipe": link(tarfile.FIFOTYPE, "x"),
        "archive-bomb": lambda: _zeros(20),
        "archive-noise": gzip.compress(noise("tar", 5000), mtime=0),
        "archive-not-packed": gzip.decompress(whole),
    }
    plain = gzip.decompress(whole)
    claims = bytearray(plain)
    claims[124:136] = b"77777777777\0"
    found["archive-claims-8-GB"] = gzip.compress(bytes(claims), mtime=0)
    return found | {f"archive-{name}": content for name, content in damaged("tar", whole, 5)}


def batches() -> dict[str, bytes]:
    whole = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}
    return {
        "batch-empty": b"",
        "batch-too-small": pickle.dumps(whole, 2),
        "batch-runs": pickle.dumps({**whole, "labels": Runs()}, 2),
        "batch-takes-memory": pickle.dumps({**whole, "data": TakesMemory()}, 2),
        "batch-no-labels": pickle.dumps({"data": whole["data"]}, 2),
        "batch-noise": noise("batch", 500),
        "batch-claims": pickle.dumps(whole, 2).replace(b"\x86q", b"\x86r", 1),
    }


def lists() -> dict[str, dict[str, bytes]]:
    keys = [f"images/{n}.png" for n in range(8)]
    labels = "".join(f"{key} {n % 2}\n" for n, key in enumerate(keys)).encode()
    listed = "".join(f"{key}\n" for key in keys).encode()
    whole = {
        "noisy_label_kv.txt": labels,
        "clean_label_kv.txt": labels,
        "noisy_train_key_list.txt": listed,
        "clean_val_key_list.txt": listed,
        "clean_test_key_list.txt": listed,
        **{key: encoded("PNG") for key in keys},
    }
    train, noisy, names = "noisy_train_key_list.txt", "noisy_label_kv.txt", "category_names_eng.txt"
    odd = {
        "path-up": {train: b"../../etc/passwd.jpg\n"},
        "path-absolute": {train: b"/etc/passwd.jpg\n"},
        "path-within": {train: b"images/../../x.jpg\n"},
        "path-backslash": {train: b"images\\..\\x.jpg\n"},
        "path-nul": {train: b"images/\0.jpg\n"},
        "keys-empty": {train: b""},
        "keys-without-labels": {train: b"images/other.jpg\n"},
        "keys-noise": {train: noise("keys", 300)},
        "labels-empty": {noisy: b""},
        "labels-negative": {noisy: b"images/0.png -1\n"},
        "labels-2^63": {noisy: b"images/0.png 9223372036854775808\n"},
        "labels-nan": {noisy: b"images/0.png nan\n"},
        "labels-beyond": {noisy: labels.replace(b" 1", b" 99")},
        "labels-noise": {noisy: noise("labels", 300)},
        "labels-of-a-path-alone": {noisy: b"images/0.png\n"},
        "names-empty": {names: b""},
        "names-twice": {names: b"a\na\n"},
        "names-no-text": {names: noise("names", 100)},
        "no-pictures": dict.fromkeys(keys, b""),
        "pictures-of-noise": {key: noise(key, 200) for key in keys},
    }
    return {name: {**whole, **files} for name, files in odd.items()}


def saved_sets() -> dict[str, dict[str, bytes]]:
    import pyarrow

    def arrow(table: "pyarrow.Table") -> bytes:
        file = io.BytesIO()
        with pyarrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
        return file.getvalue()

    def value(kind: str) -> dict[str, str]:
        return {"dtype": kind, "_type": "Value"}

    def state(*names: object) -> bytes:
        return json.dumps({"_data_files": [{"filename": name} for name in names]}).encode()

    def info(features: object) -> bytes:
        return json.dumps({"features": features}).encode()

    classes = {"names": ["x", "y"], "_type": "ClassLabel"}
    whole = arrow(pyarrow.table({"text": ["a b", "c d"] * 10, "label": [0, 1] * 10}))
    good = {
        "dataset_info.json": info({"text": value("string"), "label": classes}),
        "state.json": state("data.arrow"),
        "data.arrow": whole,
    }
    # Each batch of a million nulls takes a few hundred bytes.
    nulls = arrow(pyarrow.table({"text": pyarrow.nulls(10**7), "label": pyarrow.nulls(10**7)}))
    picture = {"image": {"_type": "Image"}, "label": classes}
    pictures = [{"bytes": None, "path": "/etc/passwd.png"}, {"bytes": b"", "path": None}] * 10
    odd = {
        "state-up": {"state.json": state("../../data.arrow")},
        "state-absolute": {"state.json": state("/etc/passwd")},
        "state-number": {"state.json": state(3)},
        "state-missing-file": {"state.json": state("other.arrow")},
        "state-empty": {"state.json": b""},
        "state-none": {"state.json": b"null"},
        "state-list": {"state.json": b'{"_data_files": 3}'},
        "state-old": {"state.json": b'{"_indices_data_files": [1]}'},
        "state-nested": {"state.json": b"[" * 100_000},
        "info-empty": {"dataset_info.json": b""},
        "info-nested": {"dataset_info.json": b'{"a":' * 100_000},
        "info-number": {"dataset_info.json": info(3)},
        "info-other-columns": {"dataset_info.json": info({"words": value("string")})},
        "info-other-type": {"dataset_info.json": info({"text": value("int64"), "label": classes})},
        "info-pictures": {"dataset_info.json": info(picture)},
        "info-names": {
            "dataset_info.json": info(
                {"text": value("string"), "label": {"_type": "ClassLabel", "names": 3}}
            )
        },
        "info-one-name": {
            "dataset_info.json": info(
                {"text": value("string"), "label": {"_type": "ClassLabel", "names": ["x"]}}
            )
        },
        "splits-up": {"dataset_dict.json": b'{"splits": ["../train"]}'},
        "splits-number": {"dataset_dict.json": b'{"splits": 3}'},
        "splits-missing": {"dataset_dict.json": b'{"splits": ["train"]}'},
        "splits-other": {"dataset_dict.json": b'{"splits": ["other"]}'},
        "splits-nested": {"dataset_dict.json": b"[" * 100_000},
        "nulls-without-end": {"data.arrow": nulls},
        "labels-beyond": {
            "data.arrow": arrow(pyarrow.table({"text": ["a", "b"], "label": [0, 2**62]}))
        },
        "labels-text": {
            "data.arrow": arrow(pyarrow.table({"text": ["a", "b"], "label": ["x", "y"]}))
        },
        "labels-nan": {
            "data.arrow": arrow(pyarrow.table({"text": ["a", "b"], "label": [0.0, float("nan")]}))
        },
        "texts-missing": {
            "data.arrow": arrow(pyarrow.table({"text": [None, "b"], "label": [0, 1]}))
        },
        "paths-instead-of-pictures": {
            "dataset_info.json": info(picture),
            "data.arrow": arrow(pyarrow.table({"image": pictures, "label": [0, 1] * 10})),
        },
        "empty": {"data.arrow": b""},
        "noise": {"data.arrow": noise("arrow", 800)},
    }
    found = {name: {**good, **files} for name, files in odd.items()}
    for name, content in damaged("arrow", whole, 5):
        found[name] = {**good, "data.arrow": content}
    return found
