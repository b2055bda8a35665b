"""What `up` refuses before it makes anything: settings of processes that it would start only later.

Each process reads its own settings and refuses wrong ones by itself. Said only there, the line would come after a database
was made, and with the name of a process that nobody had asked for.
"""

from turnkeeper.domain.errors import SettingRefused
from turnkeeper.domain.settings import Limits, require_valid, sandbox_timing_from_environ, timing_from_environ
from turnkeeper.kit.log import LEVELS
from turnkeeper.main.environment import Environment


def require_log_level(environment: Environment) -> str:
    """`TURNKEEPER_LOG_LEVEL`. `SettingRefused` for a word that is none of the levels."""
    level = environment.text("TURNKEEPER_LOG_LEVEL", "info")
    if level not in LEVELS:
        raise SettingRefused(f"TURNKEEPER_LOG_LEVEL is {level!r}; it must be one of {', '.join(LEVELS)}")
    return level


def require_settings(environment: Environment) -> None:
    """`SettingRefused` with one line for what is wrong."""
    require_log_level(environment)
    timing, _ = timing_from_environ(environment.values)
    limits = Limits(trees_per_owner=environment.trees_per_owner())
    require_valid(timing, sandbox_timing_from_environ(environment.values), limits)
