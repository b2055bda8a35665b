"""Limits of a tree, and the shapes of its runs."""

from dataclasses import replace

import pytest

from turnkeeper.domain.run import RunKind
from turnkeeper.domain.settings import Limits
from turnkeeper.domain.tree import (
    ChildAdmitted,
    CreatorFacts,
    RunShape,
    ShapeFault,
    ShapeOk,
    ShapeRefused,
    TreeFull,
    TreeTooDeep,
    admit_child,
    check_run_scope,
    check_run_shape,
)

LIMITS = Limits()


def test_depth_and_size() -> None:
    """Proves: T-09. Depth 5 and size 50 are reached and not passed; the answer to the agent names the limit."""
    assert admit_child(0, 1, LIMITS) == ChildAdmitted(1)
    assert admit_child(4, 49, LIMITS) == ChildAdmitted(5)
    deep = admit_child(5, 6, LIMITS)
    assert isinstance(deep, TreeTooDeep)
    assert "at most 5" in deep.sentence
    full = admit_child(1, 50, LIMITS)
    assert isinstance(full, TreeFull)
    assert "50 runs" in full.sentence
    assert admit_child(0, 1, replace(LIMITS, tree_size_max=1)) == TreeFull(1)


CHAT = RunShape(
    kind=RunKind.CHAT,
    run_id="run",
    root_run_id="run",
    depth=0,
    uid="owner",
    thread_id="thread",
    runtime_scope_id="thread",
    conversation_scope_id="thread",
    conversation_uid="owner",
    workdir="work",
)
RESUME = replace(CHAT, kind=RunKind.RESUME, created_by_run_id="before")
SUBAGENT = replace(
    CHAT,
    kind=RunKind.SUBAGENT,
    run_id="child-run",
    root_run_id="run",
    depth=1,
    thread_id="child",
    created_by_run_id="run",
    relation_id="relation",
)
CREATOR = CreatorFacts(
    creator_uid="owner",
    creator_thread_id="thread",
    creator_root_run_id="run",
    creator_scope_id="thread",
    creator_workdir="work",
    relation_parent_thread_id="thread",
    relation_child_thread_id="child",
)


@pytest.mark.parametrize("run", [CHAT, RESUME, SUBAGENT], ids=lambda run: run.kind.value)
def test_right_shapes(run: RunShape) -> None:
    """Proves: T-04, T-05 (the predicates)."""
    assert check_run_shape(run) == ShapeOk()
    assert check_run_scope(run, CREATOR) == ShapeOk()


WRONG = [
    (replace(CHAT, runtime_scope_id="other"), ShapeFault.FOREIGN_SCOPE),
    (replace(CHAT, conversation_scope_id="other"), ShapeFault.FOREIGN_SCOPE),
    (replace(CHAT, created_by_run_id="x"), ShapeFault.UNEXPECTED_CREATOR),
    (replace(CHAT, relation_id="x"), ShapeFault.UNEXPECTED_RELATION),
    (replace(CHAT, root_run_id="other"), ShapeFault.NOT_ROOT),
    (replace(CHAT, depth=1), ShapeFault.NOT_ROOT),
    (replace(RESUME, runtime_scope_id="other"), ShapeFault.FOREIGN_SCOPE),
    (replace(RESUME, created_by_run_id=None), ShapeFault.MISSING_CREATOR),
    (replace(RESUME, relation_id="x"), ShapeFault.UNEXPECTED_RELATION),
    (replace(RESUME, root_run_id="before"), ShapeFault.NOT_ROOT),
    (replace(SUBAGENT, created_by_run_id=None), ShapeFault.MISSING_CREATOR),
    (replace(SUBAGENT, relation_id=None), ShapeFault.MISSING_RELATION),
    (replace(SUBAGENT, runtime_scope_id="child"), ShapeFault.FOREIGN_SCOPE),
    (replace(SUBAGENT, root_run_id="child-run"), ShapeFault.NOT_ROOT),
    (replace(SUBAGENT, depth=0), ShapeFault.NOT_ROOT),
]


@pytest.mark.parametrize(("run", "fault"), WRONG)
def test_wrong_shapes(run: RunShape, fault: ShapeFault) -> None:
    """Proves: T-04 (the predicate). Each wrong shape by its own name, from the row alone."""
    assert check_run_shape(run) == ShapeRefused(fault)
    assert check_run_scope(run, CREATOR) == ShapeRefused(fault)


CROSS = [
    (replace(SUBAGENT, uid="thief"), CREATOR, ShapeFault.WRONG_OWNER),
    (replace(SUBAGENT, uid="thief", conversation_uid="thief"), CREATOR, ShapeFault.WRONG_OWNER),
    (replace(CHAT, uid="thief"), None, ShapeFault.WRONG_OWNER),
    (replace(RESUME, conversation_uid="thief"), None, ShapeFault.WRONG_OWNER),
    (SUBAGENT, None, ShapeFault.MISSING_CREATOR),
    (SUBAGENT, replace(CREATOR, relation_child_thread_id="other"), ShapeFault.WRONG_RELATION),
    (SUBAGENT, replace(CREATOR, creator_thread_id="child"), ShapeFault.WRONG_RELATION),
    (SUBAGENT, replace(CREATOR, relation_parent_thread_id="other"), ShapeFault.WRONG_CREATOR),
    (SUBAGENT, replace(CREATOR, creator_root_run_id="other"), ShapeFault.WRONG_CREATOR),
    (SUBAGENT, replace(CREATOR, creator_scope_id="other"), ShapeFault.SCOPE_NOT_INHERITED),
    (SUBAGENT, replace(CREATOR, creator_workdir="other"), ShapeFault.WORKDIR_NOT_SHARED),
]


@pytest.mark.parametrize(("run", "creator", "fault"), CROSS)
def test_wrong_relations(run: RunShape, creator: CreatorFacts | None, fault: ShapeFault) -> None:
    """Proves: T-05 (the predicate). uid, creator, relation, conversations, inherited scope, shared Workdir."""
    assert check_run_shape(run) == ShapeOk(), "the row alone does not tell"
    assert check_run_scope(run, creator) == ShapeRefused(fault)


def test_every_fault_is_reached() -> None:
    """A fault that nothing leads to would be a rule that is not checked."""
    assert {fault for _, fault in WRONG} | {fault for _, _, fault in CROSS} == set(ShapeFault)
