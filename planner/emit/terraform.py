"""Terraform that starts the instances of a row, runs the ECS task on each, and sets the alarms; the agent's scrapes.

They are in Terraform's JSON syntax, as the other files for AWS are JSON: nothing that writes or tests them has to know
HCL. Containers are read from `ecs-task-definition.json`, so that a placeholder is filled in once.

Sources: ECS developer guide, "Amazon ECS-optimized Linux AMIs" (parameter of the Neuron image); CloudWatch user guide,
"CloudWatch agent configuration file: OpenTelemetry section" (since agent 1.300070.0, which Amazon Linux 2023 has) and
"PromQL alarms"; Terraform's provider aws 6.43 (`evaluation_criteria`). The agent's older section `prometheus` drops
histograms, which the alarms on latencies need.
"""

from __future__ import annotations

import json
from typing import Any

from ...server.host.memory import GIB
from . import aws
from .alerts import ALERTS, MAX_WAITING, filled
from .deployment import Deployment, LeftOut

Block = dict[str, Any]

TASK = "ecs-task-definition.json"
AGENT, SCRAPES = "cloudwatch-agent.json", "prometheus.yaml"
_READ = 'file("${path.module}/%s")'  # of this folder
_FOLDER = "/etc/neuron-serving"
_IMAGE = "/aws/service/ecs/optimized-ami/amazon-linux-2023/neuron/recommended/image_id"
_POLICIES = {"ecs": "service-role/AmazonEC2ContainerServiceforEC2Role", "agent": "CloudWatchAgentServerPolicy"}
_MAY = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
_TRUST = json.dumps({"Version": "2012-10-17", "Statement": [_MAY]})
_CONTROL = "/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl -a fetch-config -m ec2 -s -c file:"
_ROLE = "${aws_iam_role.this.name}"
_EVERY_S = 60  # between scrapes, and between evaluations of an alarm
_MARKETS = {"spot": "spot", "capacity_block": "capacity-block"}
_ROOM_GIB = 100  # of the disk for system and image; weights are there twice, as a checkpoint and compiled


def agent(d: Deployment) -> Block | LeftOut:
    """Return the configuration of the CloudWatch agent on each instance."""
    return _refusal(d) or {"opentelemetry": {"collect": {"prometheus": {"config_path": f"{_FOLDER}/{SCRAPES}"}}}}


def scrapes(d: Deployment) -> Block | LeftOut:
    """Return the scrape configuration: `/metrics` of each server of the instance, with the label of the alarms."""
    targets = [f"127.0.0.1:{aws.PORT + number}" for number in range(d.dp)]
    job = {"job_name": d.name, "static_configs": [{"targets": targets, "labels": {"deployment": d.name}}]}
    return _refusal(d) or {"global": {"scrape_interval": f"{_EVERY_S}s"}, "scrape_configs": [job]}


def alarms(d: Deployment) -> Block | LeftOut:
    """Return the alarms: the chart's alerts, of its objectives those whose mean the plan limits."""
    limits = {"TTFT_SLO": d.promise.ttft_limit_s, "TPOT_SLO": d.promise.tpot_limit_s}
    values = {"SERIES": f'deployment="{d.name}"', "RELEASE": d.name, "MAX_WAITING": str(MAX_WAITING)}
    values |= {name: f"{limit:g}" for name, limit in limits.items() if limit is not None}
    rows: Block = {}
    for alert in ALERTS:
        if not alert.slo or alert.slo in values:
            query, summary = (filled(text, values) for text in alert.on_means())
            rows[alert.name.lower()] = {
                "alarm_name": f"{d.name}-{alert.name}",
                "alarm_description": f"{alert.severity}: {summary}",
                "evaluation_interval": _EVERY_S,
                "evaluation_criteria": {"promql_criteria": {"query": query, "pending_period": alert.pending_s}},
                "alarm_actions": "${var.alarm_actions}",
            }
    actions = {"type": "list(string)", "default": [], "description": "ARNs that are notified, such as an SNS topic's"}
    return _refusal(d) or {"variable": {"alarm_actions": actions}, "resource": {"aws_cloudwatch_metric_alarm": rows}}


def main(d: Deployment) -> Block | LeftOut:
    """Return the cluster, its instances and the service."""
    task = aws.task_definition(d)
    if isinstance(task, LeftOut):
        return task
    lists = {"subnet_ids": "with a way to the internet", "security_group_ids": "of the instances"}
    policies = {name: {"role": _ROLE, "policy_arn": f"arn:aws:iam::aws:policy/{p}"} for name, p in _POLICIES.items()}
    resources = {**_instances(d), **_service(d, task)}
    return {
        "terraform": {"required_providers": {"aws": {"source": "hashicorp/aws", "version": ">= 6.43"}}},
        "provider": {"aws": {"region": d.part.prices.region}},
        "variable": {name: {"type": "list(string)", "description": what} for name, what in lists.items()},
        "data": {"aws_ssm_parameter": {"image": {"name": _IMAGE}}},
        "locals": {"instance": _cloud_config()},
        "resource": {
            **{kind: {"this": block} for kind, block in resources.items()},
            "aws_iam_role_policy_attachment": policies,
        },
    }


def _cloud_config() -> Block:
    """Return what cloud-init does on an instance: join the cluster, install the agent and start it."""
    files = {f"{_FOLDER}/{name}": "${" + _READ % name + "}" for name in (AGENT, SCRAPES)}
    files |= {"/etc/ecs/ecs.config": "ECS_CLUSTER=${aws_ecs_cluster.this.name}\n"}
    return {
        "write_files": [{"path": path, "content": content} for path, content in files.items()],
        "runcmd": ["dnf install -y amazon-cloudwatch-agent", f"{_CONTROL}{_FOLDER}/{AGENT}"],
    }


def _instances(d: Deployment) -> Block:
    """Return the group of the planned instances, neither more nor fewer, and what it starts them with."""
    disk = {"volume_size": _ROOM_GIB + 2 * -(-d.checkpoint_bytes // GIB), "volume_type": "gp3", "encrypted": True}
    template: Block = {
        "name_prefix": f"{d.name}-",
        "image_id": "${data.aws_ssm_parameter.image.value}",
        "instance_type": d.part.name,
        "iam_instance_profile": {"arn": "${aws_iam_instance_profile.this.arn}"},
        "vpc_security_group_ids": "${var.security_group_ids}",
        "block_device_mappings": {"device_name": "/dev/xvda", "ebs": disk},
        "user_data": '${base64encode(format("#cloud-config\\n%s", jsonencode(local.instance)))}',
    }
    if market := _MARKETS.get(d.price_basis):
        template["instance_market_options"] = {"market_type": market}
    if d.price_basis == "capacity_block":
        block = {"capacity_reservation_id": "<CAPACITY_RESERVATION_ID>"}
        template["capacity_reservation_specification"] = {"capacity_reservation_target": block}
    return {
        "aws_iam_role": {"name_prefix": f"{d.name[:37]}-", "assume_role_policy": _TRUST},
        "aws_iam_instance_profile": {"name_prefix": f"{d.name}-", "role": _ROLE},
        "aws_launch_template": template,
        "aws_autoscaling_group": {
            "name": d.name,
            "min_size": d.instances,
            "max_size": d.instances,
            "vpc_zone_identifier": "${var.subnet_ids}",
            "launch_template": {"id": "${aws_launch_template.this.id}", "version": "$Latest"},
        },
    }


def _service(d: Deployment, task: Block) -> Block:
    """Return task and service. An instance has devices and ports for one task, so the old one ends before the new."""
    return {
        "aws_ecs_cluster": {"name": d.name},
        "aws_ecs_task_definition": {
            "family": task["family"],
            "requires_compatibilities": task["requiresCompatibilities"],
            "network_mode": task["networkMode"],
            "placement_constraints": task["placementConstraints"],
            "container_definitions": f"${{jsonencode(jsondecode({_READ % TASK}).containerDefinitions)}}",
        },
        "aws_ecs_service": {
            "name": d.name,
            "cluster": "${aws_ecs_cluster.this.id}",
            "task_definition": "${aws_ecs_task_definition.this.arn}",
            "launch_type": "EC2",
            "desired_count": d.instances,
            "deployment_minimum_healthy_percent": 0,
            "deployment_maximum_percent": 100,
            "placement_constraints": {"type": "distinctInstance"},
        },
    }


def _refusal(d: Deployment) -> LeftOut | None:
    """Return the reason why there is no task that an instance could run."""
    task = aws.task_definition(d)
    return task if isinstance(task, LeftOut) else None
