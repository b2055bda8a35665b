"""One activation of one membership: what it may start, what it has started, and what came of its turn."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from turnkeeper.sandboxd.agent import Agent
from turnkeeper.sandboxd.deadman import Switch
from turnkeeper.sandboxd.eventlog import EventLog
from turnkeeper.sandboxd.processes import Keeper
from turnkeeper.sandboxd.turn import Turn
from turnkeeper.wire.sandbox import Evidence, SessionAnswer, SetupAnswer, TakeAnswer
from turnkeeper.wire.tokens import ActivationClaims
from turnkeeper.wire.turn import SettlementReceipt

EndCode = Literal["stopped", "superseded", "lease_feed_lost", "execution_timeout"]

FAILURE_CODES: dict[EndCode, str] = {
    "stopped": "cancelled",
    "superseded": "outcome_unknown",  # a newer take: whether a lease had ended, the database knows (E-05, E-06)
    "lease_feed_lost": "lease_feed_lost",
    "execution_timeout": "execution_timeout",
}
"""What the last line of a turn's events says where it was ended like that."""


@dataclass(eq=False)
class Activation:
    """Belongs to the event loop, but for `switch`."""

    claims: ActivationClaims
    home: str
    log: EventLog
    switch: Switch
    taken: asyncio.Future[TakeAnswer]
    """Done when the barrier was passed."""
    ended: EndCode | None = None
    """Set before anything is killed: from then on nothing is started for it."""
    keepers: list[Keeper] = field(default_factory=list[Keeper])
    """All that were started for it, its agent's included."""
    setup: asyncio.Task[SetupAnswer] | None = None
    session: asyncio.Task[SessionAnswer] | None = None
    prompting: asyncio.Future[None] | None = None
    """Pending while the journal is written before the prompt: who ends the turn waits for it, for the journal is read next."""
    prompt_used: bool = False
    prompt_written: bool = False
    turn: Turn | None = None
    ending: asyncio.Task[None] | None = None
    """Settles the turn, or says how it failed."""
    deadline: asyncio.Task[None] | None = None
    """Waits for the prompt's own deadline."""
    receipt: SettlementReceipt | None = None
    cancel_code: str | None = None
    """Why the manager itself sent `session/cancel`."""
    previous: Evidence = field(default_factory=Evidence)

    @property
    def may_start(self) -> bool:
        """Whether a process may be started for it; asked in the same step of the loop that starts one."""
        return self.ended is None and not self.switch.fired

    @property
    def end_code(self) -> EndCode | None:
        """Why it ended; None while it has not."""
        return "lease_feed_lost" if self.ended is None and self.switch.fired else self.ended

    @property
    def busy(self) -> bool:
        """Whether anything of it still goes on."""
        tasks = (self.setup, self.session, self.prompting, self.ending)
        return (self.turn is not None and self.turn.open) or any(task and not task.done() for task in tasks)

    @property
    def evidence(self) -> Evidence:
        """What is known of it. A recovery's take writes no prompt; who asks after it wants to know of what it ended."""
        if self.claims.purpose == "recovery":
            return self.previous
        return Evidence(
            activation=self.claims.activation,
            run=self.claims.sub,
            prompt_written=self.prompt_written,
            receipt=self.receipt,
        )


@dataclass(eq=False)
class Membership:
    """A conversation's place in this sandbox. `fence` only grows."""

    id: str
    fence: int = 0
    activation: Activation | None = None
    agent: Agent | None = None
    barrier: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while something is being ended: of two takes the later one waits for the earlier."""

    @property
    def idle_agent(self) -> Agent | None:
        """The agent, if its last prompt got its response: it may stay when a turn is ended."""
        agent = self.agent
        return agent if agent is not None and agent.usable and agent.answered else None

    def publish_mortal(self) -> None:
        """Tell the dead-man's switch what must die when it fires: all but an idle agent."""
        activation = self.activation
        if activation is None:
            return
        idle = self.idle_agent
        agent = [] if self.agent is None or self.agent is idle else [self.agent.keeper]
        started = [keeper for keeper in activation.keepers if keeper.alive and not (idle and keeper is idle.keeper)]
        activation.switch.mortal = tuple(dict.fromkeys([*started, *agent]))
