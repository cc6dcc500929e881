"""Rules by which a router finds that a replica is lost, and moves its requests; the simulator has the same. Seconds."""

from __future__ import annotations

SILENCE_S = 5.0  # without a sign of life, after which a replica counts as lost
PROBE_S, IDLE_PROBE_S = 1.0, 3.0  # between two probes of a replica with requests, and of one without
MAX_WAIT_S = 30.0  # that a request waits while no replica is up, or none goes on with it
PAUSE_S = 0.25  # before a replica that has refused to go on with a stream is asked again
MAX_LOSSES = 4  # of one request in a row: it may be what brings the replicas down
