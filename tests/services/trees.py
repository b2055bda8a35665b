"""Subagent runs, put into the database as the trees' use cases will."""

from services.driver import Driver
from turnkeeper.kit.ids import new_id


async def add_child(driver: Driver, parent_run: str) -> str:
    """A ready subagent run below `parent_run`, in a conversation of its own; the run's id."""
    parent = await driver.run(parent_run)
    scope, child, relation, run = parent["runtime_scope_id"], new_id(), new_id(), new_id()
    await driver.rows(
        "INSERT INTO conversations (thread_id, uid, agent, kind, parent_thread_id, runtime_scope_id, workdir, runtime_policy) "
        "SELECT %s, uid, agent, 'subagent', thread_id, runtime_scope_id, workdir, runtime_policy FROM conversations "
        "WHERE thread_id = %s",
        child, parent["thread_id"],
    )  # fmt: skip
    await driver.rows(
        "INSERT INTO subagent_relations (id, parent_thread_id, child_thread_id, creating_run_id) VALUES (%s, %s, %s, %s)",
        relation, parent["thread_id"], child, parent_run,
    )  # fmt: skip
    await driver.rows(
        "INSERT INTO runs (id, thread_id, uid, agent, kind, runtime_scope_id, root_run_id, depth, created_by_run_id, "
        "relation_id, request_id, prompt, ready_at) VALUES (%s, %s, %s, 'scripted', 'subagent', %s, %s, %s, %s, %s, %s, "
        "'sub', tk_now())",
        run, child, parent["uid"], scope, parent["root_run_id"], parent["depth"] + 1, parent_run, relation, new_id(),
    )  # fmt: skip
    await driver.rows(
        "INSERT INTO messages (id, thread_id, run_id, role, text, delivery) VALUES (%s, %s, %s, 'owner', 'sub', 'queued')",
        new_id(), child, run,
    )  # fmt: skip
    return run
