"""A fake checkpoint for the model that repeats the last message."""

from __future__ import annotations

import json
from pathlib import Path

from tests.api.serving import VOCAB_SIZE, write_checkpoint

# Calls are written as Hermes writes them, so that the server reads them that way.
TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools> <tool_call>{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}\n<|pad|>{{ m.content }}<|pad|><|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
CONFIG = {  # of a model that can be planned for
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "eos_token_id": 258,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 8,
    "max_position_embeddings": 2048,
}


def write_echo_checkpoint(directory: Path) -> Path:
    """Write the checkpoint; messages stand between two `<|pad|>`, as `tests.api.echo` wants them."""
    write_checkpoint(directory)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    file = directory / "tokenizer_config.json"
    file.write_text(json.dumps({"eos_token": "<|eos|>", "chat_template": TEMPLATE}))
    return directory
