"""The owners' storage: what is mounted into sandboxes, made component by component without following a link (K-09).

    owners/<uid>/workspace/                        the owner workspace, read-write
        <Workdir>                                  the agent's working directory
        agents/homes/<thread>                      HOME of a conversation's agent
    owners/<uid>/skills/                           the skill projection, read-only

An agent can put links anywhere in its workspace, and rows may have been edited (F14). A link in the way is refused, never
followed: what lies behind it is outside the root.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from turnkeeper.domain.sandbox import Workdir, WorkdirRefused, home_path, owner_directory, parse_workdir
from turnkeeper.kit.files import UnsafePathError, make_dirs_beneath
from turnkeeper.provisioner.backends.base import Mounts

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class StorageRefusedError(Exception):
    """A name or path that cannot be used. `field` names which; the text is one line with its value and what is wrong."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


class StorageFailedError(Exception):
    """The storage itself does not work: full, read-only, no permission. The text is one line."""


@dataclass(frozen=True)
class Placed:
    """What was made for one attempt. `cwd` and `home` are relative to the owner workspace."""

    mounts: Mounts
    cwd: str
    home: str


class Storage:
    """The owners' directories below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def materialise(self, uid: str, workdir: str, thread_id: str) -> Placed:
        """Make the owner's workspace, the Workdir, the thread's HOME and the skill projection, as far as they are missing.

        `StorageRefusedError` for a name that may not be one or a link in the way; `StorageFailedError`.
        """
        owner, home = owner_directory(uid), home_path(thread_id)
        if owner is None:
            raise StorageRefusedError("uid", f"{_shown(uid)} cannot be an owner's directory")
        if home is None:
            raise StorageRefusedError("thread_id", f"{_shown(thread_id)} cannot be the name of a HOME")
        directory = parse_directory(workdir)
        root = os.open(self._root, _DIRECTORY)
        try:
            workspace = _make(root, f"{owner}/workspace", "uid", uid)
            try:
                os.close(_make(workspace, directory.path, "workdir", workdir))
                os.close(_make(workspace, home, "thread_id", thread_id))
            finally:
                os.close(workspace)
            os.close(_make(root, f"{owner}/skills", "uid", uid))
        finally:
            os.close(root)
        mounts = Mounts(self._root / owner / "workspace", self._root / owner / "skills")
        return Placed(mounts, directory.path, home)


def parse_directory(workdir: str) -> Workdir:
    """The Workdir; `StorageRefusedError` where it is none."""
    match parse_workdir(workdir):
        case WorkdirRefused(reason):
            raise StorageRefusedError("workdir", f"the Workdir {_shown(workdir)} {reason}")
        case Workdir() as directory:
            return directory


def _make(root_fd: int, relative: str, field: str, value: str) -> int:
    try:
        return make_dirs_beneath(root_fd, relative)
    except UnsafePathError as error:
        raise StorageRefusedError(field, f"{field} {_shown(value)} cannot be used: {error.strerror}") from error
    except OSError as error:
        raise StorageFailedError(
            f"the directory of {field} {_shown(value)} cannot be made: {error.strerror}"
        ) from error


def _shown(value: str) -> str:
    return ascii(value if len(value) <= 80 else value[:80] + "…")
