"""Metrics of the modelled accelerator: its time, the price of that time, and the share of padding."""

from __future__ import annotations

from .instruments import MetricFamily

DEVICE_TIME = MetricFamily(
    "neuronserve:device_seconds",
    "counter",
    "seconds",
    "Modelled time of the accelerator: `prefill`, `decode`, or `idle` without work",
    ("model_name", "engine", "kind"),
)
INSTANCE_COST = MetricFamily(
    "neuronserve:instance_cost_usd",
    "counter",
    "dollars",
    "What the instances cost since the engine was ready: their price x wall clock, busy or not. Its increase over that "
    "of all tokens, times a million, is the dollars per million tokens. Absent where no price is known",
)
COST = MetricFamily(
    "neuronserve:cost_usd",
    "counter",
    "dollars",
    "Price of the modelled time: `prefill` and `decode` are attributed to requests, `idle` and `unused_cores` (of the "
    "instance, in no engine) are not; the sum is modelled time x the instance's price. Absent where no price is known",
    ("model_name", "engine", "kind"),
)
REQUEST_DEVICE_TIME = MetricFamily(
    "neuronserve:request_device_seconds",
    "counter",
    "seconds",
    "Modelled time attributed to requests, by the name of their API key (`none` without keys)",
    ("model_name", "api_key"),
)
REQUEST_COST = MetricFamily(
    "neuronserve:request_cost_usd",
    "counter",
    "dollars",
    "Price of that time. Absent where no price is known",
    ("model_name", "api_key"),
)
DEVICE_TOKENS = MetricFamily(
    "neuronserve:device_tokens",
    "counter",
    "tokens",
    "Tokens computed for requests, by `kind`: `prefill` or `decode`",
    ("model_name", "engine", "kind"),
)
DEVICE_PADDING = MetricFamily(
    "neuronserve:device_padding_tokens",
    "counter",
    "tokens",
    "Padding tokens that the accelerator would compute to fill the bucket of a prompt or the slots of a decode",
    ("model_name", "engine", "kind"),
)
DEVICE_PADDING_FRACTION = MetricFamily(
    "neuronserve:device_padding_fraction",
    "gauge",
    "0 to 1",
    "Share of padding in all tokens since the start",
    ("model_name", "engine", "kind"),
)
DEVICE_WORK = MetricFamily(
    "neuronserve:device_work",
    "counter",
    "operations or bytes",
    "Modelled work over all cores of the engine: `flops`, and `hbm_bytes` moved from and to device memory",
    ("model_name", "engine", "quantity"),
)
PACE_STEPS = MetricFamily(
    "neuronserve:pace_steps",
    "counter",
    "steps",
    "With `--pace device`: steps that the host computed `in_time`, or `late`",
    ("model_name", "engine", "state"),
)
PACE_LAG = MetricFamily(
    "neuronserve:pace_lag_seconds",
    "gauge",
    "seconds",
    "With `--pace device`: wall-clock time lost since the start because the host was late",
)

DEVICE_FAMILIES = tuple(value for value in list(globals().values()) if isinstance(value, MetricFamily))
