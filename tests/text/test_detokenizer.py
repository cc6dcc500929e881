"""Deltas concatenate to the whole text, cut at the first stop string, whatever the token borders are."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream

from neuronserve import server
from neuronserve.server.text.detokenizer import Detokenizer, StopStrings, TextStream
from neuronserve.server.text.tokenizer import Tokenizer, load_tokenizer


def byte_level(extra: Sequence[str] = ()) -> Tokenizer:
    """One id a byte, then some longer pieces."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *extra]
    backend = Backend(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    return Tokenizer(backend)


def byte_fallback() -> Tokenizer:
    """Sentencepiece style: words with a leading ▁, and one id for each byte that no word covers."""
    words = ["<unk>", "▁a", "▁b", "c", "▁", "▁hello"]
    pieces = words + [f"<0x{i:02X}>" for i in range(256)]
    backend = Backend(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], unk_token="<unk>"))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(backend)


def word_piece() -> Tokenizer:
    """BERT's: pieces that go on begin with ##, and the decoder mends spaces before punctuation."""
    pieces = ["[UNK]", "a", "##b", "hello", "##ing", ",", ".", "'", "s", "do", "not", "n't"]
    backend = Backend(models.WordPiece(vocab={p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[CLS]", "[SEP]"])
    return Tokenizer(backend)


def metaspace() -> Tokenizer:
    """Sentencepiece style without bytes."""
    pieces = ["<unk>", "▁a", "▁b", "c", "▁", "▁hello", "é"]
    backend = Backend(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], unk_token="<unk>"))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend)


BYTES = byte_level()
FALLBACK = byte_fallback()
DEFAULT = load_tokenizer(Path(server.__file__).parent / "default_model")
KINDS = {"byte-level": BYTES, "default": DEFAULT, "word-piece": word_piece(), "metaspace": metaspace()}


def ids_of_bytes(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """Ids that spell `data` byte by byte."""
    found = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    return [found[bytes([byte])] for byte in data]


def stream(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> list[str]:
    text = TextStream(tokenizer, prompt)
    return [*(text.feed(token_id) for token_id in ids), text.finish()]


def whole_characters(data: bytes) -> str:
    """The oracle: bytes as text, without a character that is unfinished at their end."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


@given(st.lists(st.integers(0, 256)))
def test_deltas_of_any_byte_level_ids_are_the_whole_text(ids: list[int]) -> None:
    data = b"".join(BYTES.token_bytes(i) for i in ids if i != BYTES.token_id("<|end|>"))
    assert "".join(stream(BYTES, [], ids)) == whole_characters(data)


@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK], ids=["byte-level", "byte-fallback"])
@given(text=st.text(st.characters(codec="utf-8"), min_size=1), data=st.data())
def test_a_character_that_the_end_cuts_is_left_out(tokenizer: Tokenizer, text: str, data: st.DataObject) -> None:
    ids = ids_of_bytes(tokenizer, text.encode())
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    expected = whole_characters(b"".join(map(tokenizer.token_bytes, ids)))
    if tokenizer is FALLBACK:
        expected = expected.removeprefix(" ")  # its decoder strips one space at the beginning
    assert "".join(stream(tokenizer, [], ids)) == tokenizer.decode_whole(ids) == expected


@given(st.lists(st.integers(0, 256), max_size=300), st.lists(st.integers(0, 256), min_size=1))
def test_generated_text_is_what_the_prompt_lacked(prompt: list[int], ids: list[int]) -> None:
    """The prompt may end inside a character; what completes it belongs to the answer."""
    before = BYTES.decode(prompt).removesuffix("\ufffd")
    after = "".join(stream(BYTES, prompt, ids))
    whole = BYTES.decode_whole([*prompt, *ids])
    assert whole.endswith(after)
    assert len(after) >= len(whole) - len(BYTES.decode(prompt))
    assert len(after) <= len(whole) - len(before)


@given(st.lists(st.one_of(st.sampled_from([b" a", b" b", b"c", b" ", b" hello"]), st.characters().map(str.encode))))
def test_byte_fallback_deltas_are_the_whole_text(parts: list[bytes]) -> None:
    words = {FALLBACK.token_bytes(i): i for i in range(1, 6)}
    ids = [i for part in parts for i in ([words[part]] if part in words else ids_of_bytes(FALLBACK, part))]
    assert "".join(stream(FALLBACK, [], ids)) == FALLBACK.decode(ids)


def decode_stream(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int], skips: bool = True) -> list[str]:
    """The deltas of the library's own stream decoding."""
    text = DecodeStream(list(prompt), skip_special_tokens=skips)
    return [text.step(backend_of(tokenizer), token_id) or "" for token_id in ids]


@cache
def backend_of(tokenizer: Tokenizer) -> Backend:
    return Backend.from_str(tokenizer.to_json())


@cache
def whole_ids(kind: str) -> list[int]:
    """Ids that are no part of a character."""
    ids = range(KINDS[kind].vocab_size)
    return [i for i in ids if "\ufffd" not in KINDS[kind].decode([i], skip_special_tokens=False)]


@settings(deadline=None)
@given(st.sampled_from(list(KINDS)), st.data(), st.booleans())
def test_whole_characters_come_as_from_decode_stream(kind: str, data: st.DataObject, skips: bool) -> None:
    """Delta by delta, any ids, as long as no character is left incomplete in the prompt or at the end."""
    tokenizer, some = KINDS[kind], st.lists(st.sampled_from(whole_ids(kind)), max_size=8)
    prompt, ids = data.draw(some), data.draw(some)
    text = TextStream(tokenizer, prompt, skips)
    got = [text.feed(token_id) for token_id in ids]
    assert (got, text.finish()) == (decode_stream(tokenizer, prompt, ids, skips), "")


@given(st.text(st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"])))
def test_characters_of_several_ids_come_as_from_decode_stream(text: str) -> None:
    ids = DEFAULT.encode(text, add_special_tokens=False)
    assert stream(DEFAULT, [], ids)[:-1] == decode_stream(DEFAULT, [], ids)


class TestWhyNotDecodeStream:
    """Behaviour of `TextStream` that `tokenizers.decoders.DecodeStream` lacks."""

    def test_bytes_at_the_end_that_begin_no_character_are_text(self) -> None:
        ids = ids_of_bytes(BYTES, b"a\x80")
        assert "".join(stream(BYTES, [], ids)) == BYTES.decode(ids) == "a\ufffd"
        assert "".join(decode_stream(BYTES, [], ids)) == "a"

    def test_a_prompt_may_end_inside_a_character(self) -> None:
        prompt, ids = ids_of_bytes(BYTES, b"secret \xe2"), ids_of_bytes(BYTES, b"\x82\xac")
        assert "".join(stream(BYTES, prompt, ids)) == "€"
        assert "".join(decode_stream(BYTES, prompt, ids)) == "secret €"

    def test_bytes_that_are_no_character_are_no_error(self) -> None:
        ids = [*ids_of_bytes(FALLBACK, b"b\xe2"), 1]
        assert stream(FALLBACK, [], ids) == ["b", "", "\ufffd a", ""]
        with pytest.raises(Exception, match="Invalid prefix"):
            decode_stream(FALLBACK, [], ids)


def test_a_leading_space_after_the_prompt_is_kept() -> None:
    hello = FALLBACK.token_id("▁hello")
    assert hello is not None
    assert "".join(stream(FALLBACK, [hello], [hello])) == " hello"


def test_a_character_is_sent_only_when_complete() -> None:
    ids = ids_of_bytes(BYTES, "é€😀".encode())
    assert stream(BYTES, [], ids) == ["", "é", "", "", "€", "", "", "", "😀", ""]


@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK])
def test_endless_broken_bytes_do_not_make_a_growing_window(tokenizer: Tokenizer) -> None:
    ids = ids_of_bytes(tokenizer, b"\x80" * 3000)
    text = TextStream(tokenizer, [])
    deltas = [text.feed(token_id) for token_id in ids]
    assert len(text._window) <= 65
    assert set("".join(deltas)) == {"\ufffd"}


def cut(text: str, stop: Sequence[str], is_kept: bool) -> tuple[str, str | None]:
    """The oracle: read `text` character by character until a stop string is complete; the longest on a tie."""
    for end in range(1, len(text) + 1):
        matches = [s for s in stop if text[:end].endswith(s)]
        if matches:
            longest = max(matches, key=len)
            return (text[:end] if is_kept else text[: end - len(longest)]), longest
    return text, None


ALPHABET = st.text(alphabet="ab\n", max_size=40)


@given(st.lists(ALPHABET), st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4), st.booleans())
def test_stop_strings_cut_as_if_the_text_had_come_whole(parts: list[str], stop: list[str], is_kept: bool) -> None:
    watch = StopStrings(stop, is_kept)
    sent = [watch.feed(part) for part in parts if watch.matched is None]
    if watch.matched is None:
        sent.append(watch.finish())
    assert ("".join(sent), watch.matched) == cut("".join(parts), stop, is_kept)


@given(st.lists(ALPHABET), st.lists(st.text("ab\n", min_size=1, max_size=5), min_size=1, max_size=4))
def test_no_more_is_held_back_than_may_become_a_stop_string(parts: list[str], stop: list[str]) -> None:
    watch = StopStrings(stop)
    sent = ""
    for i, part in enumerate(parts):
        sent += watch.feed(part)
        if watch.matched is not None:
            return
        held = "".join(parts[: i + 1])[len(sent) :]
        assert held == "" or any(s.startswith(held) and s != held for s in stop)


@given(st.text("ab€", max_size=30), st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3))
def test_stop_strings_over_token_borders(text: str, stop: list[str]) -> None:
    detokenizer = Detokenizer(TextStream(BYTES, []), StopStrings(stop))
    sent = ""
    for token_id in ids_of_bytes(BYTES, text.encode()):
        sent += detokenizer.feed(token_id)
        if detokenizer.matched_stop is not None:
            break
    else:
        sent += detokenizer.finish()
    assert (sent, detokenizer.matched_stop) == cut(text, stop, False)


def test_a_stop_string_before_min_tokens_does_not_count() -> None:
    detokenizer = Detokenizer(TextStream(BYTES, []), StopStrings(["ab"]), min_tokens=4)
    sent = ""
    for token_id in ids_of_bytes(BYTES, b"abab"):
        assert detokenizer.matched_stop is None
        sent += detokenizer.feed(token_id)
    assert (sent, detokenizer.matched_stop) == ("ab", "ab")
