"""What fuzzing found once is tried every time; so are the files it begins with."""

from pathlib import Path

import pytest

from fuzz.parsers import PARSERS

FINDINGS = sorted((Path(__file__).parent / "fuzz" / "findings").glob("*/*"))


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_past_findings(path: Path) -> None:
    PARSERS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("name", PARSERS)
def test_the_seeds_are_read_and_the_start_of_each_is_no_trouble(name: str) -> None:
    if name == "huggingface":
        pytest.importorskip("pyarrow")
    for seed in PARSERS[name].seeds():
        PARSERS[name](seed)
        for share in (0, 3, 6, 9):
            PARSERS[name](seed[: len(seed) * share // 10])
