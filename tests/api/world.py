"""An installation behind a real server: owners with keys, a host, and turns that are driven over the worker API itself."""

import json
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, LiteralString

import httpx2
import psycopg
from psycopg.rows import dict_row

from api.server import ControlServer
from turnkeeper.domain.sandbox import sandbox_id
from turnkeeper.kit.ids import new_id, new_secret
from turnkeeper.services import bootstrap, sessions
from turnkeeper.wire.canonical import canonical_sha256

Json = dict[str, Any]
HOST = "host-1"
_NO_TLS = ssl.SSLContext(
    ssl.PROTOCOL_TLS_CLIENT
)  # nothing here is https, and loading certificates takes 20 ms a client
AGENT: Json = {"name": "scripted", "title": "Scripted agent", "command": ["python3", "-m", "agent"]}


@dataclass
class Owner:
    """A user, and an HTTP client that speaks with its key."""

    uid: str
    key: str
    http: httpx2.Client

    def conversation(self, **more: Any) -> Json:
        """A new conversation."""
        return self.good("POST", "/v1/conversations", {"agent": "scripted", **more})

    def submit(self, thread_id: str, text: str = "hello", **more: Any) -> Json:
        """A new message: `message` and `run`."""
        return self.good("POST", f"/v1/conversations/{thread_id}/messages", {"text": text}, **more)

    def good(self, method: str, path: str, body: Any = None, **more: Any) -> Json:
        """The JSON of a call that must succeed."""
        answer = self.http.request(method, path, json=body, **more)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def pages(self, path: str, limit: int) -> Iterator[list[Json]]:
        """Every page of a list."""
        cursor: str | None = None
        while True:
            params: dict[str, Any] = {"limit": limit, **({} if cursor is None else {"cursor": cursor})}
            page = self.good("GET", path, params=params, headers={"Accept": "application/json"})
            yield page["items"]
            cursor = page["next"]
            if cursor is None:
                return


@dataclass
class Turn:
    """One claimed turn, driven over HTTP. Calls return the answer; `ok` asserts that it is a success."""

    http: httpx2.Client
    claim: Json
    uid: str
    spec: Json | None = None
    activation: Json | None = None
    sent: int = 0

    def call(self, verb: str, body: Mapping[str, Any] | None = None, *, token: str | None = None) -> httpx2.Response:
        """`POST jobs/<job>/<verb>` with the lease generation."""
        return self.http.post(
            f"/v1/agent/worker/jobs/{self.claim['job']}/{verb}",
            json={"lease_generation": self.claim["lease_generation"], **(body or {})},
            headers={"Authorization": f"Bearer {token or self.claim['worker_token']}"},
        )

    def ok(self, verb: str, body: Mapping[str, Any] | None = None) -> Json:
        """The JSON of a call that must succeed; empty for 204."""
        answer = self.call(verb, body)
        assert answer.status_code in (200, 204), (verb, answer.status_code, answer.text)
        return answer.json() if answer.content else {}

    def prepare(self) -> Json:
        """Up to the recorded container."""
        self.spec = self.ok("prepare", {"worker": "host-1/1/1"})
        manifest = self.spec["manifest"]
        self.ok("manifest", {"manifest": manifest, "sha256": canonical_sha256(manifest)})
        self.ok(
            "container",
            {"sandbox_id": sandbox_id(self.uid, self.spec["scope"]), "generation": "gen-1", "boot_id": "boot-1"},
        )
        return self.spec

    def admit(self) -> Json:
        """Up to the admission."""
        self.activation = self.ok("activate", {"generation": "gen-1", "boot_id": "boot-1"})
        return self.ok("admit", {**self._activation(), "native_session": "native-1"})

    def texts(self, *texts: str) -> Json:
        """Text events, numbered on from the last one."""
        return self.events(*({"kind": "text", "data": {"text": text}} for text in texts))

    def events(self, *events: Json) -> Json:
        """Events, numbered on from the last one."""
        first = self.sent + 1
        batch = [{"n": first + i, **event} for i, event in enumerate(events)]
        self.sent += len(batch)
        return self.ok("events", {"first": first, "events": batch})

    def settle(self, message: str = "done", **more: Any) -> Json:
        """The settlement of a completed turn."""
        assert self.activation is not None
        assert self.spec is not None
        receipt = {
            "activation": self.activation["activation"],
            "run": self.claim["job"],
            "fence": self.activation["fence"],
            "boot_id": "boot-1",
            "native_session": "native-1",
            "native_turn": self.spec["membership"]["native_turn"] + 1,
            "outcome": "completed",
            "stop_reason": "end_turn",
            "final_message": message,
            "last_event": self.sent,
            "agent": {"pid": 42, "start_ticks": 4242},
            **more,
        }
        return self.ok("settle", {**self._activation(), "receipt": receipt})

    def finish(self, status: str = "completed", **more: Any) -> Json:
        """The end."""
        return self.ok("finish", {"status": status, **more})

    def whole(self, *texts: str, message: str = "done", **finish: Any) -> None:
        """From the claim to the end."""
        self.prepare()
        self.admit()
        if texts:
            self.texts(*texts)
        self.settle(message)
        assert self.finish(**finish)["status"] == "completed"

    def _activation(self) -> Json:
        assert self.activation is not None
        return {"activation": self.activation["activation"], "fence": self.activation["fence"]}


class World:
    """A server with one administrator `ada`, one agent, and one host that has been heard."""

    def __init__(self, server: ControlServer, dsn: str) -> None:
        self.server = server
        self.dsn = dsn
        self.url = server.url
        self._clients: list[httpx2.Client] = []
        self.incarnation = new_id()
        self.owner = self.add_owner("ada")
        self.owner.good("PUT", "/v1/agents/scripted", AGENT)
        self.host_token = self.owner.good("POST", f"/v1/admin/hosts/{HOST}/tokens")["token"]
        self.host = self.client(self.host_token)
        self.beat()

    def close(self) -> None:
        """Close every client."""
        for client in self._clients:
            client.close()

    def client(self, token: str | None = None, **more: Any) -> httpx2.Client:
        """An HTTP client; with a token it is sent as bearer."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        client = httpx2.Client(base_url=self.url, headers=headers, timeout=20, trust_env=False, verify=_NO_TLS, **more)
        self._clients.append(client)
        return client

    def add_owner(self, name: str, *, role: str = "admin") -> Owner:
        """A user with a key of its own."""
        key = new_secret("tk_")
        uid = self.server.call(bootstrap.ensure_owner(self.server.services.db, name, key))
        if role != "admin":
            self.execute("UPDATE users SET role = %s WHERE uid = %s", role, uid)
        return Owner(uid, key, self.client(key))

    def login_link(self, owner: Owner | None = None) -> str:
        """The path of a one-time link."""
        uid = (owner or self.owner).uid
        return f"/login?token={self.server.call(sessions.create_link(self.server.services.db, uid))}"

    def beat(self, **more: Any) -> Json:
        """A heartbeat of the host."""
        body = {
            "incarnation": self.incarnation, "version": "1", "capacity": 50, "provisioner": "local", "state": "ready",
            **more,
        }  # fmt: skip
        answer = self.host.post(f"/v1/agent/hosts/{HOST}/heartbeat", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def claim(self) -> Turn:
        """A claimed turn. Something must be ready."""
        body = {"claim_id": new_id(), "incarnation": self.incarnation, "rooms": 10}
        answer = self.host.post("/v1/agent/worker/claim", json=body)
        assert answer.status_code == 200, answer.text
        claim = answer.json()["claim"]
        assert claim is not None, "nothing could be claimed"
        uid = self.value("SELECT uid FROM runs WHERE id = %s", claim["job"])
        return Turn(self.client(), claim, str(uid))

    def turn(self, *texts: str, thread_id: str | None = None, prompt: str = "hello", message: str = "done") -> Json:
        """A whole turn; the run as its owner reads it."""
        thread: str = thread_id or self.owner.conversation()["thread_id"]
        run = self.owner.submit(thread, prompt)["run"]
        self.claim().whole(*texts, message=message)
        return self.owner.good("GET", f"/v1/runs/{run['id']}")

    def execute(self, query: LiteralString, *params: object) -> list[Json]:
        """A statement of the test's own, beside the product."""
        with psycopg.Connection[Json].connect(self.dsn, autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(query, params)
            return cursor.fetchall() if cursor.description is not None else []

    def value(self, query: LiteralString, *params: object) -> Any:
        """The first column of the first row."""
        return next(iter(self.execute(query, *params)[0].values()))


def problem(answer: httpx2.Response, status: int, code: str) -> Json:
    """The problem that an answer must be: whole, of one line, and without anything of our inside."""
    assert answer.status_code == status, (answer.status_code, answer.text)
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["code"] == code, body
    assert body["status"] == status
    assert body["title"]
    assert "\n" not in body["title"] + body["detail"]
    assert len(body["detail"]) <= 500
    for inside in ("Traceback", 'File "', "psycopg", "SELECT ", "pydantic", "starlette"):
        assert inside not in json.dumps(body), body
    return body
