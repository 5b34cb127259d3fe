"""Pickled dictionaries of numpy arrays, read without running anything in them.

A pickle is a list of instructions, some of which call what the file names. Here the instructions
are taken apart by `pickletools`, which only reads, and carried out by a machine that knows no
more of them than numbers, names, lists, dictionaries and numpy arrays need. Not even numpy's own
functions are called: an array is a view of bytes in the file, so that no shape a file claims can
take more memory than the file does.
"""

import io
import pickletools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlnt.errors import InputError

LONGEST_NAME = 200
# What torch.save wrote before it wrote zip archives begins with this number.
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


def load_pickle(stream: io.BytesIO, what: str) -> Any:
    """The next pickle of a stream: plain values, or a dictionary of them and of arrays by name.

    Anything else raises InputError. Strings of Python 2 and bytes used as names become str.
    """
    value = run_pickle(Machine(most_bytes=stream.getbuffer().nbytes), stream, what)
    if isinstance(value, dict):
        return {k: v.values if isinstance(v, _Array) else v for k, v in value.items()}
    return value


def run_pickle(machine: "Machine", stream: io.BytesIO, what: str) -> Any:
    """What a machine makes of the next pickle of a stream; InputError where it refuses."""
    try:
        return machine.run(stream)
    except Refused as refused:
        raise InputError(f"{what} is refused, and nothing in it was run: {refused}") from None
    except Exception as error:
        problem = str(error) or type(error).__name__
        raise InputError(f"{what} is not a readable pickle: {_one_line(problem)}") from None


def pass_legacy_header(stream: io.BytesIO, what: str) -> None:
    """Up to the content of what torch.save wrote before zip archives: magic, version, machine."""
    if load_pickle(stream, what) != LEGACY_MAGIC:
        raise InputError(f"{what} was not written by torch.save")
    for _ in ("version", "machine"):
        load_pickle(stream, what)


class Refused(Exception):
    """Something that neither an array nor a list of labels needs."""


@dataclass
class _Array:
    """Made empty, then filled, as numpy's own pickles do it."""

    values: np.ndarray | None = None

    def fill(self, machine: "Machine", state: tuple) -> None:
        _version, shape, number_type, is_fortran, content = state
        self.values = _view(machine, content, number_type, shape, "F" if is_fortran else "C")


@dataclass
class _NumberType:
    """numpy's dtype, of numbers alone: `i8`, and the order of its bytes."""

    code: str
    order: str = "="

    def fill(self, machine: "Machine", state: tuple) -> None:
        self.order = _text(state[1])
        if self.order not in ("<", ">", "|", "="):
            raise Refused(f"byte order {self.order!r}")


@dataclass(frozen=True)
class Known:
    """What a pickle may call, by the name it has there."""

    call: Callable[..., Any]


class Machine:
    """A stack, marks on it, and a memo: all that a pickle works with."""

    made = "numpy array"

    def __init__(self, most_bytes: int) -> None:
        self.known: Mapping[str, Any] = _CALLABLE
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.bytes_left = most_bytes

    def run(self, stream: io.BytesIO) -> Any:
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name == "STOP":
                break
            if opcode.name in _CONSTANTS:
                self.stack.append(argument)
            elif opcode.name in _INSTRUCTIONS:
                _INSTRUCTIONS[opcode.name](self, argument)
            else:
                raise Refused(f"no array needs the instruction {opcode.name}")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("it takes more values than it holds")
        values = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return values

    def extend(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise Refused("values appended to what is no list")
        self.stack[-1].extend(values)

    def set_items(self, values: list[Any]) -> None:
        named = self.stack[-1]
        if not isinstance(named, dict):
            raise Refused("values put into what is no dictionary")
        for name, value in zip(values[::2], values[1::2], strict=True):
            # Names and numbers alone: the hash of deeply nested tuples would overflow C's stack.
            named[name if type(name) is int else _text(name)] = value

    def find(self, name: str) -> None:
        if name not in self.known:
            shown = name[:LONGEST_NAME].replace(" ", ".")
            raise Refused(f"it asks for {shown!r}, which no {self.made} needs")
        self.stack.append(self.known[name])

    def call(self) -> None:
        function, arguments = self.last(2)
        if not isinstance(function, Known) or not isinstance(arguments, tuple):
            raise Refused("a call of what is no function")
        self.stack.append(function.call(self, *arguments))

    def fill(self) -> None:
        target, state = self.last(2)
        if not isinstance(target, _Array | _NumberType) or not isinstance(state, tuple):
            raise Refused("a state for what has none")
        target.fill(self, state)
        self.stack.append(target)

    def refer(self) -> None:
        """What torch keeps beside a pickle, and no array does."""
        raise Refused("it refers to something outside itself")

    def encode(self, text: str, encoding: str = "latin1") -> bytes:
        """Bytes as pickles of Python 2 and of protocol 2 hold them: as text in Latin-1."""
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise Refused("an encoding other than Latin-1")
        # Each text once: the same one encoded again and again could fill the memory.
        self.bytes_left -= len(text)
        if self.bytes_left < 0:
            raise Refused("its arrays would take more memory than the file itself")
        return text.encode("latin-1")


def _number_type(machine: Machine, code: str | bytes, *_flags: Any) -> _NumberType:
    code = _text(code)
    if not re.fullmatch("b1|[iu][1248]|f[248]", code):
        raise Refused(f"an array of {code!r}; only numbers are read")
    return _NumberType(code)


def _from_buffer(
    machine: Machine, content: bytes, number_type: _NumberType, shape: tuple, order: str, *_: Any
) -> _Array:
    return _Array(_view(machine, content, number_type, shape, "F" if order == "F" else "C"))


def _view(machine: Machine, content: Any, number_type: Any, shape: Any, order: Any) -> np.ndarray:
    if not isinstance(number_type, _NumberType):
        raise Refused("an array without a type of numbers")
    if isinstance(content, str):
        content = machine.encode(content)
    if not isinstance(content, bytes | bytearray):
        raise Refused("an array of objects; only numbers are read")
    dtype = np.dtype(number_type.order + number_type.code)
    return np.frombuffer(content, dtype).reshape(shape, order=order)


def _text(value: Any) -> str:
    """A name: str, or bytes of Python 2."""
    if not isinstance(value, str | bytes):
        raise Refused(f"a {type(value).__name__} where a name should be")
    if len(value) > LONGEST_NAME:
        raise Refused(f"a name of {len(value):,} characters")
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _one_line(text: str) -> str:
    return " ".join(text.split())[:LONGEST_NAME]


# numpy 2 moved its inner modules; `_frombuffer` is the way of protocol 5.
_CALLABLE: Mapping[str, Known] = {
    "_codecs encode": Known(Machine.encode),
    "numpy ndarray": Known(lambda machine: _Array()),
    "numpy dtype": Known(_number_type),
    **{
        f"numpy.{core}.multiarray _reconstruct": Known(lambda machine, *_: _Array())
        for core in ("core", "_core")
    },
    **{f"numpy.{core}.numeric _frombuffer": Known(_from_buffer) for core in ("core", "_core")},
}

_CONSTANTS = {
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINSTRING", "SHORT_BINSTRING",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8",
}  # fmt: skip

_INSTRUCTIONS: Mapping[str, Callable[[Machine, Any], Any]] = {
    "PROTO": lambda m, _: None,
    "FRAME": lambda m, _: None,
    "NONE": lambda m, _: m.stack.append(None),
    "NEWTRUE": lambda m, _: m.stack.append(True),
    "NEWFALSE": lambda m, _: m.stack.append(False),
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "EMPTY_TUPLE": lambda m, _: m.stack.append(()),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.since_mark())),
    "TUPLE1": lambda m, _: m.stack.append(tuple(m.last(1))),
    "TUPLE2": lambda m, _: m.stack.append(tuple(m.last(2))),
    "TUPLE3": lambda m, _: m.stack.append(tuple(m.last(3))),
    "APPEND": lambda m, _: m.extend(m.last(1)),
    "APPENDS": lambda m, _: m.extend(m.since_mark()),
    "SETITEM": lambda m, _: m.set_items(m.last(2)),
    "SETITEMS": lambda m, _: m.set_items(m.since_mark()),
    "BINPUT": lambda m, place: m.memo.update({place: m.stack[-1]}),
    "LONG_BINPUT": lambda m, place: m.memo.update({place: m.stack[-1]}),
    "MEMOIZE": lambda m, _: m.memo.update({len(m.memo): m.stack[-1]}),
    "BINGET": lambda m, place: m.stack.append(m.memo[place]),
    "LONG_BINGET": lambda m, place: m.stack.append(m.memo[place]),
    "GLOBAL": lambda m, name: m.find(name),
    "STACK_GLOBAL": lambda m, _: m.find(" ".join(map(_text, m.last(2)))),
    "REDUCE": lambda m, _: m.call(),
    "BUILD": lambda m, _: m.fill(),
    "BINPERSID": lambda m, _: m.refer(),
}
