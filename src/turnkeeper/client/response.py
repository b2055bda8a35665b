"""HTTP/1.1 as this product's clients speak it: the head of a request, and an answer that arrives in pieces (RFC 9112).

Parsed by httptools, as in the servers. A client library of general use costs about a millisecond of processor time for each
call and 10 MB in each process, and a turn makes some twenty calls; this costs a tenth. Nothing is repeated, redirected,
decoded or cached here.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

import httptools

Pairs = list[tuple[bytes, bytes]]

TOTAL_TIMEOUT: Final = "TotalTimeout"
"""The time of a call as a whole was over: nothing had come, or not all of it."""
HEAD_BYTES_MAX: Final = 64 << 10
_FORBIDDEN: Final = ("\r", "\n", "\0")


class TransportError(Exception):
    """No whole answer. `kind` names how, as it is logged (E-01): ConnectError, ConnectTimeout, WriteError, ReadError,
    ReadTimeout, TotalTimeout, RemoteProtocolError or LocalProtocolError."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def head_of(method: str, target: str, host: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """The request line and the header lines, without the empty line at the end.

    `LocalProtocolError` for a value that could end its line, so that nothing can be put between the lines (F14).
    """
    lines = [f"{method} {target} HTTP/1.1\r\n", f"host: {host}\r\n"]
    if any(mark in method or mark in target for mark in (*_FORBIDDEN, " ")):
        raise TransportError("LocalProtocolError")
    for name, value in headers:
        if any(mark in name or mark in value for mark in _FORBIDDEN):
            raise TransportError("LocalProtocolError")
        lines.append(f"{name}: {value}\r\n")
    try:
        return "".join(lines).encode("latin-1")
    except UnicodeEncodeError:
        raise TransportError("LocalProtocolError") from None


class Response:
    """One answer. `feed` it what arrives; `take` the body. The head is there when `head_complete`."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.pairs: Pairs = []
        self.head_complete = False
        self.complete = False
        self.keep_alive = False
        self.buffered = 0
        self._head_bytes = 0
        self._until_end = False
        self._surplus = False
        self._chunks: deque[bytes] = deque()

    @property
    def headers(self) -> dict[str, str]:
        """By name in lower case; of several of one name the last."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.pairs}

    def feed(self, data: bytes) -> None:
        """Bytes of the answer. `TransportError` where they are none."""
        if not self.head_complete:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX + len(data):
                raise TransportError("RemoteProtocolError")
        if self.complete:
            raise TransportError("RemoteProtocolError")  # more than was asked for
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise TransportError("RemoteProtocolError") from None
        if self._surplus:
            self.keep_alive = False

    def end(self) -> None:
        """The connection has ended. `TransportError` unless that is how this answer ends."""
        if self.complete:
            return
        if not (self.head_complete and self._until_end):
            raise TransportError("RemoteProtocolError")
        self.complete = True
        self.keep_alive = False

    def take(self) -> bytes:
        """What has arrived of the body and was not taken yet."""
        data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self.buffered = 0
        return data

    # httptools

    def on_message_begin(self) -> None:
        """A message: the answer, or more than was asked for, which is not read and keeps the connection from further use."""
        self._surplus = self.complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line."""
        if self._surplus:
            return
        self.pairs.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole. An interim answer (1xx) is followed by the real one."""
        status = self._parser.get_status_code()
        if self._surplus:
            return
        if status < 200:
            self.pairs = []
            return
        self.status = status
        names = {name for name, _ in self.pairs}
        self._until_end = b"content-length" not in names and b"transfer-encoding" not in names
        self.head_complete = True

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._surplus:
            return
        self._chunks.append(body)
        self.buffered += len(body)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self.head_complete:
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()  # the parser forgets it after this callback
