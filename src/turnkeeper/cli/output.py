"""How commands print: one JSON value with `--json`, tables and lines for people otherwise.

What agents and other people wrote reaches a terminal through here alone. A terminal carries out what it reads: a sequence
in an agent's text could fill the clipboard, rewrite what stands above, or turn a line's direction so that it reads as
something else.
"""

import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pydantic import BaseModel

F = TypeVar("F", bound=Callable[..., Any])

# C0 but tab and newline, DEL, C1; and what embeds, overrides or isolates the direction of text. A CR before a newline is
# the end of a line as other systems write it.
_OBEYED = re.compile("\r(?=\n)|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


class OutputRefused(OSError):  # noqa: N818 - the house style: the name says what happened
    """Standard output does not take what is said: it is full, or its reader left (`EPIPE`)."""


def visible(text: str) -> str:
    """`text` with everything that a terminal would carry out replaced by a sign for it, such as `␛` or `<U+202E>`."""
    return _OBEYED.sub(_sign, text)


def escaped(json_text: str) -> str:
    """JSON (or strings of TOML) in which all that a terminal would carry out is written `\\uXXXX`: the same value."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    if found[0] == "\r" and found.string[found.end() : found.end() + 1] == "\n":
        return ""
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"<U+{code:04X}>"


def say(text: str = "", *, nl: bool = True, err: bool = False, **style: Any) -> None:
    """Print text in which something may be that somebody else wrote. `style` as for `click.style`. `OutputRefused`."""
    try:
        click.secho(visible(text), nl=nl, err=err, **style)
    except OSError as error:
        if err:
            raise
        raise OutputRefused(error.errno, error.strerror) from error


def say_json(value: object) -> None:
    """One JSON value on one line. On a terminal what it would carry out is escaped, which is the same value."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        click.echo(escaped(text) if sys.stdout.isatty() else text)
    except OSError as error:
        raise OutputRefused(error.errno, error.strerror) from error


def print_json(value: "BaseModel | Sequence[BaseModel] | dict[str, Any]") -> None:
    """One JSON value on one line: models as they go over the wire."""
    if isinstance(value, dict):
        plain: Any = value
    elif isinstance(value, Sequence):
        plain = [one.model_dump(mode="json") for one in value]
    else:
        plain = value.model_dump(mode="json")
    say_json(plain)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    empty: str,
    spare: Sequence[str] = (),
    folding: Sequence[str] = (),
) -> None:
    """A table that fits the terminal; into a pipe every cell is whole, whatever its width. `empty` is said where there is no row.

    An id, in the first column, is never broken. What a narrow terminal has no room for: `folding` columns are broken into
    lines, and then `spare` columns left out, in this order, which is said.
    """
    if not rows:
        say(empty)
        return
    left_out: list[str] = []
    if sys.stdout.isatty():
        columns, rows, left_out = _fitting(columns, rows, spare, folding, shutil.get_terminal_size().columns)
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == columns[0])
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 10_000, highlight=False)
    if not sys.stdout.isatty():
        console.width = max(80, console.measure(table).maximum)
    console.print(table)
    if left_out:
        click.secho(
            f"left out for want of room: {', '.join(left_out)} (a wider terminal or --json shows all)", dim=True
        )


FOLDED_CELLS = 16


def _fitting(
    columns: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], folding: Sequence[str], width: int
) -> tuple[list[str], list[list[str]], list[str]]:
    """Columns and rows that fit into `width` cells, and the columns that were left out for it."""
    from rich.cells import cell_len

    wide = [max(cell_len(column), *(cell_len(visible(row[n])) for row in rows)) for n, column in enumerate(columns)]
    wide = [min(cells, FOLDED_CELLS) if columns[n] in folding else cells for n, cells in enumerate(wide)]
    kept, left_out = list(range(len(columns))), list[str]()
    for name in spare:
        if sum(wide[n] for n in kept) + 3 * len(kept) - 1 <= width:
            break
        kept.remove(list(columns).index(name))
        left_out.append(name)
    return [columns[n] for n in kept], [[row[n] for n in kept] for row in rows], left_out


def moment(value: datetime | None) -> str:
    """A time for people, in the terminal's zone and with its offset (F12); `-` for none."""
    return value.astimezone().strftime("%Y-%m-%d %H:%M:%S %z") if value else "-"


def one_line(text: str, width: int = 60) -> str:
    """Text as one short line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"
