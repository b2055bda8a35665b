"""Lease generations at the provisioner: which attempts may still find or create the sandbox of a scope (protocol, section 3).

A cleanup's delete carries the scope's newest lease generation. From then on whatever carries that generation or an older one is
refused, so that a stale worker can neither recreate the sandbox behind the cleanup nor make it fail for ever. The delete itself
is refused where a newer attempt has found or created the instance, so that a late cleaner never takes the sandbox away from a
live one. Both numbers only ever grow. They are read and written under the keyed lock of the sandbox id, which is the scope's.

The fence is durable (fsync): a stale worker on another machine outlives this machine's power cut. Who has found the sandbox
only has to outlive this process, because a power cut ends every local sandbox; so it is not synced, which keeps a warm turn
free of a disk's latency.
"""

from pathlib import Path

from turnkeeper.domain.sandbox import is_sandbox_id
from turnkeeper.kit import failpoint
from turnkeeper.kit.failpoint import Point
from turnkeeper.kit.files import read_bounded, write_atomic

_BYTES_MAX = 64


class FenceError(Exception):
    """A fence cannot be read or written. Nothing may be concluded from that, least of all that there is no fence."""


class Fences:
    """The two numbers of every sandbox id, in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fenced: dict[str, int] = {}
        self._found: dict[str, int] = {}
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def fenced(self, sandbox_id: str) -> int:
        """Attempts up to this lease generation are refused; 0 where none is. `FenceError`."""
        if sandbox_id not in self._fenced:
            self._fenced[sandbox_id] = self._read(sandbox_id)
        return self._fenced[sandbox_id]

    def fence(self, sandbox_id: str, lease_generation: int) -> int:
        """Raise the fence to `lease_generation`; returns the fence, which may already have been higher. Durable on return."""
        current = self.fenced(sandbox_id)
        if lease_generation > current:
            failpoint.before(Point.EFFECT_FENCE)
            try:
                write_atomic(self._path(sandbox_id), str(lease_generation).encode())
            except OSError as error:
                raise FenceError(f"the fence of {sandbox_id} cannot be written: {error.strerror}") from error
            failpoint.after(Point.EFFECT_FENCE)
            self._fenced[sandbox_id] = current = lease_generation
        return current

    def found(self, sandbox_id: str) -> int:
        """The newest lease generation that has found or created the sandbox; 0 where none is known."""
        if sandbox_id not in self._found:
            self._found[sandbox_id] = self._read(f"{sandbox_id}.found")
        return self._found[sandbox_id]

    def note_found(self, sandbox_id: str, lease_generation: int) -> None:
        """An attempt of this lease generation is about to find or create the sandbox. Known to the next process on return."""
        if lease_generation > self.found(sandbox_id):
            path = self._path(f"{sandbox_id}.found")
            temporary = path.with_suffix(".new")
            try:
                temporary.write_bytes(str(lease_generation).encode())
                temporary.replace(path)
            except OSError as error:
                raise FenceError(f"the fence of {sandbox_id} cannot be written: {error.strerror}") from error
            self._found[sandbox_id] = lease_generation

    def _read(self, name: str) -> int:
        try:
            data = read_bounded(self._path(name), _BYTES_MAX)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise FenceError(f"the fence of {name} cannot be read: {type(error).__name__}") from error
        if not data.isdigit():
            raise FenceError(f"the fence of {name} is not a number: {data[:20]!r}")
        return int(data)

    def _path(self, name: str) -> Path:
        if not is_sandbox_id(name.removesuffix(".found")):
            raise ValueError(f"{name!r} is no sandbox id")
        return self._directory / name
