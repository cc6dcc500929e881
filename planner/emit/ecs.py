"""An ECS task definition: one task takes a whole instance, with its Neuron devices named one by one (EC2 launch type).

Source: "Amazon ECS task definitions for AWS Neuron machine learning workloads" of the ECS developer guide.
Capabilities: the container quickstart of the Neuron SDK documentation at 81ce03ae (2026-08-21).
"""

from __future__ import annotations

from typing import Any

from neuronserve.planner.emit.container import PORT, environment
from neuronserve.planner.emit.deployment import Deployment
from neuronserve.planner.emit.left_out import LeftOut

_MIB = 2**20


def task_definition(d: Deployment) -> dict[str, Any] | LeftOut:
    """Input of RegisterTaskDefinition. Servers listen on ports of the host from `PORT` on."""
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
