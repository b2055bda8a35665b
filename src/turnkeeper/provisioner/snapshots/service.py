"""One snapshot for each settlement: taken in bounded time, kept by its epoch, and never a reason for a turn to fail (D-08).

snapshots/<sandbox id>.git/            bare repository of one scope, outside every sandbox
    refs/snapshots/<epoch>             the newest few
    answers/<epoch>.json               what was answered, so that the same epoch gives the same answer
"""

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from turnkeeper.client.http import CallError, ClientError
from turnkeeper.client.sandbox import SandboxClient
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.domain.settings import Limits
from turnkeeper.kit.clock import Clock
from turnkeeper.kit.files import read_bounded, write_atomic
from turnkeeper.kit.log import get_logger
from turnkeeper.provisioner.live import Live
from turnkeeper.provisioner.locks import KeyedLocks, LockTimeoutError
from turnkeeper.provisioner.outcomes import Refused
from turnkeeper.provisioner.snapshots.changes import summary
from turnkeeper.provisioner.snapshots.git import Git, GitFailedError
from turnkeeper.provisioner.snapshots.intake import WalkLimits, WalkUnusableError, take_in
from turnkeeper.provisioner.storage import StorageRefusedError, parse_directory
from turnkeeper.wire.provisioner import SnapshotRequest
from turnkeeper.wire.turn import SnapshotResult

log = get_logger("provisioner.snapshots")

_KEPT: Final = 5
_LOCK_S: Final = 10.0
_PACKS_MAX: Final = 20
_PACK_BYTES_MAX: Final = 1 << 30
_MAINTENANCE_S: Final = 120.0
_ANSWER_BYTES_MAX: Final = 1 << 20
_NUMBER = re.compile(r"[1-9][0-9]{0,18}")


class Snapshots:
    """Takes and keeps snapshots below `root`."""

    def __init__(self, root: Path, limits: Limits, clock: Clock) -> None:
        self._root = root
        self._limits = limits
        self._clock = clock
        self._locks = KeyedLocks()
        self._upkeep: set[asyncio.Task[None]] = set()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def take(self, live: Live, request: SnapshotRequest) -> SnapshotResult | Refused:
        """The snapshot of this settlement, or why there is none; refused only where the request itself is wrong."""
        try:
            workdir = parse_directory(request.workdir).path
        except StorageRefusedError as error:
            return Refused(ProblemCode.INVALID_WORKDIR, str(error), error.field)
        if workdir != live.instance.shape.workdir:
            return Refused(ProblemCode.INVALID_WORKDIR, "the sandbox has another Workdir", "workdir")
        name = live.instance.sandbox_id
        try:
            async with self._locks.hold(name, _LOCK_S):
                stored = self._stored(name, request.epoch)
                return stored if stored is not None else await self._take_and_keep(live, workdir, request.epoch)
        except LockTimeoutError:
            return SnapshotResult(unavailable_why="another snapshot of this sandbox is being taken")

    async def close(self) -> None:
        """Wait for what is being cleared up."""
        if self._upkeep:
            await asyncio.wait(self._upkeep, timeout=_MAINTENANCE_S)

    async def _take_and_keep(self, live: Live, workdir: str, epoch: int) -> SnapshotResult:
        """The snapshot, or *unavailable* with why: in bounded time, and never a failure."""
        name = live.instance.sandbox_id
        begun = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._limits.snapshot_s):
                result = await self._take(live, workdir, epoch)
        except TimeoutError:
            result = SnapshotResult(unavailable_why=f"it took longer than {self._limits.snapshot_s:g} s")
        except WalkUnusableError as error:
            result = SnapshotResult(unavailable_why=str(error))
        except ClientError as error:
            result = SnapshotResult(unavailable_why=f"the sandbox refused it ({error.code})")
        except CallError:
            result = SnapshotResult(unavailable_why="the sandbox ended it")
        except GitFailedError as error:
            log.warning("git_failed", sandbox_id=name, epoch=epoch, command=error.command, status=error.status)
            result = SnapshotResult(unavailable_why="the record could not be written")
        except OSError as error:
            log.warning("snapshot_failed", sandbox_id=name, epoch=epoch, error_class=type(error).__name__)
            result = SnapshotResult(unavailable_why="the record could not be written")
        result = result.model_copy(update={"took_ms": int((self._clock.monotonic() - begun) * 1000)})
        if result.unavailable_why is not None:
            log.warning("snapshot_unavailable", sandbox_id=name, epoch=epoch, why=result.unavailable_why)
        self._keep(name, epoch, result)
        return result

    async def _take(self, live: Live, workdir: str, epoch: int) -> SnapshotResult:
        name = live.instance.sandbox_id
        git = Git(self._directory(name))
        if not (git.directory / "HEAD").exists():
            await git.run(*git.create())
        _clear(git.directory)
        base = self._base(name, epoch)
        limits = WalkLimits(self._limits.snapshot_files_max, self._limits.snapshot_bytes_max)
        ref = f"refs/snapshots/{epoch}"
        async with SandboxClient(live.http).walk(workdir, timeout_s=self._limits.snapshot_s) as stream:
            taken = await take_in(git, ref, epoch, stream.chunks(), limits)
        changes = await summary(git, base, taken.tree_id, taken.sizes)
        self._clear_up_later(name)
        return SnapshotResult(tree_id=taken.tree_id, changes=changes, files=taken.files, size_bytes=taken.size_bytes)

    def _directory(self, name: str) -> Path:
        return self._root / f"{name}.git"

    def _stored(self, name: str, epoch: int) -> SnapshotResult | None:
        try:
            data = read_bounded(self._directory(name) / "answers" / f"{epoch}.json", _ANSWER_BYTES_MAX)
            return SnapshotResult.model_validate_json(data)
        except (OSError, ValidationError):
            return None

    def _keep(self, name: str, epoch: int, result: SnapshotResult) -> None:
        """So that the same epoch gets the same answer. A disk that does not take it costs that and nothing else."""
        with contextlib.suppress(OSError):
            directory = self._directory(name) / "answers"
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = directory / f"{epoch}.json"
            if not path.exists():
                write_atomic(path, result.model_dump_json().encode())
            for old in sorted(_numbers(directory, ".json"))[: -4 * _KEPT]:
                (directory / f"{old}.json").unlink(missing_ok=True)

    def _base(self, name: str, epoch: int) -> str | None:
        """The tree of the newest recorded epoch before this one."""
        recorded = _numbers(self._directory(name) / "refs" / "snapshots", "")
        before = max((number for number in recorded if number < epoch), default=None)
        stored = None if before is None else self._stored(name, before)
        return None if stored is None else stored.tree_id

    def _clear_up_later(self, name: str) -> None:
        task = asyncio.create_task(self._clear_up(name))
        self._upkeep.add(task)
        task.add_done_callback(self._upkeep.discard)

    async def _clear_up(self, name: str) -> None:
        """Keep the newest few snapshots, and the repository within its bound."""
        git = Git(self._directory(name))
        try:
            async with self._locks.hold(name, _MAINTENANCE_S), asyncio.timeout(_MAINTENANCE_S):
                for old in sorted(_numbers(git.directory / "refs" / "snapshots", ""))[:-_KEPT]:
                    await git.run("update-ref", "-d", f"refs/snapshots/{old}")
                packs = list((git.directory / "objects" / "pack").glob("*.pack"))
                if len(packs) > _PACKS_MAX or sum(pack.stat().st_size for pack in packs) > _PACK_BYTES_MAX:
                    await git.run("repack", "-a", "-d", "-q", "--depth=0", "--window=0")
        except (GitFailedError, OSError, TimeoutError, LockTimeoutError) as error:
            log.warning("snapshot_clear_up_failed", sandbox_id=name, error_class=type(error).__name__)


def _numbers(directory: Path, suffix: str) -> list[int]:
    if not directory.is_dir():
        return []
    names = [path.name.removesuffix(suffix) for path in directory.iterdir()]
    return [int(name) for name in names if _NUMBER.fullmatch(name)]


def _clear(directory: Path) -> None:
    """What a killed import left. The scope's lock is held: nothing else works here."""
    for path in (directory / "objects" / "pack").glob("tmp_*"):
        path.unlink(missing_ok=True)
    for path in directory.glob("fast_import_crash_*"):
        path.unlink(missing_ok=True)
    for path in directory.glob("refs/snapshots/*.lock"):
        path.unlink(missing_ok=True)
