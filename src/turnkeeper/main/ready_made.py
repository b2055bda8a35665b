"""The agent definitions that come with the product."""

import tomllib
from collections.abc import Mapping
from importlib import resources

from turnkeeper.domain.agent import AgentDefinition, parse_definition
from turnkeeper.domain.errors import SettingRefused
from turnkeeper.services.agents import digest_of


def ready_made_definitions() -> list[AgentDefinition]:
    """The definitions that come with the product."""
    found: list[AgentDefinition] = []
    for file in sorted(
        resources.files("turnkeeper.agents").joinpath("definitions").iterdir(), key=lambda one: one.name
    ):
        if file.name.endswith(".toml"):
            definition = parse_definition(tomllib.loads(file.read_text()))
            if isinstance(definition, list):
                raise SettingRefused(*(f"{file.name}: {line}" for line in definition))
            found.append(definition)
    return found


def ready_made_digests() -> Mapping[str, str]:
    """What each of them is stored as, by name."""
    return {one.name: digest_of(one) for one in ready_made_definitions()}
