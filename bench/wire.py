"""The smallest HTTP client that keeps a connection: a driver on the same two cores must not be what is measured."""

import asyncio
import json
from typing import Any, Self
from urllib.parse import urlsplit


class UnexpectedAnswerError(Exception):
    """An answer other than 2xx."""


class Connection:
    """One kept connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host

    @classmethod
    async def open(cls, url: str) -> Self:
        """To `http://host:port`."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        return cls(reader, writer, parts.netloc)

    def close(self) -> None:
        """Without a word."""
        self._writer.close()

    async def call(self, method: str, path: str, token: str, body: bytes = b"", **headers: str) -> dict[str, Any]:
        """The answer's JSON object, empty where there is none."""
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {self._host}",
            f"Authorization: Bearer {token}",
            f"Content-Length: {len(body)}",
            "Content-Type: application/json",
            *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
        ]
        self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(head[0].split()[1])
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        content = await self._reader.readexactly(int(fields.get("content-length", "0")))
        if not 200 <= status < 300:
            raise UnexpectedAnswerError(
                f"{method} {path} was answered {status}: {content.decode(errors='replace')[:300]}"
            )
        return json.loads(content) if content else {}
