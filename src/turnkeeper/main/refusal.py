"""Why a process does not start: one line that names the setting, its value and what would be right."""


class StartRefused(Exception):
    """A configuration or a machine that cannot be right. Shown to the user as its one line, never as a traceback."""
