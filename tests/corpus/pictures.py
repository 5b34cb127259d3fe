"""Pictures that are truncated, claim billions of pixels, are something else too, or none at all."""

import io
import os
import struct
import zlib
from collections.abc import Iterator

from PIL import Image

from .case import Case, damaged, noise

COMMAND = ("predict", "{pictures}", "{here}/x.png")
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "PPM", "TIFF")


def cases() -> Iterator[Case]:
    for name, content in PICTURES.items():
        yield Case(f"picture/{name}", COMMAND, {"x.png": content})
    for form in FORMATS:
        whole = encoded(form)
        for share in (1, 3, 5, 8):
            cut = whole[: len(whole) * share // 10]
            yield Case(f"picture/{form}-cut-{share}", COMMAND, {"x.png": cut})
        for name, content in list(damaged(form, whole, 4))[2::4]:
            yield Case(f"picture/{form}-{name}", COMMAND, {"x.png": content})
    for name, prepare in {
        "folder": lambda here: (here / "x.png").mkdir(),
        "pipe": lambda here: os.mkfifo(here / "x.png"),
        "link-to-itself": lambda here: (here / "x.png").symlink_to("x.png"),
        "link-to-a-device": lambda here: (here / "x.png").symlink_to("/dev/zero"),
        "missing": lambda here: None,
    }.items():
        yield Case(f"picture/{name}", COMMAND, prepare=prepare)
    yield from _trees()


def _trees() -> Iterator[Case]:
    """Folders of pictures: what lies beside them must not matter, and not all may be broken."""
    good = {f"d/{name}/{n}.png": encoded("PNG", n) for name in "ab" for n in range(8)}
    train = ("train", "{here}/d", "--out", "{here}/out", "--epochs", "1", "--sets", "1")
    train = (
        *train,
        "--iterations",
        "1",
        "--batch-size",
        "4",
        "--workers",
        "0",
        "--image-size",
        "8",
    )
    check = ("data", "check", "{here}/d")
    for command in (train, check):
        kind = command[0]
        broken = {path: noise(path, 100) for path in good}
        yield Case(f"tree/{kind}/all-broken", command, broken)
        yield Case(f"tree/{kind}/no-classes", command, {"d/x.png": encoded("PNG")})
        yield Case(f"tree/{kind}/empty", command, prepare=lambda here: (here / "d").mkdir())
        yield Case(f"tree/{kind}/a-file", command, {"d": b"x"})
        yield Case(
            f"tree/{kind}/deep",
            command,
            prepare=lambda here: os.makedirs(here / "d" / "/".join("a" * 500)),
        )
        yield Case(f"tree/{kind}/no-train", command, {"d/test/a/x.png": encoded("PNG")})
    one = {**good, "d/a/9.png": noise("one", 100)}
    yield Case("tree/fine/one-of-many-is-broken", train, one)
    yield Case(
        "tree/fine/loops-of-links",
        check,
        good,
        lambda here: [
            (here / "d" / "loop").symlink_to("."),
            (here / "d" / "a" / "up").symlink_to(".."),
            (here / "d" / "a" / "self.png").symlink_to("self.png"),
            (here / "d" / "b" / "out.png").symlink_to("/etc/passwd"),
        ],
    )
    yield Case(
        "tree/fine/names",
        check,
        good,
        lambda here: [
            (here / "d" / "a" / "two\nlines\x1b[2J.png").write_bytes(encoded("PNG")),
            (here / "d" / "=cmd()").mkdir(),
            (here / "d" / "=cmd()" / "[red].png").write_bytes(encoded("PNG")),
        ],
    )
    undecodable = os.fsdecode(b"\xff")
    yield Case(
        "tree/train/class-of-no-text",
        train,
        good,
        lambda here: [
            (here / "d" / undecodable).mkdir(),
            (here / "d" / undecodable / "x.png").write_bytes(encoded("PNG")),
        ],
    )


def encoded(form: str, shade: int = 3, mode: str = "RGB") -> bytes:
    picture = Image.linear_gradient("L").resize((24, 20)).point(lambda value: value * shade % 256)
    file = io.BytesIO()
    picture.convert(mode).save(file, form)
    return file.getvalue()


def png(
    width: int, height: int, data: bytes = b"", *more: tuple[bytes, bytes], colours: int = 2
) -> bytes:
    """A PNG that says what we like of its size, with any chunks."""
    head = struct.pack(">IIBBBBB", width & 0xFFFFFFFF, height & 0xFFFFFFFF, 8, colours, 0, 0, 0)
    chunks = [(b"IHDR", head), *more, (b"IDAT", zlib.compress(data, 1)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content
        + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )  # fmt: skip


def _jpeg_of(width: int, height: int) -> bytes:
    whole = encoded("JPEG")
    at = whole.index(b"\xff\xc0") + 5
    return whole[:at] + struct.pack(">HH", height, width) + whole[at + 4 :]


def _bmp_of(width: int, height: int) -> bytes:
    whole = encoded("BMP")
    return whole[:18] + struct.pack("<ii", width, height) + whole[26:]


def _tiff(tag: int, value: int) -> bytes:
    """A TIFF with another value of one of its tags."""
    whole = bytearray(encoded("TIFF"))
    at = struct.unpack_from("<I", whole, 4)[0]
    for entry in range(struct.unpack_from("<H", whole, at)[0]):
        place = at + 2 + 12 * entry
        if struct.unpack_from("<H", whole, place)[0] == tag:
            struct.pack_into("<HII", whole, place + 2, 4, 1, value)
    return bytes(whole)


PNG = encoded("PNG")
GIF = encoded("GIF")
PICTURES = {
    "empty": b"",
    "a-byte": b"\x89",
    "text": b"no picture",
    "html": b"<html><script>alert(1)</script></html>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(/etc/passwd) (r) file\n",
    "pdf": b"%PDF-1.4\n" + noise("pdf", 100),
    "program": b"\x7fELF" + noise("elf", 100),
    "zip": b"PK\x03\x04" + noise("zip", 100),
    "pickle": b"cos\nsystem\n(S'false'\ntR.",
    "icon": b"\x00\x00\x01\x00\x01\x00" + noise("ico", 100),
    "dds": b"DDS " + noise("dds", 124),
    "fits": b"SIMPLE  =                    T" + noise("fits", 100),
    "psd": b"8BPS\x00\x01" + noise("psd", 100),
    "jpeg-2000": b"\x00\x00\x00\x0cjP  \r\n\x87\n" + noise("jp2", 100),
    "bomb-png-2^31": png(2**31 - 1, 2**31 - 1),
    "bomb-png-2^16": png(2**16, 2**16, bytes(10_000)),
    "bomb-png-wide": png(2**31 - 1, 1, bytes(10_000)),
    "bomb-png-high": png(1, 2**31 - 1, bytes(10_000)),
    "bomb-png-negative": png(-1, -1),
    "bomb-png-none": png(0, 0),
    "bomb-png-true": lambda: png(9_500, 9_500, bytes(9_500 * 9_501), colours=0),
    "bomb-png-text": lambda: png(
        8, 8, bytes(200), (b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8), 1))
    ),
    "bomb-png-profile": lambda: png(
        8, 8, bytes(200), (b"iCCP", b"a\0\0" + zlib.compress(bytes(10**8), 1))
    ),
    "bomb-jpeg": _jpeg_of(65_535, 65_535),
    "bomb-jpeg-none": _jpeg_of(0, 0),
    "bomb-gif": GIF[:6] + b"\xff\xff\xff\xff" + GIF[10:],
    "bomb-bmp": _bmp_of(2**31 - 1, 2**31 - 1),
    "bomb-bmp-negative": _bmp_of(-5, -(2**31)),
    "bomb-ppm": b"P6 99999 99999 255\n" + bytes(100),
    "bomb-ppm-digits": b"P6 " + b"9" * 5000 + b" 1 255\n",
    "bomb-pgm-white": b"P5 8 8 99999999999999\n" + bytes(64),
    "bomb-tiff-wide": _tiff(256, 2**32 - 1),
    "bomb-tiff-high": _tiff(257, 2**32 - 1),
    "bomb-tiff-strips": _tiff(273, 2**32 - 1),
    "bomb-tiff-counts": _tiff(279, 2**32 - 1),
    "bomb-tiff-samples": _tiff(277, 60_000),
    "tiff-loop": b"II*\x00\x08\x00\x00\x00\x00\x00\x08\x00\x00\x00",
    "bomb-webp": b"RIFF\x20\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x10\x00\x00\x00" + b"\xff" * 6,
    "floats": (lambda f: (Image.new("F", (8, 8)).save(f, "TIFF"), f.getvalue())[1])(io.BytesIO()),
    "chunk-of-2-GB": PNG[:33] + struct.pack(">I", 2**31 - 1) + b"IDAT" + PNG[41:],
    "wrong-checksum": PNG[:-6] + b"\0\0" + PNG[-4:],
    "no-end": PNG[:-12],
    "only-a-signature": PNG[:8],
    # A picture is what its first bytes say; what else the file may be to others is nobody's here.
    "fine/png-and-zip": PNG + b"PK\x05\x06" + bytes(18),
    "fine/png-and-script": PNG + b"<script>alert(1)</script>",
    "fine/gif-and-script": GIF + b"*/=1;alert(1)",
    "fine/jpeg-named-png": encoded("JPEG"),
    "fine/cmyk": encoded("JPEG", mode="CMYK"),
    "fine/16-bits": (lambda f: (Image.new("I;16", (9, 9), 999).save(f, "PNG"), f.getvalue())[1])(
        io.BytesIO()
    ),
}
