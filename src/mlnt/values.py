"""What a setting may be: of which type, in which range, and what strings are made of it."""

import dataclasses
import math
from typing import Any

import numpy as np

from mlnt.errors import InputError, did_you_mean, percent_hint


def setting(
    default: Any,
    meaning: str,
    *,
    group: str,
    symbol: str = "",
    low: float = -math.inf,
    high: float = math.inf,
    choices: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
) -> Any:
    """A field of `Settings`. `words` are allowed beside numbers (`tau="auto"`)."""
    metadata = {
        "meaning": meaning,
        "group": group,
        "symbol": symbol,
        "low": low,
        "high": high,
        "choices": choices,
        "words": words,
    }
    return dataclasses.field(default=default, metadata=metadata)


def check_setting(field: dataclasses.Field, value: Any) -> None:
    """Raise InputError unless `value` has the type and lies in the range the field declares."""
    rule, name = field.metadata, field.name
    if isinstance(value, str):
        allowed = rule["choices"] + rule["words"]
        if allowed and value not in allowed:
            listed = ", ".join(allowed)
            numbers = "a number or " if rule["words"] else ""
            hint = did_you_mean(value, allowed)
            raise InputError(f"{name} must be {numbers}one of {listed}, got {value!r}{hint}")
        return
    if isinstance(value, bool):
        return
    low, high = rule["low"], rule["high"]
    if not (math.isfinite(value) and low <= value <= high):
        hint = percent_hint(value) if high == 1 else ""
        raise InputError(f"{name} must lie in {_interval(low, high)}, got {value:g}{hint}")


def _interval(low: float, high: float) -> str:
    if math.isinf(high):
        return f"[{low:g}, ∞)"
    return f"[{low:g}, {high:g}]"


def converted(name: str, kinds: tuple[type, ...], value: Any) -> Any:
    """`value` as one of these types; strings such as "0.5" become numbers."""
    if isinstance(value, np.bool_):
        value = bool(value)
    if isinstance(value, bool) or (bool in kinds and not isinstance(value, str)):
        if bool in kinds and isinstance(value, bool | int) and value in (0, 1):
            return bool(value)
        raise InputError(f"{name} must be {_kind_words(kinds)}, got {value!r}")
    if bool in kinds:
        truth = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if str(value).lower() in truth:
            return truth[str(value).lower()]
    for kind in kinds:
        if kind is str and isinstance(value, str):
            return value
        if kind in (int, float):
            try:
                number = float(value)
            except (TypeError, ValueError, OverflowError):
                continue
            if kind is float or number.is_integer():
                return kind(number)
    raise InputError(f"{name} must be {_kind_words(kinds)}, got {value!r}")


def _kind_words(kinds: tuple[type, ...]) -> str:
    words = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}
    return " or ".join(words[kind] for kind in kinds)
