"""Transcripts of a small Whisper with random weights over HTTP, against transformers' features and logits."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer
from transformers.generation import GenerateEncoderDecoderOutput

from neuronserve.server.engine.transcript_rules import apply_rules
from neuronserve.server.types import TranscriptRules
from tests.api.serving import Server, running_server, until, write_checkpoint
from tests.api.speech import FIRST_TIME, IDS, VOCAB_SIZE, write_speech_checkpoint
from tests.api.telemetry.scraping import encodings, scrape
from tests.encoder_decoders import drawn
from tests.media.test_sound import file_of, wave

pytestmark = pytest.mark.slow

END, BEGIN, MOST = 258, (4, 258), 50
SUPPRESSED = (3, 7, *range(94, 256))  # of bytes, all that are no character by themselves
NEW = 40  # tokens of the decoder's context
SIZES = {"d_model": 42, "encoder_attention_heads": 3, "decoder_attention_heads": 3}
LAYERS = {"encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 70, "decoder_ffn_dim": 90}
HEADS = [[0, 0], [0, 2]]  # layers and heads of the decoder that follow the sound
SOUND = wave(2.5)


@pytest.fixture(scope="module")
def model() -> Any:
    ids = {"pad_token_id": END, "bos_token_id": END, "eos_token_id": END}
    ids |= {"decoder_start_token_id": IDS["startoftranscript"], "vocab_size": VOCAB_SIZE}
    config = transformers.WhisperConfig(**ids, **SIZES, **LAYERS, max_target_positions=NEW)
    torch.manual_seed(0)
    made = drawn(transformers.WhisperForConditionalGeneration(config).eval())
    with torch.no_grad():  # texts are likelier than the many times
        made.model.decoder.embed_tokens.weight[:256] *= 4
    return made


@pytest.fixture(scope="module")
def files(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whisper")
    write_speech_checkpoint(write_checkpoint(directory))
    model.save_pretrained(directory)
    limits = {"suppress_tokens": SUPPRESSED, "begin_suppress_tokens": BEGIN, "max_initial_timestamp_index": MOST}
    limits |= {"alignment_heads": HEADS}
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": END, **limits}))
    return directory


@pytest.fixture(scope="module")
def served(files: Path, kernel_cache: str) -> Iterator[Server]:
    options = ("--dtype", "float32", "--kernel-cache-dir", kernel_cache, "--max-num-seqs", "3")
    with running_server(files, *options, program="neuronserve") as running:
        yield running


def expected(model: Any, prompt: list[int], has_times: bool) -> list[int]:
    """Greedy tokens of the sound, under the rules of the generation config."""
    extractor = transformers.WhisperFeatureExtractor()
    features = extractor(SOUND.ravel(), sampling_rate=16_000, return_tensors="pt").input_features
    rules = TranscriptRules(SUPPRESSED, BEGIN, FIRST_TIME if has_times else None, MOST)
    written: list[int] = []
    while len(prompt) + len(written) < NEW and END not in written:
        with torch.no_grad():
            decoder = torch.tensor([[*prompt, *written]])
            row = model(input_features=features, decoder_input_ids=decoder).logits[0, -1].numpy().copy()
        apply_rules(row, rules, written, (END,))
        written.append(int(np.argmax(row)))
    return [token for token in written if token != END]


def ask(served: Server, sound: Any = SOUND, **fields: Any) -> Any:
    file = {"file": ("a.wav", file_of(sound))}
    answer = httpx.post(f"{served.url}/v1/audio/transcriptions", files=file, data=fields, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_text_is_that_of_transformers(served: Server, files: Path, model: Any) -> None:
    prompt = [IDS[name] for name in ("startoftranscript", "en", "transcribe", "notimestamps")]
    text = Tokenizer.from_file(str(files / "tokenizer.json")).decode(expected(model, prompt, has_times=False))
    assert ask(served, language="en", temperature=0)["text"] == text.strip()
    assert text.strip()


def test_segments_are_those_of_transformers(served: Server, model: Any) -> None:
    prompt = [IDS[name] for name in ("startoftranscript", "en", "transcribe")]
    wanted = expected(model, prompt, has_times=True)
    found = ask(served, language="en", temperature=0, response_format="verbose_json")
    written = [token for segment in found["segments"] for token in segment["tokens"]]
    assert written
    assert written == [token for token in wanted if token in written][: len(written)]
    assert found["segments"][0]["start"] == pytest.approx(0.02 * (wanted[0] - FIRST_TIME))


def times_of(model: Any, prompt: list[int], written: list[int]) -> list[float]:
    """Return the seconds of written tokens, as transformers finds them in the attention of its decoder."""
    extractor = transformers.WhisperFeatureExtractor()
    features = extractor(SOUND.ravel(), sampling_rate=16_000, return_tensors="pt").input_features
    model.set_attn_implementation("eager")
    ids = torch.tensor([[*prompt, *written]])
    with torch.no_grad():
        seen = model(input_features=features, decoder_input_ids=ids, output_attentions=True).cross_attentions
    made = GenerateEncoderDecoderOutput(cross_attentions=(seen,), sequences=ids)
    found = model._extract_token_timestamps(made, HEADS, num_frames=250, num_input_ids=len(prompt))
    times: list[float] = found[0, len(prompt) :].tolist()
    return times


def test_times_of_words_are_those_of_transformers(served: Server, model: Any) -> None:
    prompt = [IDS[name] for name in ("startoftranscript", "en", "transcribe")]
    written = expected(model, prompt, has_times=True)[: NEW - 1 - len(prompt)]
    times = times_of(model, prompt, written)
    form = {"language": "en", "temperature": 0, "response_format": "verbose_json"}
    found = ask(served, **form, **{"timestamp_granularities[]": ["word", "segment"]})
    texts = [i for i, token in enumerate(written) if token < FIRST_TIME][
        : sum(len(s["tokens"]) for s in found["segments"])
    ]
    assert found["words"]
    assert "".join(each["word"] for each in found["words"]) == found["text"].replace(" ", "")
    starts, ends = ([each[name] for each in found["words"]] for name in ("start", "end"))
    assert set(starts) <= {round(times[i], 2) for i in texts}
    assert (starts[0], ends[-1]) == (round(times[texts[0]], 2), round(times[texts[-1] + 1], 2))
    assert "segments" not in ask(served, **form, **{"timestamp_granularities[]": "word"})


def test_a_window_is_encoded_once_for_its_language_its_text_and_its_speech(served: Server) -> None:
    before = encodings(served.url)
    found = ask(served, temperature=0, response_format="verbose_json", seed=1)
    assert found["segments"]
    assert [now - then for now, then in zip(encodings(served.url), before, strict=True)] in ([3, 2], [3, 3])


def test_an_engine_that_dies_in_the_middle_of_transcripts_changes_nothing(served: Server) -> None:
    """Four files of two windows each; the next engine encodes again what was open."""
    sounds, first = [wave(45) * (1 + i) / 4 for i in range(4)], served.engine_pid

    def text(sound: Any) -> str:
        written: str = ask(served, sound, language="en", temperature=0)["text"]
        return written

    def num_open() -> float:
        seen = scrape(served.url)
        return seen.value("vllm:num_requests_running") + seen.value("vllm:num_requests_waiting")

    wanted = [text(sound) for sound in sounds]
    with ThreadPoolExecutor(len(sounds)) as pool:
        found = [pool.submit(text, sound) for sound in sounds]
        until(lambda: num_open() > 0)
        os.kill(first, signal.SIGKILL)
        assert [each.result() for each in found] == wanted
    until(lambda: first not in served.engine_pids and bool(served.engine_pids))


def test_texts_are_refused(served: Server) -> None:
    answer = httpx.post(f"{served.url}/v1/completions", json={"model": "fake", "prompt": "a"})
    assert answer.status_code == 400
    assert "ask /v1/audio/transcriptions" in answer.json()["error"]["message"]
