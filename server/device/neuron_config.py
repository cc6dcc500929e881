"""Reads the configurations of Neuron's own software: JSON of --additional-config, by the table of neuron_keys.py.

A key is honoured, recorded, accepted or refused as the table says. A key that the table lacks is refused with the
nearest name. A notice names the keys that were read but change nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from ..config import NeuronConfig
from ..errors import SettingsError
from ..typed_json import JsonError, parse, shown, shown_key
from .buckets import powers_of_two
from .neuron_keys import (
    FORMATS,
    FORMS,
    NXD_INFERENCE,
    PROGRAMS,
    SAMPLING_KEYS,
    SEGMENTS,
    VLLM_NEURON,
    Key,
    Program,
)

TILE = 128  # positions of a tile of the attention kernels (decode-context-length-bucketing)
LANGUAGE_ONLY = "mm_language_model_only"  # beside the configurations: leave out the model's part for images
VISION = "vision_neuron_config"  # beside the configurations: the model's part for images
NOTICES = {"recorded": "read, but no time depends on it yet", "accepted": "without effect here"}


@dataclass(frozen=True, slots=True)
class ReadConfig:
    """A configuration that was read."""

    config: NeuronConfig = field(default_factory=NeuronConfig)
    origins: Mapping[str, str] = field(default_factory=dict)  # flag and key that set each field of `config`
    notices: tuple[str, ...] = ()  # lines for the user


def read_additional_config(text: str, max_model_len: int | None = None) -> ReadConfig:
    """Read `--additional-config`: a JSON object that holds one of the configurations under its name.

    `max_model_len` is the longest context, if it is known. Raises SettingsError, which names the key, the value and
    what it must be.
    """
    flag = "--additional-config"
    sections: dict[str, Any] = {}
    for name, value in _object(text, flag).items():
        plain = name.replace("-", "_")
        if plain in sections:
            raise SettingsError(f"{flag}: {plain} is there twice, with dashes and without")
        sections[plain] = value
    _refuse_images(sections, flag)
    read = [
        _read(program, sections.pop(program.name), flag, max_model_len)
        for program in PROGRAMS
        if program.name in sections
    ]
    for name in sections:
        raise SettingsError(f"{flag}: {shown_key(name)}: {_misplaced(name)}")
    if len(read) > 1:
        programs = " and ".join(f"{program.name} is {program.title}'s" for program in PROGRAMS)
        raise SettingsError(f"{flag}: {programs}: give one of them")
    return read[0] if read else ReadConfig()


def read_override_config(text: str, max_model_len: int | None = None) -> ReadConfig:
    """Read `--override-neuron-config`: the keys of NxD Inference alone. Raises as `read_additional_config`."""
    flag = "--override-neuron-config"
    return _read(NXD_INFERENCE, _object(text, flag), flag, max_model_len, is_nested=False)


def require_lnc_number(lnc: int, source: str) -> int:
    """Raise SettingsError for a number that the compiler refuses (neuronx-cc reference, --logical-nc-config)."""
    if lnc not in (1, 2):
        raise SettingsError(f"{source} is {shown(lnc)}: 1 or 2 physical cores can be one logical core")
    return lnc


def _object(text: str, flag: str) -> dict[str, Any]:
    try:
        value = parse(text)
    except JsonError as error:
        raise SettingsError(f"{flag}: {error}") from None
    if not isinstance(value, dict):
        raise SettingsError(f"{flag}: must be a JSON object, not {shown(value)}")
    return value


def _refuse_images(sections: dict[str, Any], flag: str) -> None:
    if sections.pop(VISION, None):
        raise SettingsError(f"{flag}: {VISION}: models of images are not emulated")
    language_only = sections.pop(LANGUAGE_ONLY, None)
    if language_only not in (None, True, False):
        raise SettingsError(f"{flag}: {LANGUAGE_ONLY} is {shown(language_only)}: must be true or false")


def _read(program: Program, section: Any, flag: str, max_model_len: int | None, is_nested: bool = True) -> ReadConfig:
    where = f"{flag}: {program.name}" if is_nested else flag
    if not isinstance(section, dict | None):
        raise SettingsError(f"{where} is {shown(section)}: must be a JSON object")
    reading = _Reading(where, f"{where}." if is_nested else f"{where}: ", max_model_len)
    for name, value in (section or {}).items():
        key = program.keys.get(name)
        if key is None:
            raise SettingsError(f"{reading.prefix}{shown_key(name)}: {_unknown_key(program, name)}")
        reading.take(key, value)
    for check in CHECKS[program.name]:
        check(reading)
    return reading.result()


class _Reading:
    """The keys of one configuration while they are read."""

    def __init__(self, where: str, prefix: str, max_model_len: int | None) -> None:
        self.where, self.prefix = where, prefix
        self.fields: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.others: dict[str, Any] = {}  # honoured keys that set no field on their own
        self._max_model_len = max_model_len
        self._named: dict[str, list[str]] = {effect: [] for effect in NOTICES}

    def take(self, key: Key, value: Any) -> None:
        if key.effect == "refused":
            if not any(type(value) is type(off) and value == off for off in key.off):
                raise self.error(key.name, value, key.why)
            return
        value = None if value is None else self._checked(key, value)
        if key.effect in self._named and value not in (None, False):
            self._named[key.effect].append(key.name)
        if key.target == "kernels":
            self.fields["kernels"] = self.fields.get("kernels", ()) + ((key.name,) if value else ())
        elif key.target == "samples_on_device":
            self.put(key.target, value is not None, key.name)
            self.others[key.name] = value
        elif value is not None and key.target:
            self.put(key.target, value, key.name)
        elif value is not None:
            self.others[key.name] = value

    def put(self, target: str, value: Any, name: str) -> None:
        """Set a field. Raises SettingsError when another key has set it to another value."""
        origin = self.prefix + name
        if self.fields.get(target, value) != value:
            raise SettingsError(f"{origin} is {shown(value)}: {self.origins[target]} is {shown(self.fields[target])}")
        self.fields[target] = value
        self.origins.setdefault(target, origin)

    @property
    def max_model_len(self) -> int | None:
        """The longest context, by a key or as it is known from elsewhere."""
        found: int | None = self.fields.get("max_model_len", self._max_model_len)
        return found

    def error(self, name: str, value: Any, problem: str) -> SettingsError:
        return SettingsError(f"{self.prefix}{name} is {shown(value)}: {problem}")

    def result(self) -> ReadConfig:
        fields = {name: value for name, value in self.fields.items() if value is not None}
        notices = [
            f"{self.where}: {NOTICES[effect]}: {', '.join(names)}" for effect, names in self._named.items() if names
        ]
        return ReadConfig(NeuronConfig(**fields), self.origins, tuple(notices))

    def _checked(self, key: Key, value: Any) -> Any:
        """Return what `value` means, if it has the key's form and is one of its values. Lists become tuples."""
        is_form, must = FORMS[key.form]
        if key.form == "lengths" and type(value) is int:
            value = [value]
        if not is_form(value):
            raise self.error(key.name, value, f"must be {must}")
        if key.values:
            if value not in key.values:
                raise self.error(key.name, value, f"must be {' or '.join(map(repr, key.values))}")
            return key.values[value]
        if key.form == "lengths":
            return tuple(sorted(set(value)))
        return tuple(value) if isinstance(value, list) else value


def _unknown(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), 1)
    return "there is no such key" + (f" (did you mean {near[0]}?)" if near else "")


def _misplaced(name: str) -> str:
    for program in PROGRAMS:
        if name in program.keys:
            return f"it belongs in {program.name}"
    return _unknown(name, [program.name for program in PROGRAMS])


def _unknown_key(program: Program, name: str) -> str:
    for other in PROGRAMS:
        if name in other.keys:
            return f"it is a key of {other.title} ({other.name}), not of {program.title}"
    return _unknown(name, program.keys)


def _async(reading: _Reading) -> None:
    """Asynchronous steps need the tokens on the device (SDK feature-guide.rst, Asynchronous Runtime Support)."""
    if reading.fields.get("is_async") and reading.fields.get("samples_on_device") is False:
        raise reading.error("async_mode", True, "it needs on_device_sampling_config, which is null")


def _slots(reading: _Reading) -> None:
    """A static batch of several slots would wait for its last answer; one slot is reused in any case."""
    is_one = reading.fields.get("max_num_seqs") == 1
    if not (is_one or reading.others.get("is_continuous_batching", True)):
        raise reading.error("is_continuous_batching", False, "slots are always reused here, unless batch_size is 1")


def _quantization(reading: _Reading) -> None:
    dtype = reading.others.get("quantization_dtype", FORMATS["int8"])
    if reading.others.get("quantized"):
        reading.put("quantization", dtype, "quantized")


def _prompts(reading: _Reading) -> None:
    """`max_context_length` bounds the lengths of prompts (models/config.py)."""
    longest = reading.others.get("max_context_length")
    context, limit = reading.fields.get("context_encoding_buckets"), reading.max_model_len
    if longest is None:
        return
    if limit is not None and longest > limit:
        raise reading.error("max_context_length", longest, f"max_model_len is {limit}")
    if context and context[-1] > longest:
        raise reading.error("context_encoding_buckets", context, f"max_context_length is {longest}")
    if not context and reading.others.get("enable_bucketing", True):
        reading.put("context_encoding_buckets", powers_of_two(longest), "max_context_length")


def _one_bucket(reading: _Reading) -> None:
    if reading.others.get("enable_bucketing", True):
        return
    for name in ("context_encoding_buckets", "token_generation_buckets"):
        if name in reading.fields:
            raise reading.error("enable_bucketing", False, f"{name} is {shown(reading.fields[name])}")
    longest = reading.max_model_len
    if longest is None:
        raise reading.error("enable_bucketing", False, "it needs max_model_len, or seq_len, to be given too")
    reading.put("context_encoding_buckets", (reading.others.get("max_context_length", longest),), "enable_bucketing")
    reading.put("token_generation_buckets", (longest,), "enable_bucketing")


def _limits(reading: _Reading) -> None:
    """The largest buckets must be max_num_seqs and max_num_batched_tokens (reference-configuration)."""
    for name, target, limit in (
        ("num_seqs_buckets", "decode_batches", "max_num_seqs"),
        ("num_batched_tokens_buckets", "context_encoding_buckets", "max_num_batched_tokens"),
    ):
        if target in reading.fields:
            reading.put(limit, reading.fields[target][-1], name)


def _tiles(reading: _Reading) -> None:
    longest = reading.max_model_len
    for length in reading.fields.get("token_generation_buckets", ()):
        if length % TILE or (longest is not None and length >= longest):
            below = "" if longest is None else f" and below max_model_len {longest}"
            raise reading.error("decode_context_length_buckets", length, f"must be a multiple of {TILE}{below}")
    segments = reading.fields.get("segment_buckets", ())
    if segments and not set(segments) <= SEGMENTS:
        some = ", ".join(map(str, sorted(SEGMENTS)))
        raise reading.error("kv_segment_size_buckets", segments, f"each must be one of {some}")
    if segments and (prompts := reading.fields.get("context_encoding_buckets", segments)) != segments:
        problem = f"num_batched_tokens_buckets must be equal, not {shown(prompts)}"
        raise reading.error("kv_segment_size_buckets", segments, problem)


def _sampling_keys(reading: _Reading) -> None:
    for name in reading.others.get("on_device_sampling_config") or ():
        if name not in SAMPLING_KEYS:
            raise SettingsError(
                f"{reading.prefix}on_device_sampling_config.{shown_key(name)}: {_unknown(name, SAMPLING_KEYS)}"
            )


CHECKS: dict[str, tuple[Callable[[_Reading], None], ...]] = {
    NXD_INFERENCE.name: (_sampling_keys, _async, _slots, _quantization, _prompts, _one_bucket),
    VLLM_NEURON.name: (_sampling_keys, _limits, _tiles),
}
