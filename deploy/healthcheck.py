"""Exit with 0 if the server of this container is ready, over HTTP or HTTPS: the image's HEALTHCHECK."""

import os
import ssl
import sys
from urllib.error import HTTPError
from urllib.request import urlopen


def is_ready(port: str) -> bool:
    """Return whether the server answers 200. No certificate is checked: it is this host's own."""
    for scheme in ("http", "https"):
        try:
            urlopen(f"{scheme}://127.0.0.1:{port}/health/ready", timeout=2, context=ssl._create_unverified_context())
        except HTTPError:
            return False
        except OSError:
            continue
        return True
    return False


if __name__ == "__main__":
    # Where clients need certificates, probes have a port of their own.
    sys.exit(not is_ready(os.environ.get("NEURONSERVE_HEALTH_PORT") or os.environ["NEURONSERVE_PORT"]))
