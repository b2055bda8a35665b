"""The driver of the services' tests, which fills a database as the product does, and the world of the API's."""

from api.conftest import shared_world
from services.conftest import driver

__all__ = ["driver", "shared_world"]
