"""Where agents run: names as paths, homes, links in the way."""

from pathlib import Path

import pytest

from sandboxd.manager import Manager, said

DIRECTORIES = ["v2..v3", "x;touch y", "%2e%2e", "~", "a b", "$(touch y)", "ü世😀", "n" * 255]
NONE = ["..", "/etc", "a/../../b", "project/..", "", "missing", "a\0b", "n" * 300, "link", "link/sub", "file"]


async def test_names_that_are_directories(manager: Manager) -> None:
    """Case: F14. A name that a directory can have is one: the agent runs in it, and no shell sees the text."""
    worker = manager.activation(fence=1)
    for name in DIRECTORIES:
        cwd = manager.workspace / name
        cwd.mkdir()
        worker = worker.next()
        events = await worker.turn("/write made.txt here\n/say ok", cwd=str(cwd), env={})
        assert said(events).endswith("ok"), name
        assert (cwd / "made.txt").read_text() == "here\n"
        assert not list(manager.workspace.rglob("y"))


@pytest.mark.parametrize("what", ["session", "setup"])
async def test_names_that_are_not(manager: Manager, what: str) -> None:
    """Case: F14. Outside of the workspace, missing, or through a link: refused with one line, and nothing is started."""
    (manager.workspace / "link").symlink_to("/etc")
    (manager.workspace / "file").touch()
    worker = manager.activation(fence=1)
    for name in NONE:
        cwd = name if name.startswith("/") or not name else f"{manager.workspace}/{name}"
        worker = worker.next()
        (await worker.take()).ok()
        if what == "session":
            failure = (await worker.session(cwd=cwd)).ok()["failure"]
            assert (failure["stage"], failure["code"]) == ("start", "agent_start_failed"), name
            assert "cwd" in failure["text"]
        else:
            answer = (await worker.setup(["true"], cwd=cwd)).ok()
            assert answer["ok"] is False, name
            assert "cwd" in answer["results"][0]["output_tail"]
        assert manager.below() == []


@pytest.mark.parametrize("home", ["../outside", "linked/home", "file/home"])
async def test_homes_that_lead_outside(manager: Manager, tmp_path: Path, home: str) -> None:
    """Case: F14. A HOME through a link or out of the workspace is refused, and nothing is made there."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (manager.workspace / "linked").symlink_to(outside)
    (manager.workspace / "file").touch()
    path = f"{manager.workspace}/{home}"
    worker = manager.activation()
    (await worker.take(home=path)).ok()
    failure = (await worker.session(home=path)).ok()["failure"]
    assert failure["stage"] == "start"
    assert list(outside.iterdir()) == []


async def test_home_of_another_thread(manager: Manager) -> None:
    """Proves: D-03. Setup and session run in the HOME of the take."""
    worker = manager.activation()
    (await worker.take()).ok()
    other = str(manager.workspace / "agents" / "homes" / "t2")
    (await worker.session(home=other)).refused(422, "home")
    (await worker.setup(["true"], home=other)).refused(422, "home")


async def test_command_is_found_by_the_definitions_path(manager: Manager) -> None:
    """Proves: K-11. PATH is the definition's where it sets one; a file that may not be run is told as such."""
    folder = manager.workdir / "bin"
    folder.mkdir()
    (folder / "tool").write_text("#!/bin/sh\necho from-$0\n")
    worker = manager.activation()
    (await worker.take()).ok()
    answer = (await worker.setup(["tool"], env={"PATH": f"/nowhere:{folder}:/bin"})).ok()
    assert "Permission denied" in answer["results"][0]["output_tail"]
    (folder / "tool").chmod(0o755)
    second = worker.next()
    (await second.take()).ok()
    answer = (await second.setup(["tool"], env={"PATH": f"/nowhere:{folder}:/bin"})).ok()
    assert answer["results"][0]["output_tail"] == f"from-{folder}/tool\n"
    (folder / "broken").write_text("no interpreter line\n")
    (folder / "broken").chmod(0o755)
    third = second.next()
    (await third.take()).ok()
    answer = (await third.setup([f"{folder}/broken"])).ok()
    assert "Exec format error" in answer["results"][0]["output_tail"]
