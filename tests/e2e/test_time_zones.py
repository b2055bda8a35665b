"""The whole product with each part in a time zone of its own (F12)."""

import json
import re
import signal
from collections.abc import Generator
from datetime import datetime, timedelta

import psycopg
import pytest

from cli.terminal import turnkeeper
from e2e.harness import GRACE_S, LEASE_S, ROUND_S, SHORT_LEASE, Product, wait_for
from e2e.second_host import SecondHost, second_host, stopped
from turnkeeper.kit.procs import is_alive, kill

pytestmark = pytest.mark.timeout(180)

LATE_S = 1.0
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(.{0,6})")
OFFSET = re.compile(r"Z|[+-]\d\d:\d\d|\s[+-]\d{4}")


@pytest.fixture(scope="module", name="product")
def _product() -> Generator[Product]:
    """The API in UTC; the sessions of its database in Europe/Paris, whatever the product asks for when it connects."""
    with Product({**SHORT_LEASE, "TZ": "UTC"}) as running:
        with psycopg.connect(running.dsn, autocommit=True) as connection:
            connection.execute(
                "CREATE FUNCTION elsewhere() RETURNS event_trigger LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM set_config('TimeZone', 'Europe/Paris', false); END $$"
            )
            connection.execute("CREATE EVENT TRIGGER elsewhere ON login EXECUTE FUNCTION elsewhere()")
        control = running.process("control")
        kill(control, signal.SIGKILL)
        wait_for(lambda: running.process("control") != control, "another control plane runs")
        wait_for(lambda: _paris(running), "its sessions are elsewhere")
        yield running


def _paris(product: Product) -> bool:
    product.client.me()
    return product.row("SELECT current_setting('TimeZone') AS zone")["zone"] == "Europe/Paris"


@pytest.fixture(name="away")
def _away(product: Product) -> Generator[SecondHost]:
    """The only host that works, in a zone that is half an hour off."""
    with stopped(product.process("host")), second_host(product, "away", {"TZ": "America/St_Johns"}) as host:
        yield host


def check_offsets(text: str, what: str, *, least: int = 1) -> None:
    """Every time in `text` carries its offset."""
    found = MOMENT.findall(text)
    assert len(found) >= least, f"{what}: {text[:500]}"
    assert [after for after in found if not OFFSET.match(after)] == [], f"{what}: {text[:2000]}"


def test_nothing_is_reaped_early_or_late(product: Product, away: SecondHost) -> None:
    """Case: F12. Proves: L-11, L-08. A turn that is renewed outlives many leases; one that is not ends in time."""
    thread = product.conversation(product.agent("zones"), "zones")
    long = product.turn(thread, f"/sleep {LEASE_S + 4:g}\n/say through")
    assert (long.run.status, "through" in long.text) == ("completed", True), f"{long.run}\n{product.tell()}"
    run_id, _ = product.hold(thread, "zones")
    child = away.child(run_id)
    kill(child, signal.SIGSTOP)
    try:
        run = product.wait_status(run_id, timeout_s=LEASE_S + GRACE_S + ROUND_S + 15)
    finally:
        kill(child, signal.SIGCONT)
    assert (run.status, run.error_code) == ("failed", "outcome_unknown"), f"{run}\n{product.tell()}"
    row = product.row("SELECT * FROM attempts WHERE run_id = %s", run_id)
    assert row["claimed_at"].utcoffset() == timedelta(hours=1)  # so it was read in Europe/Paris
    assert GRACE_S <= (row["ended_at"] - row["lease_expires_at"]).total_seconds() <= GRACE_S + LATE_S
    wait_for(lambda: not is_alive(child), "the child ends by itself")
    (claimed,) = [one for one in away.logged("agent_attempt_claimed") if one["run"] == run_id]
    assert abs((datetime.fromisoformat(claimed["time"]) - row["claimed_at"]).total_seconds()) < LATE_S


def test_every_time_that_is_shown_carries_its_offset(product: Product, away: SecondHost) -> None:
    """Case: F12. In the API, its streams, the pages, the command line and the logs."""
    thread = product.conversation(product.agent("shown"))
    done = product.completed(thread, "hello")
    http = product.client
    for what, answer in (
        ("run", http.run(done.run.id)),
        ("conversation", http.conversation(thread)),
        *(("server", one) for one in http.servers()),
        *(("agent", one) for one in http.agents()),
    ):
        text = answer.model_dump_json()
        check_offsets(text, what, least=0 if what == "agent" else 1)
    for event in done.events:
        check_offsets(json.dumps(event.data), event.kind)
    where = {"TURNKEEPER_URL": product.url, "TURNKEEPER_DATA": str(product.data.root), "TZ": "America/St_Johns"}
    for words in (("runs", "show", done.run.id), ("runs", "list"), ("conversations", "list"), ("hosts", "list")):
        ran = turnkeeper(*words, home=product.root, env=where, timeout_s=90)
        assert ran.status == 0, ran
        check_offsets(ran.out, " ".join(words))
    for log in (away.log_file, product.data.logs / "up.log", product.data.logs / "provisioner.log"):
        check_offsets(log.read_text(), log.name)
