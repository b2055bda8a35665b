"""Before, at and after the admission: when a conversation goes on, and when it does not (R-01 to R-03)."""

from collections.abc import Generator

import pytest

from e2e.harness import Product, Turn, wait_for
from e2e.second_host import SecondHost, second_host, stopped
from turnkeeper.domain.errors import Language, lost_sentence

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module", name="product")
def _product() -> Generator[Product]:
    with Product() as running:
        yield running


@pytest.fixture(name="away")
def _away(product: Product) -> Generator[SecondHost]:
    """The only host that works: its words go through a gate."""
    with stopped(product.process("host")), second_host(product, "away") as host:
        yield host


def deliveries(product: Product, thread: str) -> list[str]:
    """What is said of each message of the owner's, in order."""
    rows = product.rows("SELECT delivery FROM messages WHERE thread_id = %s AND role = 'owner' ORDER BY id", thread)
    return [row["delivery"] for row in rows]


def messages(product: Product, thread: str) -> list[tuple[str, str]]:
    """Who said what, in order."""
    rows = product.rows("SELECT role, text FROM messages WHERE thread_id = %s ORDER BY id", thread)
    return [(row["role"], row["text"]) for row in rows]


def check_continued(done: Turn, product: Product) -> None:
    """The second settled turn of the same native session, in the same process."""
    assert "turn 2, remembering 1 earlier turns" in done.text, f"{done.text}\n{product.tell()}"
    assert done.of_session() == "continued"


def test_a_preparation_that_fails_costs_nothing_but_its_turn(product: Product) -> None:
    """A setup command fails between two turns; the next message continues the retained session. Proves: R-01, A-05."""
    agent = product.agent("prepares", setup=[["/bin/sh", "-c", "[ ! -e /workspace/prepares-not ]"]])
    thread = product.conversation(agent)
    first = product.completed(thread, "one")
    blocked = product.workspace / "prepares-not"
    blocked.touch()
    failed = product.turn(thread, "never delivered")
    assert (failed.run.status, failed.run.error_code) == ("failed", "preparation_failed")
    assert (failed.run.error_detail or {}).get("stage") == "setup"
    blocked.unlink()
    done = product.completed(thread, "two")
    check_continued(done, product)
    sessions = {entry.session for entry in product.ledger(agent)}
    assert len(sessions) == 1
    assert [entry.text for entry in product.ledger(agent)] == ["one", "two"]
    assert deliveries(product, thread) == ["delivered", "not_delivered", "delivered"]
    assert first.run.native_turn == 1
    assert done.run.native_turn == 2


def test_reporting_a_preparation_failure_needs_no_event(product: Product, away: SecondHost) -> None:
    """Every upload is cut, the run ends all the same, and its error is told. Proves: F-01, R-01."""
    agent = product.agent("unheard", setup=[["/bin/sh", "-c", "exit 7"]])
    thread = product.conversation(agent)
    away.gate.drop(events=1000)
    run = product.wait_status(product.submit(thread, "never delivered"))
    assert (run.status, run.error_code) == ("failed", "preparation_failed"), f"{run}\n{product.tell()}"
    kinds = [one["kind"] for one in product.rows("SELECT kind FROM events WHERE run_id = %s ORDER BY seq", run.id)]
    assert kinds[-2:] == ["error", "end"]  # made good for by whoever ended the run
    assert deliveries(product, thread) == ["not_delivered"]


def test_an_admission_that_never_arrived_costs_nothing_but_its_turn(product: Product, away: SecondHost) -> None:
    """Asked for three times, recorded never: abandoned, and the next message continues. Proves: F-04, R-01, R-02, R-05."""
    agent = product.agent("not-admitted")
    thread = product.conversation(agent)
    product.completed(thread, "one")
    away.gate.drop(admit=3)
    failed = product.turn(thread, "never delivered")
    assert (failed.run.status, failed.run.error_code) == ("failed", "admission_refused"), f"{failed.run}"
    check_continued(product.completed(thread, "two"), product)
    assert [entry.text for entry in product.ledger(agent)] == ["one", "two"]
    assert deliveries(product, thread) == ["delivered", "not_delivered", "delivered"]


@pytest.mark.parametrize("language", list(Language))
def test_an_admission_without_an_answer_may_cost_the_conversation(
    product: Product, away: SecondHost, language: Language
) -> None:
    """Recorded three times over and never answered: nothing was prompted, and nothing is said that is not known.

    The conversation is LOST and says so in its owner's words, or, where the exact sandbox proves that the prompt was never
    written, goes on; never anything between. The run's error and the messages stay as they were. Proves: R-02, R-03, R-05, R-06.
    """
    product.rows("UPDATE users SET language = %s WHERE uid = %s RETURNING uid", language.value, product.uid)
    agent = product.agent(f"unanswered-{language.value}")
    thread = product.conversation(agent)
    product.completed(thread, "one")
    before = messages(product, thread)
    away.gate.lose_replies(admit=3)
    failed = product.turn(thread, "never prompted")
    assert (failed.run.status, failed.run.error_code) == ("failed", "admission_refused"), f"{failed.run}"
    assert sum(one.verb == "admit" for one in away.to_jobs()) == 4
    state = wait_for(
        lambda: product.rows(
            "SELECT state FROM memberships WHERE thread_id = %s AND state IN ('idle', 'lost')", thread
        ),
        "there is a verdict",
    )[0]["state"]
    assert [entry.text for entry in product.ledger(agent)] == ["one"]
    assert messages(product, thread)[: len(before)] == before
    conversation = product.client.conversation(thread)
    if state == "idle":
        check_continued(product.completed(thread, "two"), product)
        return
    assert (conversation.state, conversation.lost_text) == ("lost", lost_sentence(language))
    (told,) = product.rows("SELECT data FROM events WHERE thread_id = %s AND kind = 'conversation'", thread)
    assert told["data"]["text"] == lost_sentence(language)
    run = product.client.run(failed.run.id)
    assert (run.error_code, run.error_text) == (failed.run.error_code, failed.run.error_text)
