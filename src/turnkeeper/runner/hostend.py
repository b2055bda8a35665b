"""The host's end of the hand-over descriptor (`handover` says what is spoken on it). Apart: a child has no event loop."""

import asyncio
import socket
from collections.abc import Callable

from turnkeeper.runner.handover import encode_frame
from turnkeeper.wire.base import Request


class HostEnd:
    """The host's end, in its event loop. `on_said` is called with every byte that the child says."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._open = True

    async def send(self, message: Request) -> OSError | None:
        """Send one frame. Returns what went wrong, which proves nothing by itself: read to the end first."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, encode_frame(message))
        except OSError as error:
            return error
        return None

    async def read_to_end(self, on_said: Callable[[bytes], None]) -> bool:
        """Read until the child's end is closed, however long that takes: silence is no proof (H-03).

        True: the end was seen. False: reading failed, which proves nothing. A peer that died with unread data in its
        buffer shows as a reset, which comes after what it has said.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                said = await loop.sock_recv(self._socket, 64)
            except ConnectionResetError:
                continue  # said once; the end follows
            except OSError:
                return False
            if not said:
                return True
            on_said(said)

    def close(self) -> None:
        """Close; a spare child ends by it."""
        if self._open:
            self._open = False
            self._socket.close()


def new_descriptor() -> tuple[HostEnd, socket.socket]:
    """Both ends; neither is inherited by anything that does not ask for it."""
    host, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return HostEnd(host), child
