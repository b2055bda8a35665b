"""The socket that `up` holds for the provisioner, at its end."""

from contextlib import closing
from pathlib import Path

from turnkeeper.kit.sockets import bind_unix
from turnkeeper.main.sockets import KeptListener


def test_its_name_goes_with_it(tmp_path: Path) -> None:
    """A copy of the directory finds no socket."""
    path = tmp_path / "s.sock"
    with KeptListener(path, "s"):
        assert path.is_socket()
    assert not path.exists()


def test_a_name_that_is_not_its_own_any_more_stays(tmp_path: Path) -> None:
    """Somebody else listens there, or has put a file there, or removed it."""
    path = tmp_path / "s.sock"
    with closing(bind_unix(tmp_path / "other")), KeptListener(path, "s"):
        (tmp_path / "other").rename(path)
    assert path.is_socket()
    path.unlink()
    with KeptListener(path, "s"):
        path.unlink()
        path.write_text("kept")
    assert path.read_text() == "kept"
    path.unlink()
    with KeptListener(path, "s"):
        path.unlink()
