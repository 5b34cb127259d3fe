"""Arrays with false headers, pickles that run something, bombs: as labels, noise and weights."""

import io
import pickle
import struct
import zipfile
from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from safetensors.torch import save

from .case import QUICK, Case, Content, damaged, noise
from .tables import GOOD

COMMAND = ("train", "{here}/t.csv", "--out", "{here}/out", *QUICK)
COUNT = 30


def cases() -> Iterator[Case]:
    for name, content in npy_files().items():
        yield _labels(f"npy/{name}", "l.npy", content)
    for name, content in npz_files().items():
        yield _labels(f"npz/{name}", "l.npz", content, ":y")
        yield Case(f"npz-data/{name}", _train("x.npz"), {"x.npz": content})
    for name, content in pickles().items():
        yield _labels(f"pt/{name}", "l.pt", _zipped(content), ":y")
        yield _weights(f"weights/{name}", "w.pt", _zipped(content))
    for name, content in text_files().items():
        yield _labels(f"text/{name}", "l.txt", content)
    for name, content in matrices().items():
        command = (*COMMAND, "--noise", "matrix:{here}/m.csv")
        yield Case(f"matrix/{name}", command, {"t.csv": GOOD, "m.csv": content})
    for name, content in tensor_files().items():
        yield _weights(f"safetensors/{name}", "w.safetensors", content)
    for name, content in damaged("npz", npz(), 6):
        yield _labels(f"npz/{name}", "l.npz", content, ":y")
    for name, content in damaged("pt", saved({"y": np.zeros(COUNT, np.int64)}), 6):
        yield _labels(f"pt/{name}", "l.pt", content, ":y")
    for name, content in damaged("weights", saved({"0.weight": torch.ones(4, 4)}), 6):
        yield _weights(f"weights/{name}", "w.pt", content)


def _labels(name: str, file: str, content: Content, key: str = "") -> Case:
    command = (*COMMAND, "--labels", f"{{here}}/{file}{key}")
    return Case(name, command, {"t.csv": GOOD, file: content})


def _weights(name: str, file: str, content: bytes) -> Case:
    command = (*COMMAND, "--weights", f"{{here}}/{file}")
    return Case(name, command, {"t.csv": GOOD, file: content})


def _train(file: str) -> tuple[str, ...]:
    return ("train", f"{{here}}/{file}", "--out", "{here}/out", *QUICK)


def npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def with_header(text: str, content: bytes = bytes(8 * COUNT), version: int = 1) -> bytes:
    """An .npy that says what we like of its content."""
    header = text.encode() + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + content


def described(descr: str, shape: str, fortran: bool = False) -> str:
    return f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape}, }}"


def npy_files() -> dict[str, bytes]:
    whole = npy(np.zeros(COUNT, np.int64))
    nested = "(" * 3000 + ")" * 3000
    found = {
        "empty": b"",
        "magic-alone": b"\x93NUMPY",
        "version-9": whole[:6] + b"\x09" + whole[7:],
        "claims-a-terabyte": with_header(described("<i8", f"({2**37},)")),
        "claims-more-than-fits": with_header(described("<i8", f"({2**70},)")),
        "claims-one-more": with_header(described("<i8", f"({COUNT + 1},)")),
        "claims-one-less": with_header(described("<i8", f"({COUNT - 1},)")),
        "claims-less-than-none": with_header(described("<i8", f"({-COUNT},)")),
        "two-negatives": with_header(described("<i8", f"(-1, {-COUNT})")),
        "no-shape": with_header(described("<i8", "()")),
        "shape-of-words": with_header(described("<i8", "('a',)")),
        "many-axes": with_header(described("<i8", "(" + "1," * 100 + ")")),
        "nested-shape": with_header(described("<i8", nested)),
        "texts-without-room": with_header(described("<U0", f"({2**40},)"), b""),
        "bytes-without-room": with_header(described("|S0", f"({2**40},)"), b""),
        "nothing-without-room": with_header(described("|V0", f"({2**40},)"), b""),
        "texts-of-a-gigabyte": with_header(described(f"<U{2**28}", "(1,)"), b""),
        "objects": npy(np.array([{"a": 1}] * COUNT, dtype=object)),
        "objects-claimed": with_header(described("|O", f"({COUNT},)")),
        "unknown-type": with_header(described("<q9", f"({COUNT},)")),
        "type-of-types": with_header("{'descr': [('a', '<i4'), ('b', '|O')], 'shape': (30,)}"),
        "call": with_header("__import__('os').system('false')"),
        "long-header": with_header(" " * 60_000),
        "header-of-a-gigabyte": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**30) + b"{}",
        "no-dictionary": with_header("[1, 2]"),
        "nan": npy(np.full(COUNT, np.nan)),
        "one-nan": npy(np.array([0.0] * (COUNT - 1) + [np.nan])),
        "infinite": npy(np.full(COUNT, -np.inf)),
        "2^63": npy(np.full(COUNT, 2**63, np.uint64)),
        "2.0^63": npy(np.full(COUNT, 2.0**63)),
        "minus-2^63": npy(np.full(COUNT, -(2**63), np.int64)),
        "complex": npy(np.zeros(COUNT, complex)),
        "measurements": npy(np.linspace(0, 1, COUNT)),
        "two-rows": npy(np.zeros((2, COUNT), np.int64)),
        "too-few": npy(np.zeros(COUNT - 1, np.int64)),
        "none": npy(np.zeros(0, np.int64)),
        "no-characters": with_header(described("<U1", f"({COUNT},)"), b"\xff" * 4 * COUNT),
        "surrogates": with_header(
            described("<U1", f"({COUNT},)"), struct.pack("<I", 0xD800) * COUNT
        ),
        "not-a-time": npy(np.full(COUNT, "NaT", "M8[s]")),
        "an-archive": npz(),
        "a-pickle": pickle.dumps(np.zeros(COUNT)),
    }
    return found | {f"noise-{n}": whole[:10] + noise(f"npy{n}", 100) for n in range(5)}


def npz(compressed: bool = False) -> bytes:
    file = io.BytesIO()
    write = np.savez_compressed if compressed else np.savez
    write(file, X=np.random.default_rng(0).normal(size=(COUNT, 2)), y=np.arange(COUNT) % 3)
    return file.getvalue()


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return file.getvalue()


@cache
def bomb() -> bytes:
    """280 MB of zeros in 1.2 MB."""
    count = 35_000_000
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        for name in ("X.npy", "y.npy"):
            with made.open(name, "w", force_zip64=True) as member:
                member.write(with_header(described("<i8", f"({count // 2},)"), b""))
                for _ in range(count // 2 // 2**20 + 1):
                    member.write(bytes(2**23))
    return file.getvalue()


def npz_files() -> dict[str, Content]:
    whole, X, y = npz(), npy(np.ones((COUNT, 2))), npy(np.arange(COUNT) % 3)
    both = {"X.npy": X, "y.npy": y}
    encrypted, unknown = bytearray(whole), bytearray(whole)
    unknown[8] = unknown[whole.index(b"PK\x01\x02") + 10] = 99
    encrypted[6] |= 1
    encrypted[whole.index(b"PK\x01\x02") + 8] |= 1
    return {
        "empty": b"",
        "no-members": archive({}),
        "bomb": bomb,
        "no-arrays": archive({"X.npy": b"x", "y.npy": b"y"}),
        "other-names": archive({"a.npy": X, "b.npy": y}),
        "no-X": archive({"y.npy": with_header(described("<i8", f"({2**40},)"))}),
        "false-header": archive({**both, "y.npy": with_header(described("<i8", f"({2**40},)"))}),
        "objects": archive({**both, "y.npy": npy(np.array([None] * COUNT, dtype=object))}),
        "climbing-names": archive({"../../X.npy": X, "/etc/y.npy": y}),
        "folders": archive({"X.npy/": b"", "y.npy/": b""}),
        "encrypted": bytes(encrypted),
        "archive-in-archive": archive({"X.npy": whole, "y.npy": whole}),
        "method-unknown": bytes(unknown),
        "nan-labels": archive({"X.npy": X, "y.npy": npy(np.full(COUNT, np.nan))}),
        "nan-features": archive({"X.npy": npy(np.full((COUNT, 2), np.nan)), "y.npy": y[:-8]}),
        "a-directory-alone": whole[whole.index(b"PK\x01\x02") :],
        "end-alone": whole[-22:],
        "behind-noise": noise("behind", 300) + whole[10:],
    }


class Runs:
    def __reduce__(self) -> tuple:
        return eval, ("1/0",)


class TakesMemory:
    def __reduce__(self) -> tuple:
        return bytearray, (2**40,)


def pickles() -> dict[str, bytes]:
    zeros = np.zeros(COUNT, np.int64)
    whole = pickle.dumps({"y": zeros}, 2)
    doubling = b"\x80\x02]" + b"".join(b"q%c(h%ch%ce" % (n, n, n) for n in range(50)) + b"."
    return {
        "empty": b"",
        "runs": pickle.dumps({"y": Runs()}, 2),
        "takes-memory": pickle.dumps({"y": TakesMemory()}, 2),
        "system": b"cos\nsystem\n(S'false'\ntR.",
        "instance": b"(ios\nsystem\n.",
        "extension": b"\x80\x02\x82\x01.",
        "next-buffer": b"\x80\x05\x97.",
        "persistent": b"\x80\x02X\x01\x00\x00\x00aQ.",
        "no-stop": whole[:-1],
        "pops-nothing": b"\x80\x02a.",
        "marks": b"(" * 100_000 + b".",
        "nested-lists": b"]" * 50_000 + b"a" * 49_999 + b".",
        "nested-tuples": b")" + b"\x85" * 50_000 + b".",
        "doubling": doubling,
        "itself": b"\x80\x02]q\x00h\x00a.",
        "memo-missing": b"\x80\x02h\x07.",
        "long-number": b"\x80\x02\x8b" + struct.pack("<i", 100_000) + b"\x7f" * 100_000 + b".",
        "claims-4-GB": b"\x80\x02T" + struct.pack("<i", 2**31 - 1) + b"a.",
        "claims-2^63": b"\x80\x04\x8e" + struct.pack("<Q", 2**63 - 1) + b"a.",
        "objects": pickle.dumps({"y": np.array([None], dtype=object)}, 2),
        "false-shape": whole.replace(b"K\x1e\x85", b"\x8a\x06\x00\x00\x00\x00\x00\x01\x85"),
        "a-number": pickle.dumps(3, 2),
        "a-list": pickle.dumps([zeros], 2),
        "no-text": b"\x80\x02X\x02\x00\x00\x00\xff\xff.",
        "protocol-0": pickle.dumps({"y": Runs()}, 0),
    } | {f"noise-{n}": b"\x80\x02" + noise(f"pickle{n}", 60) for n in range(5)}


def _zipped(content: bytes) -> bytes:
    return archive({"archive/data.pkl": content, "archive/version": b"3\n"}, zipfile.ZIP_STORED)


def saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def text_files() -> dict[str, bytes]:
    return {
        "empty": b"",
        "too-few": b"x y",
        "no-text": noise("text", 200),
        "nuls": b"\0 " * COUNT,
        "unknown": b"dog " * COUNT,
        "digits": b" ".join([b"9" * 5000] * COUNT),
        "utf-16": ("x y z " * 10).encode("utf-16"),
    }


def matrices() -> dict[str, bytes]:
    return {
        "empty": b"",
        "words": b"a,b,c\nd,e,f\n",
        "2-by-2": b"1,0\n0,1\n",
        "ragged": b"1,0,0\n0,1\n0,0,1\n",
        "nan": b"nan,0,0\n0,1,0\n0,0,1\n",
        "infinite": b"inf,0,0\n0,1,0\n0,0,1\n",
        "negative": b"2,-1,0\n0,1,0\n0,0,1\n",
        "sums": b"1,1,1\n1,1,1\n1,1,1\n",
        "no-text": noise("matrix", 200),
        "nuls": bytes(100),
        "long": b"1," * 1_000_000,
        "comment": b"# 1,0,0\n",
        "gzip": b"\x1f\x8b\x08\x00" + noise("gz", 100),
    }


def tensor_files() -> dict[str, bytes]:
    whole = save({"0.weight": torch.ones(4, 4)})

    def header(text: str) -> bytes:
        return struct.pack("<Q", len(text)) + text.encode() + bytes(64)

    entry = '{"w": {"dtype": "F32", "shape": [%s], "data_offsets": [%s]}}'
    found = {
        "empty": b"",
        "claims-2^63": struct.pack("<Q", 2**63) + whole[8:],
        "claims-a-gigabyte": struct.pack("<Q", 2**30) + whole[8:],
        "claims-100-MB": struct.pack("<Q", 99_000_000) + whole[8:],
        "no-json": header("x" * 50),
        "nested": header("[" * 10_000),
        "shape-2^40": header(entry % (2**40, "0, 64")),
        "shape-2^70": header(entry % (2**70, "0, 64")),
        "offsets-beyond": header(entry % ("4, 4", "0, 9999999")),
        "offsets-back": header(entry % ("4, 4", "64, 0")),
        "offsets-negative": header(entry % ("4, 4", "-64, 0")),
        "type-unknown": header(entry.replace("F32", "F99") % ("4, 4", "0, 64")),
        "hole": header(entry % ("2, 2", "48, 64")),
        "other-network": whole,
    }
    return found | dict(damaged("tensors", whole, 4))
