"""For every rule the histories that it must reject, and that no other rule does: each is the good one with one thing wrong."""

from dataclasses import dataclass, replace

from history.histories import GOOD, activation, added, at, attempt, changed, hold, run, without
from turnkeeper.domain.history import History
from turnkeeper.domain.history.facts import LedgerEntry, ProcessSeen, SnapshotFact
from turnkeeper.domain.settings import Timing


@dataclass(frozen=True)
class Bad:
    """A history, what is wrong with it, and the id that the finding must be about."""

    rule: str
    what: str
    subject: str
    history: History


CLAIMED_LATE = attempt("b3", 1, 13, 262, 265, "failed")
RECOVERING = replace(
    changed(
        changed(
            changed(
                changed(GOOD, "runs", "c1", status="recovering"),
                "attempts",
                "c1.1",
                claimed_at=at(900),
                accepted_at=at(901),
                ended_at=at(903),
                outcome="lease_expired",
            ),
            "activations",
            "in-c1.1",
            state="quarantined",
            created_at=at(902),
        ),
        "memberships",
        "m-child",
        state="quarantined",
        fence=2,
    ),
    timing=Timing(recovery_bound_s=5),
)

BAD = (
    Bad("prompt_reaches_the_agent_once", "its text twice", "a1", added(GOOD, "ledger", LedgerEntry("a1"))),
    Bad(
        "prompt_reaches_the_agent_once",
        "its run twice",
        "d1",
        added(without(GOOD, "ledger", "d1"), "ledger", LedgerEntry("d1", "d1"), LedgerEntry("d1", "d1")),
    ),
    Bad("only_admitted_prompts_reach_the_agent", "abandoned", "e1", added(GOOD, "ledger", LedgerEntry("e1"))),
    Bad("only_admitted_prompts_reach_the_agent", "preparing", "c1", added(GOOD, "ledger", LedgerEntry("x", "c1"))),
    Bad(
        "only_admitted_prompts_reach_the_agent",
        "nobody's",
        "the prompt 'nobody'",
        added(GOOD, "ledger", LedgerEntry("nobody")),
    ),
    Bad("undelivered_prompt_was_not_received", "told so", "z1", added(GOOD, "ledger", LedgerEntry("z1"))),
    Bad(
        "run_is_admitted_once",
        "in two activations",
        "a2",
        added(
            changed(
                changed(GOOD, "memberships", "m-alpha", fence=4),
                "activations",
                "in-a2.1",
                fence=4,
            ),
            "activations",
            activation("a2.1", "alpha", 2, "not_delivered", 31, 31.5, 31.9, id="in-a2.1-before"),
        ),
    ),
    Bad(
        "admitted_turn_ends_by_settlement_or_verdict",
        "abandoned",
        "in-e1.1",
        changed(changed(GOOD, "activations", "in-e1.1", admitted_at=at(504)), "messages", "ask-e1", delivery="unknown"),
    ),
    Bad(
        "admitted_turn_ends_by_settlement_or_verdict",
        "still admitted when its attempt is over",
        "in-e2.1",
        changed(GOOD, "activations", "in-e2.1", state="admitted"),
    ),
    Bad(
        "unadmitted_conversation_stays_usable",
        "lost for an outcome that it cannot have",
        "eta",
        changed(GOOD, "memberships", "m-eta", lost_reason="outcome_unknown"),
    ),
    Bad("lost_is_final", "opened again", "beta", changed(GOOD, "conversations", "beta", state="open")),
    Bad(
        "lost_is_final",
        "its membership is idle",
        "beta",
        changed(GOOD, "memberships", "m-beta", state="idle", lost_reason=None),
    ),
    Bad("lost_is_final", "a run still waits", "b4", added(GOOD, "runs", run("b4", "beta", "pending", 255))),
    Bad("lost_is_final", "a later run", "b3", changed(GOOD, "runs", "b3", created_at=at(262))),
    Bad("lost_is_final", "a later claim", "b3.1", added(GOOD, "attempts", CLAIMED_LATE)),
    Bad(
        "lost_is_final",
        "a later activation",
        "in-b3.1",
        added(
            added(changed(GOOD, "memberships", "m-beta", fence=4), "attempts", CLAIMED_LATE),
            "activations",
            activation("b3.1", "beta", 4, "abandoned", 263.5, None, 264),
        ),
    ),
    Bad(
        "superseded_attempt_writes_nothing",
        "an event after the next claim",
        "a1.2",
        changed(GOOD, "events", "alpha:5", last_at=at(31)),
    ),
    Bad(
        "superseded_attempt_writes_nothing",
        "a renewal after its end",
        "a1.2",
        changed(GOOD, "attempts", "a1.2", last_heartbeat_at=at(21)),
    ),
    Bad(
        "superseded_attempt_writes_nothing",
        "a settlement after its end",
        "g1.1",
        changed(GOOD, "activations", "in-g1.1", settled_at=at(321)),
    ),
    Bad(
        "superseded_attempt_writes_nothing",
        "its events after those of the next one",
        "a1.2",
        changed(GOOD, "events", "alpha:17", attempt_id="a1.2", first_at=at(19), last_at=at(19)),
    ),
    Bad(
        "generations_do_not_overlap",
        "the next one began before",
        "in-a2.1",
        changed(GOOD, "activations", "in-a2.1", created_at=at(16)),
    ),
    Bad(
        "membership_fence_is_the_newest",
        "below an activation",
        "m-alpha",
        changed(GOOD, "memberships", "m-alpha", fence=1),
    ),
    Bad(
        "membership_fence_is_the_newest",
        "not raised by the quarantine",
        "m-epsilon",
        changed(GOOD, "memberships", "m-epsilon", fence=2),
    ),
    Bad(
        "membership_fence_is_the_newest",
        "the same fence twice",
        "in-a2.1",
        changed(GOOD, "activations", "in-a2.1", fence=1),
    ),
    Bad(
        "trees_of_a_scope_do_not_overlap",
        "the next tree began before",
        "b2.1",
        changed(GOOD, "attempts", "b1.1", ended_at=at(129)),
    ),
    Bad(
        "no_process_outlives_its_activation",
        "never confirmed dead",
        "in-b2.1",
        changed(GOOD, "processes", "in-b1.1", dead_at=None),
    ),
    Bad(
        "no_process_outlives_its_activation",
        "dead after the take was answered",
        "in-b2.1",
        changed(GOOD, "processes", "in-b1.1", dead_at=130.5),
    ),
    Bad(
        "no_process_outlives_its_activation",
        "a setup command beside the session that stayed",
        "in-a2.1",
        added(GOOD, "processes", ProcessSeen("in-a1.2", "6/1", 13, dead_at=33)),
    ),
    Bad(
        "settled_turn_moves_the_native_turn_once",
        "counted twice",
        "m-alpha",
        changed(GOOD, "memberships", "m-alpha", native_turn=3),
    ),
    Bad(
        "settled_turn_moves_the_native_turn_once",
        "the same number twice",
        "in-a2.1",
        changed(GOOD, "activations", "in-a2.1", native_turn=1),
    ),
    Bad(
        "settled_turn_moves_the_epoch_once", "counted twice", "w-alpha", changed(GOOD, "workspaces", "w-alpha", epoch=3)
    ),
    Bad(
        "settled_turn_moves_the_epoch_once",
        "the same number twice",
        "in-a2.1",
        without(changed(GOOD, "activations", "in-a2.1", epoch=1), "snapshots", "w-alpha:2"),
    ),
    Bad(
        "snapshot_belongs_to_a_settlement",
        "of an epoch that nobody settled",
        "a2",
        added(GOOD, "snapshots", SnapshotFact("w-alpha", 3, "a2")),
    ),
    Bad("snapshot_belongs_to_a_settlement", "twice", "a2", added(GOOD, "snapshots", SnapshotFact("w-alpha", 2, "a2"))),
    Bad(
        "settlement_follows_an_admission",
        "admitted afterwards",
        "in-a2.1",
        changed(GOOD, "activations", "in-a2.1", admitted_at=at(39)),
    ),
    Bad("attempts_are_numbered", "a gap", "a1", changed(GOOD, "attempts", "a1.2", attempt_no=3)),
    Bad("attempts_are_numbered", "a generation twice", "a1.2", changed(GOOD, "attempts", "a1.1", lease_generation=2)),
    Bad(
        "attempt_record_is_whole", "an end without an outcome", "a1.2", changed(GOOD, "attempts", "a1.2", outcome=None)
    ),
    Bad("attempt_record_is_whole", "no lease end", "d1.1", changed(GOOD, "attempts", "d1.1", lease_expires_at=None)),
    Bad(
        "attempt_record_is_whole",
        "released after its acceptance",
        "a1.1",
        changed(GOOD, "attempts", "a1.1", accepted_at=at(10.5)),
    ),
    Bad(
        "open_attempt_belongs_to_a_leased_run",
        "its run has ended",
        "a2.1",
        changed(GOOD, "attempts", "a2.1", ended_at=None, outcome=None),
    ),
    Bad(
        "open_attempt_belongs_to_a_leased_run",
        "another one followed",
        "d1.1",
        added(GOOD, "attempts", attempt("d1", 2, 13, 995, None, None, accepted_at=None)),
    ),
    Bad(
        "only_a_release_puts_a_run_back", "after a failure", "a1.2", changed(GOOD, "attempts", "a1.1", outcome="failed")
    ),
    Bad("states_are_known", "a word of nobody", "a3", changed(GOOD, "runs", "a3", status="sleeping", ready_at=None)),
    Bad("run_has_one_end", "none", "e2", changed(GOOD, "events", "epsilon:8", is_end=False)),
    Bad("run_has_one_end", "of a run that has not ended", "a3", changed(GOOD, "events", "alpha:17", is_end=True)),
    Bad("run_has_one_end", "two", "e2", changed(GOOD, "events", "epsilon:5", is_end=True)),
    Bad("end_is_the_last_event", "two more", "a1", changed(GOOD, "events", "alpha:11", run_id="a1")),
    Bad(
        "event_numbers_have_no_gap",
        "the counter is ahead",
        "alpha",
        changed(GOOD, "conversations", "alpha", last_seq=19),
    ),
    Bad("event_numbers_have_no_gap", "one is missing", "alpha", changed(GOOD, "events", "alpha:11", first_seq=12)),
    Bad("completed_run_has_an_output", "none", "a2", without(GOOD, "messages", "say-a2")),
    Bad(
        "completed_run_has_an_output",
        "in another conversation",
        "a2",
        changed(GOOD, "messages", "say-a2", thread_id="beta"),
    ),
    Bad(
        "completed_run_was_settled",
        "with another outcome",
        "a2",
        changed(GOOD, "activations", "in-a2.1", outcome="failed"),
    ),
    Bad(
        "completed_run_was_settled",
        "although it was cancelled",
        "a2",
        changed(GOOD, "runs", "a2", cancel_requested_at=at(36)),
    ),
    Bad(
        "delivery_follows_the_run", "queued for ever", "ask-a2", changed(GOOD, "messages", "ask-a2", delivery="queued")
    ),
    Bad("delivery_follows_the_run", "guessed", "ask-e1", changed(GOOD, "messages", "ask-e1", delivery="delivered")),
    Bad(
        "delivery_follows_the_run",
        "denied",
        "ask-b2",
        changed(without(GOOD, "ledger", "b2"), "messages", "ask-b2", delivery="not_delivered"),
    ),
    Bad(
        "workdir_holds_do_not_overlap",
        "one within the other",
        "hold-zeta",
        changed(GOOD, "holds", "hold-zeta", workdir="conversations/alpha/src"),
    ),
    Bad(
        "workdir_holds_do_not_overlap",
        "the same by another spelling",
        "hold-zeta",
        changed(changed(GOOD, "holds", "hold-alpha", workdir="caf\u00e9"), "holds", "hold-zeta", workdir="cafe\u0301"),
    ),
    Bad("open_conversation_holds_its_workdir", "none", "alpha", without(GOOD, "holds", "hold-alpha")),
    Bad("open_conversation_holds_its_workdir", "kept for ever", "hold-eta", added(GOOD, "holds", hold("eta"))),
    Bad(
        "cleanup_fence_keeps_its_scope_still",
        "carried by two",
        "beta",
        changed(GOOD, "runs", "b1", runtime_cleanup_pending=True),
    ),
    Bad(
        "cleanup_fence_keeps_its_scope_still",
        "carried by a subagent's run",
        "c1",
        changed(GOOD, "runs", "c1", runtime_cleanup_pending=True),
    ),
    Bad(
        "cleanup_fence_keeps_its_scope_still",
        "a run is ready",
        "a3",
        changed(GOOD, "runs", "a2", runtime_cleanup_pending=True),
    ),
    Bad(
        "terminal_event_waits_for_the_fence",
        "the end is there already",
        "g1",
        changed(GOOD, "events", "gamma:5", is_end=True),
    ),
    Bad("nothing_stays_stuck", "the lease ended", "d1", changed(GOOD, "attempts", "d1.1", lease_expires_at=at(930))),
    Bad("nothing_stays_stuck", "nobody has it", "c1", without(GOOD, "attempts", "c1.1")),
    Bad("nothing_stays_stuck", "a wake-up was missed", "a3", changed(GOOD, "runs", "a3", ready_at=None)),
    Bad(
        "nothing_stays_stuck",
        "a cancelled run waits",
        "a3",
        changed(GOOD, "runs", "a3", ready_at=None, cancel_requested_at=at(950)),
    ),
    Bad(
        "nothing_stays_stuck",
        "a closed conversation's run waits",
        "g2",
        added(changed(GOOD, "conversations", "gamma", state="closed"), "runs", run("g2", "gamma", "pending", 330)),
    ),
    Bad("nothing_stays_stuck", "recovering for ever", "c1", RECOVERING),
    Bad(
        "nothing_stays_stuck",
        "no verdict comes",
        "m-epsilon",
        replace(GOOD, timing=Timing(recovery_bound_s=5)),
    ),
    Bad(
        "nothing_stays_stuck",
        "a membership that nobody uses",
        "m-gamma",
        changed(GOOD, "memberships", "m-gamma", state="active", activation_id="in-g1.1"),
    ),
    Bad("ready_run_may_start", "paused", "a3", changed(GOOD, "conversations", "alpha", queue_paused=True)),
    Bad("ready_run_may_start", "in use", "a3", changed(GOOD, "memberships", "m-alpha", state="suspended")),
)

# What more than one rule must see: each looks at it from its own side.
SEVERAL: dict[str, tuple[set[str], History]] = {
    "a late settlement of a superseded generation": (
        {"superseded_attempt_writes_nothing", "generations_do_not_overlap"},
        changed(GOOD, "activations", "in-a1.2", settled_at=at(35)),
    ),
    "generations in another order": (
        {"attempts_are_numbered", "superseded_attempt_writes_nothing", "generations_do_not_overlap"},
        changed(changed(GOOD, "attempts", "e1.1", lease_generation=8), "attempts", "e2.1", lease_generation=7),
    ),
    "an admission that nobody recorded": (
        {
            "only_admitted_prompts_reach_the_agent",
            "unadmitted_conversation_stays_usable",
            "delivery_follows_the_run",
        },
        changed(GOOD, "activations", "in-b2.1", admitted_at=None),
    ),
}
