"""Random checkpoints: the same bytes for the same arguments, readable by everyone, sane in scale."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.model_config import read_model_spec
from neuronserve.server.models.tensors import num_params, tensor_shapes
from tools.random_checkpoint.__main__ import main
from tools.random_checkpoint.shapes import SHAPES, TINY
from tools.random_checkpoint.tokenizer import MAX_VOCAB, MIN_VOCAB, SPECIAL, special_token_ids, tokenizer_json
from tools.random_checkpoint.weights import CHUNK, tensor_chunks
from tools.random_checkpoint.writer import Options, write_checkpoint

TEXT = "The quick brown fox's 12345 jumps —\t\n\n  naïve 漢字 🎉 <b>\x00\r\n"


def digest(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("shape", TINY)
def test_transformers_and_the_server_agree_on_every_tiny_shape(tmp_path: Path, shape: str) -> None:
    write_checkpoint(shape, tmp_path / "c")
    spec = read_model_spec(tmp_path / "c")
    theirs = AutoConfig.from_pretrained(tmp_path / "c")
    assert theirs.architectures == [spec.architecture]
    assert (theirs.hidden_size, theirs.num_hidden_layers, theirs.head_dim) == (
        spec.hidden_size,
        spec.num_layers,
        spec.head_dim,
    )
    opened = Checkpoint.open(tmp_path / "c", spec)
    assert opened.surplus == ()
    assert {opened.dtype(name) for name in tensor_shapes(spec)} == {"BF16"}


def test_large_shapes_have_the_parameters_of_their_namesakes(tmp_path: Path) -> None:
    """Counts from the models' cards: Qwen2.5-0.5B 0.49 G, Llama-3.2-1B 1.24 G, Llama-3-8B 8.03 G."""
    for shape, vocab, billions in (
        ("qwen-0.5b", 151_936, 0.494),
        ("llama-1b", 128_256, 1.236),
        ("llama-8b", None, 8.03),
    ):
        (tmp_path / shape).mkdir()
        config = SHAPES[shape].config("bfloat16", vocab=vocab)
        (tmp_path / shape / "config.json").write_text(json.dumps(config))
        assert num_params(read_model_spec(tmp_path / shape)) / 1e9 == pytest.approx(billions, rel=0.002)


def test_same_arguments_same_bytes(tmp_path: Path) -> None:
    write_checkpoint("tiny-qwen2", tmp_path / "a", Options(seed=3))
    write_checkpoint("tiny-qwen2", tmp_path / "b", Options(seed=3))
    write_checkpoint("tiny-qwen2", tmp_path / "c", Options(seed=4))
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert digest(tmp_path / "a")["model.safetensors"] != digest(tmp_path / "c")["model.safetensors"]


def test_bytes_are_the_same_on_every_machine() -> None:
    """Golden logits hang on these values: a change of generator or arithmetic must not pass unseen."""
    whole = {dtype: b"".join(c.tobytes() for c in tensor_chunks("x.weight", (64, 48), dtype, 7)) for dtype in DIGESTS}
    assert {dtype: hashlib.sha256(data).hexdigest()[:16] for dtype, data in whole.items()} == DIGESTS


DIGESTS = {"f32": "def7fd7765b0aa1c", "f16": "0b8801b35cc0981e", "bf16": "5ae4f3ca32c08071"}


def test_dtypes_are_roundings_of_the_same_values(tmp_path: Path) -> None:
    spec = None
    values = {}
    for dtype in ("f32", "f16", "bf16"):
        write_checkpoint("tiny-odd", tmp_path / dtype, Options(dtype=dtype))
        spec = read_model_spec(tmp_path / dtype)
        values[dtype] = Checkpoint.open(tmp_path / dtype, spec)
        assert values[dtype].dtype("model.norm.weight") == dtype.upper()
    assert spec is not None
    for name in tensor_shapes(spec):
        exact = values["f32"].load(name)
        np.testing.assert_array_equal(values["bf16"].load_bf16(name), values["f32"].load_bf16(name))
        np.testing.assert_array_equal(values["f16"].load(name), exact.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("shards", [2, 3, 7, 30])
def test_shards_hold_what_the_whole_holds(tmp_path: Path, shards: int) -> None:
    write_checkpoint("tiny-llama", tmp_path / "whole")
    write_checkpoint("tiny-llama", tmp_path / "cut", Options(shards=shards))
    index = json.loads((tmp_path / "cut" / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "cut").glob("*.safetensors"))
    assert len(files) == shards
    assert files == sorted(set(index["weight_map"].values()))
    spec = read_model_spec(tmp_path / "cut")
    whole, cut = (Checkpoint.open(tmp_path / kind, spec) for kind in ("whole", "cut"))
    for name in tensor_shapes(spec):
        np.testing.assert_array_equal(whole.load(name), cut.load(name))
    total = sum(whole.load_bf16(name).nbytes for name in tensor_shapes(spec))
    assert index["metadata"]["total_size"] == total


def test_the_reference_implementation_reads_the_files(tmp_path: Path) -> None:
    write_checkpoint("tiny-llama", tmp_path / "c", Options(dtype="f32"))
    spec = read_model_spec(tmp_path / "c")
    opened = Checkpoint.open(tmp_path / "c", spec)
    with safe_open(tmp_path / "c" / "model.safetensors", "np") as file:
        assert set(file.keys()) == set(tensor_shapes(spec))
        for name in file.keys():  # noqa: SIM118 (not a dict)
            np.testing.assert_array_equal(file.get_tensor(name), opened.load(name))


def test_weights_have_the_scale_that_keeps_activations_near_one() -> None:
    flat = np.concatenate(list(tensor_chunks("model.layers.0.mlp.up_proj.weight", (3000, 400), "f32", 0)))
    assert len(flat) == 3000 * 400 > CHUNK
    assert flat.std() * 400**0.5 == pytest.approx(1.0, rel=0.01)
    assert abs(flat.mean()) < 1e-3
    norm = np.concatenate(list(tensor_chunks("model.norm.weight", (4096,), "f32", 0)))
    assert norm.mean() == pytest.approx(1.0, abs=0.01)
    assert 0.05 < norm.std() < 0.2


def test_layers_and_vocabulary_can_be_changed(tmp_path: Path) -> None:
    write_checkpoint("tiny-qwen3", tmp_path / "c", Options(layers=1, vocab=1000))
    spec = read_model_spec(tmp_path / "c")
    assert (spec.num_layers, spec.vocab_size) == (1, 1000)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "c")) == 1000


class TestTokenizer:
    @pytest.mark.parametrize("vocab", [MIN_VOCAB, 303, 384, 32_000])
    def test_vocabulary_is_filled_exactly(self, vocab: int) -> None:
        tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json(vocab)))
        assert tokenizer.get_vocab_size() == vocab
        assert {tokenizer.id_to_token(i) for i in range(vocab)} == set(tokenizer.get_vocab())
        assert {token: tokenizer.token_to_id(token) for token in SPECIAL} == special_token_ids(vocab)

    def test_largest_vocabulary_has_no_token_twice(self) -> None:
        model = tokenizer_json(MAX_VOCAB)["model"]
        assert len(model["vocab"]) == MAX_VOCAB - len(SPECIAL)

    @pytest.mark.parametrize("vocab", [MIN_VOCAB - 1, 0, MAX_VOCAB + 1])
    def test_impossible_vocabularies_are_refused(self, vocab: int) -> None:
        with pytest.raises(ValueError, match=str(vocab)):
            tokenizer_json(vocab)

    SMALL = Tokenizer.from_str(json.dumps(tokenizer_json(384)))
    LARGE = Tokenizer.from_str(json.dumps(tokenizer_json(32_000)))

    @given(st.text(alphabet=st.sampled_from("ae tThx'19 \n\t\r.,é漢🎉\x00\u0301\u200d"), max_size=60))
    def test_any_text_comes_back(self, text: str) -> None:
        for tokenizer in (self.SMALL, self.LARGE):
            assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text

    def test_merges_shorten_english(self) -> None:
        text = "the rain in spain stays mainly in the plain"
        assert len(self.LARGE.encode(text).ids) < 0.5 * len(text)

    def test_chat_template_and_end_tokens_work_in_transformers(self, tmp_path: Path) -> None:
        write_checkpoint("tiny-llama", tmp_path / "c")
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "c")
        assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
        chat = [{"role": "user", "content": "hi"}]
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        assert tokenizer.encode(text)[0] == special_token_ids(384)["<|im_start|>"]
        ends = GenerationConfig.from_pretrained(tmp_path / "c").eos_token_id
        assert ends == [tokenizer.eos_token_id, tokenizer.pad_token_id]


class TestCommand:
    def test_writes_a_checkpoint_and_says_how_much(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = [
            "tiny-llama",
            str(tmp_path / "c"),
            *["--layers", "2", "--seed", "5", "--dtype", "f16", "--vocab", "300", "--shards", "2"],
        ]
        assert main(arguments) == 0
        assert "MB" in capsys.readouterr().err
        spec = read_model_spec(tmp_path / "c")
        assert (spec.num_layers, spec.vocab_size) == (2, 300)
        assert Checkpoint.open(tmp_path / "c", spec).dtype("model.norm.weight") == "F16"

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            (["--vocab", "10"], "not 10"),
            (["--shards", "1000"], "1000"),
            (["--layers", "5000"], "5000"),
        ],
    )
    def test_impossible_options_exit_with_2(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
    ) -> None:
        assert main(["tiny-llama", str(tmp_path / "c"), *arguments]) == 2
        assert named in capsys.readouterr().err
        assert not (tmp_path / "c").exists()

    @pytest.mark.parametrize("arguments", [["--layers", "0"], ["--seed", "-1"], ["--dtype", "int4"]])
    def test_malformed_options_exit_with_2(self, tmp_path: Path, arguments: list[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(["tiny-llama", str(tmp_path / "c"), *arguments])

    def test_files_that_are_there_are_never_overwritten(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "precious").write_text("mine")
        assert main(["tiny-llama", str(tmp_path)]) == 2
        assert "not empty" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["precious"]
