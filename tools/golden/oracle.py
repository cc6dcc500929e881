"""The reference: transformers' own model classes on torch, in float32, with plain (eager) attention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

VERSIONS = {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__}


class Oracle:
    """The model in a checkpoint directory, as transformers loads it.

    Raises ValueError if transformers misses a tensor or finds an extra one: then names or shapes are not Hugging
    Face's, and its logits would mean nothing.
    """

    def __init__(self, directory: Path) -> None:
        torch.set_num_threads(1)  # the shapes are tiny: more threads would only wait for each other
        self.model, report = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        strays = sorted([*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"]])
        if strays:
            raise ValueError(f"{directory}: transformers misses or does not know {strays}")
        self.model.eval()

    @property
    def config(self) -> Any:
        return self.model.config

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the parameters, without a tied output layer."""
        return {name: tuple(values.shape) for name, values in self.model.named_parameters()}

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the logits `[tokens, vocab]` of one sequence, computed at once without a cache."""
        with torch.inference_mode():
            output = self.model(torch.tensor([list(token_ids)]), use_cache=False)
        values: npt.NDArray[np.float32] = output.logits[0].numpy()
        return values
