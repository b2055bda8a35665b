"""Small parts on their own: keyed locks, fences, the secrets file, the system-call filter, and refusals at the start."""

import asyncio
import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.serving import Scope
from turnkeeper.domain.errors import SettingRefused
from turnkeeper.domain.settings import SandboxTiming
from turnkeeper.provisioner.app import create_app
from turnkeeper.provisioner.backends.local import bubblewrap, seccomp
from turnkeeper.provisioner.backends.local.backend import LocalBackend
from turnkeeper.provisioner.fences import FenceError, Fences
from turnkeeper.provisioner.locks import KeyedLocks, LockTimeoutError
from turnkeeper.provisioner.process import local_settings
from turnkeeper.provisioner.secret_source import SecretSource, SecretsUnavailableError
from turnkeeper.provisioner.settings import ProvisionerSettings

NAME = Scope().sandbox_id


async def test_keyed_locks() -> None:
    """Proves: C-06. One at a time for each key, others at once, a bounded wait, and nothing kept afterwards."""
    locks, inside, order = KeyedLocks(), 0, list[int]()

    async def work(number: int) -> None:
        nonlocal inside
        async with locks.hold("a", 5):
            inside += 1
            assert inside == 1
            await asyncio.sleep(0.001)
            order.append(number)
            inside -= 1

    await asyncio.gather(*(work(number) for number in range(10)))
    assert order == list(range(10))
    async with locks.hold("a", 1):
        async with locks.hold("b", 0.01):
            pass
        with pytest.raises(LockTimeoutError, match=r"a is busy .* 0\.02 s"):
            async with locks.hold("a", 0.02):
                raise AssertionError
        assert locks.is_held("a")
    assert not locks.is_held("a")
    assert not locks.is_held("b")


async def test_cancelled_waiter_gives_the_lock_on() -> None:
    """A waiter that is cancelled, also in the moment in which it gets the lock, never keeps it."""
    locks = KeyedLocks()

    async def wait() -> None:
        async with locks.hold("a", 5):
            await asyncio.sleep(60)

    for turns in range(5):
        async with locks.hold("a", 1):
            waiter = asyncio.create_task(wait())
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        async with locks.hold("a", 1):
            pass


def test_fences_only_rise(tmp_path: Path) -> None:
    """Proves: C-04. Both numbers only grow, and are there for the next process."""
    fences = Fences(tmp_path)
    assert (fences.fenced(NAME), fences.found(NAME)) == (0, 0)
    assert fences.fence(NAME, 7) == 7
    assert fences.fence(NAME, 5) == 7
    fences.note_found(NAME, 9)
    fences.note_found(NAME, 8)
    for again in (fences, Fences(tmp_path)):
        assert (again.fenced(NAME), again.found(NAME)) == (7, 9)
    assert Fences(tmp_path).fence(NAME, 2**63 - 1) == 2**63 - 1


@pytest.mark.parametrize("text", ["", "x", "-1", "1\n", "9" * 100, "０"])
def test_broken_fences_are_not_zero(tmp_path: Path, text: str) -> None:
    """Case: F14. A fence that cannot be read is an error, never "no fence"."""
    (tmp_path / NAME).write_text(text)
    with pytest.raises(FenceError):
        Fences(tmp_path).fenced(NAME)
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).symlink_to("/etc/hostname")
    with pytest.raises(FenceError):
        Fences(tmp_path).fenced(NAME)


@pytest.mark.parametrize("name", ["", "..", "../x", "/etc/x", "tk-x"])
def test_fences_of_no_sandbox(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no sandbox id"):
        Fences(tmp_path).fenced(name)


def test_secrets_of_the_environment() -> None:
    source = SecretSource(None, {"A": "1", "TURNKEEPER_X": "2"})
    assert source.values(("A", "A")) == {"A": "1"}
    assert source.values(()) == {}
    with pytest.raises(SecretsUnavailableError, match="'B'"):
        source.values(("A", "B"))
    for own in ("TURNKEEPER_X", "turnkeeper_x", "PGPASSWORD", "DATABASE_URL", "REDIS_URL"):
        with pytest.raises(SecretsUnavailableError, match="belongs to the product"):
            source.values((own,))


def test_secrets_file(tmp_path: Path) -> None:
    """Values are what follows the first `=`, whatever it is; comments and empty lines are not."""
    file = tmp_path / "secrets"
    file.write_bytes(b"# keys\n\nA=1=2 \nB= x\r\nEMPTY=\nC='q'\n")
    file.chmod(0o600)
    source = SecretSource(file, {"A": "not this"})
    source.check()
    assert source.values(("A", "B", "EMPTY", "C")) == {"A": "1=2 ", "B": " x", "EMPTY": "", "C": "'q'"}
    with pytest.raises(SecretsUnavailableError, match="'D' in the secrets file"):
        source.values(("D",))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o700, 0o602])
def test_secrets_file_of_another_mode(tmp_path: Path, mode: int) -> None:
    """Proves: K-11. Others could have read or changed it: refused at the start and at each use."""
    file = tmp_path / "secrets"
    file.write_text("A=value-of-a\n")
    file.chmod(mode)
    with pytest.raises(SecretsUnavailableError, match=f"has mode {mode:04o}; it must be 0600") as caught:
        SecretSource(file, {}).check()
    assert "value-of-a" not in str(caught.value)


def test_secrets_file_that_is_none(tmp_path: Path) -> None:
    """A link, directory, FIFO, missing or foreign file, and lines without a name are each refused in one line."""
    good = tmp_path / "good"
    good.write_text("A=1\n")
    good.chmod(0o600)
    link, fifo = tmp_path / "link", tmp_path / "fifo"
    link.symlink_to(good)
    os.mkfifo(fifo, 0o600)
    for path in (link, tmp_path, fifo, tmp_path / "missing"):
        with pytest.raises(SecretsUnavailableError):
            SecretSource(path, {}).check()
    for line in ("no equals", "=x", "1A=x", "A B=x", "A=\x00"):
        good.write_text(f"A=1\n{line}\n")
        with pytest.raises(SecretsUnavailableError, match="line 2: write NAME=value"):
            SecretSource(good, {}).check()
    good.write_bytes(b"A=\xff\n")
    with pytest.raises(SecretsUnavailableError, match="not UTF-8"):
        SecretSource(good, {}).check()
    if os.getuid() == 0:
        good.write_text("A=1\n")
        os.chown(good, 1, 1)
        with pytest.raises(SecretsUnavailableError, match="belongs to uid 1"):
            SecretSource(good, {}).check()


@pytest.mark.parametrize("machine", sorted(seccomp.MACHINES))
def test_filter_is_a_valid_program(machine: str) -> None:
    """Every jump of the filter stays inside, and its last instruction returns: for both machines."""
    code = list(struct.iter_unpack("<HBBI", seccomp.program(machine)))
    assert 0 < len(code) < 4096
    for index, (operation, true, false, _) in enumerate(code):
        if operation & 7 == 5:
            assert index + 1 + max(true, false) < len(code)
    assert code[-1][0] & 7 == 6


def test_filter_of_an_unknown_machine() -> None:
    with pytest.raises(seccomp.UnsupportedMachineError, match="'sparc'"):
        seccomp.program("sparc")


@pytest.mark.parametrize(
    "program",
    [
        "relative",
        "/nowhere/at/all",
        "/",
        "/etc",
        "/etc/hostname",
        "/proc/self",
        "/usr",
        "/tmp",
        "/usr/../etc",
        "/dev/null",
    ],
)
def test_programs_that_are_refused(tmp_path: Path, program: str) -> None:
    """Proves: K-08, K-11. A definition cannot bind the machine's files in place of a program."""
    with pytest.raises(bubblewrap.ProgramRefusedError, match="program"):
        bubblewrap.check_programs((program,), tmp_path)


def test_programs_never_show_the_data_directory(tmp_path: Path) -> None:
    """Proves: K-11. Neither directly, nor from above, nor through a link."""
    data = tmp_path / "data"
    (data / "keys").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(data)
    for path in (data, data / "keys", tmp_path, link, link / "keys"):
        with pytest.raises(bubblewrap.ProgramRefusedError, match="data directory"):
            bubblewrap.check_programs((str(path),), data)
    (tmp_path / "tool").mkdir()
    bubblewrap.check_programs((str(tmp_path / "tool"), "/usr/bin"), data)


def test_start_is_refused(settings: ProvisionerSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves: K-08, K-01, C-06. One clear line each: no bubblewrap, short token, bad key, secrets file, timing, directory."""
    cases = [
        (replace(settings, admin_token="short"), "at least 32"),
        (replace(settings, public_keys={"k": "nonsense"}), "'k' is not a PEM"),
        (replace(settings, secrets_file=tmp_path / "missing"), "cannot be opened"),
        (
            replace(settings, timing=SandboxTiming(cleanup_timeout_s=100)),
            "SANDBOX_RUNTIME_CLEANUP_TIMEOUT_SECONDS is 100",
        ),
        (replace(settings, directory=Path("/proc/nothing")), "cannot be used"),
    ]
    for wrong, text in cases:
        with pytest.raises(SettingRefused, match=text) as caught:
            create_app(wrong)
        assert "\n" not in str(caught.value)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingRefused, match=r"bubblewrap is not installed.*--unsafe-no-isolation"):
        create_app(settings)
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    with pytest.raises(SettingRefused, match="does not work here: bwrap: No permissions"):
        create_app(settings)


def test_without_isolation_it_says_so(settings: ProvisionerSettings) -> None:
    """Proves: K-08. `--unsafe-no-isolation` starts without bubblewrap, with a warning on every start."""
    for _ in range(2):
        lines = LocalBackend(local_settings(replace(settings, isolated=False))).check()
        assert "without a sandbox" in lines[0]


def test_what_is_not_limited_is_said(settings: ProvisionerSettings) -> None:
    """Proves: K-08. What bubblewrap cannot limit, and running as root, are said at the start."""
    lines = LocalBackend(local_settings(settings)).check()
    assert any("memory" in line for line in lines)
    assert any("capability" in line for line in lines) == (os.getuid() == 0)


def test_settings_show_no_secret(settings: ProvisionerSettings) -> None:
    """Proves: K-11, E-02."""
    shown = repr(settings)
    assert settings.admin_token not in shown
    assert "s3cret-value" not in shown
