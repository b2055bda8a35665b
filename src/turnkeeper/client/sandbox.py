"""Asynchronous client of the sandbox manager's API, directly (provisioner) or through the provisioner's proxy (worker).

Nothing is repeated here: which calls may be sent again is for the caller to know (F-04, F-05).
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from turnkeeper.client.http import AsyncHttpClient, AsyncStream, ClientError, path
from turnkeeper.wire.provisioner import ACTIVATION_HEADER
from turnkeeper.wire.sandbox import (
    CancelAnswer,
    Feed,
    Mark,
    OpenSession,
    Prompt,
    PromptAnswer,
    Secrets,
    SessionAnswer,
    Setup,
    SetupAnswer,
    StateAnswer,
    StopAnswer,
    Take,
    TakeAnswer,
    TurnLine,
)
from turnkeeper.wire.turn import SettlementReceipt

A = TypeVar("A", bound=BaseModel)

NOT_SETTLED: Final = "not_settled"


def proxy_path(sandbox_id: str, generation: str) -> str:
    """Where the provisioner shows the manager of exactly this instance."""
    return path("/v1/sandboxes/{sandbox_id}/{generation}/manager", sandbox_id=sandbox_id, generation=generation)


class SandboxClient:
    """One manager. `http` is a client of the manager itself, or of the provisioner with `base` from `proxy_path`.

    `activation` is the signed token that calls of a turn carry; it never appears in a text of this class.
    """

    def __init__(self, http: AsyncHttpClient, *, base: str = "", activation: str | None = None) -> None:
        self._http = http
        self._base = base
        self._headers = {} if activation is None else {ACTIVATION_HEADER: activation}

    def with_activation(self, activation: str) -> "SandboxClient":
        """The same manager, on behalf of an activation."""
        return SandboxClient(self._http, base=self._base, activation=activation)

    async def state(self, *, timeout_s: float | None = None) -> StateAnswer:
        """Identity, clock mark and memberships."""
        return await self._call("GET", "/v1/state", StateAnswer, timeout_s=timeout_s)

    async def put_secrets(self, secrets: Secrets) -> None:
        """Give values to the manager's memory."""
        await self._http.request("PUT", f"{self._base}/v1/secrets", body=secrets, headers=self._headers)

    async def mark(self, *, timeout_s: float | None = None) -> Mark:
        """A reading of the manager's clock."""
        return await self._call("GET", "/v1/mark", Mark, timeout_s=timeout_s)

    async def take(self, take: Take, *, timeout_s: float | None = None) -> TakeAnswer:
        """The barrier: answered when everything of the older activation is dead."""
        return await self._call("POST", "/v1/take", TakeAnswer, body=take, timeout_s=timeout_s)

    async def feed(self, feed: Feed, *, timeout_s: float | None = None) -> Mark:
        """A confirmed renewal for the dead-man's switch."""
        return await self._call("POST", "/v1/feed", Mark, body=feed, timeout_s=timeout_s)

    async def setup(self, setup: Setup, *, timeout_s: float | None = None) -> SetupAnswer:
        """Run setup commands; answered when all of their processes are dead."""
        return await self._call("POST", "/v1/setup", SetupAnswer, body=setup, timeout_s=timeout_s)

    async def open_session(self, session: OpenSession, *, timeout_s: float | None = None) -> SessionAnswer:
        """Open, continue or reload the native session."""
        return await self._call("POST", "/v1/session", SessionAnswer, body=session, timeout_s=timeout_s)

    async def prompt(self, prompt: Prompt, *, timeout_s: float | None = None) -> PromptAnswer:
        """Hand the prompt to the agent: at most once per activation and run id (F-05)."""
        return await self._call("POST", "/v1/prompt", PromptAnswer, body=prompt, timeout_s=timeout_s)

    async def cancel(self, *, timeout_s: float | None = None) -> CancelAnswer:
        """Ask the agent to end its turn at a boundary."""
        return await self._call("POST", "/v1/cancel", CancelAnswer, timeout_s=timeout_s)

    async def stop(self, *, timeout_s: float | None = None) -> StopAnswer:
        """End the turn; answered when all of its processes are dead."""
        return await self._call("POST", "/v1/stop", StopAnswer, timeout_s=timeout_s)

    async def receipt(self, *, timeout_s: float | None = None) -> SettlementReceipt | None:
        """The settlement, the same one each time; None while there is none."""
        try:
            return await self._call("GET", "/v1/receipt", SettlementReceipt, timeout_s=timeout_s)
        except ClientError as error:
            if error.code == NOT_SETTLED:
                return None
            raise

    async def events(
        self, after: int, *, timeout_s: float | None = None, silence_s: float | None = None
    ) -> AsyncIterator[TurnLine]:
        """The turn's lines from `after` + 1 on, up to and with the one that has `last`.

        A connection that is cut before it is `ConnectionFailed`, and the caller asks again after the last number that it
        has. A line that cannot be read is `ClientError` `bad_answer`.
        """
        async with self._http.stream(
            "GET",
            f"{self._base}/v1/events",
            params={"after": after},
            headers=self._headers,
            timeout_s=timeout_s,
            silence_s=silence_s,
        ) as stream:
            async for line in stream.lines():
                if not line.strip():
                    continue  # keeps the connection alive
                try:
                    turn_line = TurnLine.model_validate_json(line)
                except ValidationError:
                    raise ClientError(stream.operation, stream.status, "bad_answer", "a line is no TurnLine") from None
                yield turn_line
                if turn_line.last:
                    return

    @asynccontextmanager
    async def walk(self, workdir: str, *, timeout_s: float | None = None) -> AsyncGenerator[AsyncStream]:
        """The frames of a snapshot walk (`wire.walk`) as they come."""
        async with self._http.stream(
            "GET", f"{self._base}/v1/snapshot", params={"workdir": workdir}, timeout_s=timeout_s, silence_s=timeout_s
        ) as stream:
            yield stream

    async def _call(
        self, method: str, name: str, answer: type[A], *, body: BaseModel | None = None, timeout_s: float | None = None
    ) -> A:
        headers: dict[str, Any] = self._headers
        return await self._http.call(method, self._base + name, answer, body=body, headers=headers, timeout_s=timeout_s)
