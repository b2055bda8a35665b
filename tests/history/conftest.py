"""The fixtures of the services' tests: histories are made by the same driver."""

from services.conftest import driver

__all__ = ["driver"]
