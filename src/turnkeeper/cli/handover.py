"""What is shown once: a key, a host's token, a link.

By the time that it is printed the server has made it and keeps no more than its hash. So an output that does not take it
loses it for good, which the one line says, with what was made and how to get another.
"""

import contextlib
import os
import sys
from collections.abc import Generator

import click


def require_output() -> None:
    """Before anything is made: refuse to begin where there is no output at all (`>&-`), which `cli.root` has replaced."""
    if getattr(sys.stdout, "name", "") == os.devnull:
        raise click.ClickException("there is no output (stdout is closed), and what would be made is shown only once")


@contextlib.contextmanager
def shown_once(made: str, again: str) -> Generator[None]:
    """Print within this. Where that fails, the line says what was `made`, why nobody saw it, and how to get another."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise click.ClickException(
            f"{made}, but could not be shown, as the output refuses it ({why}): {again}"
        ) from error
