"""How commands print: one JSON value with `--json`, tables and lines for people otherwise."""

import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pydantic import BaseModel

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def print_json(value: "BaseModel | Sequence[BaseModel] | dict[str, Any]") -> None:
    """One JSON value on one line: models as they go over the wire."""
    if isinstance(value, dict):
        plain: Any = value
    elif isinstance(value, Sequence):
        plain = [one.model_dump(mode="json") for one in value]
    else:
        plain = value.model_dump(mode="json")
    click.echo(json.dumps(plain, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """A table that fits the terminal; into a pipe every cell is whole, whatever its width. `empty` is said where there is no row."""
    if not rows:
        click.echo(empty)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 10_000, highlight=False)
    if not sys.stdout.isatty():
        console.width = max(80, console.measure(table).maximum)
    console.print(table)


def moment(value: datetime | None) -> str:
    """A time for people, in the terminal's zone and with its offset (F12); `-` for none."""
    return value.astimezone().strftime("%Y-%m-%d %H:%M:%S %z") if value else "-"


def one_line(text: str, width: int = 60) -> str:
    """Text as one short line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"
