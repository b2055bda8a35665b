"""`turnkeeper up` as a user has it: what it refuses to start on, and what is there again after it was killed."""

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest

from cli.terminal import turnkeeper
from e2e.harness import GRACE_S, HELD, LEASE_S, ROUND_S, SHORT_LEASE, Product, wait_for
from harness.postgres import embedded_at, private_directory, throw_away
from harness.signals import NOHUP, ignored_by, starting_with
from turnkeeper.kit.procs import descendants, is_alive, kill
from turnkeeper.kit.sockets import bind_unix
from turnkeeper.provisioner.backends.local.records import sandbox_names

pytestmark = pytest.mark.timeout(180)


def refused(tmp_path: Path, *arguments: str, env: dict[str, str] | None = None) -> str:
    """The one line with which `up` refuses to start."""
    ran = turnkeeper(
        "up", "--port", "0", "--data", str(tmp_path / "data"), *arguments, home=tmp_path, env=env, timeout_s=90
    )
    assert ran.status == 1, ran
    assert ran.out == ""
    return ran.one_line()


def answered(url: str, host: str) -> int:
    """The status of a GET that names `host`."""
    request = urllib.request.Request(url, headers={"Host": host})  # noqa: S310 - our own
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


# ---- refusals ----


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    """Nothing is started behind it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1:{port} (it is in use)" in refused(tmp_path, "--port", port)
    assert not (tmp_path / "data" / "postgres").exists()


@pytest.mark.parametrize(
    ("setting", "value"),
    [("AGENT_LEASE_TTL", "soon"), ("AGENT_HEARTBEAT_INTERVAL", "-1"), ("TURNKEEPER_LOG_LEVEL", "loud"),
     ("SANDBOX_IDLE_TIMEOUT_SECONDS", "0"), ("TURNKEEPER_TREES_PER_OWNER", "many")],
)  # fmt: skip
def test_a_wrong_setting_is_named_before_anything_is_made(setting: str, value: str, tmp_path: Path) -> None:
    """Also those that only a later process reads."""
    line = refused(tmp_path, env={setting: value})
    assert f"{setting} is '{value}'" in line
    assert "does not start" not in line
    assert not (tmp_path / "data").exists()


def test_an_open_data_directory_is_left_as_it_is(tmp_path: Path) -> None:
    """Refused, and nothing is made in it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    assert "is open to other users: chmod 700" in refused(tmp_path)
    assert list((tmp_path / "data").iterdir()) == []


def test_a_revoked_local_key_is_replaced_at_the_next_start() -> None:
    """The command line of this machine is not shut out for good; the error before names the file."""
    with Product() as product:
        where = {"TURNKEEPER_URL": product.url, "TURNKEEPER_DATA": str(product.data.root)}
        listed = turnkeeper("keys", "list", "--json", home=product.root, env=where)
        (key,) = json.loads(listed.out)
        assert turnkeeper("keys", "revoke", key["id"], "--yes", home=product.root, env=where).status == 0
        assert str(product.data.owner_key) in turnkeeper("runs", "list", home=product.root, env=where).one_line()
        product.stop()
        product.start()
        where["TURNKEEPER_URL"] = product.url
        again = turnkeeper("keys", "list", "--json", home=product.root, env=where)
        assert [one["revoked_at"] is None for one in json.loads(again.out)] == [False, True]


def test_a_name_that_does_not_exist_is_blamed_on_host(tmp_path: Path) -> None:
    """And not on the port."""
    assert "--host: cannot listen on 300.1.1.1" in refused(tmp_path, "--host", "300.1.1.1")


def test_open_to_other_machines(tmp_path: Path) -> None:
    """The link opens, the machine's own addresses and the names that were given are answered, and a warning says: no TLS."""
    arguments = ("--host", "0.0.0.0", "--allowed-host", "box.example")  # noqa: S104 - what is tried
    with Product(None, *arguments) as product:
        assert product.url.startswith("http://127.0.0.1:")
        found = [answered(f"{product.url}/login", name) for name in ("127.0.0.1", "box.example", "other.example")]
        assert found == [401, 401, 403]  # 401: the page that asks to sign in


def test_a_data_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A read-only place (root may write wherever permissions say no, so it must be one that nobody can write)."""
    line = refused(tmp_path, "--data", "/proc/turnkeeper")
    assert "data directory /proc/turnkeeper cannot be made" in line
    assert "--data" in line


def test_a_data_directory_that_every_sandbox_would_see_is_refused(tmp_path: Path) -> None:
    """Proves: K-11."""
    inside = Path(sys.prefix) / f"tk-data-{os.getpid()}"
    try:
        assert "which every sandbox can read" in refused(tmp_path, "--data", str(inside))
    finally:
        shutil.rmtree(inside, ignore_errors=True)


def test_without_bubblewrap_there_is_a_clear_refusal(tmp_path: Path) -> None:
    """Proves: K-08."""
    line = refused(tmp_path, env={"PATH": str(tmp_path)})
    assert "bubblewrap" in line
    assert "apt-get install bubblewrap" in line
    assert "--unsafe-no-isolation" in line


def test_a_database_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    """One line with host and port."""
    line = refused(tmp_path, env={"DATABASE_URL": "postgresql://tk:hunter2@127.0.0.1:1/nowhere"})
    assert "127.0.0.1:1" in line
    assert "hunter2" not in line
    assert "DATABASE_URL" in refused(tmp_path, env={"DATABASE_URL": "mysql://127.0.0.1/x"})


def test_a_database_that_may_forget_commits_is_refused_before_anything_is_changed_on_it(
    tmp_path: Path, empty_dsn: str
) -> None:
    """Proves: D-04. By `up` and by `db upgrade`: no table of ours is there afterwards."""
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET synchronous_commit = off'.encode())
        assert "synchronous_commit = off" in refused(tmp_path, env={"DATABASE_URL": empty_dsn})
        ran = turnkeeper("db", "upgrade", home=tmp_path, env={"DATABASE_URL": empty_dsn})
        assert ran.status == 1
        assert "synchronous_commit = off" in ran.one_line()
        found = connection.execute("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace")
        assert found.fetchall() == []


def test_a_process_that_does_not_start_is_told_by_its_own_last_line(tmp_path: Path) -> None:
    """A secrets file that others may read: the provisioner refuses it, and `up` says so instead of trying for ever."""
    file = tmp_path / "secrets"
    file.write_text("KEY=value-of-the-secret\n")
    file.chmod(0o644)
    line = refused(tmp_path, env={"TURNKEEPER_SECRETS_FILE": str(file)})
    assert "provisioner does not start" in line
    assert "it must be 0600" in line
    assert "value-of-the-secret" not in line


@pytest.mark.parametrize("setting", ["fsync", "synchronous_commit"])
def test_a_database_that_is_not_durable_is_refused(setting: str, tmp_path: Path) -> None:
    """The setting is named. Proves: D-04."""
    with private_directory() as directory:
        server = embedded_at(directory, **{setting: "off"})
        dsn = server.start_blocking()
        try:
            assert setting in refused(tmp_path, env={"DATABASE_URL": dsn})
            check = turnkeeper("db", "check", "--json", home=tmp_path, env={"DATABASE_URL": dsn})
            assert check.status == 1
            assert setting in str(json.loads(check.out)["findings"])
        finally:
            throw_away(server)


def test_a_schema_that_is_not_this_release_s_is_named(empty_dsn: str, tmp_path: Path) -> None:
    """`db check` and the control plane say so; `db upgrade` brings it, and again changes nothing."""
    env = {"DATABASE_URL": empty_dsn}
    check = turnkeeper("db", "check", home=tmp_path, env=env)
    assert check.status == 1
    assert "db upgrade" in check.out
    (tmp_path / "key.pem").write_text("x")
    control = {**env, "TURNKEEPER_SIGNING_KEY_FILE": str(tmp_path / "key.pem")}
    ran = turnkeeper("control", "--listen", "127.0.0.1:0", home=tmp_path, env=control)
    assert ran.status == 1
    assert "db upgrade" in ran.error_lines[-1]
    assert "Traceback" not in ran.err
    first, second = (turnkeeper("db", "upgrade", "--json", home=tmp_path, env=env) for _ in range(2))
    assert (first.status, second.status) == (0, 0)
    assert first.out == second.out
    assert turnkeeper("db", "check", home=tmp_path, env=env).out == "ok\n"


# ---- one product that is ended in several ways and started again ----


@pytest.fixture(scope="module", name="product")
def _product() -> Generator[Product]:
    """Started by the first test that asks for it."""
    with Product() as running:
        yield running


def test_started_under_nohup_it_passes_no_ignored_signal_on(product: Product) -> None:
    """Case: F15. Neither to its processes and the database, nor through them to workers, sandboxes and agents."""
    assert product.stop() == 0
    with starting_with(NOHUP):
        product.start()
    thread = product.conversation(product.agent("signals"), "signals")
    _, go = product.hold(thread, "signals")
    launcher, _ = product.sandboxes()[thread]
    sandbox = set(descendants(launcher.pid))
    ours = {process for process in descendants(product.up_pid) if _is_a_program(process.pid)} - sandbox
    agents = set(product.agents_running(thread) + product.tools_running(thread))
    heard = {process: NOHUP & ignored_by(process.pid) for process in ours | sandbox}
    go.touch()
    assert launcher in ours
    assert len(ours) >= 6  # and PostgreSQL, three processes and a worker
    assert len(agents) >= 2
    assert agents < sandbox
    assert not any(heard[process] for process in ours | agents)
    assert set().union(*heard.values()) <= {signal.SIGINT}  # which manager and keepers ignore by themselves
    os.kill(product.up_pid, signal.SIGHUP)
    assert product.uid, "a terminal that is closed does not end it"


def _is_a_program(pid: int) -> bool:
    """Not one of PostgreSQL's own children, which set their signals as they need them."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"postgres:")
    except OSError:
        return False


def test_a_second_up_of_the_same_directory_is_refused_with_the_first_one_s_pid(
    product: Product, tmp_path: Path
) -> None:
    """The first one is not disturbed."""
    line = refused(tmp_path, "--data", str(product.data.root))
    assert f"data directory {product.data.root} is in use by a running `turnkeeper up` (pid {product.up_pid})" in line
    assert product.uid


def test_after_a_kill_the_next_start_finds_everything(product: Product) -> None:
    """Keys, conversations and answers are there; PostgreSQL and the sandbox are adopted; the session is continued."""
    agent = product.agent("again")
    thread = product.conversation(agent, "again")
    key = product.data.owner_key.read_text()
    product.completed(thread, "/write kept.txt kept\nremember the heron")
    postmaster, sandbox, agents = product.postmaster(), product.sandboxes()[thread], product.agents_running(thread)
    control = product.process("control")
    product.kill()
    assert wait_for(lambda: not is_alive(control), "the control plane dies with its supervisor")
    assert is_alive(postmaster)
    assert all(map(is_alive, sandbox))
    product.start()
    assert product.data.owner_key.read_text() == key
    assert product.postmaster() == postmaster
    done = product.completed(thread, "/read kept.txt\nwhat do you remember")
    assert "turn 2, remembering 1 earlier turns" in done.text
    assert done.of_session() == "continued"
    assert product.agents_running(thread) == agents
    assert product.sandboxes()[thread] == sandbox
    assert len(product.ledger(agent)) == 2


def test_after_a_clean_stop_the_next_start_finds_everything(product: Product) -> None:
    """The database has ended; the sandbox outlives `up` and is adopted."""
    agent = product.agent("clean")
    thread = product.conversation(agent, "clean")
    product.completed(thread, "/say one")
    postmaster, sandbox = product.postmaster(), product.sandboxes()[thread]
    assert product.stop() == 0
    assert not is_alive(postmaster)
    assert all(map(is_alive, sandbox))
    product.start()
    done = product.completed(thread, "again")
    assert "turn 2, remembering 1 earlier turns" in done.text
    assert done.of_session() == "continued"


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_the_socket_of_the_provisioner_is_made_again(product: Product, *, replaced: bool) -> None:
    """Turns go on in the same sandbox with the same agent, although somebody has cleaned up in the data directory."""
    agent = product.agent("socket")
    thread = product.conversation(agent, f"socket-{replaced}")
    product.completed(thread, "/say one")
    sandbox, agents = product.sandboxes()[thread], product.agents_running(thread)
    path = product.data.provisioner_socket
    before, provisioner = path.stat().st_ino, product.process("provisioner")
    if replaced:
        with contextlib.closing(bind_unix(path.with_suffix(".other"))):
            path.with_suffix(".other").rename(path)
    else:
        path.unlink()
    wait_for(lambda: path.exists() and path.stat().st_ino != before and not is_alive(provisioner), "it is made again")
    assert path.stat().st_mode & 0o777 == 0o600
    done = product.completed(thread, "again")
    assert "turn 2, remembering 1 earlier turns" in done.text
    assert (product.sandboxes()[thread], product.agents_running(thread)) == (sandbox, agents)


def test_a_socket_that_something_else_lies_in_place_of_is_made_when_that_is_gone(product: Product) -> None:
    """Nothing that is not ours is removed; `up` says so once, and runs on."""
    path = product.data.provisioner_socket
    path.unlink()
    path.write_text("not ours")
    log = product.data.logs / "up.log"
    wait_for(lambda: "socket_not_made_again" in log.read_text(), "it is told")
    assert path.read_text() == "not ours"
    path.unlink()
    wait_for(path.is_socket, "it is made again")
    assert (
        product.completed(product.conversation(product.agent("after"), "after"), "/say there").run.status == "completed"
    )


def test_a_conversation_whose_sandbox_is_gone_goes_on_by_its_journal(product: Product) -> None:
    """The settled session is loaded into a new sandbox. Proves: R-07."""
    agent = product.agent("reload")
    thread = product.conversation(agent, "reload")
    first = product.completed(thread, "/say one")
    launcher, _ = product.sandboxes()[thread]
    kill(launcher, signal.SIGKILL)
    done = product.completed(thread, "again")
    assert "turn 2, remembering 1 earlier turns" in done.text
    assert done.of_session() == "reloaded"
    generations = product.rows(
        "SELECT DISTINCT a.generation FROM activations a JOIN runs r ON r.id = a.run_id WHERE r.thread_id = %s", thread
    )
    assert len(generations) == 2
    assert first.run.native_turn == 1


def test_a_turn_that_lives_through_a_kill_of_up_is_adopted_and_completes(product: Product) -> None:
    """The worker and the agent live on; its one prompt was given once. Proves: H-04, R-03."""
    agent = product.agent("through")
    thread = product.conversation(agent, "through")
    run_id, go = product.hold(thread, "through")
    child = product.child(run_id)
    product.kill()
    assert is_alive(child)
    product.start()
    assert is_alive(child)
    assert product.child(run_id) == child
    go.touch()
    run = product.wait_status(run_id)
    assert (run.status, run.error_code) == ("completed", None), product.tell()
    assert [entry.turn for entry in product.ledger(agent)] == [1]
    attempts = product.rows("SELECT outcome FROM attempts WHERE run_id = %s", run_id)
    assert attempts == [{"outcome": "completed"}]
    assert "turn 2, remembering 1 earlier turns" in product.completed(thread, "and on").text


def hurried(product: Product) -> list[str]:
    """Stopped while a turn runs, and asked again once the host waits for it; what `up` said on its stderr meanwhile."""
    log, errors = product.data.logs / "host.log", product.root / "up.err"
    drains, before = log.read_text().count("host_draining"), errors.stat().st_size
    os.kill(product.up_pid, signal.SIGINT)
    wait_for(lambda: log.read_text().count("host_draining") > drains, "the host waits for its turn")
    os.kill(product.up_pid, signal.SIGINT)
    assert product.wait_ended() == 0
    return errors.read_text()[before:].splitlines()


def test_a_second_ctrl_c_cuts_the_turn_off(product: Product) -> None:
    """The first one lets it end in time; asked again, its worker is gone when `up` is, and the run is never repeated.

    Proves: H-04.
    """
    agent = product.agent("hurry")
    thread = product.conversation(agent, "hurry")
    run_id, _ = product.hold(thread, "hurry")
    workers = {process for process in descendants(product.process("host").pid) if _is_a_worker(process.pid)}
    assert product.child(run_id) in workers
    sandbox = product.sandboxes()[thread]
    said = hurried(product)
    assert not any(map(is_alive, workers))
    assert all(map(is_alive, sandbox))
    assert "1 turn was cut off" in said[-2]
    assert said[-1].startswith("stopped; ")
    assert "so that conversations go on at the next start" in said[-1]
    product.start()
    run = product.wait_status(run_id)
    assert (run.status, run.error_code) == ("failed", "outcome_unknown"), product.tell()
    assert len(product.ledger(agent)) == 1


def _is_a_worker(pid: int) -> bool:
    try:
        return b"turnkeeper.runner.child" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_process_that_ended_is_named_in_the_log(product: Product) -> None:
    """And it is started again."""
    host, log = product.process("host"), product.data.logs / "up.log"
    kill(host, signal.SIGKILL)

    def ended() -> list[dict[str, object]]:
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return [line for line in lines if line["event"] == "process_ended" and line["status"] == -signal.SIGKILL]

    told = wait_for(ended, "it is told")[-1]
    assert (told["process"], told["name"]) == ("up", "host")
    assert product.process("host") != host


def test_asked_again_with_end_sandboxes_nothing_is_left() -> None:
    """Neither the turn's worker nor a sandbox nor what belongs to one, nor a socket; another conversation goes on."""
    with Product(None, "--end-sandboxes") as product:
        idle, thread = (product.conversation(product.agent(name), name) for name in ("idle", "cut"))
        product.completed(idle, "/say one")
        run_id, _ = product.hold(thread, "cut")
        child, sandboxes = product.child(run_id), product.sandboxes()
        said = hurried(product)
        assert not is_alive(child)
        assert not any(is_alive(process) for pair in sandboxes.values() for process in pair)
        assert "1 turn was cut off" in said[-2]
        assert said[-1] == "stopped; 2 sandboxes were ended"
        assert sandbox_names(product.data.sandboxes) == []
        assert [path for path in product.data.root.rglob("*") if path.is_socket()] == []
        product.start()
        run = product.wait_status(run_id)
        assert (run.status, run.error_code) == ("failed", "outcome_unknown"), product.tell()
        done = product.completed(idle, "and you")
        assert "turn 2, remembering 1 earlier turns" in done.text
        assert done.of_session() == "reloaded"
        assert len(product.ledger("cut")) == 1


def test_an_unfinished_turn_ends_by_its_lease_when_up_stays_away(tmp_path: Path) -> None:
    """Killed for longer than the lease: the agent is stopped in time, the run ends with a clear code, nothing runs twice.

    Proves: L-06, L-12, R-03, R-06.
    """
    with Product(SHORT_LEASE, "--end-sandboxes") as product:
        agent = product.agent("lapse")
        idle, thread = product.conversation(agent, "idle"), product.conversation(agent, "lapse")
        product.completed(idle, "/say one")
        run_id, _ = product.hold(thread, "lapse")
        waiting = product.submit(thread, "/say never delivered")
        child, tools = product.child(run_id), product.tools_running(thread)
        assert tools
        product.kill()
        wait_for(lambda: not is_alive(child), "the worker ends with its lease", LEASE_S + 20)
        wait_for(lambda: not any(map(is_alive, tools)), "what the agent started is dead", LEASE_S + 20)
        product.start()
        run = product.wait_status(run_id, timeout_s=LEASE_S + GRACE_S + ROUND_S + 10)
        assert (run.status, run.error_code) == ("failed", "outcome_unknown"), product.tell()
        assert run.error_text
        # nothing waits for a conversation that cannot go on
        after = product.wait_status(waiting)
        assert (after.status, after.error_code) == ("failed", "session_unavailable")
        conversation = product.client.conversation(thread)
        assert conversation.state == "lost"
        assert "can no longer be used" in (conversation.lost_text or "")
        assert [entry.text for entry in product.ledger(agent)][1:] == [f"/run {HELD}"]
        # the other conversation, idle all the time, goes on
        done = product.completed(idle, "and you")
        assert "turn 2, remembering 1 earlier turns" in done.text
        launchers = [launcher for launcher, _ in product.sandboxes().values()]
        assert launchers
        assert product.stop() == 0
        assert not any(map(is_alive, launchers)), "asked to, it ends the sandboxes too"


def test_on_a_database_of_one_s_own_and_without_isolation(dsn: str) -> None:
    """`DATABASE_URL` replaces the embedded server; --unsafe-no-isolation runs the agent as a plain process. Ctrl-C stops it.

    Proves: K-08.
    """
    given = {"TURNKEEPER_TREES_PER_OWNER": "3", "TURNKEEPER_ALLOWED_HOSTS": "tk.example"}
    with Product(given, "--unsafe-no-isolation", database_url=dsn) as product:
        assert not product.data.postgres.exists()
        control = Path(f"/proc/{product.process('control').pid}/environ").read_text().split("\0")
        assert {f"{name}={value}" for name, value in given.items()} <= set(control)
        thread = product.conversation("scripted", "plain")
        done = product.completed(thread, "/write a.txt plain\n/run pwd")
        assert (product.workspace / "plain" / "a.txt").read_text() == "plain\n"
        assert str(product.workspace / "plain") in str(done.events)
        assert "turn 2, remembering 1 earlier turns" in product.completed(thread, "again").text
        assert product.row("SELECT current_database() AS name")["name"] in dsn
        os.kill(product.up_pid, signal.SIGINT)
        assert product.wait_ended() == 0
