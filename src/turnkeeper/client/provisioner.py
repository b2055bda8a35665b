"""Typed clients of the provisioner (`wire.provisioner`) and, through its proxy, of one exact sandbox manager (`wire.sandbox`).

Both block and may be used from several threads. `Provisioner` is bound to a token (an attempt's, or the administrative
one); `Manager` to one instance: its path names sandbox id *and* generation, so that another instance refuses (D-03).
"""

import contextlib
from collections.abc import Generator
from typing import Final

from turnkeeper.client.http import HttpClient, Stream, Timeouts, path
from turnkeeper.wire.provisioner import (
    ACTIVATION_HEADER,
    DeleteAnswer,
    EnsureRequest,
    Sandbox,
    SandboxRecord,
    SnapshotRequest,
)
from turnkeeper.wire.sandbox import (
    CancelAnswer,
    Feed,
    Mark,
    OpenSession,
    Prompt,
    PromptAnswer,
    SessionAnswer,
    Setup,
    SetupAnswer,
    StopAnswer,
    Take,
    TakeAnswer,
)
from turnkeeper.wire.turn import SettlementReceipt, SnapshotResult

_SANDBOX: Final = "/v1/sandboxes/{sandbox_id}"
_EXACT: Final = _SANDBOX + "/{generation}"


class Provisioner:
    """Every method raises `ClientError` or `ConnectionFailed`."""

    def __init__(self, url: str, token: str, *, timeouts: Timeouts = Timeouts()) -> None:  # noqa: B008 - frozen
        self._http = HttpClient(url, token=token, timeouts=timeouts)

    def interrupt(self) -> None:
        """From any thread: ends every call at once, for good."""
        self._http.interrupt()

    def close(self) -> None:
        """Closes every connection."""
        self._http.close()

    def ensure(self, request: EnsureRequest, *, timeout_s: float) -> Sandbox:
        """Materialises Workdir, HOME and skills, then finds or creates the sandbox."""
        return self._http.call("POST", "/v1/sandboxes/ensure", Sandbox, body=request, timeout_s=timeout_s)

    def lookup(self, sandbox_id: str) -> SandboxRecord:
        """One of four answers (K-05)."""
        return self._http.call("GET", path(_SANDBOX, sandbox_id=sandbox_id), SandboxRecord)

    def touch(self, sandbox_id: str, generation: str) -> None:
        """Says that the sandbox is in use."""
        self._http.request("POST", path(_EXACT + "/touch", sandbox_id=sandbox_id, generation=generation))

    def delete(self, sandbox_id: str, generation: str, *, timeout_s: float) -> DeleteAnswer:
        """Deletes exactly this instance (K-03); absent is success."""
        return self._http.call(
            "DELETE",
            path(_SANDBOX, sandbox_id=sandbox_id),
            DeleteAnswer,
            headers={"If-Match": f'"{generation}"'},
            timeout_s=timeout_s,
        )

    def snapshot(
        self, sandbox_id: str, generation: str, request: SnapshotRequest, *, timeout_s: float
    ) -> SnapshotResult:
        """Records the state of the Workdir (D-08)."""
        name = path(_EXACT + "/snapshot", sandbox_id=sandbox_id, generation=generation)
        return self._http.call("POST", name, SnapshotResult, body=request, timeout_s=timeout_s)


class Manager:
    """One exact sandbox manager, through the proxy. Every method raises `ClientError` or `ConnectionFailed`.

    `activation_token` is None before `activate` was answered; then only `mark` is of use.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        sandbox_id: str,
        generation: str,
        activation_token: str | None = None,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
    ) -> None:
        headers = {} if activation_token is None else {ACTIVATION_HEADER: activation_token}
        self._http = HttpClient(url, token=token, timeouts=timeouts, headers=headers)
        self._prefix = path(_EXACT + "/manager/v1/", sandbox_id=sandbox_id, generation=generation)

    def interrupt(self) -> None:
        """From any thread: ends every call at once, for good."""
        self._http.interrupt()

    def close(self) -> None:
        """Closes every connection."""
        self._http.close()

    def mark(self, *, timeout_s: float) -> Mark:
        """Reads the manager's own clock."""
        return self._http.call("GET", self._prefix + "mark", Mark, timeout_s=timeout_s)

    def take(self, request: Take, *, timeout_s: float) -> TakeAnswer:
        """The barrier: answered when all of the older activation is dead (D-03)."""
        return self._http.call("POST", self._prefix + "take", TakeAnswer, body=request, timeout_s=timeout_s)

    def feed(self, request: Feed, *, timeout_s: float) -> Mark:
        """Feeds the dead-man's switch (L-12)."""
        return self._http.call("POST", self._prefix + "feed", Mark, body=request, timeout_s=timeout_s)

    def setup(self, request: Setup, *, timeout_s: float) -> SetupAnswer:
        """Runs the setup commands."""
        return self._http.call("POST", self._prefix + "setup", SetupAnswer, body=request, timeout_s=timeout_s)

    def session(self, request: OpenSession, *, timeout_s: float) -> SessionAnswer:
        """Opens, continues or reloads the native session."""
        return self._http.call("POST", self._prefix + "session", SessionAnswer, body=request, timeout_s=timeout_s)

    def prompt(self, request: Prompt, *, timeout_s: float) -> PromptAnswer:
        """Sends the prompt. Never called again once it may have left (F-05)."""
        return self._http.call("POST", self._prefix + "prompt", PromptAnswer, body=request, timeout_s=timeout_s)

    @contextlib.contextmanager
    def events(self, after: int, *, silence_s: float | None = None) -> Generator[Stream]:
        """The turn's event stream from number `after + 1` on, as lines of `TurnLine`."""
        with self._http.stream("GET", self._prefix + "events", params={"after": after}, silence_s=silence_s) as stream:
            yield stream

    def receipt(self, *, timeout_s: float) -> SettlementReceipt:
        """The supervisor's receipt; `ClientError` 404 while there is none."""
        return self._http.call("GET", self._prefix + "receipt", SettlementReceipt, timeout_s=timeout_s)

    def cancel(self, *, timeout_s: float) -> CancelAnswer:
        """Asks the agent to end its turn."""
        return self._http.call("POST", self._prefix + "cancel", CancelAnswer, timeout_s=timeout_s)

    def stop(self, *, timeout_s: float) -> StopAnswer:
        """Answered when every process of the turn is dead."""
        return self._http.call("POST", self._prefix + "stop", StopAnswer, timeout_s=timeout_s)
