"""The image that ECS and SageMaker run: an image with vLLM for Neuron, and the row's script as its entry point."""

from __future__ import annotations

from neuronserve.planner.emit import vllm_neuron, vllm_nxdi
from neuronserve.planner.emit.deployment import Deployment
from neuronserve.planner.emit.left_out import LeftOut

PORT = 8080  # where SageMaker asks for /ping and /invocations, which vLLM's server has
VLLM_NXDI, VLLM_NEURON = "vllm-nxdi.sh", "vllm-neuron.sh"


def chosen_script(d: Deployment) -> str | LeftOut:
    """File name of the script that one runs on the part today: the plugin's where it can, else NxD Inference's."""
    if isinstance(vllm_neuron.script(d), str):
        return VLLM_NEURON
    found = vllm_nxdi.script(d)
    return found if isinstance(found, LeftOut) else VLLM_NXDI


def dockerfile(d: Deployment) -> str | LeftOut:
    """`BASE_IMAGE` is for the user to give. SageMaker starts an image with the argument `serve`, which is not read."""
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
    """Variables of a container with so many servers, those of the script that have no value of their own included."""
    name = chosen_script(d)
    if isinstance(name, LeftOut):
        return name
    values = {"MODEL": d.model, "REPLICAS": str(servers), "PORT": str(PORT)}
    if d.weights == "fp8" and name == VLLM_NEURON:
        values["MODEL"] = "<FP8_MODEL>"
    if d.weights != "bfloat16" and name == VLLM_NXDI:
        values["QUANTIZED_CHECKPOINT"] = "<QUANTIZED_CHECKPOINT>"
    return values
