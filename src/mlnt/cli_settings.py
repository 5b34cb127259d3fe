"""One option of the command line for each setting, all of it read from config."""

import dataclasses
import inspect
from typing import Any

import typer

from mlnt.config import fields_by_name, kinds_of


def _setting_option(field: dataclasses.Field) -> inspect.Parameter:
    """The command-line option of one setting, all of it read from config."""
    rule, kinds = field.metadata, kinds_of(field)
    symbol = f"{rule['symbol']}: " if rule["symbol"] else ""
    allowed = f" ({' | '.join(rule['choices'])})" if rule["choices"] else ""
    default = f"{field.default:.3g}" if isinstance(field.default, float) else str(field.default)
    kind: type = str if len(kinds) > 1 else kinds[0]
    option = typer.Option(
        None,
        help=f"{symbol}{rule['meaning']}{allowed} \\[{default}]",
        rich_help_panel=rule["group"],
        show_default=False,
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=option,
        annotation=kind | None,
    )


def with_settings(command: Any) -> Any:
    """Give a command one option per setting, in place of its `**settings`."""
    signature = inspect.signature(command)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [_setting_option(field) for field in fields_by_name().values()]
    command.__signature__ = signature.replace(parameters=[*own, *options])
    command.__annotations__ = {p.name: p.annotation for p in (*own, *options)}
    return command
