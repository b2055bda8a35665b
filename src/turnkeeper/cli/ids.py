"""Ids as a person types them: whole, or the beginning of one, as far as it is nobody else's beginning."""

import re
from collections.abc import Callable, Iterable

import click

SEARCHED_MAX = 1000
_BEGINNING = re.compile(r"[0-9a-f][0-9a-f-]{3,34}")


def whole_id(given: str, what: str, known: Callable[[], Iterable[str]]) -> str:
    """The id that `given` begins. What may be a whole id is returned as it is: the server says whether there is such a thing.

    `known` lists ids of this kind, the newest `SEARCHED_MAX`.
    """
    if not _BEGINNING.fullmatch(given):
        return given
    found = [one for one in known() if one.startswith(given)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise click.ClickException(f"no {what} begins with {given}")
    raise click.ClickException(
        f"{given} is the beginning of {len(found)} {what}s; write more of it, such as {found[0]}"
    )
