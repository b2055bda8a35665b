"""What the logs of a failure drill hold, and what they never hold (E-01 to E-07)."""

import json
import re
from collections.abc import Generator
from datetime import datetime
from typing import Any

import pytest

from cli.terminal import turnkeeper
from e2e.drill import Drill, run_drill
from e2e.harness import SHORT_LEASE, Product
from turnkeeper.domain.errors import Language, ProblemCode, lost_sentence, problem_title
from turnkeeper.kit.log import SECRET_PREFIXES

pytestmark = pytest.mark.timeout(300)

OURS = ("control", "provisioner", "host", "up", "launcher")
"""Logs that this product writes, by the beginning of their names; PostgreSQL writes its own."""
EXCEPTION_TEXTS = (
    "Errno",
    "Connection refused",
    "Connection reset",
    "Broken pipe",
    "timed out",
    "no answer (",
    "server closed the connection",
    "terminating connection",
    "connection failed",
    "Traceback",
)


@pytest.fixture(scope="module", name="drill")
def _drill() -> Generator[Drill]:
    """One drill for all tests here; the product lives until the last one."""
    with Product(SHORT_LEASE) as product:
        yield run_drill(product)


def events(drill: Drill, name: str, step: str | None = None) -> list[dict[str, Any]]:
    """What was logged as `name`, of one step's run where that is given."""
    run_id = None if step is None else drill.runs[step]
    found: list[dict[str, Any]] = []
    for text in drill.logs.values():
        for line in text.splitlines():
            if f'"event": "{name}"' in line:
                event: dict[str, Any] = json.loads(line)
                if run_id is None or event.get("run") == run_id:
                    found.append(event)
    return found


def ours(drill: Drill) -> dict[str, str]:
    """The product's own logs, by name."""
    return {str(file): text for file, text in drill.logs.items() if file.name.startswith(OURS)}


def check_absent(drill: Drill, pattern: str, *, logs: dict[str, str] | None = None) -> None:
    """No line of any log holds `pattern`."""
    for file, text in (logs or {str(file): text for file, text in drill.logs.items()}).items():
        lines = [line for line in text.splitlines() if re.search(pattern, line)]
        assert lines == [], f"{file}: {lines[:3]}"


def test_every_process_has_left_a_log(drill: Drill) -> None:
    """The other tests here look at something."""
    names = {file.name.removesuffix(".log") for file, text in drill.logs.items() if text}
    assert {"control", "provisioner", "host", "up", "launcher", "postgres"} <= names
    assert len([file for file in drill.logs if file.name == "launcher.log"]) >= 5
    assert events(drill, "agent_attempt_claimed")


def test_no_log_holds_an_address(drill: Drill) -> None:
    """Proves: E-02. Neither where something was asked for, nor what was asked."""
    check_absent(drill, r"https?://")
    check_absent(drill, rf":{drill.product.port}\b", logs=ours(drill))
    check_absent(drill, r"provisioner\.sock|/v1/|\?after=|\?wait=", logs=ours(drill))


def test_no_log_holds_a_token(drill: Drill) -> None:
    """Proves: E-02, K-11. Of every prefix, signed ones, those in files, and the database's address."""
    product = drill.product
    for prefix in SECRET_PREFIXES:
        check_absent(drill, rf"\b{prefix}[A-Za-z0-9_-]{{8,}}")
    check_absent(drill, r"eyJ[A-Za-z0-9_-]{8,}|[Bb]earer|Authorization|PRIVATE KEY")
    for file in (product.data.owner_key, product.data.host_token, product.data.provisioner_token):
        check_absent(drill, re.escape(file.read_text().strip()))
    check_absent(drill, re.escape(product.dsn))


def test_no_log_holds_a_body_or_a_message_of_an_exception(drill: Drill) -> None:
    """Proves: E-02. What was refused is told by operation, class and status."""
    logs = ours(drill)
    for code in ProblemCode:
        for language in Language:
            check_absent(drill, re.escape(problem_title(code, language)), logs=logs)
    check_absent(drill, r'"retryable"|"detail"|application/problem', logs=logs)
    for text in EXCEPTION_TEXTS:
        check_absent(drill, re.escape(text), logs=logs)


def test_no_log_holds_what_owners_and_agents_said(drill: Drill) -> None:
    """Proves: E-02. Prompts, answers, an agent's errors and what it wrote to stderr."""
    check_absent(drill, "quicksilver|prompt\\.example|failure\\.example")
    # … and the drill did say it
    said = drill.product.rows("SELECT count(*) AS n FROM events WHERE data::text LIKE '%%quicksilver%%'")
    assert said[0]["n"] > 10


def test_an_outage_is_told_by_its_numbers(drill: Drill) -> None:
    """Proves: E-01, E-03. The control plane stood still for a while."""
    step = "control-away"
    (failure,) = [one for one in events(drill, "agent_control_failure", step) if one["operation"] == "heartbeat"]
    assert failure["exception"] in ("TotalTimeout", "ReadTimeout")
    assert failure["http_status"] is None
    retries = events(drill, "agent_heartbeat_retry", step)
    assert [one["failures"] for one in retries] == list(range(1, len(retries) + 1))
    assert all(one["since_confirmed_s"] > 0 and one["retry_in_s"] >= 0 for one in retries)
    assert all("exception" not in one and "http_status" not in one for one in retries)
    (recovered,) = events(drill, "agent_heartbeat_recovered", step)
    assert recovered["failures"] == len(retries)


def test_every_claim_is_told_with_its_ids_and_fits_its_row(drill: Drill) -> None:
    """Proves: E-01, E-04. The log can be held against the attempt."""
    for name, run_id in drill.runs.items():
        (row,) = drill.product.rows("SELECT * FROM attempts WHERE run_id = %s", run_id)
        (claimed,) = events(drill, "agent_attempt_claimed", name)
        assert claimed["attempt"] == str(row["id"])
        assert claimed["worker"] == row["lease_owner"]
        assert (claimed["host"], claimed["lease_generation"]) == (row["host"], row["lease_generation"])
        logged_at = datetime.fromisoformat(claimed["time"]).timestamp()
        # The log says it when the child has accepted; the row when `prepare` has told the control plane so.
        assert row["claimed_at"].timestamp() - 0.01 <= logged_at <= row["accepted_at"].timestamp() + 0.01
        assert row["claimed_at"] < row["accepted_at"] < row["ended_at"]
        assert row["ended_at"] < row["lease_expires_at"] or row["outcome"] in ("lease_expired", "failed")


@pytest.mark.parametrize(
    ("step", "operation", "status"),
    [("lease-refused", "heartbeat", 409), ("provisioner-away", "events", None), ("sandbox-killed", "events", None)],
)
def test_what_failed_is_told_by_operation_class_and_status(
    drill: Drill, step: str, operation: str, status: int | None
) -> None:
    """Proves: E-01."""
    failures = [one for one in events(drill, "agent_control_failure", step) if one["operation"] == operation]
    assert failures, events(drill, "agent_control_failure", step)
    assert failures[0]["http_status"] == status
    assert re.fullmatch(r"[A-Z][A-Za-z]+", failures[0]["exception"])
    assert failures[0]["attempt"]


def test_renewal_execution_cancel_and_agent_are_kept_apart(drill: Drill) -> None:
    """Proves: E-06. In runs, attempts and logs; only where nobody renewed is an attempt `lease_expired`."""
    product = drill.product
    told: dict[str, tuple[str | None, str | None]] = {}
    for name, run_id in drill.runs.items():
        row = product.row(
            "SELECT r.error_code, a.outcome FROM runs r JOIN attempts a ON a.run_id = r.id WHERE r.id = %s", run_id
        )
        told[name] = (row["error_code"], row["outcome"])
    assert told["child-stopped"] == ("outcome_unknown", "lease_expired")
    assert told["child-killed"] == ("outcome_unknown", "failed")
    assert told["agent-exits"] == ("agent_exited", "failed")
    assert told["agent-never-starts"] == ("agent_start_failed", "failed")
    assert told["cancelled"] == ("cancelled", "cancelled")
    assert [one["run"] for one in events(drill, "lease_expired")] == [drill.runs["child-stopped"]]
    assert [one["verdict"] for one in events(drill, "agent_lease_lost", "child-stopped")] == ["expired"]
    assert [one["verdict"] for one in events(drill, "agent_lease_lost", "lease-refused")] == ["refused"]
    lost = {one["run"] for one in events(drill, "agent_lease_lost")}
    assert lost == {drill.runs["child-stopped"], drill.runs["lease-refused"]}


def test_no_run_is_said_to_have_been_taken_over(drill: Drill) -> None:
    """Proves: E-05. Conversations were lost without any other attempt, and nothing claims that there was one."""
    for run_id in drill.runs.values():
        assert len(drill.product.client.run(run_id).attempts) == 1
    check_absent(drill, "superseded|taken over|another attempt", logs=ours(drill))


def test_the_owner_is_told_in_plain_words(drill: Drill) -> None:
    """Proves: R-06. By the conversation, its stream and the command line; the run's error stays as it was."""
    product = drill.product
    for name in ("child-killed", "child-stopped", "agent-exits", "sandbox-killed"):
        (event,) = product.rows(
            "SELECT run_id, data FROM events WHERE thread_id = %s AND kind = 'conversation'", drill.threads[name]
        )
        assert (event["run_id"], event["data"]["state"], event["data"]["text"]) == (None, "lost", lost_sentence())
    where = {"TURNKEEPER_URL": product.url, "TURNKEEPER_DATA": str(product.data.root)}
    thread = product.conversation(product.agent("told"))
    ran = turnkeeper("chat", "/exit 3", "--thread", thread, home=product.root, env=where, timeout_s=90)
    assert ran.status == 1
    assert lost_sentence() in ran.out
    goes_on = turnkeeper("chat", "/fail nothing", "--agent", "told", home=product.root, env=where, timeout_s=90)
    assert goes_on.status == 1
    assert lost_sentence() not in goes_on.out
