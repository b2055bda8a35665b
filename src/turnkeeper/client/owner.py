"""Client of the owner API, blocking: what the command line and the demo speak. Routes and messages are `wire.public`'s."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pydantic import BaseModel

from turnkeeper.client.failures import CallError
from turnkeeper.client.http import HttpClient, path
from turnkeeper.kit.clock import Clock, system_clock
from turnkeeper.wire.public import (
    Agent,
    Conversation,
    CreatedHostToken,
    CreatedKey,
    HostToken,
    Key,
    LoginLink,
    Me,
    NewConversation,
    NewKey,
    NewMessage,
    NewUser,
    Page,
    Run,
    RunDetail,
    Server,
    Submitted,
)
from turnkeeper.wire.turn import EventKind

M = TypeVar("M", bound=BaseModel)
A = TypeVar("A")

# A heartbeat comment comes every 10 s: a stream silent for three of them is cut, whatever its socket says.
STREAM_SILENCE_S = 35.0
RETRIES = 8
RETRY_S = 0.5


@dataclass(frozen=True)
class StreamEvent:
    """One event of an SSE stream. `seq` is None for those that are made for one reader (snapshot, gap)."""

    kind: EventKind
    data: dict[str, Any]
    seq: int | None


class OwnerClient:
    """Every call raises `CallError` (refused, or no answer) with one line for a person."""

    def __init__(self, url: str, key: str, *, clock: Clock = system_clock) -> None:
        self.url = url
        self._http = HttpClient(url, token=key)
        self._key = key
        self._ended = threading.Event()
        self._clock = clock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection."""
        self._http.close()

    def interrupt(self) -> None:
        """From any thread: every call ends at once with `ConnectionFailed`, and no stream is taken up again. For good."""
        self._ended.set()
        self._http.interrupt()

    def me(self) -> Me:
        """Whose key this is."""
        return self._http.call("GET", "/v1/me", Me)

    # ---- conversations ----

    def create_conversation(self, new: NewConversation, *, idempotency_key: str) -> Conversation:
        """A conversation with one agent, bound to one Workdir."""
        return self._http.call("POST", "/v1/conversations", Conversation, body=new, headers=_key(idempotency_key))

    def conversation(self, thread_id: str) -> Conversation:
        """One conversation."""
        return self._http.call("GET", path("/v1/conversations/{thread}", thread=thread_id), Conversation)

    def conversations(self, limit: int) -> list[Conversation]:
        """The newest conversations first."""
        return self._list("/v1/conversations", Conversation, limit)

    def close_conversation(self, thread_id: str) -> Conversation:
        """No message is taken any more; what waits ends."""
        return self._http.call("DELETE", path("/v1/conversations/{thread}", thread=thread_id), Conversation)

    def submit(self, thread_id: str, text: str, *, idempotency_key: str) -> Submitted:
        """A message, and with it a run in the conversation's line."""
        return self._http.call(
            "POST",
            path("/v1/conversations/{thread}/messages", thread=thread_id),
            Submitted,
            body=NewMessage(text=text),
            headers=_key(idempotency_key),
        )

    # ---- runs ----

    def run(self, run_id: str) -> RunDetail:
        """One run with its attempts and its snapshot."""
        return self._http.call("GET", path("/v1/runs/{run}", run=run_id), RunDetail)

    def runs(self, limit: int, thread_id: str | None = None) -> list[Run]:
        """The newest runs first, of one conversation or of all."""
        name = path("/v1/conversations/{thread}/runs", thread=thread_id) if thread_id is not None else "/v1/runs"
        return self._list(name, Run, limit)

    def cancel(self, run_id: str) -> Run:
        """Asks for the run's end. The answer is the same however often it is asked."""
        return self._http.call("POST", path("/v1/runs/{run}/cancel", run=run_id), Run)

    def run_events(self, run_id: str, after: int | None = None) -> Iterator[StreamEvent]:
        """The run's events up to its `end`, across cut connections and short outages: each stored event once."""
        name = path("/v1/runs/{run}/events", run=run_id)
        failures = 0
        while True:
            try:
                for event in self._stream(name, after):
                    failures = 0
                    if event.kind is EventKind.END:  # told to everybody, also who asks for what comes after it
                        yield event
                        return
                    if event.seq is not None:
                        if after is not None and event.seq <= after:
                            continue
                        after = event.seq
                    yield event
            except CallError as error:
                failures += 1
                self._require_hope(error, failures)
            self._pause(failures)

    def persist(self, call: Callable[[], A]) -> A:
        """`call`'s answer, asked for across outages as a stream is. Only for what may be asked twice, as with one key."""
        failures = 0
        while True:
            try:
                return call()
            except CallError as error:
                failures += 1
                self._require_hope(error, failures)
            self._pause(failures)

    # ---- agents and keys ----

    def agents(self) -> list[Agent]:
        """All agent definitions."""
        return self._list("/v1/agents", Agent, 200)

    def agent(self, name: str) -> Agent:
        """One definition, whole."""
        return self._http.call("GET", path("/v1/agents/{name}", name=name), Agent)

    def put_agent(self, name: str, definition: dict[str, Any]) -> Agent:
        """Adds a definition, or replaces the one of that name."""
        body = json.dumps(definition).encode()
        headers = {"Content-Type": "application/json"}
        return self._http.call("PUT", path("/v1/agents/{name}", name=name), Agent, body=body, headers=headers)

    def remove_agent(self, name: str) -> None:
        """No new conversation can use it; what exists goes on."""
        self._http.request("DELETE", path("/v1/agents/{name}", name=name))

    def create_key(self, name: str, *, idempotency_key: str) -> CreatedKey:
        """The only answer that shows the key."""
        body = NewKey(name=name)
        return self._http.call("POST", "/v1/keys", CreatedKey, body=body, headers=_key(idempotency_key))

    def keys(self) -> list[Key]:
        """All keys of this owner, revoked ones included."""
        return self._list("/v1/keys", Key, 200)

    def is_in_use(self, key: Key) -> bool:
        """Whether this client speaks with that key, as far as what is shown of keys can tell."""
        return self._key.startswith(key.shown_prefix)

    def login_link(self) -> str:
        """A fresh URL that opens the page once, as whoever this key is of."""
        return self.url.rstrip("/") + self._http.call("POST", "/v1/me/login-links", LoginLink).path

    def revoke_key(self, key_id: str) -> None:
        """The key opens nothing any more."""
        self._http.request("DELETE", path("/v1/keys/{id}", id=key_id))

    # ---- users and hosts (administrators) ----

    def users(self) -> list[Me]:
        """All users."""
        return self._list("/v1/admin/users", Me, 1000)

    def create_user(self, new: NewUser, *, idempotency_key: str) -> Me:
        """A user without any key."""
        return self._http.call("POST", "/v1/admin/users", Me, body=new, headers=_key(idempotency_key))

    def create_key_of(self, uid: str, name: str, *, idempotency_key: str) -> CreatedKey:
        """A key of another user; the only answer that shows it."""
        where = path("/v1/admin/users/{uid}/keys", uid=uid)
        return self._http.call("POST", where, CreatedKey, body=NewKey(name=name), headers=_key(idempotency_key))

    def login_link_of(self, uid: str) -> str:
        """A fresh URL that opens the page once, as that user."""
        where = path("/v1/admin/users/{uid}/login-links", uid=uid)
        return self.url.rstrip("/") + self._http.call("POST", where, LoginLink).path

    def servers(self) -> list[Server]:
        """Hosts as they were last heard."""
        return self._list("/v1/admin/servers", Server, 200)

    def create_host_token(self, host: str, *, idempotency_key: str) -> CreatedHostToken:
        """The only answer that shows the token."""
        name = path("/v1/admin/hosts/{host}/tokens", host=host)
        return self._http.call("POST", name, CreatedHostToken, headers=_key(idempotency_key))

    def host_tokens(self, host: str) -> list[HostToken]:
        """All tokens of a host, revoked ones included."""
        return self._list(path("/v1/admin/hosts/{host}/tokens", host=host), HostToken, 200)

    def revoke_host_tokens(self, host: str) -> None:
        """The host can claim nothing any more."""
        self._http.request("DELETE", path("/v1/admin/hosts/{host}/tokens", host=host))

    def revoke_host_token(self, host: str, token_id: str) -> None:
        """This token opens nothing any more."""
        self._http.request("DELETE", path("/v1/admin/hosts/{host}/tokens/{id}", host=host, id=token_id))

    # ---- inside ----

    def _list(self, name: str, item: type[M], limit: int) -> list[M]:
        items: list[M] = []
        cursor: str | None = None
        while len(items) < limit:
            params: dict[str, str | int] = {"limit": min(limit - len(items), 200)}
            if cursor is not None:
                params["cursor"] = cursor
            page = self._http.call("GET", name, Page, params=params)
            items += [item.model_validate(one) for one in page.items]
            cursor = page.next
            if cursor is None:
                break
        return items

    def _stream(self, name: str, after: int | None) -> Iterator[StreamEvent]:
        params = {"after": after} if after is not None else None
        headers = {"Accept": "text/event-stream"}
        with self._http.stream("GET", name, params=params, headers=headers, silence_s=STREAM_SILENCE_S) as stream:
            yield from parse_events(stream.lines())

    def _require_hope(self, error: CallError, failures: int) -> None:
        """Raise `error` unless another try may help and is still to be made."""
        if not error.retryable or failures > RETRIES or self._ended.is_set():
            raise error

    def _pause(self, failures: int) -> None:
        if failures:
            self._clock.wait(self._ended, min(RETRY_S * failures, 5.0))


def parse_events(lines: Iterator[bytes]) -> Iterator[StreamEvent]:
    """Server-sent events as the HTML standard says, as far as this product sends them; unknown kinds are passed over."""
    kind, seq, data = "message", None, list[str]()
    for raw in lines:
        line = raw.removesuffix(b"\r").decode()
        if not line:
            if data and kind in set(EventKind):
                yield StreamEvent(EventKind(kind), json.loads("\n".join(data)), seq)
            kind, seq, data = "message", None, []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            kind = value
        elif field == "id":
            seq = int(value) if value.isdecimal() else None
        elif field == "data":
            data.append(value)


def _key(idempotency_key: str) -> Mapping[str, str]:
    return {"Idempotency-Key": idempotency_key}
