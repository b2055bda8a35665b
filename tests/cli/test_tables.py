"""Tables on a narrow terminal, and definitions as text."""

import tomllib
from importlib import resources

import pytest

from turnkeeper.cli.output import (
    _fitting,  # pyright: ignore[reportPrivateUsage] - what decides
    visible,
)
from turnkeeper.cli.toml_text import toml_of

ID = "01a22a51-74c8-7710-b3e3-fd5799050a1a"


@pytest.mark.parametrize(("width", "left"), [(200, 4), (80, 3), (60, 2), (40, 2)])
def test_a_narrow_table_leaves_out_what_can_be_spared(width: int, left: int) -> None:
    """Ids and the columns that matter stay whole; a title is broken into lines before anything goes."""
    columns, rows, left_out = _fitting(
        ("run", "workdir", "status", "title"),
        [(ID, "conversations/" + ID, "completed", "x" * 60), (ID, "b", "failed", "字" * 30)],
        ("workdir", "title"),
        ("title",),
        width,
    )
    assert len(columns) == left
    assert columns[0] == "run"
    assert len(left_out) == 4 - left
    assert all(len(row) == left and row[0] == ID for row in rows)


def test_a_definition_as_toml_is_read_as_it_was() -> None:
    """Those that come with the product, and text of every kind."""
    for file in resources.files("turnkeeper.agents").joinpath("definitions").iterdir():
        if file.name.endswith(".toml"):
            definition = tomllib.loads(file.read_text())
            assert tomllib.loads(toml_of(definition)) == definition
    odd = {"name": "a", "env": {"A": 'q"\\\n\t\x7f\x01 字'}, "command": [], "setup": [["a", "b"]], "n": 1.5, "f": False}
    assert tomllib.loads(toml_of(odd)) == odd
    obeyed = {"title": "\x1b[2J\x9b2J\u202egnp\u2066\x85\x7f", "env": {"A\u202e": "\x80"}}
    assert tomllib.loads(visible(toml_of(obeyed))) == obeyed
