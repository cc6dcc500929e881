"""A SageMaker endpoint: inputs of CreateModel, CreateEndpointConfig and, for several servers an instance, of
CreateInferenceComponent, whose copies each get devices of their own.

Sources: the service's API reference (ProductionVariant, InferenceComponentComputeResourceRequirements).
"""

from __future__ import annotations

from typing import Any

from neuronserve.planner.emit.container import environment
from neuronserve.planner.emit.deployment import Deployment
from neuronserve.planner.emit.left_out import LeftOut

_MIB = 2**20
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
    """Input of CreateModel."""
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
    """Input of CreateEndpointConfig."""
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
    """Input of CreateInferenceComponent, once the endpoint is in service."""
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
