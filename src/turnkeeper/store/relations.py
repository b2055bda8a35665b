"""Subagent relations: which run created which child conversation."""

from turnkeeper.domain.tree import CreatorFacts
from turnkeeper.store.tx import Reader


async def creator_facts(reader: Reader, created_by_run_id: str, relation_id: str) -> CreatorFacts | None:
    """What T-05 compares across rows. None where creator or relation does not exist."""
    return await reader.fetch_one(
        "SELECT p.uid AS creator_uid, p.thread_id AS creator_thread_id, p.root_run_id AS creator_root_run_id, "
        "p.runtime_scope_id AS creator_scope_id, c.workdir AS creator_workdir, "
        "s.parent_thread_id AS relation_parent_thread_id, s.child_thread_id AS relation_child_thread_id "
        "FROM runs p JOIN conversations c ON c.thread_id = p.thread_id, subagent_relations s "
        "WHERE p.id = %s AND s.id = %s AND s.creating_run_id = p.id",
        (created_by_run_id, relation_id),
        as_=CreatorFacts,
    )
