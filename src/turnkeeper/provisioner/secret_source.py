"""Where the values of agents' secrets come from: a file of mode 0600, or this process's environment (K-11).

Agent definitions name secrets; values are read here at each use, go to a manager's memory and nowhere else. What belongs to
the product itself can never be named.
"""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from turnkeeper.kit.files import read_regular

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_OWN = re.compile(r"TURNKEEPER_.*|PG[A-Z]+|DATABASE_URL|REDIS_URL", re.IGNORECASE)
_BYTES_MAX = 1 << 20


class SecretsUnavailableError(Exception):
    """A named secret has no value, or the file may not be used. The text is one line and holds no value."""


class SecretSource:
    """Values by name, of `file` or else of `environ`."""

    def __init__(self, file: Path | None, environ: Mapping[str, str]) -> None:
        self._file = file
        self._environ = environ

    def check(self) -> None:
        """Refuse a file that others could have read or written, or that is not KEY=VALUE lines. `SecretsUnavailableError`."""
        if self._file is not None:
            _parse(self._file)

    def missing(self, names: Iterable[str]) -> str | None:
        """One line saying which of them has no value, or why none can be read; None where all have one."""
        try:
            self.values(names)
        except SecretsUnavailableError as error:
            return str(error)
        return None

    def values(self, names: Iterable[str]) -> dict[str, str]:
        """The value of each name; `SecretsUnavailableError` names those that have none."""
        wanted = list(dict.fromkeys(names))
        if not wanted:
            return {}
        own = [name for name in wanted if _OWN.fullmatch(name)]
        if own:
            raise SecretsUnavailableError(f"secret {own[0]!r} belongs to the product and is never given to an agent")
        known = self._environ if self._file is None else _parse(self._file)
        missing = [name for name in wanted if name not in known]
        if missing:
            place = "the provisioner's environment" if self._file is None else "the secrets file"
            raise SecretsUnavailableError(f"no value for secret {', '.join(map(ascii, missing))} in {place}")
        return {name: known[name] for name in wanted}


def _parse(path: Path) -> dict[str, str]:
    text = _read(path)
    values: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not _NAME.fullmatch(name.strip()) or "\0" in value:
            raise SecretsUnavailableError(f"secrets file {str(path)!r}, line {number}: write NAME=value")
        values[name.strip()] = value.removesuffix("\r")
    return values


def _read(path: Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SecretsUnavailableError(f"secrets file {str(path)!r} cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise SecretsUnavailableError(f"secrets file {str(path)!r} is not a regular file")
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o177:
            raise SecretsUnavailableError(f"secrets file {str(path)!r} has mode {mode:04o}; it must be 0600")
        if status.st_uid != os.geteuid():
            raise SecretsUnavailableError(f"secrets file {str(path)!r} belongs to uid {status.st_uid}; it must be ours")
        return read_regular(fd, _BYTES_MAX, str(path)).decode("utf-8")
    except UnicodeDecodeError:
        raise SecretsUnavailableError(f"secrets file {str(path)!r} is not UTF-8") from None
    except OSError as error:
        raise SecretsUnavailableError(f"secrets file {str(path)!r} cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)
