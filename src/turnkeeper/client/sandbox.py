"""Asynchronous client of the sandbox manager for its provisioner, which speaks to it directly and with its secret.

A worker's client of the same manager, through the proxy and with an activation token, is `client.provisioner.Manager`.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from turnkeeper.client.http import AsyncHttpClient, AsyncStream
from turnkeeper.wire.sandbox import Secrets, StateAnswer


class SandboxClient:
    """One manager. Every method raises `ClientError` or `ConnectionFailed`."""

    def __init__(self, http: AsyncHttpClient) -> None:
        self._http = http

    async def state(self, *, timeout_s: float) -> StateAnswer:
        """Identity, clock mark and memberships."""
        return await self._http.call("GET", "/v1/state", StateAnswer, timeout_s=timeout_s)

    async def put_secrets(self, secrets: Secrets) -> None:
        """Give values to the manager's memory."""
        await self._http.request("PUT", "/v1/secrets", body=secrets)

    @asynccontextmanager
    async def walk(self, workdir: str, *, timeout_s: float) -> AsyncGenerator[AsyncStream]:
        """The frames of a snapshot walk (`wire.walk`) as they come, each piece awaited for at most `timeout_s`."""
        async with self._http.stream(
            "GET", "/v1/snapshot", params={"workdir": workdir}, timeout_s=timeout_s, silence_s=timeout_s
        ) as stream:
            yield stream
