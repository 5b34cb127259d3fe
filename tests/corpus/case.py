"""A hostile input: the files that it consists of, and the command that is given them."""

import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Content = bytes | Callable[[], bytes]

QUICK = (
    *("--epochs", "1", "--sets", "1", "--iterations", "1", "--batch-size", "4"),
    *("--workers", "0", "--image-size", "8"),
)


@dataclass(frozen=True)
class Case:
    """`command` may name {here}, the folder of the files; {table} and {pictures}, whole runs."""

    name: str
    command: tuple[str, ...]
    files: Mapping[str, Content] = field(default_factory=dict)
    prepare: Callable[[Path], object] = lambda here: None  # links, pipes and whatever else
    run: str = ""  # table or pictures: a copy of that run lies in {here}/run before `prepare`

    def write(self, here: Path) -> None:
        for name, content in self.files.items():
            path = here / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content() if callable(content) else content)
        self.prepare(here)


def chance(name: str) -> random.Random:
    """Random numbers that a name gives, the same everywhere."""
    return random.Random(zlib.crc32(name.encode()))


def noise(name: str, count: int) -> bytes:
    return chance(name).randbytes(count)


KINDS = ("cut", "flipped", "zeroed", "noise")


def damage(name: str, content: bytes, region: int, regions: int, kind: str) -> bytes:
    """The content with damage of a kind at a place in one of its regions."""
    low, high = (len(content) * n // regions for n in (region, region + 1))
    at = chance(f"{name}/{region}").randrange(low, max(high, low + 1))
    return {
        "cut": content[:at],
        "flipped": content[:at] + bytes([content[at] ^ 0x80]) + content[at + 1 :],
        "zeroed": content[:at] + bytes(8) + content[at + 8 :],
        "noise": content[:at] + noise(f"{name}{region}", 16) + content[at:],
    }[kind]


def damaged(name: str, content: bytes, regions: int) -> Iterator[tuple[str, bytes]]:
    """The content with each kind of damage in each of its regions."""
    for region in range(regions):
        for kind in KINDS:
            yield f"{region}-{kind}", damage(name, content, region, regions, kind)
