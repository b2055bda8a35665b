"""What an agent in a local sandbox can see and do. Everything is asked from inside a real bubblewrap sandbox."""

# ruff: noqa: ASYNC240 - /proc does not block
import contextlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from provisioner.serving import Scope, Served
from turnkeeper.wire.provisioner import Sandbox, SandboxSpec

PYTHON = (sys.executable, "-I", "-c")


@pytest.fixture
async def sandbox(served: Served) -> Sandbox:
    return await served.ensure(Scope(), secrets=("GIVEN_SECRET",))


def run_python(served: Served, sandbox: Sandbox, code: str, **more: Any) -> dict[str, Any]:
    return served.inside(sandbox, *PYTHON, code, **more)


async def test_only_what_was_bound_is_there(served: Served, sandbox: Sandbox) -> None:
    """Proves: K-08, K-09, K-11 (no file of the machine but system, product, workspace and skills).

    The source tree shows the package alone, and the data directory nothing at all.
    """
    top = served.inside(sandbox, "/bin/sh", "-c", "ls -A /")["out"].split()
    data = str(served.settings.directory)
    allowed = {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "skills", "tmp", "usr"}
    needed = {Path(path).parts[1] for path in (sys.prefix, sys.base_prefix, __file__)}
    assert set(top) <= allowed | {"workspace"} | needed
    for path in (
        data,
        f"{data}/owners",
        f"{data}/sandboxes",
        f"{data}/p.sock",
        "/etc/shadow",
        "/etc/ssh",
        "/var",
        "/home",
    ):
        assert served.inside(sandbox, "/bin/ls", "-d", path)["exit"] != 0, path
    package = Path(sys.modules["turnkeeper"].__file__ or "").parent
    beside = served.inside(sandbox, "/bin/ls", "-A", str(package.parent))["out"].split()
    assert beside == ["turnkeeper"]
    assert served.inside(sandbox, "/bin/ls", "-A", "/sys")["exit"] != 0


async def test_only_the_workspace_can_be_written(served: Served, sandbox: Sandbox) -> None:
    """Proves: K-09 (workspace read-write, skills read-only), and that the root, the system and the product are read-only."""
    attempts = ("/x", "/etc/x", "/usr/x", "/skills/x", f"{sys.prefix}/x", "/proc/1/oom_score_adj", "/dev/../root/x")
    for path in attempts:
        assert served.inside(sandbox, "/bin/sh", "-c", f"echo 1 > '{path}'")["exit"] != 0, path
    for path in ("/workspace/project/x", "/tmp/x", f"{sandbox.home}/x"):
        assert served.inside(sandbox, "/bin/sh", "-c", f"echo 1 > '{path}'")["exit"] == 0, path


async def test_kernel_settings_are_read_only(served: Served, sandbox: Sandbox) -> None:
    """Proves: K-08 (an agent whose uid is 0 cannot have the kernel run a program outside through `core_pattern`)."""
    paths = ("kernel/core_pattern", "vm/drop_caches", "kernel/modprobe", "kernel/hotplug", "net/ipv4/ip_forward")
    for name in paths:
        path = Path("/proc/sys", name)
        if path.exists():
            result = served.inside(sandbox, "/bin/sh", "-c", f": >> {path}")
            assert result["exit"] != 0, name


async def test_no_capabilities_no_new_privileges(served: Served, sandbox: Sandbox) -> None:
    """Proves: K-08 (all capabilities dropped, also from the bounding set; no-new-privileges; a filter is on)."""
    status = served.inside(sandbox, "/bin/cat", "/proc/self/status")["out"]
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(fields[name], 16) == 0, name
    if os.getuid() == 0:
        assert int(fields["CapBnd"], 16) == 0
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"


async def test_namespaces_are_its_own(served: Served, sandbox: Sandbox) -> None:
    """Proves: K-08 (own pid, ipc, uts, mount and network namespace; the manager is pid 1)."""
    for name in ("pid", "ipc", "uts", "mnt", "net"):
        inside = served.inside(sandbox, "/bin/readlink", f"/proc/self/ns/{name}")["out"].strip()
        assert inside != str(Path(f"/proc/self/ns/{name}").readlink()), name
    assert "standin_manager" in served.inside(sandbox, "/bin/sh", "-c", "tr '\\0' ' ' < /proc/1/cmdline")["out"]
    pids = served.inside(sandbox, "/bin/sh", "-c", "ls /proc | grep -c '^[0-9]'")["out"]
    assert int(pids) < 10


async def test_network_none_reaches_nobody(served: Served, sandbox: Sandbox) -> None:
    """Proves: K-08 (network `none`: the host's loopback is out of reach, its own is up; no abstract sockets of the host)."""
    abstract = f"\0turnkeeper-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as named:
        named.bind(abstract)
        named.listen()
        port = listener.getsockname()[1]
        code = f"""
import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", {port})), (socket.AF_UNIX, {abstract!r})):
    try:
        socket.socket(family).connect(address)
        print("reached")
    except OSError as error:
        print(type(error).__name__)
own = socket.create_server(("127.0.0.1", 0))
socket.create_connection(own.getsockname(), 2)
print("own")
"""
        lines = run_python(served, sandbox, code)["out"].split()
    assert lines == ["ConnectionRefusedError", "ConnectionRefusedError", "own"]


async def test_network_host_is_the_hosts(served: Served) -> None:
    """The stale twin of the test above: with network `host` the same connection is made, so that test can fail."""
    sandbox = await served.ensure(Scope(), spec=SandboxSpec(network="host"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = (
            f"import socket; socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}), 2); print('reached')"
        )
        assert run_python(served, sandbox, code)["out"] == "reached\n"
    assert served.inside(sandbox, "/bin/cat", "/etc/hosts")["out"] == Path("/etc/hosts").read_text()


async def test_network_host_is_not_the_product_s_sockets(served: Served) -> None:
    """Proves: K-11. The provisioner and PostgreSQL listen on sockets in the data directory, which no sandbox has; nor has it
    the processes through whose `/proc` it could be reached. The provisioner answers out here on that very path."""
    sandbox = await served.ensure(Scope(), spec=SandboxSpec(network="host"))
    own = served.url.removeprefix("unix:")
    postgres = served.settings.directory / "postgres-stand-in"
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as outside:
        named.bind(str(postgres))
        named.listen()
        outside.connect(own)
        code = f"""
import os, socket
for path in ({own!r}, {str(postgres)!r}):
    for address in (path, *(f"/proc/{{pid}}/root{{path}}" for pid in os.listdir("/proc") if pid.isdigit())):
        try:
            socket.socket(socket.AF_UNIX).connect(address)
            print("reached", address)
        except (FileNotFoundError, PermissionError):  # the manager's root is not even to be looked at
            pass
        except OSError as error:
            print(address, error)
print("done")
"""
        assert run_python(served, sandbox, code)["out"] == "done\n"


async def test_manager_cannot_be_disarmed(served: Served, sandbox: Sandbox) -> None:
    """Proves: K-08 (the four calls by which an equal uid would disarm pid 1 are refused, and ptrace; on oneself they work)."""
    code = """
import ctypes, json, os, resource
libc = ctypes.CDLL(None, use_errno=True)
def attempt(call):
    try:
        call()
        return "done"
    except PermissionError:
        return "refused"
def ptrace():
    if libc.ptrace(16, 1, 0, 0):
        raise PermissionError
def ioprio(which, who):
    number = {"x86_64": 251, "aarch64": 30}[os.uname().machine]
    if libc.syscall(number, which, who, (3 << 13)):
        raise PermissionError
result = {
    "prlimit": attempt(lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))),
    "scheduler": attempt(lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))),
    "affinity": attempt(lambda: os.sched_setaffinity(1, {0})),
    "param": attempt(lambda: os.sched_setparam(1, os.sched_param(0))),
    "priority": attempt(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19)),
    "priority_user": attempt(lambda: os.setpriority(os.PRIO_USER, 0, 19)),
    "ioprio": attempt(lambda: ioprio(1, 1)),
    "ptrace": attempt(ptrace),
    "environ": attempt(lambda: open("/proc/1/environ", "rb").read()),
    "mem": attempt(lambda: open("/proc/1/mem", "rb")),
    "own_rlimit": attempt(lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0))),
    "own_prlimit": attempt(lambda: resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))),
    "own_priority": attempt(lambda: os.setpriority(os.PRIO_PROCESS, 0, 5)),
    "own_affinity": attempt(lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})),
    "own_ioprio": attempt(lambda: ioprio(1, 0)),
}
print(json.dumps(result))
"""
    result: dict[str, str] = json.loads(run_python(served, sandbox, code)["out"])
    assert {name: value for name, value in result.items() if not name.startswith("own_")} == dict.fromkeys(
        (
            "prlimit",
            "scheduler",
            "affinity",
            "param",
            "priority",
            "priority_user",
            "ioprio",
            "ptrace",
            "environ",
            "mem",
        ),
        "refused",
    )
    assert {value for name, value in result.items() if name.startswith("own_")} == {"done"}


async def test_signals_do_not_reach_the_manager(served: Served, sandbox: Sandbox) -> None:
    """Proves: K-08 (pid 1 is neither stopped nor ended by any signal from inside)."""
    code = """
import os, signal
for number in signal.valid_signals():
    os.kill(1, number)
"""
    assert run_python(served, sandbox, code)["exit"] == 0
    assert served.inside(sandbox, "/bin/true")["exit"] == 0


async def test_ways_around_namespaces_are_closed(served: Served, sandbox: Sandbox) -> None:
    """Proves: K-08, K-11 (keyrings, AF_VSOCK and io_uring are refused; other sockets work)."""
    code = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": (248, 249, 250, 425), "aarch64": (217, 218, 219, 425)}[os.uname().machine]
for number in numbers:
    libc.syscall(number, 0, 0, 0, 0, 0)
    print(errno.errorcode[ctypes.get_errno()])
try:
    socket.socket(40, socket.SOCK_STREAM)
except OSError as error:
    print(errno.errorcode[error.errno])
socket.socket(socket.AF_INET).close()
"""
    result = run_python(served, sandbox, code)
    assert result["out"].split() == ["EPERM", "EPERM", "EPERM", "ENOSYS", "EAFNOSUPPORT"], result


async def test_descriptors_inside(served: Served, sandbox: Sandbox) -> None:
    """Case: F15. The manager has stdio, its listener and its connections; its children have stdio alone."""
    with served.blocking() as http:
        name = f"/v1/sandboxes/{sandbox.sandbox_id}/{sandbox.generation}/manager/v1/test/fds"
        found = json.loads(http.request("GET", name).content)
    assert set(found["child"]) == {"0", "1", "2"}
    own: dict[str, str] = found["own"]
    assert own["0"] == "/dev/null"
    others = [target for number, target in own.items() if int(number) > 2]
    assert all(target.startswith("socket:") for target in others), own
    assert len(others) <= 4


async def test_no_secret_is_readable(served: Served, sandbox: Sandbox) -> None:
    """Proves: K-11 (no token, per-sandbox secret or value of a secret in environment, process list or mounts)."""
    live = served.process.service.live.get(sandbox.sandbox_id)
    assert live is not None
    secrets = [live.instance.manager.secret, served.settings.admin_token, *served.settings.environ.values()]
    # -xdev: the product's own programs may be bound somewhere below /tmp
    files = "find /workspace /skills /run /tmp /etc/passwd -xdev -type f -exec cat {} +"
    looked = f"env; cat /proc/*/environ /proc/*/cmdline /proc/self/mountinfo 2>/dev/null; {files}"
    output = served.inside(sandbox, "/bin/sh", "-c", looked)["out"]
    assert "TURNKEEPER_SANDBOX_GENERATION" in output
    for secret in secrets:
        assert secret not in output
    directory = served.settings.directory
    for path in (directory / "sandboxes").rglob("*"):
        if path.is_file() and path.name != "secret":
            assert not any(secret.encode() in path.read_bytes() for secret in secrets), path
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                assert live.instance.manager.secret.encode() not in command


async def test_programs_of_the_definition(served: Served, tmp_path: Path) -> None:
    """A program that the definition names is there, read-only, at its own path and where a link leads."""
    real = tmp_path / "real"
    real.mkdir()
    (real / "tool").write_text("#!/bin/sh\necho tool\n")
    (real / "tool").chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(real)
    sandbox = await served.ensure(Scope(), spec=SandboxSpec(programs=(str(link),)))
    assert served.inside(sandbox, str(link / "tool"))["out"] == "tool\n"
    assert served.inside(sandbox, str(real / "tool"))["out"] == "tool\n"
    assert served.inside(sandbox, "/bin/sh", "-c", f"echo > {real}/x")["exit"] != 0


async def test_real_programs_of_the_system_run(served: Served, sandbox: Sandbox) -> None:
    """Programs that go through `/etc/alternatives`, name services and the clock work inside."""
    script = "awk 'BEGIN{print 1}'; id -u >/dev/null && date +%Z && getent passwd 0 | cut -d: -f1 && hostname"
    result = served.inside(sandbox, "/bin/sh", "-c", script)
    assert result["exit"] == 0, result
    assert result["out"].splitlines()[-1] == "sandbox"
