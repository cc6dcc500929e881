"""Scrapes of a running server over HTTP: its health and metrics, and the changes between two scrapes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from ..errors import SettingsError, StartError
from ..typed_json import JsonError, decode

TIMEOUT_S = 5.0
PERCENTILES = (0, 1, 25, 50, 75, 99, 100)
Labels = Mapping[str, str]


class Unreachable(StartError):
    """No server answers at the address, or another program answers."""


class _Health(msgspec.Struct):
    status: str


@dataclass(frozen=True, slots=True)
class Scrape:
    """Samples of one moment. `time` is in seconds of the monotonic clock."""

    time: float
    phase: str  # loading, ready, draining, ...
    samples: Mapping[str, list[tuple[Labels, float]]]

    def has(self, name: str) -> bool:
        return name in self.samples

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with these labels; 0 if there are none."""
        return sum(value for own, value in self.samples.get(name, ()) if labels.items() <= own.items())

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return sums by the values of `labels`, in the order of their first appearance."""
        sums: dict[tuple[str, ...], float] = {}
        for own, value in self.samples.get(name, ()):
            key = tuple(own.get(label, "") for label in labels)
            sums[key] = sums.get(key, 0.0) + value
        return sums

    def labels(self, name: str) -> Labels:
        """Return the labels of the first sample; empty if there is no sample."""
        return self.samples[name][0][0] if self.has(name) else {}


@dataclass(frozen=True, slots=True)
class Window:
    """Two scrapes of one server, and the changes between them."""

    before: Scrape
    after: Scrape

    @property
    def seconds(self) -> float:
        return max(self.after.time - self.before.time, 1e-9)

    def increase(self, name: str, **labels: str) -> float:
        """Return the increase of a counter. A smaller value than before is from a restarted server."""
        before, after = self.before.total(name, **labels), self.after.total(name, **labels)
        return after - before if after >= before else after

    def rate(self, name: str, **labels: str) -> float:
        """Return the increase of a counter per second."""
        return self.increase(name, **labels) / self.seconds


class Endpoint:
    """Address of a server, and an API key for it. Raises SettingsError for an impossible `url`."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        try:
            is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address:
            raise SettingsError(f"--url is {url[:200]!r}: it must look like http://HOST:PORT")
        self.url = url.rstrip("/")
        self._host = parts.hostname or ""
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self.opener = build_opener(*([ProxyHandler({})] if self.is_local else []))  # a proxy cannot reach this host

    @property
    def is_local(self) -> bool:
        """Whether the server's process is on this host."""
        try:
            return ip_address(self._host).is_loopback
        except ValueError:
            return self._host == "localhost"

    def scrape(self) -> Scrape:
        """Scrape the server. Raises Unreachable with the reason."""
        phase, text = self._phase(), self._get("/metrics")[1]
        samples: dict[str, list[tuple[Labels, float]]] = {}
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    samples.setdefault(sample.name, []).append((sample.labels, sample.value))
        except ValueError as error:
            raise Unreachable(f"{self.url}/metrics: no metrics: {error}") from error
        return Scrape(time.monotonic(), phase, samples)

    def _phase(self) -> str:
        status, text = self._get("/health")
        try:
            return decode(text, _Health).status
        except JsonError as error:
            raise Unreachable(f"{self.url}/health answers {status}, but not in neuronserve's form") from error

    def _get(self, path: str) -> tuple[int, str]:
        """Return status and body. A server that is not ready answers 503 with its phase."""
        try:
            request = Request(self.url + path, headers=self._headers)  # http or https only, by __init__
            with self.opener.open(request, timeout=TIMEOUT_S) as answer:
                return answer.status, answer.read().decode("utf-8", "replace")
        except HTTPError as error:
            if error.code == 503:
                return error.code, error.read().decode("utf-8", "replace")
            if error.code in {401, 403}:
                why = "asks for an API key" if error.code == 401 else "needs a key of scope metrics"
                raise Unreachable(f"{self.url}{path} {why}: give --api-key or NEURONSERVE_API_KEY") from error
            raise Unreachable(f"{self.url}{path} answers {error.code}: is this a neuronserve server?") from error
        except (URLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise Unreachable(f"no server answers at {self.url}: {reason}") from error


def histogram_percentiles(window: Window, family: str) -> dict[str, float] | None:
    """Return percentiles of a window in seconds, by name such as p50; None when nothing was observed.

    Inside a bucket they are linear, as in Prometheus's histogram_quantile. p0 and p100 are bounds of buckets. Values
    above the last finite bound count as that bound.
    """
    buckets = sorted((float(le), window.increase(f"{family}_bucket", le=le)) for (le,) in _bounds(window, family))
    if not buckets or buckets[-1][1] <= 0:
        return None
    return {f"p{p}": _percentile(buckets, p / 100) for p in PERCENTILES}


def _bounds(window: Window, family: str) -> list[tuple[str, ...]]:
    return list(window.after.by(f"{family}_bucket", "le"))


def _percentile(buckets: list[tuple[float, float]], share: float) -> float:
    """Return the value at `share` of `buckets` of (upper bound, cumulative count); the last bound is infinite."""
    rank, low, below = share * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets:
        if count > below and count >= rank:
            return low if bound == float("inf") else low + (bound - low) * (rank - below) / (count - below)
        if bound != float("inf"):
            low, below = bound, count
    return low
