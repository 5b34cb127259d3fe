"""Data in forms that are not read as they are: what to do with it; the parts that an .npz names."""

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlnt.errors import InputError
from mlnt.files import open_file

BY_PANDAS = {
    (".parquet",): "read_parquet({})",
    (".feather", ".arrow"): "read_feather({})",
    (".xlsx", ".xls", ".ods"): "read_excel({})",
    (".jsonl", ".ndjson"): "read_json({}, lines=True)",
    (".json",): "read_json({})",
    (".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zst", ".csv.zip"): "read_csv({})",
}
ENDINGS = {
    "train": ("", "_train"),
    "validation": ("_validation", "_valid", "_val"),
    "test": ("_test",),
}


def way_out(path: Path) -> str:
    """How the content of a file can be given that is not read itself; empty where nobody knows."""
    for suffixes, function in BY_PANDAS.items():
        if path.name.lower().endswith(suffixes):
            call = f"pandas.{function.format(repr(str(path)))}"
            return f"save it as a CSV, or give mlnt.train or mlnt.predict {call} in Python"
    return ""


def check_no_dataset(source: Any) -> None:
    """Raise InputError of a data set of Hugging Face in memory: it is read from where it lies."""
    if type(source).__module__.partition(".")[0] == "datasets":
        raise InputError(
            f"a {type(source).__name__} of Hugging Face is read from its folder: give that, as "
            "text, which data.save_to_disk(FOLDER) writes and load_from_disk(FOLDER) reads; rows "
            "of numbers or texts may also be given as data.to_pandas()"
        )


def parts_in(names: Iterable[str]) -> dict[str, tuple[str, str | None]]:
    """Of the arrays in an .npz which are samples and labels of train, validation and test.

    X, y; or X_train, y_train, X_test, y_test, as Keras too writes them, in small letters.
    """
    called = {name.lower(): name for name in sorted(names, reverse=True)}  # X before x
    found = {}
    for part, endings in ENDINGS.items():
        for ending in endings:
            if part not in found and f"x{ending}" in called:
                found[part] = called[f"x{ending}"], called.get(f"y{ending}")
    return found


def part_in(path: Path, wanted: str) -> str:
    """Which part of an .npz that is divided is read; empty of one that is not."""
    with open_file(path) as file, zipfile.ZipFile(file) as archive:
        found = parts_in(name.removesuffix(".npy") for name in archive.namelist())
    return "" if len(found) < 2 else wanted if wanted in found else "train"
