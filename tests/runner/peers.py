"""Simulated peers of a host and its workers, over real HTTP: control plane, provisioner and sandbox manager in one server.

Every request is recorded in order. A route answers as a well-behaved peer does, unless the test has put behaviours in
its script; each request takes the next one. What the peers know (claims to give, the event stream, marks) is plain state
that a test may change while it runs.
"""

import contextlib
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator
from typing import Any, cast

from runner.behaviours import JSON, Behaviour, Call, Reply, problem
from runner.peer_server import Handler, PeerServer
from runner.turn_events import TurnEvents
from turnkeeper.kit.ids import new_id, new_secret

LATER = "2099-01-01T00:00:00Z"
HOST_TOKEN = new_secret("tkh_")
PROVISIONER_TOKEN = "signed-provisioner-token"
ACTIVATION_TOKEN = "signed-activation-token"


class Peers:
    """`on[name]` is the script of a route: behaviours for its next requests, in order; `always[name]` for all others."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.on: defaultdict[str, deque[Behaviour]] = defaultdict(deque)
        self.always: dict[str, Behaviour] = {}
        self.closing = threading.Event()
        self._changed = threading.Condition()
        self.job, self.attempt, self.thread, self.root = new_id(), new_id(), new_id(), new_id()
        self.worker_token = new_secret("tkw_")
        self.lease_generation = 7
        self.lease_ttl_s = 120
        self.execution_timeout_s = 3600
        self.claims: deque[JSON] = deque()
        self.given: dict[str, JSON] = {}  # by claim id (D-05)
        self.more = False
        self.boot_id, self.generation, self.sandbox_id = new_id(), "local-1", "sb-1"
        self.activation, self.membership, self.fence = new_id(), new_id(), 1
        self.mark_ms = 1_000
        self.events = TurnEvents()
        self.stored: list[JSON] = []  # events at the control plane
        self.spec: JSON = {}  # overrides of the execution spec
        self.cancel_requested = False
        self.ended = False
        self.prompt_written = False
        self.receipt: JSON | None = None
        self.on_prompt: Callable[[Peers], None] = answer_at_once
        self.evidence: JSON | None = None
        self.heartbeat_answer: JSON = {}
        self.blocked_handlers: set[Handler] = set()
        self._server = PeerServer(self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    # ------------------------------------------------------------------------------------------------ for tests

    @property
    def url(self) -> str:
        """Where all of them listen."""
        host, port = cast("tuple[str, int]", self._server.server_address[:2])
        return f"http://{host}:{port}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)

    def names(
        self, *, without: tuple[str, ...] = ("heartbeat", "signals", "mark", "feed", "work", "hosts")
    ) -> list[str]:
        """The routes that were called, in order, without those that come at their own time."""
        with self._changed:
            return [call.name for call in self.calls if call.name not in without]

    def of(self, name: str) -> list[Call]:
        """The requests to one route."""
        with self._changed:
            return [call for call in self.calls if call.name == name]

    def wait_for(self, name: str, count: int = 1, timeout_s: float = 30.0) -> Call:
        """Wait until `name` was called `count` times; returns that call."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._named(name)) >= count, timeout_s):
                raise TimeoutError(
                    f"{name}: {len(self._named(name))} of {count} calls; all: {[c.name for c in self.calls]}"
                )
            return self._named(name)[count - 1]

    @contextlib.contextmanager
    def changing(self) -> Generator[None]:
        """Within the block no request looks at the peers' state; whoever waits for a change looks afterwards."""
        with self._changed:
            yield
            self._changed.notify_all()

    @property
    def blocked(self) -> int:
        """How many requests hang here whose client still waits; the event stream is not one of them."""
        return sum(not handler.gone() for handler in list(self.blocked_handlers))

    def add_claim(self, **overrides: Any) -> JSON:
        """One attempt to be claimed."""
        claim = {**self.claim(), **overrides}
        with self._changed:
            self.claims.append(claim)
            self._changed.notify_all()
        return claim

    def claim(self) -> JSON:
        """The attempt that a test without a host hands over itself."""
        return {
            "job": self.job,
            "attempt": self.attempt,
            "attempt_no": 1,
            "lease_generation": self.lease_generation,
            "worker_token": self.worker_token,
            "lease_ttl_s": self.lease_ttl_s,
            "execution_timeout_s": self.execution_timeout_s,
            "thread_id": self.thread,
            "root_run_id": self.root,
            "kind": "chat",
            "agent": "scripted",
        }

    def settled(self, outcome: str = "completed", **overrides: Any) -> JSON:
        """A receipt for this activation."""
        return {
            "activation": self.activation,
            "run": self.job,
            "fence": self.fence,
            "boot_id": self.boot_id,
            "native_session": "native-1",
            "native_turn": 1,
            "outcome": outcome,
            "stop_reason": "end_turn" if outcome == "completed" else outcome,
            "final_message": "done",
            "last_event": len(self.events.lines),
            "agent": {"pid": 7, "start_ticks": 11},
            **overrides,
        }

    def settle_turn(self, outcome: str = "completed", **overrides: Any) -> None:
        """The agent answered: the supervisor settles and ends the stream."""
        self.receipt = self.settled(outcome, **overrides)
        self.events.end(receipt=self.receipt)

    # ------------------------------------------------------------------------------------------------ the server's side

    def record(self, call: Call) -> None:
        with self._changed:
            self.calls.append(call)
            self._changed.notify_all()

    def behaviour(self, name: str) -> Behaviour:
        with self._changed:
            script = self.on[name]
            return script.popleft() if script else self.always.get(name, Behaviour())

    def usual(self, call: Call) -> Reply:
        """The answer of well-behaved peers."""
        answer = getattr(self, f"_{call.name}", None)
        return problem(404, "not_found") if answer is None else answer(call)

    def _named(self, name: str) -> list[Call]:
        return [call for call in self.calls if call.name == name]

    def _work(self, call: Call) -> Reply:
        with self._changed:
            end = time.monotonic() + min(float(call.query["wait"]), 25)
            while not self.claims and not self.closing.is_set() and (left := end - time.monotonic()) > 0:
                self._changed.wait(min(left, 0.05))
            return Reply(200, {"maybe": bool(self.claims)})

    def _claim(self, call: Call) -> Reply:
        with self._changed:
            claim = self.given.get(call.body["claim_id"])
            if claim is None and self.claims:
                claim = self.given[call.body["claim_id"]] = self.claims.popleft()
            return Reply(200, {"claim": claim, "more": self.more})

    def _release(self, _call: Call) -> Reply:
        return Reply(200, {})

    def _hosts(self, _call: Call) -> Reply:
        return Reply(200, self.heartbeat_answer)

    def _heartbeat(self, _call: Call) -> Reply:
        body = {
            "lease_ttl_s": self.lease_ttl_s,
            "lease_expires_at": LATER,
            "cancel_requested": self.cancel_requested,
        }
        return Reply(200, body)

    def _signals(self, call: Call) -> Reply:
        with self._changed:
            end = time.monotonic() + float(call.query["wait"])
            while not (self.cancel_requested or self.ended or self.closing.is_set()):
                if (left := end - time.monotonic()) <= 0:
                    break
                self._changed.wait(min(left, 0.02))
            return Reply(200, {"cancel_requested": self.cancel_requested, "ended": self.ended})

    def _prepare(self, _call: Call) -> Reply:
        uid = new_id()
        spec = {
            "job": self.job,
            "thread_id": self.thread,
            "uid": uid,
            "scope": self.thread,
            "kind": "chat",
            "agent": "scripted",
            "provisioner_token": PROVISIONER_TOKEN,
            "ensure": {
                "uid": uid,
                "scope": self.thread,
                "thread_id": self.thread,
                "workdir": "conversations/x",
                "lease_generation": self.lease_generation,
            },
            "membership": {
                "membership": self.membership,
                "native_session": None,
                "native_turn": 0,
                "settled_generation": None,
                "settled_boot_id": None,
                "agent_pid": None,
                "agent_start_ticks": None,
            },
            "command": ["agent"],
            "execution_deadline": LATER,
            "execution_timeout_s": self.execution_timeout_s,
            "prompt": "hello",
            "manifest": {"agent": "scripted", "prompt_sha256": "0" * 64},
        }
        return Reply(200, {**spec, **self.spec})

    def _manifest(self, call: Call) -> Reply:
        return Reply(200, {"sha256": call.body["sha256"]})

    def _container(self, _call: Call) -> Reply:
        return Reply(200, {})

    def _activate(self, _call: Call) -> Reply:
        body = {
            "activation": self.activation,
            "membership": self.membership,
            "fence": self.fence,
            "activation_token": ACTIVATION_TOKEN,
            "lease_ttl_s": self.lease_ttl_s,
        }
        return Reply(200, body)

    def _admit(self, _call: Call) -> Reply:
        body = {"activation": self.activation, "job": self.job, "fence": self.fence, "admitted_at": LATER}
        return Reply(200, body)

    def _settle(self, call: Call) -> Reply:
        native_turn = call.body["receipt"]["native_turn"]
        body = {"activation": self.activation, "native_turn": native_turn, "epoch": 1, "settled_at": LATER}
        return Reply(200, body)

    def _abandon(self, _call: Call) -> Reply:
        return Reply(200, {})

    def _events(self, call: Call) -> Reply:
        """Events at the control plane; the manager's stream is sent by the handler."""
        with self._changed:
            wanted = len(self.stored) + 1
            if call.body["first"] > wanted:
                return problem(422, "bad_request")
            for event in call.body["events"]:
                if event["n"] == wanted:
                    self.stored.append(event)
                    wanted += 1
            return Reply(200, {"next": wanted})

    def _finish(self, call: Call) -> Reply:
        return Reply(200, {"status": call.body["status"]})

    def _ensure(self, _call: Call) -> Reply:
        body = {
            "sandbox_id": self.sandbox_id,
            "generation": self.generation,
            "boot_id": self.boot_id,
            "mark_ms": self.mark_ms,
            "created": True,
            "cwd": "/workspace/conversations/x",
            "home": "/workspace/agents/homes/x",
        }
        return Reply(200, body)

    def _snapshot(self, _call: Call) -> Reply:
        return Reply(200, {"tree_id": "a" * 40, "files": 1})

    def _mark(self, _call: Call) -> Reply:
        self.mark_ms += 1
        return Reply(200, {"mark_ms": self.mark_ms, "boot_id": self.boot_id})

    def _feed(self, call: Call) -> Reply:
        return self._mark(call)

    def _take(self, _call: Call) -> Reply:
        return Reply(200, {"boot_id": self.boot_id, "fence": self.fence, "mark_ms": self.mark_ms})

    def _setup(self, call: Call) -> Reply:
        results = [{"command": one["command"], "exit": 0} for one in call.body["commands"]]
        return Reply(200, {"ok": True, "results": results})

    def _session(self, _call: Call) -> Reply:
        self.events.add("session", native_session="native-1", mode="new")
        return Reply(200, {"mode": "new", "native_session": "native-1", "agent": {"pid": 7, "start_ticks": 11}})

    def _prompt(self, _call: Call) -> Reply:
        self.prompt_written = True
        threading.Thread(target=self.on_prompt, args=(self,), daemon=True).start()
        return Reply(200, {"first": 2})

    def _receipt(self, _call: Call) -> Reply:
        return problem(404, "not_settled") if self.receipt is None else Reply(200, self.receipt)

    def _cancel(self, _call: Call) -> Reply:
        return Reply(200, {"sent": True})

    def _stop(self, _call: Call) -> Reply:
        if not self.events.ended:
            failure = {"code": "cancelled", "stage": "prompt", "exit": -9}
            self.events.end(failure=failure)
        if self.evidence is not None:
            return Reply(200, {"evidence": self.evidence})
        evidence = {
            "activation": self.activation,
            "run": self.job,
            "prompt_written": self.prompt_written,
            "receipt": self.receipt,
        }
        return Reply(200, {"evidence": evidence})


def answer_at_once(peers: Peers) -> None:
    """The usual agent: one chunk of text, then the end of the turn."""
    peers.events.add("text", text="hi")
    peers.settle_turn()


def stay_silent(_peers: Peers) -> None:
    """An agent that never answers."""


@contextlib.contextmanager
def running_peers() -> Generator[Peers]:
    """Peers that listen on a port of their own."""
    peers = Peers()
    peers.start()
    try:
        yield peers
    finally:
        peers.close()
