"""The image that ECS and SageMaker run, an ECS task definition, and the inputs that make a SageMaker endpoint.

The image is one with vLLM for Neuron, with the row's script as its entry point. A task takes a whole instance, with its
Neuron devices named one by one (EC2 launch type). Copies of a SageMaker inference component each get their own devices.

Sources: "Amazon ECS task definitions for AWS Neuron machine learning workloads" of the ECS developer guide; for
capabilities the container quickstart of the Neuron SDK documentation at 81ce03ae (2026-08-21); SageMaker's API
reference (ProductionVariant, InferenceComponentComputeResourceRequirements).
"""

from __future__ import annotations

from typing import Any

from . import vllm_neuron, vllm_nxdi
from .deployment import Deployment, LeftOut

PORT = 8080  # SageMaker's port for /ping and /invocations, which vLLM's server has
VLLM_NXDI, VLLM_NEURON = "vllm-nxdi.sh", "vllm-neuron.sh"


def chosen_script(d: Deployment) -> str | LeftOut:
    """Return the name of the script for the instance: the plugin's if the plugin supports it, else NxD Inference's."""
    if isinstance(vllm_neuron.script(d), str):
        return VLLM_NEURON
    found = vllm_nxdi.script(d)
    return found if isinstance(found, LeftOut) else VLLM_NXDI


def dockerfile(d: Deployment) -> str | LeftOut:
    """Return the Dockerfile; users pass `BASE_IMAGE`. SageMaker's argument `serve` is ignored."""
    name = chosen_script(d)
    if isinstance(name, LeftOut):
        return name
    return (
        "# BASE_IMAGE: an image with vLLM for Neuron, such as a tag of AWS's pytorch-inference-vllm-neuronx.\n"
        "ARG BASE_IMAGE\n"
        "FROM ${BASE_IMAGE}\n"
        f"COPY {name} /opt/serve.sh\n"
        f"ENV PORT={PORT}\n"
        f"EXPOSE {PORT}\n"
        'ENTRYPOINT ["bash", "/opt/serve.sh"]\n'
    )


def environment(d: Deployment, servers: int) -> dict[str, str] | LeftOut:
    """Return the variables of a container with `servers` servers, including those that the script requires."""
    name = chosen_script(d)
    if isinstance(name, LeftOut):
        return name
    values = {"MODEL": d.model, "REPLICAS": str(servers), "PORT": str(PORT)}
    if d.weights == "fp8" and name == VLLM_NEURON:
        values["MODEL"] = "<FP8_MODEL>"
    if d.weights != "bfloat16" and name == VLLM_NXDI:
        values["QUANTIZED_CHECKPOINT"] = "<QUANTIZED_CHECKPOINT>"
    return values


_MIB = 2**20


def task_definition(d: Deployment) -> dict[str, Any] | LeftOut:
    """Return the input of RegisterTaskDefinition. Servers listen on ports of the host from `PORT` on."""
    if d.part.num_hosts > 1:
        return LeftOut(
            f"{d.part.name} is {d.part.num_hosts} hosts, and no instance type that a task could be placed on"
        )
    variables = environment(d, d.dp)
    if isinstance(variables, LeftOut):
        return variables
    devices = [f"/dev/neuron{number}" for number in range(d.part.num_chips)]
    return {
        "family": d.name,
        "requiresCompatibilities": ["EC2"],
        "networkMode": "host",
        "placementConstraints": [
            {"type": "memberOf", "expression": f"attribute:ecs.instance-type == {d.part.name}"},
        ],
        "containerDefinitions": [
            {
                "name": "vllm",
                "image": "<IMAGE_URI>",
                "essential": True,
                "memoryReservation": d.dp * -(-d.checkpoint_bytes // _MIB),
                "environment": [{"name": name, "value": value} for name, value in variables.items()],
                "portMappings": [
                    {"containerPort": PORT + number, "hostPort": PORT + number, "protocol": "tcp"}
                    for number in range(d.dp)
                ],
                "linuxParameters": {
                    "devices": [
                        {"hostPath": path, "containerPath": path, "permissions": ["read", "write"]} for path in devices
                    ],
                    "capabilities": {"add": ["SYS_ADMIN", "IPC_LOCK"]},
                },
            }
        ],
    }


_VARIANT = "neuron"
_LONGEST_START_S = 3600  # the most that the service allows; a first start compiles
Request = dict[str, Any]

# ProductionVariantInstanceType of the API, Neuron instances.
INSTANCE_TYPES = frozenset(
    f"ml.{name}"
    for name in (
        *("inf1.xlarge", "inf1.2xlarge", "inf1.6xlarge", "inf1.24xlarge"),
        *("inf2.xlarge", "inf2.8xlarge", "inf2.24xlarge", "inf2.48xlarge"),
        *("trn1.2xlarge", "trn1.32xlarge", "trn1n.32xlarge", "trn2.48xlarge"),
    )
)


def model(d: Deployment) -> Request | LeftOut:
    """Return the input of CreateModel."""
    if refusal := _refusal(d):
        return refusal
    variables = environment(d, 1)
    if isinstance(variables, LeftOut):
        return variables
    return {
        "ModelName": d.name,
        "ExecutionRoleArn": "<EXECUTION_ROLE_ARN>",
        "PrimaryContainer": {"Image": "<IMAGE_URI>", "Environment": variables},
    }


def endpoint_config(d: Deployment) -> Request | LeftOut:
    """Return the input of CreateEndpointConfig."""
    if refusal := _refusal(d):
        return refusal
    variant = {
        "VariantName": _VARIANT,
        "InstanceType": f"ml.{d.part.name}",
        "InitialInstanceCount": d.instances,
        "ContainerStartupHealthCheckTimeoutInSeconds": _LONGEST_START_S,
        "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
    }
    if d.dp == 1:
        return {"EndpointConfigName": d.name, "ProductionVariants": [variant | {"ModelName": d.name}]}
    return {
        "EndpointConfigName": d.name,
        "ExecutionRoleArn": "<EXECUTION_ROLE_ARN>",
        "ProductionVariants": [variant],
    }


def inference_component(d: Deployment) -> Request | LeftOut:
    """Return the input of CreateInferenceComponent, for an endpoint in service."""
    if refusal := _refusal(d):
        return refusal
    if d.dp == 1:
        return LeftOut("one server takes the whole instance: the endpoint names its model itself")
    return {
        "InferenceComponentName": d.name,
        "EndpointName": d.name,
        "VariantName": _VARIANT,
        "Specification": {
            "ModelName": d.name,
            "ComputeResourceRequirements": {
                "NumberOfAcceleratorDevicesRequired": d.tp // d.part.chip.cores_per_chip,
                "MinMemoryRequiredInMb": -(-d.checkpoint_bytes // _MIB),
            },
            "StartupParameters": {"ContainerStartupHealthCheckTimeoutInSeconds": _LONGEST_START_S},
        },
        "RuntimeConfig": {"CopyCount": d.num_servers},
    }


def _refusal(d: Deployment) -> LeftOut | None:
    if f"ml.{d.part.name}" not in INSTANCE_TYPES:
        return LeftOut(f"SageMaker has no endpoints on {d.part.name}")
    cores = d.part.chip.cores_per_chip
    if d.dp > 1 and d.tp % cores:
        return LeftOut(f"SageMaker gives a copy whole devices of {cores} cores, and a server has {d.tp}")
    return None
