"""Texts from the data where something could read more into them: spreadsheets, terminals, Markdown.

A class may be called `=cmd()`, a file may have a name that clears the screen.
"""

import re

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
LONGEST_CELL = 100_000  # characters: Python's csv module reads no more than 131,072 in one cell
LONGEST_LINE = 2_000  # characters of a message

# What moves the cursor, changes colours, turns the direction of writing, or has no character.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def harmless(text: str) -> str:
    """A spreadsheet must not take a text from the data for a formula; a number is none, and
    neither is a sign alone, as classes are called."""
    # Quote marks before it count too: no two texts may become one.
    if text in ("+", "-") or text.lstrip("'")[:1] not in FORMULA:
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def visible(text: str) -> str:
    """Control characters as escapes; ends of lines and tabs stay."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def counted(count: int, thing: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def one_line(text: str) -> str:
    """Visible, in one line that is not endless."""
    escaped = visible(text.replace("\n", "\\n").replace("\t", "\\t"))
    return escaped if len(escaped) <= LONGEST_LINE else f"{escaped[: LONGEST_LINE - 1]}…"


def markdown_cell(text: str) -> str:
    """A cell of a table in Markdown: no marks, no further cells, one line."""
    return re.sub(r"([\\`*_\[\]<>|&~])", r"\\\1", one_line(text))
