"""Getting the native session for a turn: continued in its process, reloaded into a new one, or opened anew (R-07).

`domain.admission.decide_session` decides; here is what is done about it. A session that cannot be had is
`session_unavailable`, which makes the conversation LOST; an agent that does not start is not, for nothing was tried on
the session yet.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from turnkeeper.domain.admission import (
    Capabilities,
    Continue,
    LiveSession,
    OpenNew,
    RecordedSession,
    Reload,
    SessionDecision,
    Unavailable,
    decide_session,
)
from turnkeeper.domain.errors import ErrorCode
from turnkeeper.domain.membership import MembershipState
from turnkeeper.kit import failpoint
from turnkeeper.kit import text as hygiene
from turnkeeper.kit.failpoint import Point
from turnkeeper.kit.stop import Deadline
from turnkeeper.sandboxd.activation import FAILURE_CODES, Activation, Membership
from turnkeeper.sandboxd.agent import PROTOCOL_VERSION, Agent, AgentSpec
from turnkeeper.sandboxd.journal import SessionJournal
from turnkeeper.sandboxd.places import Unfit, check_places, environment
from turnkeeper.sandboxd.processes import Keeper, Reaper, StartError
from turnkeeper.sandboxd.rpc import AgentGoneError, AgentRefusedError
from turnkeeper.wire.sandbox import AgentFailure, OpenSession, SessionAnswer
from turnkeeper.wire.sandbox_start import SandboxLimits
from turnkeeper.wire.turn import EventKind

_SESSION_ID_CHARS_MAX: Final = 1000
_KILL_S: Final = 5.0
_Decide = Callable[[Agent], SessionDecision]
_ANY: Final = Capabilities(load=True, resume=True)


class _ProtocolError(Exception):
    """The agent said something that a client cannot go on with."""


class _UnavailableError(Exception):
    """The session cannot be had from this agent; the text is the reason."""


@dataclass(frozen=True)
class SessionOpener:
    """What opening needs of its sandbox."""

    reaper: Reaper
    limits: SandboxLimits
    workspace: str
    generation: str
    boot_id: str
    secrets: Mapping[str, str]

    async def open(self, membership: Membership, activation: Activation, spec: OpenSession) -> SessionAnswer:
        """Open, continue or reload; a failure is an answer, with its stage (F07). Whatever it started is dead then."""
        recorded = self._recorded(spec)
        if self._continues(membership, recorded, spec):  # the way of almost every turn: it touches no file
            return self._continued(membership, activation, spec)
        unfit = await asyncio.to_thread(check_places, self.workspace, spec.cwd, spec.home)
        env = environment(spec.home, spec.env, spec.secrets, self.secrets)
        for problem in (unfit, env):
            if isinstance(problem, Unfit):
                return _failed(ErrorCode.AGENT_START_FAILED, "start", problem.why)
        journal = await asyncio.to_thread(SessionJournal(self.workspace, spec.home).read)

        def decide(capabilities: Capabilities) -> SessionDecision:
            live = self._live(membership)
            return decide_session(recorded, live, journal, capabilities, new_session_per_turn=spec.new_session_per_turn)

        agent_spec = AgentSpec(
            command=spec.command,
            cwd=spec.cwd,
            env={} if isinstance(env, Unfit) else env,
            permission_rules=spec.permission_rules,
            mcp_servers=spec.mcp_servers,
            keep_background_processes=spec.keep_background_processes,
        )
        match decide(_ANY):
            case Unavailable(reason):
                return _failed(ErrorCode.SESSION_UNAVAILABLE, "load", reason.value)
            case Continue():
                raise RuntimeError("continuing does not depend on the journal")
            case OpenNew() | Reload():
                pass
        if membership.agent is not None:  # not the one that is recorded: two processes must never hold one session
            await membership.agent.kill(Deadline.after(_KILL_S))
            membership.agent = None
        opening = _Opening(self, membership, activation, agent_spec, spec)
        return await opening.run(lambda agent: decide(agent.capabilities))

    def _continues(self, membership: Membership, recorded: RecordedSession, spec: OpenSession) -> bool:
        live = self._live(membership)
        decision = decide_session(recorded, live, None, _ANY, new_session_per_turn=spec.new_session_per_turn)
        return isinstance(decision, Continue)

    def _recorded(self, spec: OpenSession) -> RecordedSession:
        told = spec.recorded
        return RecordedSession(
            state=MembershipState.IDLE,
            generation=told.settled_generation,
            boot_id=told.settled_boot_id,
            native_session=told.native_session,
            native_turn=told.native_turn,
            pid=told.agent_pid,
            start_ticks=told.agent_start_ticks,
        )

    def _live(self, membership: Membership) -> LiveSession | None:
        agent = membership.idle_agent
        if agent is None:
            return None
        return LiveSession(
            generation=self.generation,
            boot_id=self.boot_id,
            native_session=agent.native_session,
            native_turn=agent.native_turn,
            pid=agent.process.pid,
            start_ticks=agent.process.start_ticks,
        )

    @staticmethod
    def _continued(membership: Membership, activation: Activation, spec: OpenSession) -> SessionAnswer:
        agent = membership.agent
        if agent is None:
            raise RuntimeError("a session continues only in a live agent")
        # Its process keeps its command, cwd and environment; how it is answered and what may stay follow the definition.
        agent.spec = replace(
            agent.spec,
            permission_rules=spec.permission_rules,
            keep_background_processes=spec.keep_background_processes,
        )
        return opened(activation, agent, "continued")


@dataclass
class _Opening:
    """One start of an agent up to its session."""

    opener: SessionOpener
    membership: Membership
    activation: Activation
    agent_spec: AgentSpec
    spec: OpenSession
    agent: Agent | None = None

    async def run(self, decide: _Decide) -> SessionAnswer:
        """Start, initialize, decide by what the agent offers, open; all within the time of the definition."""
        try:
            async with asyncio.timeout(self.spec.timeout_s):
                return await self._open(decide)
        except StartError as error:
            return await self._give_up(ErrorCode.AGENT_START_FAILED, str(error))
        except AgentGoneError:
            return await self._give_up(ErrorCode.AGENT_EXITED, "")
        except AgentRefusedError as error:
            return await self._give_up(ErrorCode.AGENT_START_FAILED, str(error))
        except _ProtocolError as error:
            return await self._give_up(ErrorCode.AGENT_PROTOCOL_ERROR, str(error))
        except _UnavailableError as error:
            return await self._give_up(ErrorCode.SESSION_UNAVAILABLE, str(error))
        except TimeoutError:
            return await self._give_up(ErrorCode.AGENT_START_FAILED, f"no answer within {self.spec.timeout_s} s")

    async def _open(self, decide: _Decide) -> SessionAnswer:
        if not self.activation.may_start:
            raise AgentGoneError
        agent = await Agent.start(self.opener.reaper, self.agent_spec, self.opener.limits, self._on_keeper)
        self.agent = self.membership.agent = agent
        self.membership.publish_mortal()
        await agent.initialize()
        if agent.protocol_version != PROTOCOL_VERSION:
            raise _ProtocolError(
                f"it speaks protocol version {agent.protocol_version!r}; supported is {PROTOCOL_VERSION}"
            )
        agent.native_turn = self.spec.recorded.native_turn
        failpoint.before(Point.EFFECT_SESSION)
        match decide(agent):
            case Unavailable(reason):
                raise _UnavailableError(reason.value)
            case Continue():
                raise RuntimeError("a new process cannot be the recorded one")
            case Reload(native_session, _, method):
                await agent.reopen(method.value, native_session)
                agent.native_session = native_session
                mode = "reloaded"
            case OpenNew():
                agent.native_session = _session_id(await agent.open_new())
                mode = "new"
        failpoint.after(Point.EFFECT_SESSION)
        if not self.activation.may_start:
            raise AgentGoneError
        return opened(self.activation, agent, mode)

    def _on_keeper(self, keeper: Keeper) -> None:
        self.activation.keepers.append(keeper)
        self.membership.publish_mortal()
        if self.activation.switch.fired:  # it fired between the look and the start, and did not see this keeper
            self.activation.switch.mortal = ()
            asyncio.get_running_loop().run_in_executor(None, keeper.kill_now, Deadline.after(_KILL_S))

    async def _give_up(self, code: str, text: str) -> SessionAnswer:
        agent = self.agent
        if agent is None:
            return _failed(self._code(code), "start", text)
        if agent.stage in ("load", "resume"):
            code = ErrorCode.SESSION_UNAVAILABLE  # the one chance to load it has passed
        failure = await agent.failure(self._code(code), text)
        await agent.kill(Deadline.after(_KILL_S))
        self.membership.agent = None
        return SessionAnswer(agent_name=agent.name, agent_version=agent.version, failure=failure)

    def _code(self, code: str) -> str:
        ended = self.activation.end_code
        return code if ended is None else FAILURE_CODES[ended]


def opened(activation: Activation, agent: Agent, mode: str) -> SessionAnswer:
    """The answer for an open session; the first event of the activation says the same."""
    answer = SessionAnswer.model_validate(
        {
            "mode": mode,
            "native_session": agent.native_session,
            "native_turn": agent.native_turn,
            "agent": agent.identity,
            "agent_name": agent.name,
            "agent_version": agent.version,
        }
    )
    activation.log.append(
        EventKind.SESSION,
        {
            "native_session": agent.native_session,
            "mode": mode,
            "agent": {"name": agent.name, "version": agent.version},
        },
    )
    return answer


def _session_id(text: str) -> str:
    if not text or len(text) > _SESSION_ID_CHARS_MAX or hygiene.clean(text) != text:
        raise _ProtocolError("session/new gave no usable session id")
    return text


def _failed(code: str, stage: str, text: str) -> SessionAnswer:
    return SessionAnswer(failure=AgentFailure.model_validate({"code": code, "stage": stage, "text": text}))
