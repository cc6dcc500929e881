"""The table of docs/reference/models.md that lists what is tested for each family.

Tests hold each cell: float32 and cores are held by tests/golden and by test_engine_parity.py, test_experts.py and
test_encoder_parity.py of tests/parity; formats by test_formats.py and test_encoder_parity.py there; parsers by
tests/text/parsers; real checkpoints by the tests named test_real_... .
"""

from __future__ import annotations

from collections.abc import Iterator

from neuronserve.server.models.families import ENCODERS, GENERATORS
from neuronserve.server.text.parsers.call_formats import ToolParserName
from tools.random_checkpoint.shapes import SHAPES, TINY

FORMATS = ("int8", "fp8", "int4")
# First tiny shape of each architecture.
SHAPE_OF = {SHAPES[shape].architecture: shape for shape in reversed(TINY)}
# Architectures whose tiny models transformers itself writes for tests/parity/test_latent_parity.py.
LIVE: tuple[str, ...] = (
    *("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeLiteForCausalLM"),
    *("GlmMoeDsaForCausalLM", "MiniCPM3ForCausalLM", "YoutuForCausalLM"),
)
# Those of tests/parity/test_families.py, without their ending.
LIVE += tuple(
    f"{name}ForCausalLM"
    for name in [
        "SeedOss",
        "Glm",
        "Glm4",
        "Exaone",
        "Exaone4",
        "InternLM2",
        "InternLM3",
        "MiniCPM",
        "Cwm",
        "Arcee",
        "Jais2",
        "Nemotron",
        "StableLm",
        "Helium",
        "Olmo",
        "Ernie4_5",
        "Ernie4_5_Moe",
        "Glm4Moe",
        "SolarOpen",
        "Dots1",
        "ExaoneMoe",
        "MiniMaxM2",
        "HunYuanDenseV1",
        "HunYuanMoEV1",
        "HyperCLOVAX",
        "GraniteMoeShared",
        "FlexOlmo",
        "Starcoder2",
        "GPTBigCode",
        "GPTJ",
        "GPTNeo",
        "Falcon",
        "Bloom",
        "Mpt",
        "Baichuan",
        "Gemma4",
    ]
)
# Families that write calls in this form; a checkpoint's own template decides.
TOOLS: dict[str, tuple[ToolParserName, ...]] = {
    "LlamaForCausalLM": ("llama3_json", "hermes"),
    "Llama4ForCausalLM": ("llama4_pythonic",),
    "MistralForCausalLM": ("mistral", "mistral_array"),
    "MixtralForCausalLM": ("mistral_array",),
    "MinistralForCausalLM": ("mistral",),
    "Ministral3ForCausalLM": ("mistral",),
    "Qwen2ForCausalLM": ("hermes",),
    "Qwen3ForCausalLM": ("hermes",),
    "Qwen3MoeForCausalLM": ("hermes", "qwen3_coder"),
    "Gemma3ForCausalLM": ("gemma",),
    "Phi3ForCausalLM": ("phi4_mini_json",),
    "Olmo3ForCausalLM": ("olmo3",),
    "GraniteForCausalLM": ("granite",),
    "GraniteMoeForCausalLM": ("granite",),
    "GraniteMoeHybridForCausalLM": ("hermes",),
    "GptOssForCausalLM": ("openai",),
    "SmolLM3ForCausalLM": ("hermes",),
    "Qwen3NextForCausalLM": ("hermes",),
    "Qwen3_5ForCausalLM": ("qwen3_coder",),
    "Qwen3_5MoeForCausalLM": ("qwen3_coder",),
    "Lfm2ForCausalLM": ("lfm2",),
    "Lfm2MoeForCausalLM": ("lfm2",),
    "DeepseekV3ForCausalLM": ("deepseek_v3", "deepseek_v31", "kimi_k2"),
    "DeepseekV32ForCausalLM": ("deepseek_v32",),
    "Glm4MoeLiteForCausalLM": ("glm47",),
    "GlmMoeDsaForCausalLM": ("glm47",),
    "SeedOssForCausalLM": ("seed_oss",),
    "Exaone4ForCausalLM": ("hermes",),
    "HunYuanMoEV1ForCausalLM": ("hunyuan_a13b",),
    "Ernie4_5ForCausalLM": ("hermes",),
    "NemotronHForCausalLM": ("nemotron_json", "qwen3_coder"),
    "Gemma4ForCausalLM": ("gemma4",),
}
REAL = {
    "LlamaForCausalLM": "SmolLM2 135M (Q4_1), the built-in model",
    "Gemma3ForCausalLM": "Gemma 3 270M (Q4_K_M)",
    "Bert": "all-MiniLM-L6-v2",
}


def table() -> str:
    """Return the table, a line for each architecture with tool calls or a real checkpoint."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "| architecture | tool calls | real checkpoint |"
    yield "|---|---|---|"
    for name in GENERATORS:
        assert name in SHAPE_OF or name in LIVE, f"{name} has no tiny shape, so nothing of it is tried"
        if name in TOOLS or name in REAL:
            tools = ", ".join(f"`{parser}`" for parser in TOOLS.get(name, ()))
            yield f"| `{name}` | {tools} | {REAL.get(name, '')} |"
    for name in ENCODERS:
        if name in REAL:
            yield f"| `{name}Model`, and with heads | | {REAL[name]} |"
