"""The command line. Commands are found by name and imported when they are used, so that `--help` and `--version` are quick."""

from turnkeeper.cli.root import main

__all__ = ["main"]
