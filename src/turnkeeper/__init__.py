"""Turnkeeper: the runtime for AI-agent turns."""

__version__ = "0.1.0"
