"""Reading the environment: each setting once, with one clear line where it is missing or wrong. Secrets are never shown."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from turnkeeper.domain.errors import OptionRefused, SettingRefused
from turnkeeper.domain.settings import Limits

TOKEN_LENGTH_MIN = 32


@dataclass(frozen=True)
class Environment:
    """The process's environment, as settings."""

    values: Mapping[str, str]

    @classmethod
    def of_process(cls) -> "Environment":
        """What this process was started with."""
        return cls(dict(os.environ))

    def text(self, name: str, default: str | None = None) -> str:
        """A setting that must be there unless it has a default."""
        value = self.values.get(name) or default
        if value is None:
            raise SettingRefused(f"{name} is not set")
        return value

    def optional(self, name: str) -> str | None:
        """A setting that may be absent; empty is absent."""
        return self.values.get(name) or None

    def positive(self, name: str, default: int) -> int:
        """A positive integer."""
        value = self.values.get(name)
        if not value:
            return default
        if not value.isascii() or not value.isdecimal() or int(value) == 0:
            raise SettingRefused(f"{name} is {value!r}; it must be a positive integer")
        return int(value)

    def trees_per_owner(self) -> int:
        """The room of an owner without one of their own: what gives it out and what judges the waiting read the same."""
        return self.positive("TURNKEEPER_TREES_PER_OWNER", Limits().trees_per_owner)

    def secret(self, name: str) -> str:
        """`NAME`, or the content of the file that `NAME_FILE` names, which only its owner may read."""
        value = self.values.get(name)
        if value:
            return value
        file = self.values.get(f"{name}_FILE")
        if not file:
            raise SettingRefused(f"neither {name} nor {name}_FILE is set")
        return read_secret_file(Path(file), f"{name}_FILE")

    def path(self, name: str) -> Path:
        """An absolute path."""
        path = Path(self.text(name))
        if not path.is_absolute():
            raise SettingRefused(f"{name} is {str(path)!r}; it must be an absolute path")
        return path


def read_secret_file(path: Path, setting: str) -> str:
    """The one line in a secret's file: a regular file that nobody but its owner can read."""
    try:
        mode = path.stat().st_mode
        text = path.read_text().strip() if stat.S_ISREG(mode) else ""
    except (OSError, UnicodeDecodeError) as error:
        raise SettingRefused(f"{setting}: {path} cannot be read ({type(error).__name__})") from error
    if not stat.S_ISREG(mode):
        raise SettingRefused(f"{setting}: {path} is no regular file")
    if mode & 0o077:
        raise SettingRefused(f"{setting}: {path} can be read by others; chmod 600 {path}")
    if not text:
        raise SettingRefused(f"{setting}: {path} is empty")
    return text


@dataclass(frozen=True)
class ListenAddress:
    """Where a server listens: a TCP address, a Unix socket, or a descriptor that listens already."""

    host: str | None = None
    port: int | None = None
    socket_path: Path | None = None
    descriptor: int | None = None

    @property
    def url(self) -> str:
        """As clients on this machine write it."""
        if self.socket_path is not None:
            return f"unix:{self.socket_path}"
        host = f"[{self.host}]" if self.host and ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def parse_listen(text: str, setting: str) -> ListenAddress:
    """`host:port`, `[v6]:port`, `unix:/path`, or `fd:N` for a descriptor that the starter listens on."""
    if text.startswith("fd:") and text.removeprefix("fd:").isdecimal():
        return ListenAddress(descriptor=int(text.removeprefix("fd:")))
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:"))
        if not path.is_absolute():
            raise OptionRefused(f"{setting} is {text!r}; unix: is followed by an absolute path")
        return ListenAddress(socket_path=path)
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise OptionRefused(f"{setting} is {text!r}; it must be host:port, such as 127.0.0.1:8420, or unix:/path")
    return ListenAddress(host=host.strip("[]"), port=int(port))
