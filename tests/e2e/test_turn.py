"""A turn through the whole product, read back row by row (protocol, section 4)."""

import itertools

import pytest

from e2e.harness import Product, Turn, wait_for
from turnkeeper.kit.ids import new_id
from turnkeeper.wire.public import NewConversation
from turnkeeper.wire.turn import EventKind

pytestmark = pytest.mark.timeout(180)


@pytest.mark.cold_start
def test_cold_start_creates_workdir_and_projection_at_the_first_request(product: Product) -> None:
    """Nothing of the owner's exists before; one attempt, no release, no repeated step. Proves: K-09, K-10."""
    _, client = product.other_owner()
    with client:
        storage = product.data.workspace(client.me().uid).parent
        assert not storage.exists()
        new = NewConversation(agent=product.agent("cold"), workdir="projects/first")
        thread = client.create_conversation(new, idempotency_key=new_id()).thread_id
        run_id = client.submit(thread, "/write made.txt hello\n/run pwd", idempotency_key=new_id()).run.id
        events = list(client.run_events(run_id))
        run = client.run(run_id)
    assert run.status == "completed", f"{run}\n{product.tell()}"
    assert (storage / "workspace/projects/first/made.txt").read_text() == "hello\n"
    assert (storage / "skills").is_dir()
    assert "/workspace/projects/first" in str([event.data for event in events if event.kind is EventKind.TOOL_UPDATE])
    assert [(attempt.attempt_no, attempt.outcome) for attempt in run.attempts] == [(1, "completed")]
    assert product.row("SELECT releases FROM runs WHERE id = %s", run_id)["releases"] == 0


def test_every_row_of_a_turn_is_there_in_the_order_of_the_protocol(product: Product) -> None:
    """Attempt, manifest, activation, admission before the prompt, settlement once, epoch, snapshot, message, end last.

    Proves: A-01, A-02, A-03, A-04, A-05, D-08, E-04, F-05, F-06.
    """
    agent = product.agent("order")
    thread = product.conversation(agent)
    done = product.completed(thread, "/write a.txt quicksilver\n/say done")
    _check_rows(product, thread, agent, done, turn=1)
    _check_rows(product, thread, agent, product.completed(thread, "/write a.txt two"), turn=2)
    activations = product.rows(
        "SELECT a.id FROM activations a JOIN runs r ON r.id = a.run_id WHERE thread_id = %s", thread
    )
    assert len(activations) == 2


def _check_rows(product: Product, thread: str, agent: str, done: Turn, *, turn: int) -> None:
    run = product.row("SELECT * FROM runs WHERE id = %s", done.run.id)
    attempt = product.row("SELECT * FROM attempts WHERE run_id = %s", done.run.id)
    activation = product.row("SELECT * FROM activations WHERE run_id = %s", done.run.id)
    membership = product.row("SELECT * FROM memberships WHERE thread_id = %s", thread)
    shared = product.row("SELECT * FROM shared_workspaces WHERE runtime_scope_id = %s", thread)
    snapshot = product.row("SELECT * FROM snapshots WHERE run_id = %s", done.run.id)
    received = product.ledger(agent)
    events = product.rows("SELECT * FROM events WHERE run_id = %s ORDER BY seq", done.run.id)
    # one prompt, once, and only after it was admitted
    assert len(received) == turn
    assert activation["admitted_at"].timestamp() < received[-1].at_s < activation["settled_at"].timestamp()
    # the order of the steps, by the database's clock
    moments = [
        run["created_at"], attempt["claimed_at"], attempt["accepted_at"], activation["created_at"],
        activation["admitted_at"], activation["settled_at"], attempt["ended_at"],
    ]  # fmt: skip
    assert moments == sorted(moments)
    assert activation["settled_at"] < snapshot["created_at"] <= run["ended_at"]
    assert attempt["last_heartbeat_at"] is None or attempt["last_heartbeat_at"] <= attempt["lease_expires_at"]
    assert (attempt["attempt_no"], attempt["outcome"]) == (1, "completed")
    assert run["manifest"]["agent"]
    assert len(run["manifest_sha256"]) == 64
    assert "quicksilver" not in str(run["manifest"])
    # settled once, in step everywhere
    assert (activation["state"], activation["outcome"], activation["fence"]) == ("settled", "completed", turn)
    assert (activation["native_turn"], activation["epoch"], membership["native_turn"], shared["epoch"]) == (turn,) * 4
    assert (activation["generation"], activation["boot_id"]) == (shared["generation"], shared["boot_id"])
    assert (membership["state"], membership["activation_id"], membership["native_session"]) == (
        "idle", None, received[-1].session,
    )  # fmt: skip
    assert (snapshot["epoch"], snapshot["unavailable_why"]) == (turn, None)
    assert [file["path"] for file in snapshot["changes"]["files"]] == ["a.txt"]
    # what the owner reads
    assert (run["status"], run["error_code"], run["ready_at"]) == ("completed", None, None)
    messages = product.rows("SELECT role, delivery FROM messages WHERE run_id = %s ORDER BY id", done.run.id)
    assert messages == [{"role": "owner", "delivery": "delivered"}, {"role": "assistant", "delivery": None}]
    # one gap-free line of events, whose end is last
    sequence = [event["seq"] for event in events]
    assert sequence == list(range(sequence[0], sequence[0] + len(sequence)))
    assert [event["kind"] for event in events].count("end") == 1
    assert events[-1]["kind"] == "end"
    kinds = [event["kind"] for event in events]
    assert kinds.index("session") < kinds.index("tool_call") < kinds.index("tool_update") < kinds.index("text")
    assert kinds.index("text") < kinds.index("shared_workspace_settled") < kinds.index("changes") < kinds.index("end")


def test_three_messages_run_in_order_one_at_a_time(product: Product) -> None:
    """Sent at once; no two overlap, and the session is one. Proves: D-01."""
    agent = product.agent("line")
    thread = product.conversation(agent)
    runs = [product.submit(thread, f"/sleep 0.3\n/say number {number}") for number in (1, 2, 3)]
    turns = [product.follow(run) for run in runs]
    assert [turn.run.status for turn in turns] == ["completed"] * 3
    received = product.ledger(agent)
    assert [entry.text.splitlines()[1] for entry in received] == [f"/say number {number}" for number in (1, 2, 3)]
    assert len({entry.session for entry in received}) == 1
    assert len({entry.pid for entry in received}) == 1, "the agent's process is kept between turns"
    times = [
        (row["admitted_at"], row["settled_at"])
        for row in product.rows(
            "SELECT a.admitted_at, a.settled_at FROM activations a JOIN runs r ON r.id = a.run_id "
            "WHERE r.thread_id = %s ORDER BY a.fence",
            thread,
        )
    ]
    assert all(settled < admitted for (_, settled), (admitted, _) in itertools.pairwise(times))
    assert [turn.run.native_turn for turn in turns] == [1, 2, 3]
    assert [turn.run.epoch for turn in turns] == [1, 2, 3]


def test_two_conversations_of_one_owner_run_side_by_side(product: Product) -> None:
    """In two Workdirs, in two sandboxes: both are under way at one moment. Proves: D-02."""
    agent = product.agent("side")
    threads = [product.conversation(agent, f"side/{name}") for name in ("left", "right")]
    for thread in threads:
        product.completed(thread, "/say warm")
    runs = [product.submit(thread, "/run touch begun && while [ ! -e go ]; do sleep 0.05; done") for thread in threads]
    places = [product.workspace / "side" / name for name in ("left", "right")]
    wait_for(lambda: all((place / "begun").exists() for place in places), "both have begun while neither may end")
    for place in places:
        (place / "go").touch()
    assert [product.follow(run).run.status for run in runs] == ["completed", "completed"]
    scopes = product.rows("SELECT DISTINCT sandbox_id FROM shared_workspaces WHERE runtime_scope_id = ANY(%s)", threads)
    assert len(scopes) == 2
