"""A history, opened at the pages that the rules ask for."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from datetime import datetime
from functools import cached_property
from typing import TypeVar

from turnkeeper.domain.history.facts import (
    ActivationFact,
    AttemptFact,
    ConversationFact,
    EventsFact,
    History,
    MembershipFact,
    MessageFact,
    RunFact,
)
from turnkeeper.domain.membership import ActivationState

F = TypeVar("F")
K = TypeVar("K", bound=Hashable)


def group(facts: Iterable[F], key: Callable[[F], K]) -> dict[K, list[F]]:
    """`facts` by `key`, in their order."""
    found: defaultdict[K, list[F]] = defaultdict(list)
    for fact in facts:
        found[key(fact)].append(fact)
    return dict(found)


class Book:
    """Indexes over one history, each made when it is first asked for."""

    def __init__(self, history: History) -> None:
        self.history = history

    @cached_property
    def conversations(self) -> dict[str, ConversationFact]:
        """By thread id."""
        return {one.thread_id: one for one in self.history.conversations}

    @cached_property
    def runs(self) -> dict[str, RunFact]:
        """By id."""
        return {one.id: one for one in self.history.runs}

    @cached_property
    def runs_of_thread(self) -> dict[str, list[RunFact]]:
        """By conversation, in the order of its line."""
        return group(sorted(self.history.runs, key=lambda one: one.queue_position), lambda one: one.thread_id)

    @cached_property
    def runs_of_scope(self) -> dict[str, list[RunFact]]:
        """By runtime scope."""
        return group(self.history.runs, lambda one: one.runtime_scope_id)

    @cached_property
    def attempts(self) -> dict[str, AttemptFact]:
        """By id."""
        return {one.id: one for one in self.history.attempts}

    @cached_property
    def attempts_of_run(self) -> dict[str, list[AttemptFact]]:
        """By run, by number."""
        return group(sorted(self.history.attempts, key=lambda one: one.attempt_no), lambda one: one.run_id)

    @cached_property
    def attempts_of_thread(self) -> dict[str, list[AttemptFact]]:
        """By conversation, by lease generation: the order of the claims, whatever the clocks say."""
        known = (one for one in self.history.attempts if one.run_id in self.runs)
        ordered = sorted(known, key=lambda one: one.lease_generation)
        return group(ordered, lambda one: self.runs[one.run_id].thread_id)

    @cached_property
    def memberships(self) -> dict[str, MembershipFact]:
        """By id."""
        return {one.id: one for one in self.history.memberships}

    @cached_property
    def membership_of_thread(self) -> dict[str, MembershipFact]:
        """By conversation."""
        return {one.thread_id: one for one in self.history.memberships}

    @cached_property
    def activations(self) -> dict[str, ActivationFact]:
        """By id."""
        return {one.id: one for one in self.history.activations}

    @cached_property
    def activations_of_run(self) -> dict[str, list[ActivationFact]]:
        """By run, by fence."""
        return group(sorted(self.history.activations, key=lambda one: one.fence), lambda one: one.run_id)

    @cached_property
    def activations_of_membership(self) -> dict[str, list[ActivationFact]]:
        """By membership, by fence."""
        return group(sorted(self.history.activations, key=lambda one: one.fence), lambda one: one.membership_id)

    @cached_property
    def events_of_thread(self) -> dict[str, list[EventsFact]]:
        """By conversation, by number."""
        return group(sorted(self.history.events, key=lambda one: one.first_seq), lambda one: one.thread_id)

    @cached_property
    def events_of_run(self) -> dict[str, list[EventsFact]]:
        """By run, by number; not those that are about the conversation."""
        ordered = sorted(self.history.events, key=lambda one: one.first_seq)
        return group((one for one in ordered if one.run_id is not None), lambda one: one.run_id or "")

    @cached_property
    def events_of_attempt(self) -> dict[str, list[EventsFact]]:
        """A worker's own events, by attempt, by number."""
        ordered = sorted(self.history.events, key=lambda one: one.first_seq)
        return group((one for one in ordered if one.attempt_id is not None), lambda one: one.attempt_id or "")

    @cached_property
    def messages_of_run(self) -> dict[str, list[MessageFact]]:
        """By run."""
        return group(self.history.messages, lambda one: one.run_id)

    @cached_property
    def flagged_of_scope(self) -> dict[str, list[RunFact]]:
        """The runs that carry a cleanup fence, by runtime scope."""
        return group(
            (one for one in self.history.runs if one.runtime_cleanup_pending), lambda one: one.runtime_scope_id
        )

    def admitted_of_run(self, run_id: str) -> list[ActivationFact]:
        """The activations of a run in which its prompt may have been sent."""
        return [one for one in self.activations_of_run.get(run_id, []) if one.admitted_at is not None]

    def writes_of_attempt(self, attempt: AttemptFact) -> list[tuple[datetime, str]]:
        """When something that this attempt's worker asked for was accepted, and what, in the order of time."""
        found: list[tuple[datetime | None, str]] = [
            (attempt.accepted_at, "acceptance"),
            (attempt.last_heartbeat_at, "renewal"),
        ]
        for one in self.activations_of_attempt.get(attempt.id, []):
            found += [
                (one.created_at, f"activation {one.id}"),
                (one.admitted_at, f"admission in activation {one.id}"),
                (one.settled_at, f"settlement of activation {one.id}"),
            ]
            if one.state == ActivationState.ABANDONED:
                found.append((one.ended_at, f"abandonment of activation {one.id}"))
        for span in self.events_of_attempt.get(attempt.id, []):
            found += [(span.first_at, f"event {span.first_seq}"), (span.last_at, f"event {span.last_seq}")]
        return sorted((at, what) for at, what in found if at is not None)

    @cached_property
    def activations_of_attempt(self) -> dict[str, list[ActivationFact]]:
        """By attempt, by fence."""
        return group(sorted(self.history.activations, key=lambda one: one.fence), lambda one: one.attempt_id)
