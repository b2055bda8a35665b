"""The real agents as tests use them: command, configuration for a HOME and environment, all for a model on loopback."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from e2e.agents.install import Installed, Missing, find

NAMES = ("vibe", "opencode", "claude")
KEY = "no-secret-key"


@dataclass(frozen=True)
class RealAgent:
    """One agent, ready to be started by a test.

    `env` goes on top of HOME and PATH and is its whole configuration: nothing needs to be written into its HOME.
    `programs` are what a sandbox must bind besides /usr. `resumes`: it offers `session/resume`; all offer `session/load`.
    """

    name: str
    version: str
    command: tuple[str, ...]
    programs: tuple[str, ...]
    env: Mapping[str, str]
    resumes: bool

    def definition(self) -> dict[str, Any]:
        """The agent as a definition of the product; the model is on the host's loopback, hence the network."""
        kinds = ("read", "search", "think", "edit", "execute")
        return {
            "name": self.name,
            "title": f"{self.name} {self.version}",
            "command": list(self.command),
            "programs": list(self.programs),
            "env": dict(self.env),
            "network": "host",
            "can_load": True,
            "can_resume": self.resumes,
            "permissions": [{"kind": kind, "action": "allow"} for kind in kinds],
        }


def real_agent(name: str, model_url: str) -> RealAgent | Missing:
    """The agent if it is installed, configured for the model server at `model_url`."""
    installed = find(name)
    if isinstance(installed, Missing):
        return installed
    return {"vibe": vibe, "opencode": opencode, "claude": claude}[name](installed, model_url)


def vibe(installed: Installed, url: str) -> RealAgent:
    """Mistral Vibe: any field of its config.toml can come by environment, tables as JSON. VIBE_HOME is HOME/.vibe."""
    provider = {
        "name": "loopback",
        "api_base": f"{url}/v1",
        "api_key_env_var": "LOOPBACK_API_KEY",
        "api_style": "openai",
        "backend": "generic",
    }
    return RealAgent(
        installed.name,
        installed.version,
        installed.command,
        installed.programs,
        env={
            "LOOPBACK_API_KEY": KEY,
            "VIBE_ACTIVE_MODEL": "scripted",
            "VIBE_PROVIDERS": json.dumps([provider]),
            "VIBE_MODELS": json.dumps([{"name": "scripted", "provider": "loopback", "alias": "scripted"}]),
            **{
                f"VIBE_ENABLE_{switch}": "false"
                for switch in ("TELEMETRY", "UPDATE_CHECKS", "AUTO_UPDATE", "NOTIFICATIONS")
            },
        },
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
        env={f"OPENCODE_DISABLE_{switch}": "1" for switch in switches}
        | {"OPENCODE_CONFIG_CONTENT": json.dumps(config)},
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
        resumes=True,
    )
