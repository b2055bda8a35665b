"""Settings as the composition roots read them: each wrong one is refused by one line with its name, value and what is right."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from turnkeeper.domain.errors import OptionRefused, SettingRefused
from turnkeeper.main import control, hints, host, leaving, provisioner
from turnkeeper.main.environment import Environment, ListenAddress, parse_listen
from turnkeeper.main.paths import DataDirectory, default_data_directory
from turnkeeper.main.reach import allowed_hosts, is_loopback, own_url
from turnkeeper.main.sockets import bind


def refused(of: Environment, name: str) -> str:
    """The line for `name` as a positive number."""
    with pytest.raises(SettingRefused) as caught:
        of.positive(name, 1)
    return str(caught.value)


def test_absent_and_empty_are_the_same() -> None:
    """An empty variable is what a shell writes for "not set"."""
    of = Environment({"EMPTY": "", "SET": "x"})
    assert (of.optional("EMPTY"), of.optional("ABSENT"), of.optional("SET")) == (None, None, "x")
    assert (of.text("EMPTY", "default"), of.text("SET", "default")) == ("default", "x")
    with pytest.raises(SettingRefused, match="ABSENT is not set"):
        of.text("ABSENT")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "٣", "1e3", " 3", "0x10"])
def test_a_number_is_a_number(text: str) -> None:
    """Not what merely looks like one."""
    assert refused(Environment({"COUNT": text}), "COUNT") == f"COUNT is {text!r}; it must be a positive integer"
    assert Environment({"COUNT": "12"}).positive("COUNT", 1) == 12


def test_a_secret_s_file_must_be_its_owner_s_alone(tmp_path: Path) -> None:
    """The file is named in the line; what it holds is not. Proves: K-11."""
    file = tmp_path / "token"
    file.write_text("tkp_secret\n")
    of = Environment({"TOKEN_FILE": str(file)})
    file.chmod(0o644)
    with pytest.raises(SettingRefused, match="can be read by others; chmod 600") as caught:
        of.secret("TOKEN")
    assert "tkp_secret" not in str(caught.value)
    file.chmod(0o600)
    assert of.secret("TOKEN") == "tkp_secret"
    assert Environment({"TOKEN": "given", "TOKEN_FILE": str(file)}).secret("TOKEN") == "given"


@pytest.mark.parametrize("kind", ["absent", "directory", "empty", "binary"])
def test_a_secret_s_file_that_is_none_is_named(kind: str, tmp_path: Path) -> None:
    """Each in one line."""
    file = tmp_path / "token"
    if kind == "directory":
        file.mkdir()
    elif kind != "absent":
        file.write_bytes(b"" if kind == "empty" else b"\xff\xfe")
        file.chmod(0o600)
    with pytest.raises(SettingRefused, match=f"TOKEN_FILE: {file} "):
        Environment({"TOKEN_FILE": str(file)}).secret("TOKEN")


def test_a_secret_that_is_nowhere_names_both_ways() -> None:
    """The variable and the file."""
    with pytest.raises(SettingRefused, match="neither TOKEN nor TOKEN_FILE is set"):
        Environment({}).secret("TOKEN")


@pytest.mark.parametrize(
    ("text", "address", "url"),
    [
        ("127.0.0.1:80", ListenAddress(host="127.0.0.1", port=80), "http://127.0.0.1:80"),
        ("[::1]:80", ListenAddress(host="::1", port=80), "http://[::1]:80"),
        ("localhost:0", ListenAddress(host="localhost", port=0), "http://localhost:0"),
        ("unix:/run/x.sock", ListenAddress(socket_path=Path("/run/x.sock")), "unix:/run/x.sock"),
    ],
)
def test_an_address_and_its_url(text: str, address: ListenAddress, url: str) -> None:
    """What `--listen` takes, and what clients write."""
    assert parse_listen(text, "--listen") == address
    assert address.url == url


def test_a_descriptor_is_taken_as_it_is() -> None:
    """`fd:N` is what `up` hands to its processes."""
    assert parse_listen("fd:7", "--listen") == ListenAddress(descriptor=7)


@pytest.mark.parametrize(
    "text", ["", "8420", ":8420", "host:", "host:x", "host:70000", "host:-1", "fd:x", "unix:rel", "unix:"]
)
def test_an_address_that_is_none(text: str) -> None:
    """The option and the value are named."""
    with pytest.raises(OptionRefused, match="--listen is "):
        parse_listen(text, "--listen")


def test_a_port_in_use_and_an_address_of_another_machine() -> None:
    """One line each; the second names what the system said."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingRefused, match=rf"--port: cannot listen on 127.0.0.1:{port} \(it is in use\)"):
            bind(ListenAddress(host="127.0.0.1", port=port), "--port")
    with pytest.raises(SettingRefused, match=r"cannot listen on 192\.0\.2\.1:0"):
        bind(ListenAddress(host="192.0.2.1", port=0), "--port")
    with pytest.raises(SettingRefused, match=r"cannot listen on no\.such\.host\.invalid:0"):
        bind(ListenAddress(host="no.such.host.invalid", port=0), "--port")


def test_a_socket_path_is_taken_over_from_the_dead_and_not_from_the_living(tmp_path: Path) -> None:
    """After a SIGKILL the file is still there; what somebody listens on is refused."""
    path = tmp_path / "p.sock"
    first = bind(ListenAddress(socket_path=path), "--listen")
    try:
        with pytest.raises(SettingRefused, match="--listen: cannot listen on"):
            bind(ListenAddress(socket_path=path), "--listen")
    finally:
        first.close()
    second = bind(ListenAddress(socket_path=path), "--listen")
    second.close()
    with pytest.raises(SettingRefused, match="cannot listen on"):
        bind(ListenAddress(socket_path=tmp_path / "absent" / "p.sock"), "--listen")


def test_the_data_directory_is_private_from_the_first_moment(tmp_path: Path) -> None:
    """Mode 0700 whatever the umask says; a second time changes nothing. Proves: K-11."""
    before = os.umask(0)
    try:
        data = DataDirectory(tmp_path / "a" / "data")
        data.make()
    finally:
        os.umask(before)
    for path in (data.root, data.run, data.logs, data.keys, data.hosts):
        assert path.stat().st_mode & 0o777 == 0o700
    data.make()


def test_a_data_directory_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    """A file in the way, one that others may read, and a place of something else, which is not to be closed to them."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingRefused, match=f"data directory {tmp_path}/file/data cannot be made"):
        DataDirectory(tmp_path / "file" / "data").make()
    with pytest.raises(SettingRefused, match=f"data directory {tmp_path}/file cannot be made"):
        DataDirectory(tmp_path / "file").make()
    shared = tmp_path / "open"
    shared.mkdir(mode=0o755)
    shared.chmod(0o755)
    with pytest.raises(SettingRefused, match=f"chmod 700 {shared}"):
        DataDirectory(shared).make()
    (shared / "letters").mkdir()
    with pytest.raises(SettingRefused, match=f"^{shared} is open to other users and holds other things") as caught:
        DataDirectory(shared).make()
    assert "chmod" not in str(caught.value)
    assert [path.name for path in shared.iterdir()] == ["letters"]


@pytest.mark.parametrize("kind", ["directory", "FIFO", "loop"])
@pytest.mark.parametrize(
    "name",
    [
        "logs/up.log",
        "logs/host.log",
        "logs/postgres.log",
        "run/up.lock",
        "run/provisioner.sock",
        "run/pg",
        "keys/owner-key",
    ],
)
def test_what_is_in_the_way_of_a_file_of_ours_is_named(name: str, kind: str, tmp_path: Path) -> None:
    """Neither a traceback nor a wait for the other end of a FIFO."""
    data = DataDirectory(tmp_path / "data")
    data.make()
    path = data.root / name
    if kind == "directory":
        if name == "run/pg":
            path.write_text("")  # there it is a file that is in the way
        else:
            path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to(path)
    with pytest.raises(SettingRefused, match=f"^{path} (is no|cannot be used)"):
        data.make()


@pytest.mark.parametrize("part", ["", "logs", "run", "keys", "postgres", "nothing"])
def test_a_part_that_became_read_only_is_named(part: str, tmp_path: Path) -> None:
    """As after an error of the file system. Root, who may write anything else, is told as well. `nothing`: it is all, and empty."""
    data = DataDirectory(tmp_path / "data")
    if part == "nothing":
        data.root.mkdir(mode=0o700)
        part = ""
    else:
        data.make()
        data.postgres.mkdir()
    path = str(data.root / part)
    code = f"""
from pathlib import Path
from turnkeeper.domain.errors import SettingRefused
from turnkeeper.main.paths import DataDirectory
try:
    DataDirectory(Path({str(data.root)!r})).make()
except SettingRefused as error:
    print(*error.lines)
"""
    command = ["bwrap", "--bind", "/", "/", "--ro-bind", path, path, sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    expected = f"{path} cannot be written by this user" if part else f"data directory {data.root} is not writable"
    assert done.stdout.startswith(expected)


def test_where_the_data_directory_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variable, else the user's data home, else ~/.local/share."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TURNKEEPER_DATA", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_data_directory() == tmp_path / ".local/share/turnkeeper"
    monkeypatch.setenv("XDG_DATA_HOME", "/x")
    assert default_data_directory() == Path("/x/turnkeeper")
    monkeypatch.setenv("TURNKEEPER_DATA", "/d")
    assert default_data_directory() == Path("/d")


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """What a control plane, a provisioner and a host need."""
    (tmp_path / "key.pem").write_bytes(b"-----BEGIN PRIVATE KEY-----\n")
    (tmp_path / "keys.json").write_text('{"kid": "PEM"}')
    return {
        "DATABASE_URL": "postgresql:///none",
        "TURNKEEPER_DATA": str(tmp_path),
        "TURNKEEPER_SIGNING_KEY_FILE": str(tmp_path / "key.pem"),
        "TURNKEEPER_SIGNING_PUBLIC_KEYS": str(tmp_path / "keys.json"),
        "TURNKEEPER_PROVISIONER_TOKEN": "tkp_" + "x" * 43,
        "TURNKEEPER_PROVISIONER_URL": "unix:/run/p.sock",
        "TURNKEEPER_HOST_TOKEN": "tkh_" + "x" * 43,
    }


def test_each_process_reads_its_settings_and_shows_no_secret(settings: dict[str, str]) -> None:
    """`repr` is what a careless log line would print. Proves: K-11."""
    of = Environment(settings)
    for made in (
        control.settings_from(of, "127.0.0.1:0", None),
        provisioner.settings_from(of, isolated=True),
        host.settings_from(of, 4, None),
    ):
        assert "xxxx" not in repr(made)
        assert "postgresql" not in repr(made)
        assert "PRIVATE" not in repr(made)


@pytest.mark.parametrize(
    "name", ["DATABASE_URL", "TURNKEEPER_SIGNING_KEY_FILE", "TURNKEEPER_PROVISIONER_TOKEN"]
)  # fmt: skip
def test_what_the_control_plane_cannot_do_without(name: str, settings: dict[str, str]) -> None:
    """Each is named when it is missing."""
    del settings[name]
    with pytest.raises(SettingRefused, match=name):
        control.settings_from(Environment(settings), "127.0.0.1:0", None)


@pytest.mark.parametrize(
    "name", ["TURNKEEPER_DATA", "TURNKEEPER_SIGNING_PUBLIC_KEYS", "TURNKEEPER_PROVISIONER_TOKEN"]
)  # fmt: skip
def test_what_the_provisioner_cannot_do_without(name: str, settings: dict[str, str]) -> None:
    """Each is named when it is missing, and a path must be absolute."""
    with pytest.raises(SettingRefused, match=name):
        provisioner.settings_from(Environment({k: v for k, v in settings.items() if k != name}), isolated=True)
    if name != "TURNKEEPER_PROVISIONER_TOKEN":
        with pytest.raises(SettingRefused, match=f"{name} is 'rel/ative'; it must be an absolute path"):
            provisioner.settings_from(Environment({**settings, name: "rel/ative"}), isolated=True)


@pytest.mark.parametrize("name", ["TURNKEEPER_HOST_TOKEN", "TURNKEEPER_PROVISIONER_URL", "TURNKEEPER_DATA"])
def test_what_a_host_cannot_do_without(name: str, settings: dict[str, str]) -> None:
    """Each is named when it is missing."""
    del settings[name]
    with pytest.raises(SettingRefused, match=name):
        host.settings_from(Environment(settings), 4, None)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kid": 1}', '"x"', "{"])
def test_public_keys_that_are_none(text: str, settings: dict[str, str]) -> None:
    """The file is named; nothing starts that could not verify a token."""
    Path(settings["TURNKEEPER_SIGNING_PUBLIC_KEYS"]).write_text(text)
    with pytest.raises(SettingRefused, match=r"TURNKEEPER_SIGNING_PUBLIC_KEYS: .*keys\.json"):
        provisioner.settings_from(Environment(settings), isolated=True)


def test_the_lease_s_lifetime_by_option_and_by_variable(settings: dict[str, str]) -> None:
    """Too short: the option is refused, the variable ignored and the default used. Proves: L-01, L-09."""
    of = Environment(settings)
    assert control.settings_from(of, "127.0.0.1:0", 41).timing.lease_ttl_s == 41
    with pytest.raises(OptionRefused, match="--lease-ttl is 40; it must be greater than"):
        control.settings_from(of, "127.0.0.1:0", 40)
    with pytest.raises(OptionRefused, match="--lease-ttl is 40"):
        host.settings_from(of, 4, 40)
    assert host.settings_from(of, 4, 41).lease_ttl_s == 41
    short = Environment({**settings, "AGENT_LEASE_TTL": "40"})
    assert control.settings_from(short, "127.0.0.1:0", None).timing.lease_ttl_s == 120
    assert control.settings_from(Environment({**settings, "AGENT_LEASE_TTL": "90"}), "127.0.0.1:0", None).timing.lease_ttl_s == 90  # fmt: skip
    with pytest.raises(SettingRefused, match="SANDBOX_RUNTIME_CLEANUP_TIMEOUT_SECONDS is 150; it must be greater"):
        control.settings_from(
            Environment({**settings, "SANDBOX_RUNTIME_CLEANUP_TIMEOUT_SECONDS": "150"}), "127.0.0.1:0", None
        )


def test_names_by_which_the_page_is_reached(settings: dict[str, str]) -> None:
    """Loopback always; more by the setting; `*` for any."""

    def hosts(value: str | None) -> frozenset[str] | None:
        more = {} if value is None else {"TURNKEEPER_ALLOWED_HOSTS": value}
        return control.settings_from(Environment({**settings, **more}), "127.0.0.1:0", None).allowed_hosts

    plain, named = hosts(None), hosts("tk.example, other.example,")
    assert plain is not None
    assert "127.0.0.1" in plain
    assert named == plain | {"tk.example", "other.example"}
    assert hosts("*") is None


def test_how_much_an_owner_may_run_at_once(settings: dict[str, str]) -> None:
    """Eight trees unless the setting says otherwise. Proves: D-06."""
    assert control.settings_from(Environment(settings), "127.0.0.1:0", None).limits.trees_per_owner == 8
    more = Environment({**settings, "TURNKEEPER_TREES_PER_OWNER": "3"})
    assert control.settings_from(more, "127.0.0.1:0", None).limits.trees_per_owner == 3
    with pytest.raises(SettingRefused, match="TURNKEEPER_TREES_PER_OWNER is '0'; it must be a positive integer"):
        control.settings_from(Environment({**settings, "TURNKEEPER_TREES_PER_OWNER": "0"}), "127.0.0.1:0", None)


@pytest.mark.parametrize(
    ("address", "loopback", "url", "hosts"),
    [
        ("127.0.0.1", True, "http://127.0.0.1:8420", "a.example"),
        ("localhost", True, "http://localhost:8420", "a.example"),
        ("::1", True, "http://[::1]:8420", "a.example"),
        ("0.0.0.0", False, "http://127.0.0.1:8420", "a.example"),  # noqa: S104 - the address that is tried
        ("::", False, "http://[::1]:8420", "a.example"),
        ("fd00::1", False, "http://[fd00::1]:8420", "a.example,[fd00::1]"),
        ("10.1.2.3", False, "http://10.1.2.3:8420", "a.example,10.1.2.3"),
        ("Box.example", False, "http://Box.example:8420", "a.example,box.example"),
    ],
)
def test_what_is_listened_on_can_be_opened(address: str, loopback: bool, url: str, hosts: str) -> None:
    """The link is an address that opens, and the server answers to the name that it was given."""
    assert is_loopback(address) is loopback
    assert own_url(address, 8420) == url
    assert allowed_hosts(" a.example ,", (), address) == hosts
    assert allowed_hosts(None, ("*",), address) == "*"


def test_an_address_of_nobody_is_blamed_and_not_the_port() -> None:
    """The setting that gave it is named."""
    with pytest.raises(SettingRefused, match=r"^--host: cannot listen on 300\.1\.1\.1"):
        bind(ListenAddress(host="300.1.1.1", port=0), "--port", "--host")


def test_whoever_stops_up_is_told_what_it_waits_for_and_what_lives_on(tmp_path: Path) -> None:
    """Turns that run, and sandboxes that stay; a record of one that is gone counts for nothing."""
    data = DataDirectory(tmp_path)
    assert leaving.of_turns(None) == leaving.of_turns(0) == "stopping"
    assert leaving.of_turns(1).startswith("stopping: 1 turn is running")
    assert leaving.of_turns(3).startswith("stopping: 3 turns are running")
    assert leaving.living_sandboxes(data) == 0
    (tmp_path / "sandboxes" / "not-one").mkdir(parents=True)
    assert leaving.living_sandboxes(data) == 0
    assert leaving.of_sandboxes(0, data) == "stopped"
    line = leaving.of_sandboxes(2, data)
    assert "2 sandboxes live on" in line
    assert f" up --data {tmp_path} --end-sandboxes" in line


def test_a_hint_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program as this shell finds it, and the options that are not what a command takes by itself."""
    monkeypatch.setattr("sys.argv", ["/opt/a place/bin/turnkeeper", "up"])
    monkeypatch.setenv("TURNKEEPER_DATA", str(tmp_path))
    assert (
        hints.command("login", DataDirectory(tmp_path), "http://127.0.0.1:8420")
        == "'/opt/a place/bin/turnkeeper' login"
    )
    other = hints.command("login", DataDirectory(tmp_path / "x"), "http://127.0.0.1:1")
    assert other.endswith(f" login --data {tmp_path}/x --url http://127.0.0.1:1")
    monkeypatch.setattr("sys.argv", ["/x/__main__.py"])
    assert hints.program().endswith(" -m turnkeeper")
