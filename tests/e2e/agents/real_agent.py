"""The real agents as tests use them: command, configuration for a HOME and environment, all for a model on loopback."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.agents.install import Installed, Missing, find

NAMES = ("vibe", "opencode", "claude")
KEY = "no-secret-key"

VIBE_CONFIG = """\
active_model = "scripted"
enable_telemetry = false
enable_update_checks = false
enable_auto_update = false
enable_notifications = false

[[providers]]
name = "loopback"
api_base = "{url}/v1"
api_key_env_var = "LOOPBACK_API_KEY"
api_style = "openai"
backend = "generic"

[[models]]
name = "scripted"
provider = "loopback"
alias = "scripted"
"""


@dataclass(frozen=True)
class RealAgent:
    """One agent, ready to be started by a test.

    `files` are to be written below its HOME before its start; `env` goes on top of HOME and PATH; `programs` are what a
    sandbox must bind besides /usr. `resumes`: it offers `session/resume`; all of them offer `session/load`.
    """

    name: str
    version: str
    command: tuple[str, ...]
    programs: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]
    resumes: bool

    def write_files(self, home: Path) -> None:
        """Put its configuration into a HOME."""
        for name, text in self.files.items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def real_agent(name: str, model_url: str) -> RealAgent | Missing:
    """The agent if it is installed, configured for the model server at `model_url`."""
    installed = find(name)
    if isinstance(installed, Missing):
        return installed
    return {"vibe": vibe, "opencode": opencode, "claude": claude}[name](installed, model_url)


def vibe(installed: Installed, url: str) -> RealAgent:
    """Mistral Vibe; VIBE_HOME is HOME/.vibe by itself."""
    return RealAgent(
        installed.name,
        installed.version,
        installed.command,
        installed.programs,
        env={"LOOPBACK_API_KEY": KEY},
        files={".vibe/config.toml": VIBE_CONFIG.format(url=url)},
        resumes=False,
    )


def opencode(installed: Installed, url: str) -> RealAgent:
    """OpenCode; its shell tool asks first, so that permissions are exercised too."""
    config = {
        "provider": {
            "loopback": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
                "models": {"scripted": {"name": "scripted"}},
            }
        },
        "model": "loopback/scripted",
        "small_model": "loopback/scripted",
        "enabled_providers": ["loopback"],
        "autoupdate": False,
        "share": "disabled",
        "permission": {"bash": "ask", "edit": "ask"},
    }
    switches = ("MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    return RealAgent(
        installed.name,
        installed.version,
        installed.command,
        installed.programs,
        env={f"OPENCODE_DISABLE_{switch}": "1" for switch in switches},
        files={".config/opencode/opencode.json": json.dumps(config)},
        resumes=True,
    )


def claude(installed: Installed, url: str) -> RealAgent:
    """Claude Code by its ACP adapter."""
    return RealAgent(
        installed.name,
        installed.version,
        installed.command,
        installed.programs,
        env={
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_MODEL": "scripted",
            "ANTHROPIC_SMALL_FAST_MODEL": "scripted",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
        },
        files={},
        resumes=True,
    )
