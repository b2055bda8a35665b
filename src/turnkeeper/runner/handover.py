"""The hand-over descriptor: a private stream socket between host and child (H-01 to H-03).

    host -> child   one frame `ChildSettings` at the start; later one frame `HandedTurn`
    child -> host   `R` when it has imported everything; `A` when it takes the turn; then it closes

A frame is four bytes of length, big-endian, and that much JSON. End of file before the second frame ends a spare child.
The host reads to the end before it decides, and any `A` wins over every error of sending: then the turn belongs to the
child and to the lease. Only the child holds the other end, so that the end of file is proof that it will never accept.
"""

import contextlib
import socket
import struct
from typing import Final, TypeVar

from pydantic import ValidationError

from turnkeeper.wire.base import Request
from turnkeeper.wire.worker import Claim

READY: Final = b"R"
ACCEPTED: Final = b"A"
FRAME_BYTES_MAX: Final = 1 << 20
_LENGTH: Final = struct.Struct(">I")

M = TypeVar("M", bound=Request)


class HandedTurn(Request):
    """One attempt. `claim_sent_at` is when the claim was first sent, in seconds of `CLOCK_BOOTTIME`, which host and
    child read alike (L-08): the lease is counted from there. `incarnation` is the host's."""

    claim: Claim
    claim_sent_at: float
    incarnation: str


class HandoverError(Exception):
    """What came over the descriptor is no frame. The message repeats nothing of it: a frame carries a token."""


def encode_frame(message: Request) -> bytes:
    """The bytes of one frame."""
    body = message.model_dump_json().encode()
    if len(body) > FRAME_BYTES_MAX:
        raise HandoverError(f"a frame of {len(body)} bytes; at most {FRAME_BYTES_MAX} are taken")
    return _LENGTH.pack(len(body)) + body


class ChildEnd:
    """The child's end. Blocking, for one thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @classmethod
    def of_descriptor(cls, fd: int) -> "ChildEnd":
        """Takes over the inherited descriptor, and keeps it from being inherited further. `OSError` if it is no socket."""
        sock = socket.socket(fileno=fd)
        sock.set_inheritable(False)
        return cls(sock)

    def read(self, kind: type[M]) -> M | None:
        """The next frame; None where the host closed its end before it. `HandoverError` for anything else."""
        head = self._read_exactly(_LENGTH.size)
        if head is None:
            return None
        (size,) = _LENGTH.unpack(head)
        if size > FRAME_BYTES_MAX:
            raise HandoverError(f"a frame of {size} bytes; at most {FRAME_BYTES_MAX} are taken")
        body = self._read_exactly(size)
        if body is None:
            return None
        try:
            return kind.model_validate_json(body)
        except ValidationError:
            raise HandoverError(f"the frame is no {kind.__name__}") from None

    def say_ready(self) -> None:
        """Everything is imported; a turn may come. `OSError` where the host is gone."""
        self._socket.sendall(READY)

    def accept(self) -> None:
        """Take the turn, and close.

        A host that is gone cannot be told, and cannot release either: the turn is taken all the same.
        """
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(ACCEPTED)
        self._socket.close()

    def close(self) -> None:
        """Close without accepting, which tells the host that the turn was not taken."""
        self._socket.close()

    def _read_exactly(self, size: int) -> bytes | None:
        parts: list[bytes] = []
        while size > 0:
            part = self._socket.recv(size)
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
