"""What a local sandbox sees of this machine, as arguments of bubblewrap.

Two mounts hold persistent data: the owner's workspace and the owner's skill projection (K-09). Besides them there are,
read-only, the system's programs, the Python that runs the manager, the programs that the agent definition names, and an
`/etc` of our own making. Everything else of the machine is not there.

As root, bubblewrap 0.8 leaves `/proc/sys` writable for uid 0 even with every capability dropped: an agent could set
`kernel.core_pattern` and have the kernel run a program of its choice outside. So `/proc` is read-only as a whole, which
also keeps an agent from writing to pid 1's `oom_score_adj` and `autogroup`.
"""

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

WORKSPACE: Final = "/workspace"
SKILLS: Final = "/skills"
GENERATION_VARIABLE: Final = "TURNKEEPER_SANDBOX_GENERATION"

_TMPFS_BYTES_MAX: Final = 2 << 30
_ROOT_LINKS: Final = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
SYSTEM_PATHS: Final = ("/usr", *(f"/{name}" for name in _ROOT_LINKS))
"""Where a sandbox has the machine's own programs."""
_MASKED: Final = (
    "acpi",
    "asound",
    "kcore",
    "keys",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "sched_debug",
    "scsi",
    "timer_list",
)
_MADE_HERE: Final = ("/", "/tmp", "/run")  # noqa: S108 - refused, not used
_NOT_BINDABLE: Final = ("dev", "etc", "proc", "skills", "sys", "workspace")
_TOO_MUCH: Final = ("/usr", "/opt", "/srv", "/var", "/home", "/mnt", "/media")
_ETC: Final = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime")
_ETC_OF_HOST_NETWORK: Final = (
    "resolv.conf",
    "hosts",
    "ssl/certs",
    "ssl/openssl.cnf",
    "ca-certificates",
    "pki/ca-trust",
    "pki/tls",
    "services",
    "protocols",
)
_ETC_FILES: Final = {
    "passwd": "root:x:0:0:root:/tmp:/bin/sh\nagent:x:{uid}:{gid}:agent:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": "root:x:0:\nagent:x:{gid}:\nnogroup:x:65534:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
}


class IsolationUnavailableError(Exception):
    """bubblewrap is missing or does not work here. The text is one line for whoever starts the provisioner (K-08)."""


class ProgramRefusedError(Exception):
    """A path of an agent definition may not be bound. The text is one line that names it."""


@dataclass(frozen=True)
class Layout:
    """One sandbox: its directories on this machine, all absolute, and what shapes it."""

    workspace: Path
    skills: Path
    etc: Path
    programs: tuple[str, ...]
    host_network: bool
    generation: str


def find_bubblewrap() -> str:
    """The absolute path of `bwrap`; `IsolationUnavailableError` where there is none."""
    found = shutil.which("bwrap")
    if found is None:
        raise IsolationUnavailableError(
            "bubblewrap is not installed: no 'bwrap' in PATH. Install the package 'bubblewrap', "
            "or start with --unsafe-no-isolation to run agents without a sandbox"
        )
    return found


def product_paths() -> tuple[Path, ...]:
    """What the manager needs to run: the interpreter's prefixes (`base_prefix` too, where it runs in a virtual environment)
    and this package, which an editable installation has elsewhere."""
    package = Path(__file__).resolve().parents[3]
    prefixes = (sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix)
    return _outermost([*(Path(prefix) for prefix in prefixes), package])


def write_etc(directory: Path) -> None:
    """The files of our own making; `directory` exists."""
    for name, text in _ETC_FILES.items():
        (directory / name).write_text(text.format(uid=os.getuid(), gid=os.getgid()), encoding="ascii")


def check_programs(programs: Iterable[str], private: Path) -> None:
    """Refuse a path that is none, or that would bring `private` (the data directory) or a mount of ours into the sandbox."""
    for text in programs:
        path = Path(text)
        if not text.startswith("/") or "\0" in text or ".." in path.parts:
            raise ProgramRefusedError(f"program {text!r} is not an absolute path")
        if not path.exists():
            raise ProgramRefusedError(f"program {text!r} does not exist on this machine")
        for real in (path, path.resolve()):
            if _holds(real, private) or _holds(private, real):
                raise ProgramRefusedError(f"program {text!r} would show the data directory to agents")
            if str(real) in _MADE_HERE or (len(real.parts) > 1 and real.parts[1] in _NOT_BINDABLE):
                raise ProgramRefusedError(f"program {text!r} lies where the sandbox has something of its own")
            if _holds(real, Path.home()) or str(real) in _TOO_MUCH:
                raise ProgramRefusedError(f"program {text!r} is more than a program")


def check_private(private: Path) -> None:
    """Refuse a data directory that lies in what every sandbox sees (K-11)."""
    for path in (Path("/usr"), *product_paths()):
        if _holds(path, private.resolve()):
            raise IsolationUnavailableError(
                f"the data directory {str(private)!r} lies in {str(path)!r}, which every sandbox can read; use another one"
            )


def arguments(layout: Layout, seccomp_fd: int) -> list[str]:
    """The arguments before `--`, without those about the launcher's own descriptors."""
    result = ["--unshare-all"]
    if layout.host_network:
        result.append("--share-net")
    result += ["--as-pid-1", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    result += ["--seccomp", str(seccomp_fd), "--hostname", "sandbox"]
    result += _system()
    result += ["--proc", "/proc", *_masks(), "--remount-ro", "/proc", "--dev", "/dev"]
    for directory, mode in (("/tmp", "1777"), ("/run", "0755")):  # noqa: S108 - inside
        result += ["--perms", mode, "--size", str(_TMPFS_BYTES_MAX), "--tmpfs", directory]
    result += _etc(layout)
    for path in _outermost([*product_paths(), *_programs(layout.programs)]):
        result += ["--ro-bind", str(path), str(path)]
    result += ["--bind", str(layout.workspace), WORKSPACE, "--ro-bind", str(layout.skills), SKILLS]
    result += ["--remount-ro", "/", "--chdir", "/"]
    for name, value in environment(layout.generation).items():
        result += ["--setenv", name, value]
    return result


def environment(generation: str) -> dict[str, str]:
    """All of the manager's environment. The generation also marks bubblewrap's command line for whoever cleans up."""
    return {
        "PATH": f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{Path(sys.executable).parent}",
        "HOME": "/tmp",  # noqa: S108 - inside
        "TMPDIR": "/tmp",  # noqa: S108 - inside
        "LANG": "C.UTF-8",
        GENERATION_VARIABLE: generation,
    }


def _system() -> list[str]:
    result = ["--ro-bind", "/usr", "/usr"]
    for name in _ROOT_LINKS:
        path = Path("/", name)
        if path.is_symlink():
            result += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():  # a system without a merged /usr
            result += ["--ro-bind", str(path), str(path)]
    return result


def _masks() -> list[str]:
    result: list[str] = []
    for name in _MASKED:
        path = Path("/proc", name)
        if path.is_dir():
            result += ["--size", "4096", "--tmpfs", str(path), "--remount-ro", str(path)]
        elif path.exists():
            result += ["--ro-bind", "/dev/null", str(path)]
    return result


def _etc(layout: Layout) -> list[str]:
    """`/etc` is made of single files, so that the sandbox can never see one that somebody adds on the machine."""
    result = ["--perms", "0755", "--dir", "/etc"]
    own = [name for name in _ETC_FILES if not (name == "hosts" and layout.host_network)]
    for name in own:
        result += ["--ro-bind", str(layout.etc / name), f"/etc/{name}"]
    for name in (*_ETC, *(_ETC_OF_HOST_NETWORK if layout.host_network else ())):
        path = Path("/etc", name)
        if path.exists():
            result += ["--ro-bind", str(path.resolve()), str(path)]
    return result


def _programs(programs: Iterable[str]) -> list[Path]:
    """Each path and what it leads to: a script beside its link finds its siblings where they are."""
    found: list[Path] = []
    for text in programs:
        path = Path(text)
        found += [path, path.resolve()]
    return found


def _outermost(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Each path once, and none that lies in another of them or in `/usr`."""
    distinct = list(dict.fromkeys(paths))
    return tuple(
        path
        for path in distinct
        if not _holds(Path("/usr"), path) and not any(other != path and _holds(other, path) for other in distinct)
    )


def _holds(outer: Path, inner: Path) -> bool:
    return inner == outer or outer in inner.parents
