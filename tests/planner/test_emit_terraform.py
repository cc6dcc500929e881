"""Terraform, alarms and agent of `plan --emit`: references resolve, and values are those of the plan and the chart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from neuronserve.planner.emit.alerts import ALERTS, MAX_WAITING
from neuronserve.planner.emit.deployment import Deployment
from neuronserve.planner.emit.targets import rendered
from neuronserve.server.api.telemetry.families import FAMILIES
from tests.planner.emit_cases import CASES
from tests.planner.test_emit_schemas import ROWS, service_model

WRITTEN = [(d, texts) for d in ROWS if "main.tf.json" in (texts := rendered(d).texts)]
BLOCK = replace(CASES["inf2"], price_basis="capacity_block")


def whole(texts: dict[str, str]) -> dict[str, Any]:
    """The folder's files of Terraform as one configuration, as it reads them."""
    main, alarms = (json.loads(texts[f"{name}.tf.json"]) for name in ("main", "alarms"))
    return main | {
        "variable": main["variable"] | alarms["variable"],
        "resource": main["resource"] | alarms["resource"],
    }


def texts_in(node: Any) -> Iterator[str]:
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from texts_in(value)
    if isinstance(node, str):
        yield node


def template(d: Deployment) -> dict[str, Any]:
    found: dict[str, Any] = whole(rendered(d).texts)["resource"]["aws_launch_template"]["this"]
    return found


def test_terraform_is_written_where_the_task_is() -> None:
    names = {"main.tf.json", "alarms.tf.json", "cloudwatch-agent.json", "prometheus.yaml"}
    for d in ROWS:
        files = rendered(d)
        assert names <= (files.texts if "ecs-task-definition.json" in files.texts else files.left_out).keys()
    assert len(WRITTEN) > 5


def test_every_reference_is_to_something_of_the_folder() -> None:
    for _, texts in WRITTEN:
        configuration = whole(texts)
        defined = {f"{kind}.{name}" for kind, named in configuration["resource"].items() for name in named}
        defined |= {f"data.{kind}.{name}" for kind, named in configuration["data"].items() for name in named}
        defined |= {f"var.{name}" for name in configuration["variable"]}
        defined |= {f"local.{name}" for name in configuration["locals"]}
        asked, files = set(), set()
        for text in texts_in(configuration):
            for expression in re.findall(r"\$\{((?:[^{}]|\$\{[^{}]*\})*)\}", text):
                asked |= set(
                    re.findall(r"\b(?:data\.aws_\w+\.\w+|(?<!data\.)aws_\w+\.\w+|(?:var|local)\.\w+)", expression)
                )
                files |= set(re.findall(r'file\("\$\{path\.module\}/([^"]+)"\)', expression))
        assert asked <= defined, asked - defined
        assert {f"var.{name}" for name in configuration["variable"]} <= asked, "a variable that nothing reads"
        assert files == {"ecs-task-definition.json", "cloudwatch-agent.json", "prometheus.yaml"} <= texts.keys()


def test_instances_and_service_are_those_of_the_plan() -> None:
    for d, texts in WRITTEN:
        resources = {kind: named["this"] for kind, named in whole(texts)["resource"].items() if "this" in named}
        task = json.loads(texts["ecs-task-definition.json"])
        group, definition = resources["aws_autoscaling_group"], resources["aws_ecs_task_definition"]
        assert group["min_size"] == group["max_size"] == resources["aws_ecs_service"]["desired_count"] == d.instances
        assert resources["aws_launch_template"]["instance_type"] == d.part.name
        assert json.loads(texts["main.tf.json"])["provider"]["aws"]["region"] == d.part.prices.region
        assert (definition["family"], definition["network_mode"]) == (task["family"], task["networkMode"])
        assert definition["placement_constraints"] == task["placementConstraints"]
        disk_gib = resources["aws_launch_template"]["block_device_mappings"]["ebs"]["volume_size"]
        assert disk_gib * 2**30 > 2 * d.checkpoint_bytes
        assert len(resources["aws_iam_role"]["name_prefix"]) <= 38


def test_the_market_is_that_of_the_price() -> None:
    assert "instance_market_options" not in template(CASES["inf2"])
    assert template(CASES["inf2-spot"])["instance_market_options"] == {"market_type": "spot"}
    assert template(BLOCK)["instance_market_options"] == {"market_type": "capacity-block"}
    assert "<CAPACITY_RESERVATION_ID>" in json.dumps(template(BLOCK)["capacity_reservation_specification"])


def test_the_agent_scrapes_every_server_of_the_instance() -> None:
    for d, texts in WRITTEN:
        started = whole(texts)["locals"]["instance"]
        paths = {each["path"]: each["content"] for each in started["write_files"]}
        config = json.loads(texts["cloudwatch-agent.json"])["opentelemetry"]["collect"]["prometheus"]["config_path"]
        assert paths[config] == '${file("${path.module}/prometheus.yaml")}'
        assert any(command.endswith("file:/etc/neuron-serving/cloudwatch-agent.json") for command in started["runcmd"])
        (job,) = yaml.safe_load(texts["prometheus.yaml"])["scrape_configs"]
        (container,) = json.loads(texts["ecs-task-definition.json"])["containerDefinitions"]
        ports = [f"127.0.0.1:{each['hostPort']}" for each in container["portMappings"]]
        assert job["static_configs"] == [{"targets": ports, "labels": {"deployment": d.name}}]


def test_alarms_ask_for_what_a_server_exports_and_hold_the_plans_limits() -> None:
    exported = {each.exposed for each in FAMILIES} | {"up"}
    for d, texts in WRITTEN:
        alarms = json.loads(texts["alarms.tf.json"])["resource"]["aws_cloudwatch_metric_alarm"]
        queries = {each["alarm_name"].removeprefix(f"{d.name}-"): criteria(each)["query"] for each in alarms.values()}
        limits = {"FirstTokenSlow": d.promise.ttft_limit_s, "OutputTokenSlow": d.promise.tpot_limit_s}
        assert queries.keys() == {each.name for each in ALERTS} - {name for name, s in limits.items() if s is None}
        for name, query in queries.items():
            asked = re.findall(rf'([\w:]+)\{{deployment="{d.name}"', query)
            assert asked, query
            assert set(asked) <= exported
            assert len(asked) == query.count("{"), "a series of another deployment"
            limit = limits.get(name)
            assert limit is None or float(query.rpartition("> ")[2]) == pytest.approx(limit)
            assert "__" not in query + alarms[name.lower()]["alarm_description"]
            assert {each.pending_s for each in ALERTS if each.name == name} == {
                criteria(alarms[name.lower()])["pending_period"]
            }


def test_alarms_are_ones_that_cloudwatch_describes() -> None:
    pytest.importorskip("botocore")
    from botocore.validate import ParamValidator

    shape = service_model("cloudwatch").operation_model("PutMetricAlarm").input_shape
    for _, texts in WRITTEN:
        for alarm in json.loads(texts["alarms.tf.json"])["resource"]["aws_cloudwatch_metric_alarm"].values():
            request = api_names(alarm | {"alarm_actions": []})
            found = ParamValidator().validate(request, shape)
            assert not found.has_errors(), found.generate_report()
            assert request.keys() <= shape.members.keys()


def test_the_limit_of_waiting_requests_is_the_charts_default(pytestconfig: pytest.Config) -> None:
    values = yaml.safe_load(Path(pytestconfig.rootpath, "helm", "values.yaml").read_text())
    assert values["prometheusRule"]["maxWaitingRequests"] == MAX_WAITING


def criteria(alarm: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = alarm["evaluation_criteria"]["promql_criteria"]
    return found


def api_names(node: Any) -> Any:
    """Terraform's names as the service has them."""
    if not isinstance(node, dict):
        return node
    return {key.title().replace("_", "").replace("Promql", "PromQL"): api_names(value) for key, value in node.items()}
