"""The seam for packages that add to the API without the server knowing of them: fault injection, the console."""

from __future__ import annotations

from typing import Any, Protocol


class Addition(Protocol):
    """One thing that the command adds to each application of a server.

    An application is a FastAPI, `service` an api.service.Service and `hub` a link.hub.hub.Hub; both know of additions
    through their configuration, so their types are not imported here.
    """

    def mount(self, app: Any, service: Any) -> None:
        """Add routes, or a middleware inside of all others."""

    def describe(self) -> dict[str, object]:
        """Fields of `GET /inventory` about it."""

    def offer(self, hub: Any) -> None:
        """Answer what the workers of a hub ask for, in the process that has the engines."""
