"""Execution trees: how deep and how large one may become (T-09), and the shape that each run must have (T-04, T-05)."""

from dataclasses import dataclass
from enum import StrEnum

from turnkeeper.domain.run import RunKind
from turnkeeper.domain.settings import Limits


@dataclass(frozen=True)
class ChildAdmitted:
    """The child may be created, at this depth (a root has depth 0)."""

    depth: int


@dataclass(frozen=True)
class TreeTooDeep:
    """Every level of the tree is used up."""

    limit: int

    @property
    def sentence(self) -> str:
        """What the agent that asked is told."""
        return f"A subagent here would be {self.limit + 1} levels deep; at most {self.limit} are allowed. Do this yourself."


@dataclass(frozen=True)
class TreeFull:
    """The tree has as many runs as it may have, ended ones included."""

    limit: int

    @property
    def sentence(self) -> str:
        """What the agent that asked is told."""
        return f"This task already has {self.limit} runs, which is the limit. Do this yourself."


def admit_child(parent_depth: int, tree_size: int, limits: Limits) -> ChildAdmitted | TreeTooDeep | TreeFull:
    """Whether a run at `parent_depth` may get one more child in a tree of `tree_size` runs, the root included.

    A resume is the root of its own tree, so approvals add no depth.
    """
    if parent_depth >= limits.tree_depth_max:
        return TreeTooDeep(limits.tree_depth_max)
    if tree_size >= limits.tree_size_max:
        return TreeFull(limits.tree_size_max)
    return ChildAdmitted(parent_depth + 1)


class ShapeFault(StrEnum):
    """What is wrong with a run. All of them end it as `invalid_runtime_scope` before anything is executed."""

    FOREIGN_SCOPE = "foreign_scope"
    """A chat or resume outside its own conversation's scope, or a run outside its conversation's."""
    UNEXPECTED_CREATOR = "unexpected_creator"
    UNEXPECTED_RELATION = "unexpected_relation"
    MISSING_CREATOR = "missing_creator"
    MISSING_RELATION = "missing_relation"
    NOT_ROOT = "not_root"
    """A chat or resume that is not the root of its own tree, or a subagent that is one."""
    WRONG_OWNER = "wrong_owner"
    WRONG_CREATOR = "wrong_creator"
    """The creator is not a run of the relation's parent conversation, or not of this tree."""
    WRONG_RELATION = "wrong_relation"
    """The relation names another child conversation."""
    SCOPE_NOT_INHERITED = "scope_not_inherited"
    WORKDIR_NOT_SHARED = "workdir_not_shared"


@dataclass(frozen=True)
class RunShape:
    """What the run's own row says, and its conversation's."""

    kind: RunKind
    run_id: str
    root_run_id: str
    depth: int
    uid: str
    thread_id: str
    runtime_scope_id: str
    conversation_scope_id: str
    conversation_uid: str
    workdir: str
    created_by_run_id: str | None = None
    relation_id: str | None = None


@dataclass(frozen=True)
class CreatorFacts:
    """What the rows of the creating run and of the relation say, for a subagent."""

    creator_uid: str
    creator_thread_id: str
    creator_root_run_id: str
    creator_scope_id: str
    creator_workdir: str
    relation_parent_thread_id: str
    relation_child_thread_id: str


@dataclass(frozen=True)
class ShapeOk:
    """The run may be executed."""


@dataclass(frozen=True)
class ShapeRefused:
    """The run may not be executed."""

    fault: ShapeFault


def check_run_shape(run: RunShape) -> ShapeOk | ShapeRefused:
    """T-04: what the database's CHECK also says, from the run's own row."""
    fault = _fault_of_subagent(run) if run.kind is RunKind.SUBAGENT else _fault_of_root(run)
    return ShapeOk() if fault is None else ShapeRefused(fault)


def check_run_scope(run: RunShape, creator: CreatorFacts | None) -> ShapeOk | ShapeRefused:
    """T-05: the shape, and everything across rows. `creator` is None where the rows do not exist."""
    shape = check_run_shape(run)
    if isinstance(shape, ShapeRefused):
        return shape
    if run.uid != run.conversation_uid:
        return ShapeRefused(ShapeFault.WRONG_OWNER)
    if run.kind is not RunKind.SUBAGENT:
        return ShapeOk()
    if creator is None:
        return ShapeRefused(ShapeFault.MISSING_CREATOR)
    fault = _fault_of_creation(run, creator)
    return ShapeOk() if fault is None else ShapeRefused(fault)


def _fault_of_root(run: RunShape) -> ShapeFault | None:
    if run.runtime_scope_id != run.thread_id or run.conversation_scope_id != run.thread_id:
        return ShapeFault.FOREIGN_SCOPE
    if run.relation_id is not None:
        return ShapeFault.UNEXPECTED_RELATION
    if run.kind is RunKind.CHAT and run.created_by_run_id is not None:
        return ShapeFault.UNEXPECTED_CREATOR
    if run.kind is RunKind.RESUME and run.created_by_run_id is None:
        return ShapeFault.MISSING_CREATOR
    if run.root_run_id != run.run_id or run.depth != 0:
        return ShapeFault.NOT_ROOT
    return None


def _fault_of_subagent(run: RunShape) -> ShapeFault | None:
    if run.created_by_run_id is None:
        return ShapeFault.MISSING_CREATOR
    if run.relation_id is None:
        return ShapeFault.MISSING_RELATION
    if run.runtime_scope_id != run.conversation_scope_id:
        return ShapeFault.FOREIGN_SCOPE
    if run.root_run_id == run.run_id or run.depth < 1:
        return ShapeFault.NOT_ROOT
    return None


def _fault_of_creation(run: RunShape, creator: CreatorFacts) -> ShapeFault | None:
    if run.uid != creator.creator_uid:
        return ShapeFault.WRONG_OWNER
    if creator.relation_child_thread_id != run.thread_id or run.thread_id == creator.creator_thread_id:
        return ShapeFault.WRONG_RELATION
    if creator.relation_parent_thread_id != creator.creator_thread_id or creator.creator_root_run_id != run.root_run_id:
        return ShapeFault.WRONG_CREATOR
    if creator.creator_scope_id != run.runtime_scope_id:
        return ShapeFault.SCOPE_NOT_INHERITED
    if creator.creator_workdir != run.workdir:
        return ShapeFault.WORKDIR_NOT_SHARED
    return None
