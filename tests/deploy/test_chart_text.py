"""Facts that the chart repeats agree with their source: catalogue, table of values, metrics and buckets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

from neuronserve.server.api.telemetry import families
from neuronserve.server.device.catalog import INSTANCES, instance
from neuronserve.server.errors import DeviceError
from neuronserve.server.settings.serve import ServeSettings
from tests.deploy.chart import CHART, asked_series, expressions, golden, of_kind, only
from tools import helm_chart, kubernetes_rules

VALUES = (CHART / "values.yaml").read_text()
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


PARTS = {"histogram": ("_bucket", "_sum", "_count")}
SERIES = {each.exposed + part: each for each in families.FAMILIES for part in PARTS.get(each.kind, ("",))}
OF_THE_SCRAPE = {"namespace", "job"}
WHOLE = {
    "resources",
    "tests.resources",
    "router.resources",
    "ray.headResources",
    "podSecurityContext",
    "securityContext",
}
WHOLE |= {"inferencePool.endpointPicker.resources"}  # these are described as one value
SCALING = {"vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"}


def leaves(node: Any, path: str = "") -> Iterator[str]:
    """Dotted keys of what is no mapping, or an empty one."""
    if isinstance(node, dict) and node and path not in WHOLE:
        for key, value in node.items():
            yield from leaves(value, f"{path}.{key}".removeprefix("."))
    else:
        yield path


def test_generated_parts_are_fresh() -> None:
    """When this fails, `make helm-golden`."""
    stale = [path.name for path, text in helm_chart.generated().items() if path.read_text() != text]
    assert stale == []


def test_every_value_is_described_and_every_description_is_of_a_value() -> None:
    described = [key for key, _ in helm_chart.described(VALUES)]
    ours = {key for key in leaves(yaml.safe_load(VALUES)) if not key.startswith("dashboard.labels.")} | {
        "dashboard.labels"
    }
    assert set(described) == ours
    assert len(described) == len(set(described))


def test_values_that_the_guide_names_exist() -> None:
    guide = (CHART.parent / "docs" / "guides" / "deploy.md").read_text()
    values = yaml.safe_load(VALUES)
    named = {key for key in re.findall(r"`([a-z][A-Za-z]*(?:\.[A-Za-z]+)+)(?:: [^`]+)?`", guide)}
    named = {key for key in named if key.split(".")[0] in values}
    assert len(named) > 20
    for key in named:
        node = values
        for part in key.split("."):
            assert part in node, key
            node = node[part]


def test_the_schema_describes_just_the_values() -> None:
    def check(values: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        assert schema["additionalProperties"] is False, path
        assert set(schema["properties"]) - {"global"} == set(values), path
        for key, value in values.items():
            part = schema["properties"][key]
            if "io.k8s." in part.get("$ref", ""):
                continue
            part = SCHEMA["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
            if isinstance(value, dict) and value and "properties" in part:
                check(value, part, f"{path}.{key}")

    check(yaml.safe_load(VALUES), SCHEMA, "")


@pytest.mark.parametrize("rule", kubernetes_rules.RULES)
def test_every_rule_that_the_api_leaves_to_its_code_is_in_the_schema(rule: str) -> None:
    """A rule of a definition that no value uses, or that was renamed, would be lost without a word."""
    name, _, field = rule.partition(".")
    (found,) = (each for key, each in SCHEMA["$defs"].items() if key.startswith("io.k8s.") and key.endswith(f".{name}"))
    part = found["properties"][field] if field else found
    wanted = dict(kubernetes_rules.RULES[rule])
    assert set(wanted.pop("required", ())) <= set(part.get("required", ()))
    assert part.get("items", {}).items() >= wanted.pop("items", {}).items()
    assert part.items() >= wanted.items()


@pytest.mark.parametrize("part", INSTANCES, ids=lambda part: part.name)
def test_the_schema_allows_the_degrees_that_the_part_allows(part: Any) -> None:
    (rule,) = (each for each in SCHEMA["allOf"] if part.name in each["if"]["properties"]["device"]["enum"])
    allowed = rule["then"]["properties"]["tensorParallelSize"]["enum"]
    for tp in SCHEMA["properties"]["tensorParallelSize"]["enum"]:
        if tp in allowed:
            instance(part.name).check_tp(tp)
        else:
            with pytest.raises(DeviceError):
                instance(part.name).check_tp(tp)


def test_only_metrics_that_the_server_has_are_asked_for() -> None:
    asked = asked_series()
    assert SCALING <= set(asked) <= set(SERIES)
    for name, labels in asked.items():
        assert labels <= OF_THE_SCRAPE | set(SERIES[name].labels) | ({"le"} if name.endswith("_bucket") else set()), (
            name
        )
    grouped = {
        name.strip() for text in expressions() for by in re.findall(r"by \(([^)]+)\)", text) for name in by.split(",")
    }
    assert grouped <= {label for each in families.FAMILIES for label in each.labels} | {"le"}


def test_the_adapters_names_are_the_servers_without_the_colon() -> None:
    metrics = only(golden("all"), "HorizontalPodAutoscaler")["spec"]["metrics"]
    names = {metric["pods"]["metric"]["name"] for metric in metrics}
    assert names == {name.replace(":", "_") for name in SCALING}
    assert set(SERIES) >= SCALING
    targets = [metric["pods"]["target"]["averageValue"] for metric in metrics]
    assert targets == ["4", "800m"]


def test_service_level_objectives_are_bounds_as_prometheus_writes_them() -> None:
    rules = [rule for group in only(golden("keda"), "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    bounds = {rule["alert"]: re.findall(r'le="([^"]+)"', rule["expr"]) for rule in rules if "alert" in rule}
    assert bounds["NeuronserveFirstTokenSlow"] == ["2.5"]
    assert bounds["NeuronserveOutputTokenSlow"] == ["0.1"]
    for rule in rules:
        assert rule["expr"].count("{") == rule["expr"].count('{namespace="ns",job="rel-neuronserve"')


def test_the_price_makes_the_record_of_cost() -> None:
    def records(case: str) -> list[str]:
        (rule,) = of_kind(golden(case), "PrometheusRule")
        return [each["expr"] for group in rule["spec"]["groups"] for each in group["rules"] if "record" in each]

    assert [expression.split("*")[1].split(")")[0].strip() for expression in records("keda")] == ["(0.7582 / 3600"]


def test_the_dashboard_begins_with_the_charts_objectives_and_price() -> None:
    (config,) = (each for each in of_kind(golden("all"), "ConfigMap") if each["metadata"]["name"] == "on-dashboard")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    (text,) = config["data"].values()
    variables = {each["name"]: each for each in json.loads(text)["templating"]["list"]}
    assert [variables[name]["query"] for name in ("ttft_slo", "tpot_slo", "price")] == ["2.5", "0.1", "0.3"]
    assert "__" not in text.replace("$__rate_interval", "").replace("$__all", "")


@pytest.mark.parametrize(
    ("key", "setting"),
    [
        ("model.dtype", "dtype"),
        ("model.quantization", "quantization"),
        ("model.maxModelLen", "max_model_len"),
        ("device", "device"),
        ("tensorParallelSize", "tensor_parallel_size"),
        ("engine.maxNumSeqs", "max_num_seqs"),
        ("engine.maxNumBatchedTokens", "max_num_batched_tokens"),
        ("engine.maxNumQueuedReqs", "max_num_queued_reqs"),
        ("engine.blockSize", "block_size"),
        ("engine.enablePrefixCaching", "enable_prefix_caching"),
        ("engine.deviceMemoryUtilization", "device_memory_utilization"),
        ("server.port", "port"),
        ("server.logLevel", "log_level"),
        ("server.toolCallParser", "tool_call_parser"),
        ("dataParallelSize", "data_parallel_size"),
        ("engine.stack", "stack"),
        ("engine.batching", "batching"),
        ("engine.pace", "pace"),
        ("engine.kvCacheDtype", "kv_cache_dtype"),
        ("price.basis", "price_basis"),
        ("price.hourlyUsd", "usd_per_hour"),
        ("price.spotDiscount", "spot_discount"),
    ],
)
def test_values_have_the_defaults_and_choices_of_the_settings_they_become(key: str, setting: str) -> None:
    field = ServeSettings.model_fields[setting]
    default, schema = yaml.safe_load(VALUES), SCHEMA
    for part in key.split("."):
        default, schema = default[part], schema["properties"][part]
    assert default == field.default
    choices = get_args(field.annotation)
    if choices and get_origin(choices[0]) is Literal:
        choices = (*get_args(choices[0]), None)
    if choices and isinstance(choices[0], str):
        assert schema["enum"] == list(choices)
    limits = {type(each).__name__.lower(): each for each in field.metadata}
    if "ge" in limits and "minimum" in schema:
        assert schema["minimum"] >= limits["ge"].ge
    if "le" in limits and "maximum" in schema:
        assert schema["maximum"] <= limits["le"].le
