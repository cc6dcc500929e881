"""Look-up in the data sheets of server/device/parts.py and server/device/instances.py. Holds no figures itself."""

from __future__ import annotations

from difflib import get_close_matches

from server.device.instances import INSTANCES, Instance
from server.errors import DeviceError

__all__ = ["INSTANCES", "Instance", "instance"]

_BY_NAME = {instance.name: instance for instance in INSTANCES}


def instance(name: str) -> Instance:
    """The instance called `name`, such as "inf2.xlarge". Raises DeviceError with the nearest names and all of them."""
    found = _BY_NAME.get(name)
    if found is None:
        near = get_close_matches(name.lower(), _BY_NAME, n=2)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise DeviceError(f"there is no device {name!r}.{hint} Known: {', '.join(_BY_NAME)}")
    return found
