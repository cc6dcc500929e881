"""Errors that end a load test before it has a result.

LoadTestError                printed in one line, exit code 2
├── SpecError                a flag or a scenario: names the key, the value and the limit
├── DatasetError             a trace or a data file: names the file and the line
├── EndpointError            the server cannot be reached, or names no model
└── StartError               a server that the load test starts did not start

An error of a single request is no exception but a counted failure: `records.FailureKind`.
"""

from __future__ import annotations


class LoadTestError(Exception):
    """Root of the tree. `str()` is fit to be shown to a user."""


class SpecError(LoadTestError):
    """The scenario cannot be carried out or contradicts itself."""


class DatasetError(LoadTestError):
    """A data file cannot be used."""


class EndpointError(LoadTestError):
    """There is no server to measure."""


class StartError(LoadTestError):
    """The server of a local run did not start."""
