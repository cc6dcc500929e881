"""A model divided into pipeline stages: each is a model of its own, with some of the layers.

The first stage has the embedding and the output layer, so that a tied embedding is stored once; the vectors that leave
the last stage return to it.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import DeviceError
from .layer import AttentionSpec
from .spec import EmbeddingSpec, ModelSpec


def stage_layers(num_layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each stage: as even as possible, the longer ones last, as the first has the output layer.

    Raises DeviceError when there are more stages than layers.
    """
    if not 1 <= stages <= num_layers:
        raise DeviceError(f"pipeline_parallel_size is {stages}: from 1 to the model's {num_layers} layers are possible")
    least, more = divmod(num_layers, stages)
    return tuple(least + (stage >= stages - more) for stage in range(stages))


def stage_of(model: ModelSpec, number: int, count: int) -> ModelSpec:
    """Return stage `number` of `count`. The stages after the first begin and end with the stream of vectors.

    Raises DeviceError when there are more stages than layers.
    """
    sizes = stage_layers(model.num_layers, count)
    first = sum(sizes[:number])
    layers = [
        replace(model.layers[i], weights=model.layers[i].weights or str(i)) for i in range(first, first + sizes[number])
    ]
    stage = model.with_layers(tuple(layers))
    if number == 0:
        return stage
    inner = replace(stage.stack, input=EmbeddingSpec(0, model.hidden_size), ends_normed=False)
    return replace(stage, stacks=(*stage.stacks[:-1], inner), head=None, has_pooler=False)


def why_whole(model: ModelSpec) -> str:
    """Return what of a model keeps it from being divided; empty when it can be."""
    mixers = [layer.mixer for layer in model.layers]
    attentions = [each for each in mixers if isinstance(each, AttentionSpec)]
    reasons = {
        "it only encodes": model.head is None or model.stack.kind == "encoder",
        "its layers read an encoder's states": model.source is not None,
        "it reads pictures": model.vision is not None,
        "its layers share keys and values": any(each.kv_source is not None for each in attentions),
        "its layers have several streams or inputs": any(each.input or each.streams for each in model.layers),
        "its layers share weights": any(each.weights is not None for each in model.layers),
        "its scores depend on learned distances": any(each.num_distance_buckets for each in attentions),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")
