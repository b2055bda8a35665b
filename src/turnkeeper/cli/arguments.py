"""What may stand in an argument, checked before anybody is asked: a wrong one ends the command with status 2 and one line
that names the argument, its value (cut), and what would be right.

The rules are those of the services (`domain.names`, `domain.sandbox`, `wire.public`), which check again.
"""

import os
import re
from pathlib import Path
from typing import Any

import click

SHOWN_MAX = 40
ADDRESS_MAX = 253  # RFC 1035: of a name that is written with dots
NAME_BYTES_MAX, PATH_BYTES_MAX = 255, 4095  # Linux: of one file's name, and of a path
SEQ_MAX = (1 << 63) - 1

_ID_OR_BEGINNING = re.compile(r"[0-9a-f][0-9a-f-]{3,35}")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def shown(value: str) -> str:
    """A value for a message: quoted, what a terminal would obey escaped, cut."""
    if len(value) <= SHOWN_MAX:
        return ascii(value) if _CONTROLS.search(value) else repr(value)
    return f"{shown(value[:SHOWN_MAX])}… ({len(value)} characters)"


class _Checked(click.ParamType[Any]):
    """Text of which `rule` says what would be right; `fault` says what is wrong with a value, None if nothing is."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """`value` as the command gets it."""
        if not isinstance(value, str):
            return value
        fault = self.fault(value)
        if fault is not None:
            self.fail(f"{shown(value)}: {fault}", param, ctx)
        return value

    def fault(self, value: str) -> str | None:
        """One line, or None."""
        raise AssertionError(value)  # each kind has its own


class _HostName(_Checked):
    def fault(self, value: str) -> str | None:
        from turnkeeper.domain.names import HOST_NAME_RULE, is_host_name

        return None if is_host_name(value) else HOST_NAME_RULE


class _UserName(_Checked):
    def fault(self, value: str) -> str | None:
        from turnkeeper.domain.names import USER_NAME_RULE, is_user_name

        return None if is_user_name(value) else USER_NAME_RULE


class _AgentName(_Checked):
    def fault(self, value: str) -> str | None:
        from turnkeeper.domain.sandbox import AGENT_NAME_RULE, is_agent_name

        return None if is_agent_name(value) else AGENT_NAME_RULE


class _Workdir(_Checked):
    def fault(self, value: str) -> str | None:
        from turnkeeper.domain.sandbox import WorkdirRefused, parse_workdir

        found = parse_workdir(value)
        return f"the Workdir {found.reason}" if isinstance(found, WorkdirRefused) else None


class Label(_Checked):
    """One line of free text for people, of `least` to `most` characters."""

    def __init__(self, *, least: int, most: int) -> None:
        self._least, self._most = least, most

    def fault(self, value: str) -> str | None:
        """Its length, and that it is one line of plain text."""
        if not self._least <= len(value) <= self._most:
            return (
                f"give {self._least} to {self._most} characters" if self._least else f"at most {self._most} characters"
            )
        return "give one line without control characters" if _CONTROLS.search(value) else None


class Id(_Checked):
    """An id or its beginning, in either case; the command gets it in lower case, as ids are written."""

    name = "id"

    def __init__(self, what: str) -> None:
        self._what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The id, or its beginning, in lower case."""
        return super().convert(value.lower() if isinstance(value, str) else value, param, ctx)

    def fault(self, value: str) -> str | None:
        """Whether any id begins so."""
        if _ID_OR_BEGINNING.fullmatch(value):
            return None
        return f"give the {self._what}'s id, such as 0193e2a4-7c1e-7b55-8f00-0d6f7a1b2c3d, or at least 4 characters of its beginning"


class _Given(_Checked):
    def fault(self, value: str) -> str | None:
        return None if value.strip() else "it is empty; give a value or leave the option away"


class _Address(_Checked):
    """A host's address or name, as far as any could be one; the system says whether it is."""

    def fault(self, value: str) -> str | None:
        if value and len(value) <= ADDRESS_MAX and value.isprintable() and not any(map(str.isspace, value)):
            return None
        return f"give the name or the address of a host, of at most {ADDRESS_MAX} characters and without blanks"


class _Directory(_Checked):
    """A path that a file system could hold; whether it is there is the command's to say."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A `Path`."""
        return Path(super().convert(value, param, ctx))

    def fault(self, value: str) -> str | None:
        if not value or "\0" in value:
            return "give the path of a directory"
        names = os.fsencode(value).split(b"/")
        if len(os.fsencode(value)) > PATH_BYTES_MAX or max(map(len, names)) > NAME_BYTES_MAX:
            return f"too long; a path has at most {PATH_BYTES_MAX} bytes, and each name in it {NAME_BYTES_MAX}"
        return None


HOST_NAME = _HostName()
USER_NAME = _UserName()
AGENT_NAME = _AgentName()
WORKDIR = _Workdir()
KEY_NAME = Label(least=1, most=200)
TITLE = Label(least=0, most=1000)
THREAD_ID, RUN_ID, KEY_ID, TOKEN_ID = Id("conversation"), Id("run"), Id("key"), Id("token")
GIVEN = _Given()
ADDRESS = _Address()
DIRECTORY = _Directory()
