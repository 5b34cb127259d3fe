"""The file of a measurement that takes long: written after each row, and gone on with later."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from mlnt.errors import InputError
from mlnt.runs import RunFolder


class Written(Protocol):
    def to_json(self) -> str: ...


class Ledger:
    """JSON at `path`; where that is None, nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def read(
        self,
        now: Any,
        row: Callable[..., Any],
        same: Sequence[str],
        kept: Sequence[str] = (),
    ) -> dict[str, Any]:
        """{field: value} of an earlier run, for `dataclasses.replace(now, …)`; {} without a file.

        same  fields that must be as they are `now`, and so must its settings: a measurement goes on
              with the arguments that it was begun with
        kept  fields that are taken over, beside the rows
        """
        if self.path is None or not self.path.exists():
            return {}
        found = RunFolder(self.path.parent).read_json(self.path.name)
        try:
            earlier = {name: found[name] for name in kept}
            earlier["rows"] = tuple(row(**each) for each in found["rows"])
            was = {**{name: found[name] for name in same}, **found.get("settings", {})}
        except (LookupError, TypeError) as error:
            words = f"{self.path} holds no such bench ({error}); choose another file"
            raise InputError(words) from None
        settings = getattr(now, "settings", {})
        for name, value in ({name: getattr(now, name) for name in same} | settings).items():
            if was.get(name) != value:
                words = f"{name} was {was.get(name)!r} in {self.path}, now it is {value!r}"
                raise InputError(f"{words}; choose another file")
        return earlier

    def write(self, result: Written) -> None:
        if self.path is not None:
            RunFolder(self.path.parent).write_text(self.path.name, result.to_json())
