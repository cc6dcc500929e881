"""Metrics of several processes as those of one server: counts are summed, gauges come from the engines' process.

A sum never decreases: the last known counts of an ended process stay in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from prometheus_client import Metric
from prometheus_client.registry import Collector

SUMMED = frozenset({"counter", "histogram"})


class Sample(msgspec.Struct, array_like=True):
    """One line of a scrape."""

    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, array_like=True):
    """One metric with its samples."""

    name: str
    kind: str
    meaning: str
    samples: list[Sample]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[Family])


def snapshot(collector: Collector) -> bytes:
    """Return all metrics of a process, for the other processes."""
    return _ENCODER.encode(
        [
            Family(each.name, each.type, each.documentation, [Sample(s.name, s.labels, s.value) for s in each.samples])
            for each in collector.collect()
        ]
    )


class Gathered(Collector):
    """Collector of a snapshot."""

    def __init__(self, data: bytes) -> None:
        self._families = _DECODER.decode(data)

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            metric = Metric(family.name, family.meaning, family.kind)
            for sample in family.samples:
                metric.add_sample(sample.name, sample.labels, sample.value)
            yield metric


class MetricSums:
    """Counts of the processes of a server, by process number."""

    def __init__(self, own: Collector) -> None:
        """`own` belongs to this process, which has the engines."""
        self._own = own
        self._latest: dict[int, bytes] = {}
        self._ended: bytes = _ENCODER.encode([])

    def gather(self, snapshots: Mapping[int, bytes]) -> bytes:
        """Return the sum of the latest snapshots; a process that does not answer now counts with its last one."""
        self._latest |= snapshots
        return _ENCODER.encode(_sum([_DECODER.decode(snapshot(self._own)), *self._counts()]))

    def end(self, number: int) -> None:
        """Keep the counts of a process that has ended."""
        last = self._latest.pop(number, None)
        if last is not None:
            self._ended = _ENCODER.encode(_sum([_DECODER.decode(self._ended), _counted(last)]))

    def _counts(self) -> Iterator[list[Family]]:
        yield _DECODER.decode(self._ended)
        for data in self._latest.values():
            yield _counted(data)


def _counted(data: bytes) -> list[Family]:
    """Return the families without those that are local to a process."""
    return [each for each in _DECODER.decode(data) if each.kind in SUMMED and not each.name.startswith("process_")]


def _sum(snapshots: Iterable[list[Family]]) -> list[Family]:
    families: dict[str, Family] = {}
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], Sample] = {}
    for family in (family for families_of_one in snapshots for family in families_of_one):
        total = families.setdefault(family.name, Family(family.name, family.kind, family.meaning, []))
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            if key in samples:
                samples[key].value += sample.value
            else:
                samples[key] = sample
                total.samples.append(sample)
    return list(families.values())
