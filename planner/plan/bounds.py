"""Bounds of a plan's options. Settings and the console check them before a plan starts."""

from __future__ import annotations

MAX_TOKENS = 1 << 24
MAX_BATCH = 4096
MIN_RATE, MAX_RATE = 1e-6, 1e9  # requests a second: beyond, figures stop being finite or meaningful
SLOW_END = 0.9  # quantile that the upper end of a band stands for
MIN_CONFIDENCE, MAX_CONFIDENCE = 0.5, 0.95  # quantiles of step times; 0.5: as predicted
