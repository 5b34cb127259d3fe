"""A folder of pictures: one folder per class, in train, validation and test if it has them.

    hat/1.jpg, shoes/2.png, …
    train/hat/1.jpg, …, validation/hat/7.jpg, …, test/hat/9.jpg, …      (also val, valid)

Hidden files, links that lead out of the folder or to other folders, and folders in which mlnt wrote
its runs are passed over.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from mlnt.data.oddities import few_of
from mlnt.data.pictures import EXTENSIONS, Part, Parts, PathTable
from mlnt.errors import InputError
from mlnt.runs import CONFIG, METRICS

SPLITS = {
    "train": "train",
    "validation": "validation",
    "val": "validation",
    "valid": "validation",
    "test": "test",
}

Members = dict[str, list[str]]  # by class: paths of its pictures, relative to the whole folder


def image_folder_parts(folder: str | Path) -> Parts:
    """The parts of the folder; all of it is train where it has no split of its own."""
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"no folder at {root}; expected one folder of pictures per class in it")
    parts = {name: _members(root, below) for name, below in _find_splits(root).items()}
    train = parts["train"]
    classes = tuple(name for name in train if train[name])
    notes = [f"class {name!r} has no pictures in train" for name in train if not train[name]]
    runs = (entry.name for entry in _folders(root, of_runs=True))
    notes += [f"passing over {name!r}, which holds runs" for name in runs]
    if not classes:
        raise InputError(
            f"{root} has no pictures in folders; expected one folder per class, with pictures "
            f"that end in {', '.join(EXTENSIONS)}"
        )
    for part, members in parts.items():
        for name in sorted(members.keys() | set(classes)):
            if members.get(name) and name not in classes:
                raise InputError(
                    f"{root}: class {name!r} has pictures in {part}, but none in train; "
                    "add some there, or take it out"
                )
            if part != "train" and name in classes and not members.get(name):
                notes.append(f"class {name!r} has no pictures in {part}")
    made = {name: _part(root, members, classes) for name, members in parts.items()}
    # A split without one picture is none.
    validation, test = (
        found if (found := made.get(name)) is not None and len(found.paths) else None
        for name in ("validation", "test")
    )
    return Parts(root.resolve().name, classes, made["train"], validation, test, tuple(notes))


def check_not_nested(root: Path, only: str) -> None:
    """Raise InputError where the only class is a folder of folders: classes lie further down."""
    place = root / only
    below = [entry.name for entry in _folders(place)] if place.is_dir() else []
    if len(below) > 1:
        raise InputError(
            f"{root}: its only folder {only!r} holds folders ({few_of(below)}); did you mean "
            f"{place}?"
        )


def _find_splits(root: Path) -> dict[str, str]:
    """Part to folder; the whole folder is train unless it has a `train` that holds classes."""
    names = [entry.name for entry in _folders(root)]
    if "train" not in names:
        if names and all(name in SPLITS for name in names):
            raise InputError(f"{root} has {', '.join(names)}, but no train; nothing to learn from")
        return {"train": ""}
    # A class may be called train, next to ship and plane; its folder holds pictures, not classes.
    if not _folders(root / "train"):
        return {"train": ""}
    found: dict[str, str] = {}
    for name in names:
        part = SPLITS.get(name)
        if part in found:
            raise InputError(f"{root} has both {found[part]} and {name}; keep one for {part}")
        if part is not None:
            found[part] = name
    return dict(sorted(found.items(), key=lambda item: list(SPLITS.values()).index(item[0])))


def _members(root: Path, below: str) -> Members:
    return {
        entry.name: sorted(
            os.path.relpath(path, root) for path in pictures_below(Path(entry.path), root)
        )
        for entry in _folders(root / below)
    }


def pictures_below(folder: Path, root: Path) -> Iterator[str]:
    """Paths of all pictures below a folder, less links that lead out of the root."""
    folders, inside = [folder], os.path.realpath(root) + os.sep
    while folders:
        for entry in _entries(folders.pop()):
            if entry.is_dir(follow_symlinks=False):
                if not holds_runs(entry.path):
                    folders.append(Path(entry.path))
            elif entry.name.lower().endswith(EXTENSIONS) and _is_file(entry, inside):
                yield entry.path


def _is_file(entry: os.DirEntry[str], inside: str) -> bool:
    """A file, or a link to one inside the folder."""
    if not entry.is_symlink():
        return entry.is_file()
    target = os.path.realpath(entry.path)
    return target.startswith(inside) and os.path.isfile(target)


def holds_runs(folder: str | Path) -> bool:
    """Whether it is a run folder or holds nothing else, as `runs` does where mlnt was started.

    The curves in it are pictures, but no samples. A folder of samples stays one, with a run in it.
    """
    if _is_run(folder):
        return True
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError:
        return False  # it is listed once more, and said then
    below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    has_pictures = any(entry.name.lower().endswith(EXTENSIONS) for entry in entries)
    return bool(below) and not has_pictures and all(map(_is_run, below))


def _is_run(folder: str | Path) -> bool:
    return all(os.path.isfile(os.path.join(folder, name)) for name in (CONFIG, METRICS))


def _folders(folder: Path, of_runs: bool = False) -> list[os.DirEntry[str]]:
    """Those in a folder that hold no runs, or those that do."""
    found = (entry for entry in _entries(folder) if entry.is_dir(follow_symlinks=False))
    return [entry for entry in found if holds_runs(entry.path) == of_runs]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder and not hidden, by name: the order of a disk is no order."""
    try:
        with os.scandir(folder) as found:
            entries = [entry for entry in found if not entry.name.startswith(".")]
    except OSError as error:
        raise InputError(f"cannot list {folder}: {error.strerror or error}") from None
    return sorted(entries, key=lambda entry: entry.name)


def _part(root: Path, members: Members, classes: tuple[str, ...]) -> Part:
    paths = [path for name in classes for path in members.get(name, ())]
    counts = torch.tensor([len(members.get(name, ())) for name in classes])
    return Part(PathTable.of(root, paths), torch.arange(len(classes)).repeat_interleave(counts))
