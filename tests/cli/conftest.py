"""The driver of the services' tests: it fills a database as the product does."""

from services.conftest import driver

__all__ = ["driver"]
