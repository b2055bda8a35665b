"""The system-call filter of a local sandbox, as a classic BPF program for `bwrap --seccomp`.

Everything in a sandbox has one uid, so the kernel lets an agent disarm the manager although it is pid 1 and not dumpable:
`prlimit(1, NOFILE)`, `sched_setscheduler(1)`, `sched_setaffinity(1)` and `setpriority(1)` would each stop it from killing
a turn in time. The filter refuses these calls unless they name the caller itself by 0; a thread that names itself by its
own number is refused too, because a filter cannot know that number. `kill` needs no rule: pid 1 ignores what it has no
handler for.

Refused as well, because a namespace does not hold them back: kernel keyrings (the provisioner's session keyring is
inherited, K-11), AF_VSOCK sockets (they pass every network namespace), and io_uring, whose requests pass no filter.
The kernel's other ABIs on the same machine (32-bit, x32) would pass a filter of these numbers, so they are not there.
"""

import struct
from dataclasses import dataclass
from typing import Final

EPERM: Final = 1
ENOSYS: Final = 38
EAFNOSUPPORT: Final = 97

_LD_W_ABS: Final = 0x20
_JMP_JEQ: Final = 0x15
_JMP_JGE: Final = 0x35
_RET: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000

_OFFSET_NR: Final = 0
_OFFSET_ARCH: Final = 4
_OFFSET_ARG0: Final = 16  # low words; both machines are little-endian, and all of these arguments are 32 bits wide
_OFFSET_ARG1: Final = 24

_AF_VSOCK: Final = 40
_PRIO_PROCESS: Final = 0
_IOPRIO_WHO_PROCESS: Final = 1


class UnsupportedMachineError(Exception):
    """There is no table of system-call numbers for this machine."""


@dataclass(frozen=True)
class Machine:
    """The numbers of one architecture: its audit token and its system calls."""

    audit_arch: int
    by_pid: tuple[int, ...]
    """prlimit64, sched_setscheduler, sched_setparam, sched_setaffinity, sched_setattr: the first argument is the target."""
    setpriority: int
    ioprio_set: int
    socket: int
    keyrings: tuple[int, ...]
    io_uring_setup: int
    foreign_from: int | None
    """Numbers from here on belong to another ABI under the same audit token."""


MACHINES: Final = {
    "x86_64": Machine(
        audit_arch=0xC000003E,
        by_pid=(302, 144, 142, 203, 314),
        setpriority=141,
        ioprio_set=251,
        socket=41,
        keyrings=(248, 249, 250),
        io_uring_setup=425,
        foreign_from=0x40000000,
    ),
    "aarch64": Machine(
        audit_arch=0xC00000B7,
        by_pid=(261, 119, 118, 122, 274),
        setpriority=140,
        ioprio_set=30,
        socket=198,
        keyrings=(217, 218, 219),
        io_uring_setup=425,
        foreign_from=None,
    ),
}


def program(machine_name: str) -> bytes:
    """The filter for the machine that `os.uname` names so: an array of `struct sock_filter`, as bubblewrap reads it."""
    machine = MACHINES.get(machine_name)
    if machine is None:
        raise UnsupportedMachineError(
            f"no system-call filter for {machine_name!r}; known are {', '.join(sorted(MACHINES))}"
        )
    code = [
        _load(_OFFSET_ARCH),
        _skip_if_equal(machine.audit_arch, 1),
        _refuse(ENOSYS),
        _load(_OFFSET_NR),
    ]
    if machine.foreign_from is not None:
        code += [_skip_unless_at_least(machine.foreign_from, 1), _refuse(ENOSYS)]
    for number in machine.by_pid:
        code += _unless(number, ((_OFFSET_ARG0, 0),))
    code += _unless(machine.setpriority, ((_OFFSET_ARG0, _PRIO_PROCESS), (_OFFSET_ARG1, 0)))
    code += _unless(machine.ioprio_set, ((_OFFSET_ARG0, _IOPRIO_WHO_PROCESS), (_OFFSET_ARG1, 0)))
    for number in machine.keyrings:
        code += [_skip_unless_equal(number, 1), _refuse(EPERM)]
    code += [_skip_unless_equal(machine.io_uring_setup, 1), _refuse(ENOSYS)]
    code += [
        _skip_unless_equal(machine.socket, 4),
        _load(_OFFSET_ARG0),
        _skip_unless_equal(_AF_VSOCK, 1),
        _refuse(EAFNOSUPPORT),
        _allow(),
        _allow(),
    ]
    return b"".join(code)


def _unless(number: int, wanted: tuple[tuple[int, int], ...]) -> list[bytes]:
    """Refuse the call `number` unless each argument (offset, value) is as wanted."""
    tests: list[bytes] = []
    for offset, value in wanted:
        tests += [_load(offset), _skip_if_equal(value, 1), _refuse(EPERM)]
    return [_skip_unless_equal(number, len(tests) + 1), *tests, _allow()]


def _instruction(code: int, jump_true: int, jump_false: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, jump_true, jump_false, value)


def _load(offset: int) -> bytes:
    return _instruction(_LD_W_ABS, 0, 0, offset)


def _skip_if_equal(value: int, count: int) -> bytes:
    return _instruction(_JMP_JEQ, count, 0, value)


def _skip_unless_equal(value: int, count: int) -> bytes:
    return _instruction(_JMP_JEQ, 0, count, value)


def _skip_unless_at_least(value: int, count: int) -> bytes:
    return _instruction(_JMP_JGE, 0, count, value)


def _refuse(number: int) -> bytes:
    return _instruction(_RET, 0, 0, _ERRNO | number)


def _allow() -> bytes:
    return _instruction(_RET, 0, 0, _ALLOW)
