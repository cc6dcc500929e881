"""The seam for packages that extend the API and that the server does not know: fault injection, the console."""

from __future__ import annotations

from typing import Any, Protocol


class Addition(Protocol):
    """One extension that the command adds to each application of a server.

    An application is a FastAPI and `service` an api.service.Service, which knows additions through its configuration,
    so its type is not imported here.
    """

    def mount(self, app: Any, service: Any) -> None:
        """Add routes, or a middleware inside all others."""

    def describe(self) -> dict[str, object]:
        """Return its fields of `GET /inventory`."""
