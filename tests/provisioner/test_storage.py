"""The owners' storage: modes, links in the way, hostile names, and what a second process sees (K-09, F14)."""

import os
import stat
import threading
from pathlib import Path

import pytest

from turnkeeper.kit.ids import new_id
from turnkeeper.provisioner.storage import Placed, Storage, StorageFailedError, StorageRefusedError


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "owners")


def test_everything_is_made_and_private(storage: Storage, tmp_path: Path) -> None:
    """Proves: K-09, K-10. Workspace, Workdir, HOME and skills are there after one call, all of mode 0700."""
    uid, thread = new_id(), new_id()
    placed = storage.materialise(uid, "a/b", thread)
    root = tmp_path / "owners" / uid
    assert placed.mounts.workspace == root / "workspace"
    assert placed.mounts.skills == root / "skills"
    assert (placed.cwd, placed.home) == ("a/b", f"agents/homes/{thread}")
    for path in (root, root / "workspace/a", root / "workspace/a/b", root / "skills", root / "workspace" / placed.home):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert storage.materialise(uid, "a/b", thread) == placed


@pytest.mark.parametrize("place", ["a", "a/b", "agents", "agents/homes"])
@pytest.mark.parametrize("target", ["/etc", "..", "elsewhere"])
def test_links_in_the_way_are_refused(storage: Storage, tmp_path: Path, place: str, target: str) -> None:
    """Case: F14. Proves: K-09. A link that an agent put into the path is refused, and nothing is made behind it."""
    uid = new_id()
    workspace = tmp_path / "owners" / uid / "workspace"
    (workspace / place).parent.mkdir(parents=True)
    (workspace / "elsewhere").mkdir()
    (workspace / place).symlink_to(workspace / target if target == "elsewhere" else target)
    with pytest.raises(StorageRefusedError, match="is a link or no directory") as caught:
        storage.materialise(uid, "a/b/c", new_id())
    assert caught.value.field == ("thread_id" if place.startswith("agents") else "workdir")
    assert list((workspace / "elsewhere").iterdir()) == []


def test_file_in_the_way(storage: Storage, tmp_path: Path) -> None:
    uid = new_id()
    storage.materialise(uid, "a", new_id())
    (tmp_path / "owners" / uid / "workspace" / "f").write_text("")
    with pytest.raises(StorageRefusedError):
        storage.materialise(uid, "f/x", new_id())


@pytest.mark.parametrize("value", ["..", "/etc", "a/../../b", "~", "%2e%2e", "a\0b", "x" * 300, "x;touch y", "", "."])
def test_hostile_ids(storage: Storage, tmp_path: Path, value: str) -> None:
    """Case: F14. An id from an edited row never becomes a path."""
    for uid, thread, field in ((value, new_id(), "uid"), (new_id(), value, "thread_id")):
        with pytest.raises(StorageRefusedError) as caught:
            storage.materialise(uid, "w", thread)
        assert caught.value.field == field
    assert list((tmp_path / "owners").iterdir()) == []


def test_two_at_once(storage: Storage) -> None:
    """Several requests for one owner make the same directories together."""
    uid, threads = new_id(), [new_id() for _ in range(8)]
    results: list[Placed] = []

    def work(thread: str) -> None:
        results.append(storage.materialise(uid, "a/b/c", thread))

    workers = [threading.Thread(target=work, args=(thread,)) for thread in threads]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len({placed.mounts for placed in results}) == 1
    assert len(results) == 8


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_storage_that_cannot_be_written(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "owners").chmod(0o500)
    with pytest.raises(StorageFailedError, match="Permission denied"):
        storage.materialise(new_id(), "a", new_id())
