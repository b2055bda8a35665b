"""Traces a process and never waits for it: once killed, it stays a zombie that its own parent is not told of."""

import ctypes
import signal
import sys

PTRACE_SEIZE = 0x4206

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
if libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None) != 0:
    sys.exit(f"ptrace: errno {ctypes.get_errno()}")
signal.pause()
