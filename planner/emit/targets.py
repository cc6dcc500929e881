"""Table of the files that deploy a row. The type of a file's content and its name decide how it is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from . import aws, kubernetes, neuronserve, scenario, terraform, vllm_neuron, vllm_nxdi
from .deployment import Deployment, LeftOut

Content = str | dict[str, Any] | LeftOut


@dataclass(frozen=True, slots=True)
class Target:
    """A file of the folder."""

    path: str
    content: Callable[[Deployment], Content]
    what: str


CHECK = "check.toml"
SERVE = "neuronserve.sh"
TARGETS = (
    Target(aws.VLLM_NXDI, vllm_nxdi.script, "vLLM on NxD Inference, a server for each group of cores"),
    Target("nxdi-neuron-config.json", vllm_nxdi.neuron_config, "NeuronConfig of NxD Inference without vLLM"),
    Target(aws.VLLM_NEURON, vllm_neuron.script, "the vLLM-Neuron plugin (SDK 2.31 and later)"),
    Target(SERVE, neuronserve.script, "this server, emulated and paced: one instance of the row"),
    Target("helm-emulated.yaml", kubernetes.emulated, "values of the chart: the row's servers on CPUs"),
    Target("helm-neuron.yaml", kubernetes.on_nodes, "values of the chart: on nodes of the instance type"),
    Target("karpenter-nodepool.yaml", kubernetes.node_pool, "NodePool that starts such nodes"),
    Target("Dockerfile", aws.dockerfile, "image for ECS and SageMaker: the script on a base image of yours"),
    Target(terraform.TASK, aws.task_definition, "task that takes one instance"),
    Target("main.tf.json", terraform.main, "Terraform: a launch template, a group of instances, and the task on each"),
    Target("alarms.tf.json", terraform.alarms, "Terraform: the chart's alerts as CloudWatch alarms"),
    Target(terraform.AGENT, terraform.agent, "CloudWatch agent of an instance"),
    Target(terraform.SCRAPES, terraform.scrapes, "what it scrapes"),
    Target("sagemaker-model.json", aws.model, "CreateModel"),
    Target("sagemaker-endpoint-config.json", aws.endpoint_config, "CreateEndpointConfig"),
    Target("sagemaker-inference-component.json", aws.inference_component, "CreateInferenceComponent: the copies"),
    Target(CHECK, scenario.scenario, "load test at the planned lengths and rate, with the limits"),
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """Texts of the files by path, and the reasons for files that are left out; both in the table's order."""

    texts: dict[str, str]
    left_out: dict[str, LeftOut]


def rendered(d: Deployment) -> Rendered:
    """Return all targets for the deployment."""
    contents = {target.path: target.content(d) for target in TARGETS}
    return Rendered(
        {path: _text(path, value) for path, value in contents.items() if not isinstance(value, LeftOut)},
        {path: value for path, value in contents.items() if isinstance(value, LeftOut)},
    )


def _text(path: str, value: str | dict[str, Any]) -> str:
    if isinstance(value, str):
        return value
    if path.endswith(".yaml"):
        text: str = yaml.safe_dump(value, sort_keys=False, width=120)
        return text
    return json.dumps(value, indent=2) + "\n"
