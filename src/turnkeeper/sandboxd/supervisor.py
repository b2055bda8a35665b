"""The supervisor: memberships, their fences, and one turn each from take to settlement (protocol.md 4, 5; D-03).

The barrier. `take` raises the fence of one membership at once, so that nothing of an older activation is started any more,
and answers only when every setup command and every process of the older activation has been seen dead; an agent whose last
prompt got its response stays, with its own descendants. If death cannot be shown in time this process exits, which ends
the sandbox: then nothing of it runs either.

Everything here runs in one event loop; between two awaits nothing else happens, and each step that starts something asks
in that same step whether it still may.
"""

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Final, NoReturn

from turnkeeper import __version__
from turnkeeper.domain.errors import ErrorCode
from turnkeeper.kit import failpoint
from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.failpoint import Point
from turnkeeper.kit.log import get_logger
from turnkeeper.kit.stop import Deadline
from turnkeeper.sandboxd.activation import Activation, EndCode, Membership
from turnkeeper.sandboxd.agent import Agent
from turnkeeper.sandboxd.deadman import DeadMansSwitches, Switch
from turnkeeper.sandboxd.eventlog import EventLog
from turnkeeper.sandboxd.journal import JournalWriteError, SessionJournal
from turnkeeper.sandboxd.opening import SessionOpener
from turnkeeper.sandboxd.places import Unfit, check_places, environment
from turnkeeper.sandboxd.processes import Keeper, Reaper
from turnkeeper.sandboxd.setup import SetupRunner
from turnkeeper.sandboxd.snapshot import Snapshots
from turnkeeper.sandboxd.turn import Turn
from turnkeeper.sandboxd.turning import TurnEnding
from turnkeeper.wire.sandbox import (
    CancelAnswer,
    Feed,
    Mark,
    MembershipState,
    OpenSession,
    Prompt,
    PromptAnswer,
    SessionAnswer,
    Setup,
    SetupAnswer,
    SetupCommand,
    SetupResult,
    StateAnswer,
    StopAnswer,
    Take,
    TakeAnswer,
)
from turnkeeper.wire.sandbox_start import SandboxStart
from turnkeeper.wire.tokens import ActivationClaims
from turnkeeper.wire.turn import SettlementReceipt

_log = get_logger("sandboxd.supervisor")
EXIT_BARRIER: Final = 70
_CANCEL_GRACE_S: Final = 10.0


@dataclass(frozen=True)
class Refused:
    """A call that is refused for a reason that the caller can know. `code` is stable; `detail` is one line."""

    code: str
    detail: str


class Supervisor:
    """One per manager."""

    def __init__(self, start: SandboxStart, boot_id: str, reaper: Reaper, switches: DeadMansSwitches) -> None:
        self._start = start
        self._boot_id = boot_id
        self._reaper = reaper
        self._switches = switches
        self._memberships: dict[str, Membership] = {}
        self._prompted_runs: set[str] = set()
        self.secrets: dict[str, str] = {}
        self.snapshots = Snapshots(reaper, start.workspace, start.limits)

    # what anybody with the secret may ask

    def mark(self) -> Mark:
        """This manager's clock."""
        return Mark(mark_ms=system_clock.boottime_ms(), boot_id=self._boot_id)

    def state(self) -> StateAnswer:
        """What is held here."""
        return StateAnswer(
            boot_id=self._boot_id,
            generation=self._start.generation,
            mark_ms=system_clock.boottime_ms(),
            version=__version__,
            import_ready=True,
            memberships=tuple(self._membership_state(membership) for membership in self._memberships.values()),
        )

    @staticmethod
    def _membership_state(membership: Membership) -> MembershipState:
        activation, agent = membership.activation, membership.agent
        alive = agent if agent is not None and agent.usable else None
        return MembershipState(
            membership=membership.id,
            fence=membership.fence,
            activation=activation.claims.activation if activation else None,
            busy=activation.busy if activation else False,
            native_session=alive.native_session if alive else None,
            agent=alive.identity if alive else None,
        )

    # fences

    def find(self, claims: ActivationClaims) -> Activation | Refused:
        """The activation of a token, which must carry exactly the current fence of its membership, and be taken."""
        if (wrong := self._other_instance(claims)) is not None:
            return wrong
        membership = self._memberships.get(claims.membership)
        activation = membership.activation if membership else None
        if membership is None or activation is None or claims.fence > membership.fence:
            return Refused("not_taken", "this activation has not taken its membership")
        if activation.claims.activation != claims.activation or claims.fence != membership.fence:
            return Refused("fence", f"the membership's fence is {membership.fence}")
        if not activation.taken.done():
            return Refused("not_taken", "the take of this activation has not been answered")
        return activation

    def _other_instance(self, claims: ActivationClaims) -> Refused | None:
        if claims.generation != self._start.generation:
            return Refused("generation", "the token names another generation of this sandbox")
        if claims.boot_id != self._boot_id:
            return Refused("boot_id", "the token names another start of this manager")
        return None

    async def take(self, claims: ActivationClaims, body: Take) -> TakeAnswer | Refused:
        """The barrier. The same token again gets the same answer."""
        if (wrong := self._other_instance(claims)) is not None:
            return wrong
        now_ms = system_clock.boottime_ms()
        if body.mark_ms > now_ms:
            return Refused("bad_mark", f"mark_ms {body.mark_ms} is later than this manager's clock")
        membership = self._memberships.setdefault(claims.membership, Membership(claims.membership))
        current = membership.activation
        if current is not None and claims.fence <= membership.fence:
            if claims.fence < membership.fence or current.claims.activation != claims.activation:
                return Refused("fence", f"the membership's fence is {membership.fence}")
            return await asyncio.shield(current.taken)
        activation = self._activate(membership, claims, body)
        await self._pass_barrier(membership, activation, current)
        return activation.taken.result()

    def _activate(self, membership: Membership, claims: ActivationClaims, body: Take) -> Activation:
        """From this step on the older activation is refused everything, and nothing is started for it."""
        loop = asyncio.get_running_loop()
        switch = Switch(
            body.mark_ms,
            body.lease_ttl_ms,
            body.cancel_lead_ms,
            on_cancel=lambda: _call_in(loop, lambda: self._cancel_by_switch(membership, activation)),
            on_fired=lambda: _call_in(loop, lambda: self._fired(membership, activation)),
        )
        activation = Activation(claims, body.home, EventLog(self._start.limits), switch, loop.create_future())
        older = membership.activation
        if older is not None and older.ended is None:
            older.ended = "superseded"
        membership.fence = claims.fence
        membership.activation = activation
        if claims.purpose == "turn":
            self._switches.arm(switch)
        _log.info("membership_taken", membership=membership.id, fence=claims.fence, activation=claims.activation)
        return activation

    async def _pass_barrier(self, membership: Membership, activation: Activation, older: Activation | None) -> None:
        failpoint.before(Point.EFFECT_BARRIER)
        if older is not None:
            await self._end(membership, older, "superseded")
            activation.previous = older.evidence
        failpoint.after(Point.EFFECT_BARRIER)
        activation.taken.set_result(
            TakeAnswer(
                boot_id=self._boot_id,
                fence=activation.claims.fence,
                mark_ms=system_clock.boottime_ms(),
                previous=activation.previous,
            )
        )

    # ending

    async def _end(self, membership: Membership, activation: Activation, code: EndCode) -> None:
        """End whatever of `activation` still runs; returns when all of it has been seen dead, or never."""
        if activation.ended is None:
            activation.ended = code
        self._switches.disarm(activation.switch)
        async with membership.barrier:
            limit_s = self._start.limits.barrier_timeout_s
            try:
                async with asyncio.timeout(limit_s):
                    dead = await self._kill(membership, activation, Deadline.after(limit_s))
            except TimeoutError:
                dead = False
            if not dead:
                _die("barrier_failed", membership.id)
            for task in (activation.setup, activation.session, activation.prompting, activation.ending):
                if task is not None:  # they see that it has ended, or their processes gone, and conclude
                    await asyncio.wait({task})
        if not activation.log.finished:
            activation.log.finish(failure=TurnEnding.unprompted(activation))

    async def _kill(self, membership: Membership, activation: Activation, deadline: Deadline) -> bool:
        walks_ended = await self.snapshots.end_all(deadline)
        idle = membership.idle_agent
        keepers = [keeper for keeper in activation.keepers if idle is None or keeper is not idle.keeper]
        results = [await keeper.kill(deadline) for keeper in keepers]
        agent = membership.agent
        if agent is not None and idle is None:
            results.append(await agent.kill(deadline))
            membership.agent = None
        if idle is not None and not idle.spec.keep_background_processes:
            results.append(await idle.keeper.kill_leftovers(deadline))
        activation.keepers = [keeper for keeper in activation.keepers if keeper.alive]
        if self._reaper.has_strays():
            results.append(await asyncio.to_thread(self._reaper.kill_strays, deadline))
        return walks_ended and all(results)

    async def stop(self, activation: Activation) -> StopAnswer:
        """End the turn or its preparation; answered when all of it is dead."""
        await self._end(self._memberships[activation.claims.membership], activation, "stopped")
        return StopAnswer(evidence=activation.evidence)

    def cancel(self, activation: Activation) -> CancelAnswer:
        """Ask the agent to end its turn."""
        agent = self._memberships[activation.claims.membership].agent
        return CancelAnswer(sent=agent is not None and agent.cancel())

    # the dead-man's switch

    def feed(self, activation: Activation, body: Feed) -> Mark | Refused:
        """Take a newer mark from before a renewal that was confirmed."""
        if body.mark_ms > system_clock.boottime_ms():
            return Refused("bad_mark", f"mark_ms {body.mark_ms} is later than this manager's clock")
        if activation.end_code == "lease_feed_lost":
            return Refused("lease_feed_lost", "the lease was not fed in time, and the turn was ended")
        self._switches.feed(activation.switch, body.mark_ms, body.lease_ttl_ms)
        return self.mark()

    def _cancel_by_switch(self, membership: Membership, activation: Activation) -> None:
        turn, agent = activation.turn, membership.agent
        if membership.activation is activation and turn is not None and not turn.cancelled and agent is not None:
            activation.cancel_code = ErrorCode.LEASE_FEED_LOST
            agent.cancel()

    def _fired(self, membership: Membership, activation: Activation) -> None:
        _in_background(self._end(membership, activation, "lease_feed_lost"))

    # preparing

    async def setup(self, activation: Activation, body: Setup) -> SetupAnswer | Refused:
        """Run the setup commands, once; asking again waits for the same answer."""
        if activation.setup is None:
            if (refused := self._not_preparing(activation, body.home)) is not None:
                return refused
            activation.setup = asyncio.create_task(self._run_setup(activation, body))
        return await asyncio.shield(activation.setup)

    async def _run_setup(self, activation: Activation, body: Setup) -> SetupAnswer:
        unfit = await asyncio.to_thread(check_places, self._start.workspace, body.cwd, body.home)
        env = environment(body.home, body.env, body.secrets, self.secrets)
        for problem in (unfit, env):
            if isinstance(problem, Unfit):
                return SetupAnswer(ok=False, results=(_not_started(body.commands, problem.why),))
        runner = SetupRunner(
            self._reaper,
            body.cwd,
            {} if isinstance(env, Unfit) else env,
            self._start.limits.stderr_tail_bytes,
            may_start=lambda: activation.may_start,
            on_keeper=functools.partial(self._on_keeper, activation),
        )
        results = await runner.run(body.commands)
        return SetupAnswer(ok=all(result.exit == 0 for result in results), results=tuple(results))

    def _on_keeper(self, activation: Activation, keeper: Keeper) -> None:
        activation.keepers.append(keeper)
        self._memberships[activation.claims.membership].publish_mortal()

    async def session(self, activation: Activation, body: OpenSession) -> SessionAnswer | Refused:
        """Open the native session, once; asking again waits for the same answer."""
        if activation.session is None:
            if (refused := self._not_preparing(activation, body.home)) is not None:
                return refused
            opener = SessionOpener(
                self._reaper,
                self._start.limits,
                self._start.workspace,
                self._start.generation,
                self._boot_id,
                self.secrets,
            )
            membership = self._memberships[activation.claims.membership]
            activation.session = asyncio.create_task(opener.open(membership, activation, body))
        return await asyncio.shield(activation.session)

    @staticmethod
    def _not_preparing(activation: Activation, home: str) -> Refused | None:
        if activation.claims.purpose != "turn":
            return Refused("recovery", "a recovery's token starts nothing")
        if not activation.may_start:
            return _has_ended(activation)
        if home != activation.home:
            return Refused("home", f"home {home!r} is not the one of the take, {activation.home!r}")
        return None

    # the prompt

    async def prompt(self, activation: Activation, body: Prompt) -> PromptAnswer | Refused:
        """Write the prompt, at most once per activation and per run, after `begun` is on disk."""
        membership = self._memberships[activation.claims.membership]
        if (refused := self._not_promptable(membership, activation, body)) is not None:
            return refused
        agent = membership.agent
        if agent is None:
            return Refused("no_session", "no session is open")
        activation.prompt_used = True
        self._prompted_runs.add(body.run)
        activation.prompting = asyncio.get_running_loop().create_future()
        try:
            return await self._prompt(membership, activation, agent, body)
        finally:
            activation.prompting.set_result(None)

    async def _prompt(
        self, membership: Membership, activation: Activation, agent: Agent, body: Prompt
    ) -> PromptAnswer | Refused:
        journal = SessionJournal(self._start.workspace, activation.home)
        fact = (agent.native_turn + 1, activation.claims.activation, agent.native_session)
        try:
            await asyncio.to_thread(journal.begun, *fact)
        except JournalWriteError as error:
            return Refused("journal_failed", str(error))
        turn = Turn(body.run, activation.log, self._start.limits)
        ending = TurnEnding(self._boot_id, self._switches, membership, activation, agent, turn, journal)
        # While the journal was written a take or a stop may have come, or the agent may have gone.
        agent.hear()
        if not activation.may_start or not agent.usable:
            with contextlib.suppress(
                JournalWriteError
            ):  # without that word the session is taken for cut, which is safe
                await asyncio.to_thread(journal.withdrawn, *fact)
            if not activation.may_start:
                return _has_ended(activation)
            ending.fail_unwritten()
            return Refused("agent_exited", "the agent had gone before the prompt was written")
        activation.turn = turn
        activation.prompt_written = True
        first = activation.log.next_n
        agent.prompt(turn, body.text, ending.on_answer)
        membership.publish_mortal()
        if body.deadline_s is not None:
            work = self._enforce_deadline(membership, activation, turn, body.deadline_s)
            activation.deadline = asyncio.create_task(work)
        return PromptAnswer(first=first)

    def _not_promptable(self, membership: Membership, activation: Activation, body: Prompt) -> Refused | None:
        if (refused := self._not_preparing(activation, activation.home)) is not None:
            return refused
        if activation.prompt_used or body.run in self._prompted_runs:
            return Refused("prompt_used", "the prompt of this activation or run was used already")
        if body.run != activation.claims.sub:
            return Refused("run", "the prompt names another run than its token")
        if len(body.text.encode("utf-8", "replace")) > self._start.limits.prompt_bytes_max:
            return Refused("prompt_too_large", f"a prompt has at most {self._start.limits.prompt_bytes_max} bytes")
        session = activation.session
        if session is None or not session.done() or session.result().failure is not None or membership.agent is None:
            return Refused("no_session", "no session is open")
        return None

    async def _enforce_deadline(
        self, membership: Membership, activation: Activation, turn: Turn, deadline_s: float
    ) -> None:
        await system_clock.sleep(deadline_s)
        if not turn.open or membership.agent is None:
            return
        activation.cancel_code = ErrorCode.EXECUTION_TIMEOUT
        membership.agent.cancel()
        await system_clock.sleep(_CANCEL_GRACE_S)
        if turn.open:
            _in_background(self._end(membership, activation, "execution_timeout"))

    # reading what came of it

    def events(self, activation: Activation, after: int) -> AsyncIterator[bytes]:
        """The numbered lines behind `after`, to the last."""
        return activation.log.stream(after)

    def receipt(self, activation: Activation) -> SettlementReceipt | Refused:
        """The settlement, the same each time."""
        return activation.receipt or Refused("not_settled", "the turn has not been settled")


def _has_ended(activation: Activation) -> Refused:
    """The switch's end has a code of its own (protocol 5), which the run's error tells."""
    code = "lease_feed_lost" if activation.end_code == "lease_feed_lost" else "stopped"
    return Refused(code, f"this activation has ended: {activation.end_code}")


def _not_started(commands: tuple[SetupCommand, ...], why: str) -> SetupResult:
    return SetupResult(command=commands[0].command if commands else ("",), exit=127, output_tail=why)


def _call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """From another thread."""
    loop.call_soon_threadsafe(callback)


_background: set[asyncio.Task[None]] = set()


def _in_background(work: Coroutine[None, None, None]) -> None:
    """Run a coroutine that nobody waits for, and keep it from being collected."""
    task = asyncio.get_running_loop().create_task(work)
    _background.add(task)
    task.add_done_callback(_background.discard)


def _die(event: str, membership: str) -> NoReturn:
    """Exit at once: as pid 1 that ends every process of the sandbox, which is the proof that was missing."""
    _log.error(event, membership=membership)
    os._exit(EXIT_BARRIER)
