"""One agent process: started below a keeper, spoken to over ACP, its stderr drained, its end noticed at once (F07)."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from turnkeeper import __version__
from turnkeeper.domain.admission import Capabilities
from turnkeeper.kit import failpoint
from turnkeeper.kit import text as hygiene
from turnkeeper.kit.failpoint import Point
from turnkeeper.kit.procs import ProcessId
from turnkeeper.kit.stop import Deadline
from turnkeeper.sandboxd.framing import Envelope
from turnkeeper.sandboxd.permissions import decide
from turnkeeper.sandboxd.processes import Keeper, Reaper, Stdio
from turnkeeper.sandboxd.rpc import METHOD_NOT_FOUND, Answer, Connection
from turnkeeper.sandboxd.turn import Turn
from turnkeeper.sandboxd.updates import as_object, word
from turnkeeper.wire.sandbox import AgentFailure, PermissionRule
from turnkeeper.wire.sandbox_start import SandboxLimits
from turnkeeper.wire.turn import AgentProcess, EventKind

PROTOCOL_VERSION: Final = 1
_EXIT_WAIT_S: Final = 0.5
_STDERR_READ_BYTES: Final = 64 * 1024

Stage = Literal["start", "initialize", "new", "load", "resume", "prompt", "permission"]


@dataclass(frozen=True)
class AgentSpec:
    """How an agent is started. `env` is complete, and held secret values; it is never shown."""

    command: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    permission_rules: tuple[PermissionRule, ...]
    mcp_servers: tuple[dict[str, Any], ...]
    keep_background_processes: bool


class Tail:
    """The last bytes of a pipe that is drained for ever, so that nobody who writes into it can hang."""

    def __init__(self, fd: int, max_bytes: int) -> None:
        self._fd = fd
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self.drain)

    def drain(self) -> None:
        """Read what is there; bounded, for a writer may be faster than we."""
        for _ in range(16):
            if self._fd < 0:
                return
            try:
                data = os.read(self._fd, _STDERR_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self._kept += data
            del self._kept[: -self._max_bytes]

    def text(self) -> str:
        """The last lines, clean."""
        self.drain()
        return hygiene.cut(hygiene.tail(bytes(self._kept), self._max_bytes), self._max_bytes)[0]

    def close(self) -> None:
        """Stop draining."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


class Agent:
    """Belongs to the event loop. `answered`: its last prompt got its response, so it may stay when a turn is ended."""

    def __init__(self, spec: AgentSpec, limits: SandboxLimits, keeper: Keeper, stderr: Tail) -> None:
        self.spec = spec
        self.keeper = keeper
        self.stage: Stage = "start"
        self.native_session = ""
        self.native_turn = 0
        self.answered = False
        self.name: str | None = None
        self.version: str | None = None
        self.protocol_version: object = None
        self.capabilities = Capabilities()
        self.turn: Turn | None = None
        self._limits = limits
        self._stderr = stderr
        self._connection: Connection | None = None
        self._permission_open = False

    @classmethod
    async def start(
        cls, reaper: Reaper, spec: AgentSpec, limits: SandboxLimits, on_keeper: Callable[[Keeper], None]
    ) -> "Agent":
        """Start the process with stdio and nothing else (F15); raises StartError. `on_keeper` hears of it at once."""
        failpoint.before(Point.EFFECT_AGENT_START)
        theirs_in, ours_in = os.pipe2(os.O_CLOEXEC)
        ours_out, theirs_out = os.pipe2(os.O_CLOEXEC)
        ours_err, theirs_err = os.pipe2(os.O_CLOEXEC)
        try:
            keeper = await Keeper.start(
                reaper,
                spec.command,
                cwd=spec.cwd,
                env=spec.env,
                stdio=Stdio(theirs_in, theirs_out, theirs_err),
                on_spawned=on_keeper,
            )
        except BaseException:
            for fd in (ours_in, ours_out, ours_err):
                os.close(fd)
            raise
        finally:
            for fd in (theirs_in, theirs_out, theirs_err):
                os.close(fd)
        agent = cls(spec, limits, keeper, Tail(ours_err, limits.stderr_tail_bytes))
        agent._connection = Connection(ours_in, ours_out, agent, limits.frame_bytes_max)
        keeper.exited.add_done_callback(agent._exited)
        failpoint.after(Point.EFFECT_AGENT_START)
        return agent

    @property
    def process(self) -> ProcessId:
        """The agent's own process."""
        leader = self.keeper.leader
        if leader is None:
            raise RuntimeError("an agent exists only once its process was started")
        return leader

    @property
    def identity(self) -> AgentProcess:
        """The same for a message."""
        return AgentProcess(pid=self.process.pid, start_ticks=self.process.start_ticks)

    @property
    def usable(self) -> bool:
        """Whether it runs and can be spoken to."""
        return self._connection is not None and not self._connection.ended

    @property
    def connection(self) -> Connection:
        """The connection to the process."""
        if self._connection is None:
            raise RuntimeError("an agent is connected when it is started")
        return self._connection

    def _exited(self, _future: object) -> None:
        # A process that it left behind may hold its stdout open: what it said itself is heard, then it has ended.
        self.connection.read_now()
        self.connection.close()

    # opening a session

    async def initialize(self) -> None:
        """Say hello; raises AgentRefusedError or AgentGoneError. Neither fs nor terminal is offered: it has the sandbox."""
        self.stage = "initialize"
        result = await self.connection.request(
            "initialize",
            {
                "protocolVersion": PROTOCOL_VERSION,
                "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
                "clientInfo": {"name": "turnkeeper", "title": "Turnkeeper", "version": __version__},
            },
        )
        info, offered = as_object(result.get("agentInfo")), as_object(result.get("agentCapabilities"))
        self.name = _short(info.get("name"))
        self.version = _short(info.get("version"))
        self.protocol_version = result.get("protocolVersion")
        self.capabilities = Capabilities(
            load=offered.get("loadSession") is True,
            resume=isinstance(as_object(offered.get("sessionCapabilities")).get("resume"), dict),
        )

    async def open_new(self) -> str:
        """`session/new`; the id of the session, or "" where the agent gave none."""
        self.stage = "new"
        result = await self.connection.request("session/new", self._session_params())
        return word(result.get("sessionId"))

    async def reopen(self, method: Literal["load", "resume"], native_session: str) -> None:
        """`session/load` or `session/resume`. Updates that replay the past are heard and belong to no turn."""
        self.stage = method
        await self.connection.request(f"session/{method}", {"sessionId": native_session, **self._session_params()})

    def _session_params(self) -> dict[str, Any]:
        return {"cwd": self.spec.cwd, "mcpServers": list(self.spec.mcp_servers)}

    # a turn

    def hear(self) -> None:
        """Hear what was said until now: it belongs to no later turn, and may be the news that the agent has gone."""
        self.connection.read_now()

    def prompt(self, turn: Turn, text: str, on_answer: Callable[[Answer], None]) -> None:
        """Write the prompt, once, right after `hear`: what is heard from here on belongs to this turn."""
        self.stage = "prompt"
        self.answered = False
        self.turn = turn
        turn.open = True
        failpoint.before(Point.EFFECT_PROMPT)
        self.connection.call(
            "session/prompt",
            {"sessionId": self.native_session, "prompt": [{"type": "text", "text": text}]},
            on_answer,
        )
        failpoint.after(Point.EFFECT_PROMPT)

    def cancel(self) -> bool:
        """Send `session/cancel`, once; from then on permissions are answered `cancelled`. False: no prompt is open."""
        turn = self.turn
        if turn is None or not turn.open:
            return False
        if not turn.cancelled:
            turn.cancelled = True
            self.connection.notify("session/cancel", {"sessionId": self.native_session})
        return True

    # what the agent says (rpc.Peer)

    def heard(self) -> None:
        """Any line shows that it went on since it asked for a permission."""
        self._permission_open = False

    def update(self, params: dict[str, Any]) -> None:
        """Only what belongs to the open turn of this very session is recorded."""
        if self.turn is not None and params.get("sessionId") == self.native_session:
            self.turn.record(as_object(params.get("update")))

    def request(self, request_id: int | str, method: str, params: dict[str, Any]) -> None:
        """Permissions go by rule; questions are answered `cancelled`; nothing else is offered."""
        if method == "session/request_permission":
            self._ask(request_id, params)
        elif method in ("elicitation/create", "session/elicitation"):
            self.connection.respond(request_id, {"action": "cancel"})
        else:
            self.connection.refuse(request_id, METHOD_NOT_FOUND, f"{method[:100]} is not offered")

    def _ask(self, request_id: int | str, params: dict[str, Any]) -> None:
        turn = self.turn if self.turn is not None and self.turn.open else None
        call_id = word(as_object(params.get("toolCall")).get("toolCallId"))
        known = turn.tool(call_id) if turn else None
        refused = turn is None or turn.cancelled or params.get("sessionId") != self.native_session
        decision = decide(params, known, self.spec.permission_rules, cancelled=refused)
        if turn is not None:
            turn.happened(EventKind.PERMISSION, decision.event)
        self._permission_open = True
        self.connection.respond(request_id, decision.response)

    def oversized(self, line: Envelope, size: int) -> None:
        """The turn says so."""
        if self.turn is not None:
            self.turn.oversized(line, size)

    def garbage(self, line: str) -> None:
        """The turn says so."""
        if self.turn is not None:
            self.turn.garbage(line)

    def ended(self) -> None:
        """Open requests have failed already; the rest is done by whoever waits for them."""

    # the end

    async def failure(self, code: str, text: str = "") -> AgentFailure:
        """How it left: stage, wait status if it ended by itself, last lines of stderr. Within half a second."""
        if not self.usable:
            await self.keeper.wait_exited(_EXIT_WAIT_S)
        stage: Stage = "permission" if self.stage == "prompt" and self._permission_open else self.stage
        return AgentFailure(
            code=code, stage=stage, exit=self.keeper.exit_status, stderr_tail=self._stderr.text(), text=text
        )

    async def kill(self, deadline: Deadline) -> bool:
        """Kill it with everything below its keeper. True: proven dead."""
        dead = await self.keeper.kill(deadline)
        self.connection.close()
        self._stderr.close()
        return dead


def _short(value: object) -> str | None:
    return hygiene.cut(value, 200)[0] if isinstance(value, str) else None
