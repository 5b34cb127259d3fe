"""What an error says, where it stands in a sentence of ours."""

import pytest

from mlnt.errors import first_line, kind_and_reason


@pytest.mark.parametrize(
    ("error", "line", "both"),
    [
        (ValueError("no such\nnumber"), "no such", "ValueError: no such"),
        (RuntimeError(), "RuntimeError", "RuntimeError"),
        (RuntimeError(" \n"), "RuntimeError", "RuntimeError"),
    ],
)
def test_one_line_of_an_error(error: Exception, line: str, both: str) -> None:
    assert first_line(error) == line
    assert kind_and_reason(error) == both
