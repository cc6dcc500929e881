"""Transcriptions and translations through a server's sockets, with a fake model that writes given texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.api.serving import Server, running_server, write_checkpoint
from tests.api.speech import write_speech_checkpoint
from tests.media.test_sound import file_of, wave

SHORT, LONG = file_of(wave(2.5)), file_of(wave(40.0, 8000), 8000, "FLAC", "PCM_16")
WINDOW = "|0.0| Hello there.|1.5||1.5| And you?|2.4|"
LONG_WINDOWS = ["|0.0| One.|10.0||12.0| Two.|20.0||20.0| Thr", "|0.0| Three.|10.0||10.0| Four.|19.0|"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_speech_checkpoint(write_checkpoint(tmp_path_factory.mktemp("speech")))


def serving(files: Path, *texts: str, options: tuple[str, ...] = ()) -> Any:
    return running_server(files, "--device", f"speech:{json.dumps(texts)}", *options)


@pytest.fixture(scope="module")
def speech(files: Path) -> Iterator[Server]:
    with serving(files, *[WINDOW] * 20, options=("--max-audio-bytes", "1000000")) as running:
        yield running


def ask(server: Server, data: bytes = SHORT, path: str = "transcriptions", **fields: Any) -> httpx.Response:
    url = f"{server.url}/v1/audio/{path}"
    return httpx.post(url, files={"file": ("a.wav", data)}, data=fields, timeout=120)


def test_openais_client(speech: Server) -> None:
    client = openai.OpenAI(base_url=f"{speech.url}/v1", api_key="x", max_retries=0)
    plain = client.audio.transcriptions.create(model="fake", file=("a.wav", SHORT), language="en")
    assert plain.text == "startoentranscnotime"  # its prompt: <|startoftranscript|><|en|><|transcribe|><|notimestamps|>
    assert plain.usage is not None
    assert (plain.usage.type, plain.usage.seconds) == ("duration", 3)
    found = client.audio.transcriptions.create(model="fake", file=("a.wav", SHORT))
    assert found.text == "startodetranscnotime"  # the language that the model has heard
    primed = client.audio.transcriptions.create(model="fake", file=("a.wav", SHORT), language="de", prompt="Hi")
    assert primed.text == "startostartodetranscnotime"  # <|startofprev|> first
    translated = ask(speech, path="translations").json()  # the client warns that its method is deprecated
    assert translated["text"] == "startodetranslnotime"
    verbose = client.audio.transcriptions.create(
        model="fake", file=("a.wav", SHORT), language="de", response_format="verbose_json", temperature=0.5
    )
    assert verbose.text == "Hello there. And you?"
    assert verbose.language == "de"
    assert verbose.duration == 2.5
    assert verbose.segments is not None
    assert [(each.start, each.end, each.text) for each in verbose.segments] == [
        (0.0, 1.5, " Hello there."),
        (1.5, 2.4, " And you?"),
    ]
    assert [each.no_speech_prob for each in verbose.segments] == pytest.approx([0.25, 0.25])
    assert {each.avg_logprob for each in verbose.segments} == {-0.5}


def test_words(speech: Server) -> None:
    """Each of the fake model's tokens takes a tenth of a second, those of times too; a word ends with its last one."""
    client = openai.OpenAI(base_url=f"{speech.url}/v1", api_key="x", max_retries=0)
    found = client.audio.transcriptions.create(
        model="fake",
        file=("a.wav", SHORT),
        language="en",
        response_format="verbose_json",
        timestamp_granularities=["word"],
    )
    assert found.segments is None
    assert [(each.word, each.start, each.end) for each in found.words or ()] == [
        ("Hello", 0.1, 0.7),
        ("there.", 0.7, 1.4),
        ("And", 1.6, 2.0),
        ("you?", 2.0, 2.5),
    ]
    long: dict[str, Any] = {"timestamp_granularities[]": ["word", "segment"], "response_format": "verbose_json"}
    both = ask(speech, LONG, language="en", **long).json()
    assert [each["start"] for each in both["segments"]] == [0.0, 1.5, 30.0, 31.5]
    assert [each["start"] for each in both["words"]] == [0.1, 0.7, 1.6, 2.0, 30.1, 30.7, 31.6, 32.0]


def test_a_model_whose_heads_are_not_known_has_no_words(files: Path, tmp_path: Path) -> None:
    shutil.copytree(files, tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").write_text("{}")
    form: dict[str, Any] = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    with serving(tmp_path / "model") as server:
        refused = ask(server, **form).json()["error"]
    assert "names no alignment_heads" in refused["message"]


def test_a_stream(speech: Server) -> None:
    client = openai.OpenAI(base_url=f"{speech.url}/v1", api_key="x", max_retries=0)
    events: list[Any] = list(
        client.audio.transcriptions.create(model="fake", file=("a.wav", SHORT), language="en", stream=True)
    )
    assert {each.type for each in events[:-1]} == {"transcript.text.delta"}
    done = events[-1]
    assert done.type == "transcript.text.done"
    assert done.text == "".join(each.delta for each in events[:-1]).strip() == "startoentranscnotime"
    assert done.usage.input_token_details.audio_tokens == 1500
    assert done.usage.total_tokens == 1500 + 4 + done.usage.output_tokens
    assert done.usage.output_tokens == len(" startoentranscnotime") + 1


def test_formats_of_text(speech: Server) -> None:
    assert ask(speech, language="en", response_format="text").text == "startoentranscnotime\n"
    srt = ask(speech, language="en", response_format="srt")
    assert srt.headers["content-type"].startswith("text/plain")
    assert srt.text.startswith("1\n00:00:00,000 --> 00:00:01,500\nHello there.\n\n2\n")
    assert ask(speech, language="en", response_format="vtt").text.startswith("WEBVTT\n\n00:00:00.000 -->")


def test_a_long_file_is_read_window_by_window(files: Path) -> None:
    """The second window begins where the first one's last whole segment ends, and a stream has an event for each."""
    with serving(files, *LONG_WINDOWS, *LONG_WINDOWS) as server:
        answer = ask(server, LONG, language="en", response_format="verbose_json").json()
        assert answer["text"] == "One. Two. Three. Four."
        assert [each["start"] for each in answer["segments"]] == [0.0, 12.0, 20.0, 30.0]
        assert [each["seek"] for each in answer["segments"]] == [0, 0, 2000, 2000]
        assert answer["usage"] == {"type": "duration", "seconds": 40}
        lines = ask(server, LONG, language="en", stream="true").text.splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert [each.get("delta") for each in events] == ["One. Two.", " Three. Four.", None]
        assert events[-1]["text"] == "One. Two. Three. Four."
        assert events[-1]["usage"]["input_token_details"]["audio_tokens"] == 3000


@pytest.mark.parametrize(
    ("fields", "data", "param", "reason"),
    [
        ({"language": "fr"}, SHORT, "language", "'fr'; this model has de, en"),
        ({"response_format": "yaml"}, SHORT, "response_format", "must be"),
        ({"temperature": "2"}, SHORT, "temperature", "less than or equal to 1"),
        ({"temperature": "warm"}, SHORT, "temperature", "valid number"),
        ({"timestamp_granularities[]": "word"}, SHORT, "timestamp_granularities", "json has no times of words: use"),
        ({"include[]": "logprobs"}, SHORT, "include", "not supported"),
        ({"stream": "true", "response_format": "srt"}, SHORT, "response_format", "stream has no"),
        ({}, b"no sound", "file", "must be WAV"),
        ({}, file_of(wave(0.01)), "file", "at least 0.1 s"),
    ],
)
def test_a_bad_form_is_a_400(speech: Server, fields: dict[str, str], data: bytes, param: str, reason: str) -> None:
    answer = ask(speech, data, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert reason in error["message"]


def test_other_refusals(speech: Server, server: Server) -> None:
    url = f"{speech.url}/v1/audio/transcriptions"
    assert httpx.post(url, json={"file": "x"}).status_code == 415
    assert httpx.post(url, data={"model": "fake"}, files={"other": b"x"}).json()["error"]["param"] == "file"
    assert ask(speech, model="whisper-1").status_code == 404
    assert ask(speech, bytes(1_100_000)).status_code == 413
    refused = ask(server)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "Fake transcribes no sound."
    chat = {"messages": [{"role": "user", "content": "x"}]}
    answer = httpx.post(f"{speech.url}/v1/chat/completions", json=chat)
    assert answer.status_code == 400
    assert "/v1/audio/transcriptions" in answer.json()["error"]["message"]
    speaking = httpx.post(f"{speech.url}/v1/audio/speech", json={})
    assert speaking.status_code == 404
    assert speaking.json()["error"]["code"] == "not_supported"
