"""`/livez`, `/readyz`, `/metrics`: for those who run the system.

The first two need no token, and hold nothing that needs one. The numbers of the whole installation are for this machine,
asked by a name of loopback (a page whose name was made to point here says another one, and so does who comes through a
proxy), and for administrators from elsewhere.
"""

import ipaddress
import json
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from turnkeeper.api.authentication import admin_of_request
from turnkeeper.api.guard import host_name
from turnkeeper.api.languages import language_of
from turnkeeper.api.metrics import CONTENT_TYPE, Metrics
from turnkeeper.api.problems import problem_response
from turnkeeper.api.routing import PlainRouter
from turnkeeper.api.settings import LOOPBACK_HOSTS
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.kit.log import get_logger
from turnkeeper.services.context import Services
from turnkeeper.services.metrics import Gauges, read_metrics
from turnkeeper.services.readiness import readiness

_NO_STORE = {"cache-control": "no-store"}
_log = get_logger("api.operations")


def create_operations(services: Services, metrics: Metrics) -> PlainRouter:
    """The routes."""

    async def livez(_request: Request) -> Response:
        return Response(json.dumps({"status": "alive"}), 200, _NO_STORE, "application/json")

    async def readyz(request: Request) -> Response:
        found = await readiness(services)
        if found.ready:
            return Response(json.dumps({"status": "ready"}), 200, _NO_STORE, "application/json")
        return problem_response(
            ProblemCode.NOT_READY,
            "; ".join(found.problems),
            language=language_of(request.scope),
            extra={"problems": list(found.problems)},
        )

    async def show_metrics(request: Request) -> Response:
        if not is_asked_here(request.scope):
            await admin_of_request(services, request)
        return Response(await _rendered(services, metrics), 200, {**_NO_STORE, "content-type": CONTENT_TYPE})

    return PlainRouter(
        [
            Route("/livez", livez, methods=["GET", "HEAD"]),
            Route("/readyz", readyz, methods=["GET", "HEAD"]),
            Route("/metrics", show_metrics, methods=["GET"]),
        ]
    )


def is_asked_here(scope: Scope) -> bool:
    """Whether the request came over loopback, or a Unix socket, and says so itself."""
    reached = str((scope.get("server") or ("",))[0])
    try:
        address = ipaddress.ip_address(reached)
    except ValueError:
        return True  # a Unix socket, which only its owner can reach
    mapped = address.ipv4_mapped if address.version == 6 else None
    return (mapped or address).is_loopback and host_name(scope) in LOOPBACK_HOSTS


async def _rendered(services: Services, metrics: Metrics) -> bytes:
    """Everything; while the database is away at least this process's own numbers."""
    try:
        gauges = await read_metrics(services)
    except Exception as failure:  # the numbers of this process are wanted most of all when something is wrong
        _log.warning("metrics_without_database", exception=type(failure).__name__)
        return metrics.render(())
    return metrics.render(_families(gauges))


def _families(gauges: Gauges) -> Iterable[Metric]:
    yield _by_label("turnkeeper_runs", "Runs that have not ended", "status", gauges.runs)
    yield _by_label("turnkeeper_hosts", "Hosts", "state", gauges.hosts)
    yield GaugeMetricFamily(
        "turnkeeper_oldest_ready_seconds",
        "How long the run that has been ready for longest has waited for a claim",
        value=gauges.oldest_ready_s,
    )
    yield GaugeMetricFamily("turnkeeper_open_attempts", "Attempts that have not ended", value=gauges.open_attempts)
    yield GaugeMetricFamily(
        "turnkeeper_quarantined_memberships",
        "Memberships that wait for a verdict",
        value=gauges.quarantined_memberships,
    )
    yield GaugeMetricFamily(
        "turnkeeper_pending_cleanups", "Scopes whose runtime is not confirmed gone", value=gauges.pending_cleanups
    )


def _by_label(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, number in sorted(values.items()):
        family.add_metric([value], number)
    return family
