"""Snapshots through a real sandbox and a real Git: what is recorded, what is shown, and every way in which there is none (D-08)."""

# ruff: noqa: ASYNC110, ASYNC221, ASYNC230 - short commands and small files
import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.serving import Scope, Served, serve
from turnkeeper.client.http import ClientError
from turnkeeper.domain.settings import Limits
from turnkeeper.provisioner.settings import ProvisionerSettings
from turnkeeper.provisioner.snapshots.changes import FILES_MAX, SUMMARY_BYTES_MAX
from turnkeeper.provisioner.snapshots.git import EMPTY_TREE, Git, GitFailedError
from turnkeeper.provisioner.snapshots.intake import WalkLimits, WalkUnusableError, quoted, take_in
from turnkeeper.wire.provisioner import Sandbox
from turnkeeper.wire.turn import ChangedFile, SnapshotResult


async def snapshot(served: Served, sandbox: Sandbox, epoch: int, workdir: str = "project") -> SnapshotResult:
    async with served.client() as http:
        name = f"/v1/sandboxes/{sandbox.sandbox_id}/{sandbox.generation}/snapshot"
        body = json.dumps({"workdir": workdir, "epoch": epoch}).encode()
        return await http.call("POST", name, SnapshotResult, body=body, timeout_s=40)


def workdir_of(served: Served, scope: Scope) -> Path:
    return served.settings.directory / "owners" / scope.uid / "workspace" / scope.workdir


def repository(served: Served, scope: Scope) -> Path:
    return served.settings.directory / "snapshots" / f"{scope.sandbox_id}.git"


def git(directory: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(directory), *arguments], check=True, capture_output=True).stdout


def by_path(result: SnapshotResult) -> dict[str, ChangedFile]:
    assert result.changes is not None, result
    return {file.path: file for file in result.changes.files}


async def test_changes_from_one_to_the_next(served: Served) -> None:
    """Proves: D-08. Added, modified, deleted and type-changed files with their lines, diffs and sizes; the tree's id is Git's own."""
    scope = Scope()
    sandbox = await served.ensure(scope)
    work = workdir_of(served, scope)
    (work / "keep.txt").write_text("one\ntwo\nthree\n")
    (work / "gone.txt").write_text("x\n")
    (work / "tool.sh").write_text("#!/bin/sh\n")
    (work / "tool.sh").chmod(0o755)
    (work / "sub").mkdir()
    (work / "sub/binary").write_bytes(bytes(range(256)))
    first = await snapshot(served, sandbox, 1)
    assert (first.unavailable_why, first.files) == (None, 4)
    assert first.changes is not None
    assert first.changes.base_tree_id is None
    assert {file.status for file in first.changes.files} == {"added"}
    assert by_path(first)["sub/binary"].binary
    assert by_path(first)["sub/binary"].diff is None
    (work / "keep.txt").write_text("one\n2\nthree\n")
    (work / "gone.txt").unlink()
    (work / "tool.sh").unlink()
    (work / "tool.sh").symlink_to("keep.txt")
    (work / "new.txt").write_text("new\n")
    second = await snapshot(served, sandbox, 2)
    files = by_path(second)
    assert second.changes is not None
    assert second.changes.base_tree_id == first.tree_id
    assert {path: file.status for path, file in files.items()} == {
        "gone.txt": "deleted",
        "keep.txt": "modified",
        "new.txt": "added",
        "tool.sh": "type_changed",
    }
    kept = files["keep.txt"]
    assert (kept.added_lines, kept.removed_lines, kept.size_bytes) == (1, 1, 12)
    assert kept.diff is not None
    assert "-two\n+2\n" in kept.diff
    assert kept.diff.startswith("--- a/keep.txt\n+++ b/keep.txt\n@@")
    assert files["new.txt"].diff is not None
    expected = work.parent / "expected"
    subprocess.run(["git", "init", "-q", str(expected)], check=True)
    subprocess.run(["git", f"--work-tree={work}", "add", "-A"], cwd=expected, check=True)
    assert git(expected, "write-tree").decode().strip() == second.tree_id
    third = await snapshot(served, sandbox, 3)
    assert third.tree_id == second.tree_id
    assert third.changes is not None
    assert third.changes.files == ()


async def test_same_epoch_same_answer(served: Served) -> None:
    """Proves: F-06, D-08. The same epoch again gives the stored answer, whatever the Workdir holds now; also after a restart."""
    scope = Scope()
    sandbox = await served.ensure(scope)
    work = workdir_of(served, scope)
    (work / "a").write_text("1\n")
    first = await snapshot(served, sandbox, 1)
    (work / "a").write_text("2\n")
    assert await snapshot(served, sandbox, 1) == first
    assert (await snapshot(served, sandbox, 2)).tree_id != first.tree_id


async def test_several_at_once(served: Served) -> None:
    """Snapshots of one scope at once are taken one after another and agree."""
    scope = Scope()
    sandbox = await served.ensure(scope)
    (workdir_of(served, scope) / "a").write_text("1\n")
    results = await asyncio.gather(*(snapshot(served, sandbox, 1 + number % 2) for number in range(6)))
    assert {result.unavailable_why for result in results} == {None}
    assert len({result.tree_id for result in results}) == 1


async def test_nothing_of_the_workdir_runs(served: Served) -> None:
    """Proves: D-08. Attributes, filters, textconv, hooks, fsmonitor, nested repositories and FIFOs run and block nothing."""
    scope = Scope()
    sandbox = await served.ensure(scope)
    work, ran = workdir_of(served, scope), served.settings.directory / "ran"
    command = f"touch {ran}; cat"
    (work / ".gitattributes").write_text("* filter=evil diff=evil merge=evil text eol=crlf\n")
    config = (
        f'[filter "evil"]\n\tclean = {command}\n\tsmudge = {command}\n\trequired = true\n'
        f'[diff "evil"]\n\ttextconv = {command}\n\tcommand = {command}\n'
        f"[core]\n\tfsmonitor = {command}\n\thooksPath = {work}/hooks\n\tpager = {command}\n"
    )
    (work / ".gitconfig").write_text(config)
    subprocess.run(["git", "init", "-q", str(work / "nested")], check=True)
    (work / "nested/.git/config").write_text(config)
    (work / "nested/file").write_text("inside\n")
    os.mkfifo(work / "fifo")
    (work / "a").write_text("1\r\n")
    await snapshot(served, sandbox, 1)
    (work / "a").write_text("2\r\n")
    (work / ".gitattributes").write_text("* filter=evil diff=evil binary\n")
    result = await snapshot(served, sandbox, 2)
    assert by_path(result)["a"].diff is not None
    assert not ran.exists()
    stored = git(repository(served, scope), "ls-tree", "-r", "--name-only", "refs/snapshots/2").decode().split()
    assert stored == [".gitattributes", ".gitconfig", "a", "nested/file"]
    assert git(repository(served, scope), "cat-file", "blob", "refs/snapshots/2:a") == b"2\r\n"


async def test_names_that_hurt(served: Served) -> None:
    """Case: F10. File names are bytes: newlines, quotes, tabs, broken UTF-8, backslashes and options are kept and shown cleaned."""
    scope = Scope()
    sandbox = await served.ensure(scope)
    work = os.fsencode(workdir_of(served, scope))
    names = [
        b"a\nb",
        b'q"uote',
        b"t\tab",
        b"bad\xff\xfe",
        b"\\",
        b"-rf",
        b"--",
        b" lead",
        "é日本😀".encode(),
        b":(top)x",
        b"*",
        b"x" * 255,
    ]
    for name in names:
        with open(os.path.join(work, name), "wb") as file:  # noqa: PTH118, PTH123 - bytes
            file.write(b"1\n")
    result = await snapshot(served, sandbox, 1)
    assert result.unavailable_why is None
    files = by_path(result)
    assert {
        "a\nb",
        'q"uote',
        "t\tab",
        "bad\ufffd\ufffd",
        "\\",
        "-rf",
        "--",
        " lead",
        "é日本😀",
        ":(top)x",
        "*",
        "x" * 255,
    } == set(files)
    assert all(file.diff is not None and "+1" in file.diff for file in files.values())
    stored = git(repository(served, scope), "ls-tree", "-r", "-z", "--name-only", "refs/snapshots/1").split(b"\0")
    assert set(stored) - {b""} == set(names)


async def test_contents_that_hurt(served: Served) -> None:
    """Case: F10. NUL, broken UTF-8 and text that looks like a patch or a frame change nothing of the record around them."""
    scope = Scope()
    sandbox = await served.ensure(scope)
    work = workdir_of(served, scope)
    (work / "nul").write_bytes(b"a\0b\n")
    (work / "bad").write_bytes(b"\xff\xfe text\n")
    (work / "patch").write_bytes(b"x\ndiff --git a/evil b/evil\n--- a/evil\n+++ b/evil\n@@ -1 +1 @@\n")
    (work / "frame").write_bytes(b'{"t":"end","files":0,"size_bytes":0}\ndone\ncommit refs/heads/evil\n')
    (work / "empty").write_bytes(b"")
    (work / "no newline").write_bytes(b"end")
    (work / "crlf").write_bytes(b"a\rb\r\n")
    result = await snapshot(served, sandbox, 1)
    files = by_path(result)
    assert files["nul"].binary
    assert files["bad"].diff is not None
    assert "\ufffd\ufffd text" in files["bad"].diff
    assert files["patch"].diff is not None
    assert "+diff --git a/evil b/evil" in files["patch"].diff
    assert files["empty"].diff == ""
    assert files["no newline"].diff is not None
    assert git(repository(served, scope), "for-each-ref", "--format=%(refname)").split() == [b"refs/snapshots/1"]
    json.loads(result.model_dump_json())


async def test_summary_is_bounded(served: Served) -> None:
    """A change of thousands of files and long lines stays within a stored event, and says how much it leaves out."""
    scope = Scope()
    sandbox = await served.ensure(scope)
    work = workdir_of(served, scope)
    for number in range(700):
        (work / f"{number:04d}").write_text('"\\' * 500 + "\n" + "line\n" * 50)
    result = await snapshot(served, sandbox, 1)
    assert result.changes is not None
    assert len(result.model_dump_json().encode()) < 64 << 10
    assert len(result.changes.model_dump_json().encode()) < SUMMARY_BYTES_MAX + (4 << 10)
    assert len(result.changes.files) <= FILES_MAX
    assert len(result.changes.files) + result.changes.omitted_files == 700
    assert result.changes.added_lines == 700 * 51
    assert sum(file.diff is not None for file in result.changes.files) > 2


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"snapshot_files_max": 3}, "more than 3 files"),
        ({"snapshot_bytes_max": 1000}, "more than 1000 bytes"),
    ],
)
async def test_more_than_is_recorded(settings: ProvisionerSettings, limits: dict[str, Any], why: str) -> None:
    """Proves: D-08. A Workdir above the limits has no snapshot and says why; the next one below them has."""
    with serve(replace(settings, limits=Limits(**limits))) as served:
        scope = Scope()
        sandbox = await served.ensure(scope)
        work = workdir_of(served, scope)
        for number in range(4):
            (work / f"f{number}").write_bytes(b"x" * 300)
        result = await snapshot(served, sandbox, 1)
        assert result.tree_id is None
        assert result.unavailable_why is not None
        assert why in result.unavailable_why
        assert await snapshot(served, sandbox, 1) == result
        for number in range(2):
            (work / f"f{number}").unlink()
        assert (await snapshot(served, sandbox, 2)).files == 2


async def test_out_of_time(settings: ProvisionerSettings) -> None:
    """Proves: D-08. A walk that does not end in time is given up, and the sandbox and the next snapshot are not hurt by it."""
    with serve(replace(settings, limits=Limits(snapshot_s=1))) as served:
        scope = Scope(workdir="stall")
        sandbox = await served.ensure(scope)
        result = await snapshot(served, sandbox, 1, "stall")
        assert result.unavailable_why == "it took longer than 1 s"
        assert result.took_ms < 5000
        assert served.inside(sandbox, "/bin/true")["exit"] == 0


async def test_sandbox_that_ends_meanwhile(served: Served) -> None:
    """Proves: D-08. The sandbox ends during the walk: no snapshot, and no failure."""
    scope = Scope(workdir="die")
    sandbox = await served.ensure(scope)
    assert (await snapshot(served, sandbox, 1, "die")).unavailable_why == "the sandbox ended it"


async def test_requests_that_are_wrong(served: Served) -> None:
    """Case: F14. Another Workdir than the sandbox's, a bad one and a bad epoch are refused."""
    scope = Scope()
    sandbox = await served.ensure(scope)
    for workdir, epoch, status in (("other", 1, 422), ("../x", 1, 422), ("project", 0, 400), ("project", -1, 400)):
        with pytest.raises(ClientError) as caught:
            await snapshot(served, sandbox, epoch, workdir)
        assert caught.value.status == status


async def test_repository_stays_bounded(settings: ProvisionerSettings) -> None:
    """After many snapshots the newest few are kept, in a bounded number of packs, and a diff to the last one is still right."""
    with serve(settings) as served:
        scope = Scope()
        sandbox = await served.ensure(scope)
        work = workdir_of(served, scope)
        results: list[SnapshotResult] = []
        for epoch in range(1, 31):
            (work / "a").write_text(f"{epoch}\n")
            results.append(await snapshot(served, sandbox, epoch))
            assert results[-1].unavailable_why is None
        directory = repository(served, scope)
        async with asyncio.timeout(20):
            while len(git(directory, "for-each-ref", "--format=%(refname)").split()) > 5:
                await asyncio.sleep(0.05)
        assert len(list((directory / "objects/pack").glob("*.pack"))) <= 22
        assert by_path(results[-1])["a"].diff == "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-29\n+30\n"
        git(directory, "fsck", "--no-dangling")


async def chunks_of(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def frame(path: str, data: bytes, **changes: Any) -> bytes:
    return (
        json.dumps({"t": "file", "path": path, "mode": "100644", "size": len(data), **changes}).encode() + b"\n" + data
    )


END = b'{"t": "end", "files": 1, "size_bytes": 1}\n'


@pytest.mark.parametrize(
    "walk",
    [
        (),
        (b"",),
        (b"nonsense\n",),
        (b"{}\n",),
        (frame("a", b"x"),),
        (frame("a", b"x"), b'{"t": "end", "files": 2, "size_bytes": 1}\n'),
        (frame("a", b"x", size=5), END),
        (frame("a", b"x", size=-1), END),
        (frame("a", b"x", mode="040000"), END),
        (frame("a", b"x", mode="160000"), END),
        (frame("../a", b"x"), END),
        (frame("/a", b"x"), END),
        (frame("a//b", b"x"), END),
        (frame("./a", b"x"), END),
        (frame("", b"x"), END),
        (frame("a\0b", b"x"), END),
        (frame(".git/config", b"x"), END),
        (frame("x/.GIT/config", b"x"), END),
        (frame("日本", b"x"), END),
        (frame("a", b"x" * 2000), END),
        (b"x" * 100_000,),
        (b'{"t": "end", "files": 0, "size_bytes": 0, "why": "stopped"}\n',),
    ],
)
async def test_walks_that_are_not_believed(tmp_path: Path, walk: tuple[bytes, ...]) -> None:
    """Proves: D-08. The manager runs where the agent does: a walk that is cut, lies or escapes makes no snapshot and no ref."""
    repo = Git(tmp_path / "r.git")
    await repo.run(*repo.create())
    with pytest.raises((WalkUnusableError, GitFailedError)):
        await take_in(repo, "refs/snapshots/1", 1, chunks_of(*walk), WalkLimits(10, 1000))
    assert await repo.run("for-each-ref") == b""


async def test_walk_cut_anywhere(tmp_path: Path) -> None:
    """Chunks end anywhere, also in the middle of a header, and the tree is the same."""
    whole = frame("a", b"one\n") + frame("d/b", b"\n\n{}\n" * 50) + b'{"t": "end", "files": 2, "size_bytes": 1}\n'
    trees: set[str] = set()
    for step in (1, 2, 7, 64, len(whole)):
        repo = Git(tmp_path / f"{step}.git")
        await repo.run(*repo.create())
        parts = [whole[start : start + step] for start in range(0, len(whole), step)]
        taken = await take_in(repo, "refs/snapshots/1", 1, chunks_of(*parts), WalkLimits(10, 1000))
        assert taken.files == 2
        assert (await repo.run("rev-parse", "refs/snapshots/1^{tree}")).decode().strip() == taken.tree_id
        trees.add(taken.tree_id)
    assert len(trees) == 1


async def test_empty_walk_is_the_empty_tree(tmp_path: Path) -> None:
    repo = Git(tmp_path / "r.git")
    await repo.run(*repo.create())
    await take_in(
        repo, "refs/snapshots/1", 1, chunks_of(b'{"t": "end", "files": 0, "size_bytes": 0}\n'), WalkLimits(1, 1)
    )
    assert (await repo.run("rev-parse", "refs/snapshots/1^{tree}")).decode().strip() == EMPTY_TREE


def test_quoting() -> None:
    assert quoted(b'a"b\\c\nd\xff') == b'"a\\042b\\134c\\012d\\377"'
