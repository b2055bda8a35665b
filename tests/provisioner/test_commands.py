"""Whether an agent's command would be found in a sandbox of this machine."""

import sys
from pathlib import Path

import pytest

from provisioner.serving import Served, Signing
from turnkeeper.client.http import ClientError
from turnkeeper.kit.ids import new_id
from turnkeeper.provisioner.backends.local.commands import missing
from turnkeeper.wire.provisioner import CommandAnswer, CommandQuestion


def test_what_a_sandbox_finds() -> None:
    """A name on the sandbox's PATH, and the interpreter of the product, whose prefix is bound."""
    assert missing("sh", (), isolated=True) is None
    assert missing("/bin/sh", (), isolated=True) is None, "a link into /usr, or bound by itself"
    assert missing(sys.executable, (), isolated=True) is None
    assert missing("turnkeeper-scripted-agent", (), isolated=True) is None


def test_what_it_does_not_find(tmp_path: Path) -> None:
    """A file of the machine that is not bound is not in the sandbox, and each line names what is missing."""
    program = tmp_path / "agent"
    program.write_text("#!/bin/sh\n")
    assert missing(str(program), (), isolated=True) == f"{program} is no program on this machine"
    program.chmod(0o755)
    assert "name it, or its directory, in programs" in (missing(str(program), (), isolated=True) or "")
    assert missing(str(program), (str(tmp_path),), isolated=True) is None
    assert missing(str(program), (), isolated=False) is None
    assert missing("no-such-agent", (), isolated=True) == "no-such-agent is not installed on this machine"
    gone = str(tmp_path / "gone")
    assert missing("sh", (gone,), isolated=True) == f"{gone} does not exist on this machine"


async def test_asked_over_http(served: Served, signing: Signing) -> None:
    """The administrator is answered, an attempt's token is not."""
    question = CommandQuestion(command="no-such-agent")
    async with served.client() as http:
        answer = await http.call("POST", "/v1/commands/check", CommandAnswer, body=question)
        assert answer.missing == "no-such-agent is not installed on this machine"
        assert answer.secrets is None
        asked = CommandQuestion(command="sh", secrets=("NO_SUCH_KEY",))
        answer = await http.call("POST", "/v1/commands/check", CommandAnswer, body=asked)
        assert answer.missing is None
        assert answer.secrets is not None
        assert "no value for secret 'NO_SUCH_KEY'" in answer.secrets
    async with served.client(signing.token(new_id(), new_id())) as http:
        with pytest.raises(ClientError) as caught:
            await http.call("POST", "/v1/commands/check", CommandAnswer, body=question)
        assert caught.value.status == 403
