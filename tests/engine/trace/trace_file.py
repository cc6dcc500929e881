"""Reads a trace as a viewer does, and refuses what a viewer would show wrongly."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

DEVICE, HOST, REQUESTS, PART = 1, 2, 3, 4
GRAPHS, *PARTS = range(5)  # lanes of PART
SLACK_US = 0.0015  # times are rounded to the nanosecond


class TraceFile:
    """A parsed file, each of whose lanes nests and each of whose async spans is closed."""

    def __init__(self, path: Path) -> None:
        content = json.loads(path.read_text())
        self.about, self.events = content["otherData"], content["traceEvents"]
        assert content["displayTimeUnit"] == "ms"
        names = [e for e in self.events if e["ph"] == "M"]
        self.processes = {e["pid"]: e["args"]["name"] for e in names if e["name"] == "process_name"}
        self.lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in names if e["name"] == "thread_name"}
        self.spans: dict[tuple[int, int], list[Any]] = defaultdict(list)
        for event in self.events:
            assert event["ph"] in {"M", "X", "b", "e", "n"}
            assert event["name"]
            if event["ph"] == "X":
                assert event["ts"] >= 0
                assert event["dur"] >= 0
                self.spans[event["pid"], event["tid"]].append(event)
        assert set(self.spans) <= set(self.lanes)
        for lane in self.spans.values():
            self._check_nesting(lane)
        self.requests = self._requests()

    def named(self, pid: int, tid: int, category: str | None = None) -> list[str]:
        """Names of a lane's spans in the order of their time."""
        spans = sorted(self.spans[pid, tid], key=lambda e: (e["ts"], -e["dur"]))
        return [e["name"] for e in spans if category in (None, e["cat"])]

    def check_part(self) -> list[Any]:
        """The modelled graphs in order: none overlaps another, and the parts of each are its whole time."""
        graphs = sorted(self.spans[PART, GRAPHS], key=lambda e: e["ts"])
        for one, two in pairwise(graphs):
            assert one["ts"] + one["dur"] <= two["ts"] + SLACK_US
        for graph in graphs:
            whole = sum(self._within(lane, graph) for lane in PARTS)
            assert abs(whole - graph["dur"]) < 4 * SLACK_US, graph
        assert sum(len(self.spans[PART, lane]) for lane in PARTS) <= len(PARTS) * len(graphs)
        return graphs

    def _within(self, lane: int, graph: Any) -> float:
        """Microseconds of a lane's spans that begin in `graph` and end in it."""
        end = graph["ts"] + graph["dur"] + SLACK_US
        spans = [e for e in self.spans[PART, lane] if graph["ts"] - SLACK_US <= e["ts"] and e["ts"] + e["dur"] <= end]
        return float(sum(e["dur"] for e in spans))

    def _check_nesting(self, lane: list[Any]) -> None:
        """A span ends before the one that it began in."""
        ends: list[float] = []
        for event in sorted(lane, key=lambda e: (e["ts"], -e["dur"])):
            while ends and ends[-1] <= event["ts"] + SLACK_US:
                ends.pop()
            end = event["ts"] + event["dur"]
            assert not ends or end <= ends[-1] + SLACK_US, event
            ends.append(end)

    def _requests(self) -> dict[str, list[Any]]:
        """Async events by id, each a properly nested sequence that ends with the request itself."""
        found: dict[str, list[Any]] = defaultdict(list)
        for event in self.events:
            if event["ph"] in "ben":
                found[event["id"]].append(event)
        for events in found.values():
            stack: list[Any] = []
            for event in events:
                assert event["cat"] == "request"
                if event["ph"] == "b":
                    stack.append(event)
                elif event["ph"] == "e":
                    begin = stack.pop()
                    assert (begin["name"], begin["ts"] <= event["ts"]) == (event["name"], True)
            assert not stack
            assert (events[0]["name"], events[-1]["name"]) == ("request", "request")
        return dict(found)
