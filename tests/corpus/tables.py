"""CSV and TSV files; tables whose paths climb out."""

import os
from collections.abc import Iterator
from pathlib import Path

from .case import QUICK, Case, noise

GOOD = b"a,b,label\n" + b"".join(b"%d,%d,%s\n" % (i, -i, b"xyz"[i % 3 :][:1]) for i in range(30))
TRAIN = ("train", "{here}/t.csv", "--out", "{here}/out", *QUICK)


def cases() -> Iterator[Case]:
    for name, content in TABLES.items():
        yield Case(f"table/{name}", TRAIN, {"t.csv": content})
    for name, content in list(TABLES.items())[::3]:
        yield Case(f"predicted/{name}", ("predict", "{table}", "{here}/t.csv"), {"t.csv": content})
    for number in range(15):
        content = noise(f"table/{number}", 40 * (number + 1))
        yield Case(f"table/noise-{number}", TRAIN, {"t.csv": content})
        part = len(GOOD) * (number + 1) // 16
        spliced = GOOD[:part] + noise(f"spliced/{number}", 4) + GOOD[part:]
        yield Case(f"table/spliced-{number}", TRAIN, {"t.csv": spliced})
    for name, path in CLIMBING.items():
        rows = "".join(f'"{path}",{label}\n' for label in "xyxyxyxy")
        yield Case(
            f"path/{name}", TRAIN, {"t.csv": f"path,label\n{rows}".encode("utf-8", "replace")}
        )
    for name, prepare in ODD_FILES.items():
        rows = "".join(f"odd.png,{label}\n" for label in "xyxyxyxy")
        yield Case(f"path/{name}", TRAIN, {"t.csv": f"path,label\n{rows}".encode()}, prepare)
        yield Case(f"file/{name}", TRAIN, prepare=lambda here, p=prepare: _renamed(p, here))


def _renamed(prepare, here: Path) -> None:
    prepare(here)
    os.rename(here / "odd.png", here / "t.csv")


def _rows(label: str, count: int = 6) -> bytes:
    return "".join(f"{i},{i},{label if i % 2 else 'x'}\n" for i in range(count)).encode()


def _with(cell: str, encoding: str = "utf-8") -> bytes:
    return b"a,b,label\n1,2,x\n" + f"3,{cell},y\n5,6,x\n".encode(encoding, "surrogatepass")


def _wide(columns: int) -> bytes:
    names = b",".join(b"%d" % n for n in range(columns - 1))
    return names + b",label\n" + (b"1," * (columns - 1) + b"x\n") * 2


HEAD = b"a,b,label\n"
TABLES = {
    "empty": b"",
    "a-newline": b"\n",
    "newlines": b"\n" * 1000,
    "only-a-mark": b"\xef\xbb\xbf",
    "only-a-header": HEAD,
    "header-without-end": b"a,b,label",
    "no-label-column": b"a,b\n1,2\n3,4\n",
    "only-labels": b"label\nx\ny\n",
    "one-class": b"a,label\n1,x\n2,x\n3,x\n",
    "empty-label": b"a,label\n1,x\n2,\n3,y\n",
    "blank-label": b"a,label\n1,x\n2,   \n3,y\n",
    "nul-first": b"\0" + GOOD,
    "nul-in-header": b"a,b\0,label\n1,2,x\n3,4,y\n",
    "nul-in-number": _with("4\x00"),
    "nul-in-label": HEAD + b"1,2,x\n3,4,y\0\n",
    "nul-last": GOOD + b"\0",
    "nuls": bytes(10_000),
    "utf-16": GOOD.decode().encode("utf-16"),
    "utf-16-le": GOOD.decode().encode("utf-16-le"),
    "utf-16-be": GOOD.decode().encode("utf-16-be"),
    "utf-32": GOOD.decode().encode("utf-32"),
    "latin-1": "a,label\n1,grün\n2,blau\n".encode("latin-1"),
    "cp1252": "a,label\n1,“x”\n2,y\n".encode("cp1252"),
    "shift-jis": "a,label\n1,猫\n2,犬\n".encode("shift-jis"),
    "gb18030": "a,label\n1,猫\n2,犬\n".encode("gb18030"),
    "half-a-character": "a,label\n1,x\n2,é".encode()[:-1],
    "overlong": HEAD + b"1,2,\xc0\xaf\n",
    "surrogates": _with("\ud800"),
    "ebcdic": GOOD.decode().encode("cp500"),
    "more-cells": HEAD + b"1,2,x\n3,4,y,5\n",
    "fewer-cells": HEAD + b"1,2,x\n3,y\n",
    "ragged-first": HEAD + b"1\n3,4,y\n",
    "ragged-last": GOOD + b"1,2,x,\n",
    "ragged-everywhere": b"".join(b"1," * n + b"x\n" for n in range(50)),
    "ten-million-columns": lambda: b"a," * 10_000_000 + b"label\n",
    "ten-million-cells": lambda: HEAD + b"1," * 10_000_000 + b"x\n",
    "100001-columns": lambda: b",".join(b"%d" % n for n in range(100_001)) + b"\n",
    "100000-columns-of-one-class": lambda: _wide(100_000),
    "names-alike": lambda: b"a,label\n1," + b"x" * 130_000 + b"\n2," + b"y" * 130_000 + b"\n",
    "a-line-of-8-MB": lambda: b"a" * 8_000_000,
    "a-cell-of-200-kB": lambda: b"text,label\n" + b"a" * 200_000 + b",x\nb,y\n",
    "open-quote": b'a,label\n"1,x\n2,y\n',
    "open-quote-8-MB": lambda: b'a,label\n"' + b"1,x\n" * 2_000_000,
    "quotes": b'"' * 5000,
    "commas": b"," * 5000 + b"\n" + b"," * 5000 + b"\n",
    "tabs-in-csv": GOOD.replace(b",", b"\t"),
    "semicolons": GOOD.replace(b",", b";"),
    "words-beside-numbers": _with("word"),
    "two-columns-of-words": b"a,b,label\np,q,x\nr,s,y\n",
    "no-names": b",,\n1,2,x\n3,4,y\n",
    "infinite": _with("inf"),
    "minus-infinite": _with("-Infinity"),
    "nan": _with("nan"),
    "missing": _with(""),
    "1e400": _with("1e400"),
    "too-large": HEAD + b"1e308,1,x\n-1e308,2,y\n" * 5,
    "hexadecimal": _with("0x10"),
    "a-number-of-5000-digits": _with("9" * 5000),
    "labels-of-5000-digits": HEAD + _rows("9" * 5000)[:200],
    "a-png": b"\x89PNG\r\n\x1a\n" + noise("png", 500),
    "a-gzip": b"\x1f\x8b\x08" + noise("gzip", 500),
    "a-zip": b"PK\x03\x04" + noise("zip", 500),
    "a-program": b"\x7fELF" + noise("elf", 500),
    "a-pickle": b"\x80\x04\x95" + noise("pickle", 100),
    "html": b"<!doctype html><script>alert(1)</script>",
    "json": b'{"a": [1, 2], "label": ["x", "y"]}\n',
    "a-gif-that-is-a-table": b"GIF89a,b,label\n1,2,x\n",
    # These are tables like others: names and texts may be anything, and are escaped where shown.
    "fine/labels-nan": HEAD + _rows("nan", 12),
    "fine/labels-2^63": HEAD + _rows(str(2**63), 12),
    "fine/labels-minus-2^63": HEAD + _rows(str(-(2**63)), 12),
    "fine/formulas": HEAD + _rows("=cmd()", 12),
    "fine/escapes": HEAD + _rows("\x1b[2J\x07", 12),
    "fine/markup": HEAD + _rows("[red]:bomb:[/red]", 12),
    "fine/ends-of-lines": b"a,b,label\r" + _rows("y", 12).replace(b"\n", b"\r"),
    "fine/label-of-two-lines": HEAD + _rows('"y\n\tz"', 12),
}

# A path must lead down from the table's folder. On this system a backslash is a character of a
# name, `~` and a scheme are nothing: such files are missing, and none can be read.
CLIMBING = {
    "parent": "../x.png",
    "etc": "../../../../../../etc/passwd.png",
    "within": "a/../../x.png",
    "absolute": "/etc/passwd.png",
    "double-slash": "//etc/passwd.png",
    "backslashes": "..\\..\\x.png",
    "drive": "C:\\x.png",
    "share": "\\\\host\\x.png",
    "home": "~root/x.png",
    "variable": "$HOME/x.png",
    "command": "$(reboot).png",
    "pipe": "|reboot.png",
    "file-address": "file:///etc/passwd.png",
    "address": "http://127.0.0.1:1/x.png",
    "long": "a" * 5000 + ".png",
    "deep": "a/" * 3000 + "x.png",
    "two-lines": "a\nb.png",
    "blank": " .png",
    "escape": "\x1b[2J.png",
    "turned": "\u202egnp.x.png",
    "table-itself": "t.csv.png",
    "device": "dev/zero.png",
    "proc": "/proc/self/environ.png",
}

ODD_FILES = {
    "missing": lambda here: (here / "odd.png").write_bytes(b""),
    "folder": lambda here: (here / "odd.png").mkdir(),
    "pipe-nobody-writes": lambda here: os.mkfifo(here / "odd.png"),
    "link-to-itself": lambda here: (here / "odd.png").symlink_to("odd.png"),
    "link-to-nothing": lambda here: (here / "odd.png").symlink_to("nothing.png"),
    "link-to-a-device": lambda here: (here / "odd.png").symlink_to("/dev/zero"),
    "link-to-its-folder": lambda here: (here / "odd.png").symlink_to("."),
}
