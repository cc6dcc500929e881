"""The pricer of an engine's steps on the modelled accelerator; the simulator makes the same."""

from __future__ import annotations

from ...config import EngineConfig
from ...config.formats import WeightFormats
from ...cost.model import CostModel
from ...cost.pipeline import PipelineModel
from ...cost.pricer import HostOfSteps, StepPricer
from ...cost.shape import stored_dtype
from ...cost.stacks import Stack
from ...cost.work import Runtime
from ...device.buckets import CompiledShapes
from ...device.catalog import instance
from ...device.groups import instance_group
from ...models.spec import ModelSpec


def step_pricer(
    config: EngineConfig,
    model: ModelSpec,
    formats: WeightFormats,
    stack: Stack,
    compiled: CompiledShapes,
    lora_rank: int,
) -> StepPricer:
    """Return the pricer of a model in one stage or in several; on several hosts, each stage is on an instance.

    Raises DeviceError when the instance has too few cores, or no link to others.
    """
    dtype = stored_dtype(formats.quantization, formats.dtype)
    runtime = Runtime(dtype, is_continuous=stack.is_continuous, lora_rank=lora_rank)
    device, tp, stages = instance(config.device), config.tensor_parallel_size, config.pipeline.size
    graphs, batches = (compiled.context_encoding, compiled.token_generation), config.neuron.decode_batches
    if stages > 1:
        place = instance_group(device, stages) if config.pipeline.addresses else device
        pipeline = PipelineModel.of(model, place, tp, stages, runtime)
        host = HostOfSteps.of(stack, pipeline.stages[0], batches)
        return StepPricer(pipeline.steps(), -(-compiled.slots // stages), *graphs, host)
    whole = CostModel.of(model, device, tp, runtime)
    host = HostOfSteps.of(stack, whole, batches)
    return StepPricer(whole, compiled.slots, *graphs, host, whole.checking(config.speculation))
