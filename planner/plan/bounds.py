"""Bounds of a plan's options: for whoever refuses a value before anything is planned."""

from __future__ import annotations

MAX_TOKENS = 1 << 24
MAX_BATCH = 4096
MIN_RATE, MAX_RATE = 1e-6, 1e9  # requests a second: beyond, figures stop being finite or meaningful
