"""The accelerator's account of an encoder: bytes of each core for passes of texts. It has no KV cache.

Plans and the loader use the same functions.
"""

from __future__ import annotations

from neuronserve.server.config.formats import WeightFormats
from neuronserve.server.device.instances import Instance
from neuronserve.server.device.layout import round_up
from neuronserve.server.errors import DeviceMemoryError
from neuronserve.server.host.memory import GIB
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.placement.core_share import CoreShare, activation_bytes, score_bytes, weight_bytes
from neuronserve.server.placement.fit import budget_bytes
from neuronserve.server.placement.footprint import (
    COLLECTIVES_BYTES,
    DMA_RING_BYTES,
    MICROCODE_BYTES,
    NEFF_BYTES,
    SCRATCHPAD_PAGE_BYTES,
    Line,
)


def encoder_lines(
    model: ModelSpec, tp: int, formats: WeightFormats, texts: tuple[int, int], lnc: int = 1
) -> tuple[Line, ...]:
    """Return the entries of each core for a pass of `texts`: their number, and the tokens of each."""
    count, tokens = texts
    share = CoreShare.of(model, tp)
    scores = count * score_bytes(model, share, tokens, lnc)
    activations = activation_bytes(model, share, count * tokens, 0, formats.dtype)
    return (
        Line("weights", "weights", weight_bytes(model, tp, formats)),
        Line("scratchpad", "attention scores and activations", round_up(scores + activations, SCRATCHPAD_PAGE_BYTES)),
        Line("collectives", "buffers", COLLECTIVES_BYTES if tp > 1 else 0),
        Line("runtime", "DMA rings", DMA_RING_BYTES),
        Line("runtime", "NEFF and microcode", NEFF_BYTES + (lnc - 1) * MICROCODE_BYTES),
    )


def encoder_bytes(model: ModelSpec, tp: int, formats: WeightFormats, texts: tuple[int, int], lnc: int = 1) -> int:
    """Return the bytes on each core for a pass of `texts`: their number, and the tokens of each."""
    return sum(line.num_bytes for line in encoder_lines(model, tp, formats, texts, lnc))


def require_encoder_fit(
    model: ModelSpec, device: tuple[Instance, float], tp: int, formats: WeightFormats, texts: tuple[int, int]
) -> tuple[Line, ...]:
    """Return the entries of each of `tp` cores of `device`: an instance, and the usable share of its memory.

    Raises DeviceError when the instance does not allow `tp`, DeviceMemoryError when a pass of `texts` does not fit.
    """
    instance, utilization = device
    instance.check_tp(tp)
    lines, budget = encoder_lines(model, tp, formats, texts, instance.chip.lnc), budget_bytes(instance, utilization)
    needed = sum(line.num_bytes for line in lines)
    if needed > budget:
        raise DeviceMemoryError(
            f"NRT_RESOURCE (4): {model.architecture} does not fit on {instance.name} with tensor_parallel_size {tp}: "
            f"{texts[0]} text(s) of {texts[1]} tokens need {needed / GIB:.2f} GiB on each core, which has "
            f"{budget / GIB:.2f}"
        )
    return lines
