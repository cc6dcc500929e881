"""Neuron's own configuration, turned into this server's settings: its JSON and its variables of the environment.

Sources of what variables and flags mean, in github.com/aws-neuron/aws-neuron-sdk at 81ce03ae: neuron-caching.rst, the
neuronx-cc reference, logical-neuroncore-config.rst, environment-variables.rst, vllm-user-guide-v1.rst, and for buckets
the guide of transformers-neuronx.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..config import NeuronConfig
from ..device.neuron_config import (
    ReadConfig,
    read_additional_config,
    read_override_config,
    require_lnc_number,
)
from ..errors import SettingsError
from .base import Implied

LNC_VARIABLES = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")
CC_FLAGS = "NEURON_CC_FLAGS"
CACHE_URL = "NEURON_COMPILE_CACHE_URL"
ARTIFACTS = "NEURON_COMPILED_ARTIFACTS"
BUCKETS = {
    "NEURON_CONTEXT_LENGTH_BUCKETS": "context_encoding_buckets",
    "NEURON_TOKEN_GEN_BUCKETS": "token_generation_buckets",
}
RUNTIME = ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES")  # server/device/visible_cores.py
HONOURED = {*LNC_VARIABLES, CC_FLAGS, CACHE_URL, ARTIFACTS, *BUCKETS, *RUNTIME}

LNC_FLAGS = ("--lnc", "-lnc", "--logical-nc-config")
CACHE_FLAG = "--cache_dir"
COMPILER_FLAGS = frozenset(
    (
        *("--model-type", "--optlevel", "-O", "--auto-cast", "--auto-cast-type", "--target", "--framework"),
        *("--enable-mixed-precision-accumulation", "--disable-mixed-precision-accumulation"),
        *("--enable-saturate-infinity", "--enable-fast-context-switch", "--enable-fast-loading-neuron-binaries"),
        *("--native-int64", "--implicit-integer-downcast", "--distribution-strategy"),
        *("--logfile", "--output", "--verbose", "--log_level", "--no_cache", "--retry_failed_compilation"),
    )
)


@dataclass(frozen=True, slots=True)
class NeuronKnobs:
    """Neuron's own configuration, as settings of this server."""

    config: NeuronConfig = field(default_factory=NeuronConfig)
    implied: Mapping[str, Implied] = field(default_factory=dict)  # by the server's setting
    notices: tuple[str, ...] = ()


def as_json(value: Any) -> Any:
    """Return a mapping of a YAML file as JSON text, the form of flags and variables."""
    return json.dumps(value) if isinstance(value, dict) else value


def read_knobs(
    additional: str | None, override: str | None, variables: Mapping[str, str], max_model_len: int | None
) -> NeuronKnobs:
    """Read both configurations and the variables. Raises SettingsError, which names the key or variable."""
    read = _read(additional, override, max_model_len)
    flags = dict(_flags(variables.get(CC_FLAGS, "")))
    lnc, lnc_notices = _lnc(read, flags, variables)
    config = replace(read.config, logical_nc_config=lnc)
    cache, cache_notices = _cache(flags, variables)
    implied = {
        **{BUCKETS[name]: Implied(variables[name], name, True) for name in BUCKETS if name in variables},
        **cache,
        **{name: Implied(value, read.origins[name]) for name, value in _given(config) if name in read.origins},
    }
    if ARTIFACTS in variables:
        implied["output"] = Implied(variables[ARTIFACTS], ARTIFACTS, True)
    return NeuronKnobs(config, implied, (*read.notices, *lnc_notices, *cache_notices, *_notices(flags, variables)))


def _read(additional: str | None, override: str | None, max_model_len: int | None) -> ReadConfig:
    if additional and override:
        raise SettingsError("--override-neuron-config: it belongs into --additional-config, which is given too")
    if override:
        return read_override_config(override, max_model_len)
    return read_additional_config(additional, max_model_len) if additional else ReadConfig()


def _given(config: NeuronConfig) -> Iterator[tuple[str, Any]]:
    for each in fields(config):
        value = getattr(config, each.name)
        if value not in (None, ()):
            yield each.name, value


def _flags(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of a compiler's command line: --name=value, --name value, -O2."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SettingsError(f"{CC_FLAGS}: {error}") from None
    name = ""
    for word in words:
        if not word.startswith("-"):
            if name:
                yield name, word
            name = ""
            continue
        if name:
            yield name, ""
        name, is_whole, value = word.partition("=")
        if word.startswith("-O"):
            name, is_whole, value = "-O", "=", word[2:].removeprefix("=")
        if is_whole and value:
            yield name, value
            name = ""
    if name:
        yield name, ""


def _lnc(
    read: ReadConfig, flags: Mapping[str, str], variables: Mapping[str, str]
) -> tuple[int | None, tuple[str, ...]]:
    """Return the logical cores: the runtime's variable, equal to the compiler's flag, takes precedence over the key."""
    given = {name: variables[name] for name in LNC_VARIABLES if name in variables}
    given |= {f"{CC_FLAGS} {name}": flags[name] for name in LNC_FLAGS if name in flags}
    numbers = {name: require_lnc_number(_number(name, text), name) for name, text in given.items()}
    key = read.config.logical_nc_config
    if key is not None:
        require_lnc_number(key, read.origins["logical_nc_config"])
    if not numbers:
        return key, ()
    (first, lnc), *others = numbers.items()
    for name, number in others:
        if number != lnc:
            raise SettingsError(f"{name} is {number}: {first} is {lnc}")
    differs = key is not None and key != lnc
    return lnc, (f"{first}={lnc} beats {read.origins['logical_nc_config']}, {key}",) if differs else ()


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise SettingsError(f"{name} is {text[:80]!r}: must be a whole number")
    return int(text)


def _cache(flags: Mapping[str, str], variables: Mapping[str, str]) -> tuple[dict[str, Implied], tuple[str, ...]]:
    """Return the kernel cache that Neuron's compile cache implies. --cache_dir takes precedence over the variable."""
    source = f"{CC_FLAGS} {CACHE_FLAG}" if flags.get(CACHE_FLAG) else CACHE_URL
    url = flags.get(CACHE_FLAG) or variables.get(CACHE_URL)
    if not url:
        return {}, ()
    scheme, is_url, path = url.rpartition("://")
    if is_url and scheme != "file":
        return {}, (f"{source}: {url[:80]} is not available here: only local paths are",)
    return {"kernel_cache_dir": Implied(f"{path.rstrip('/')}/neuronserve", source, True)}, ()


def _notices(flags: Mapping[str, str], variables: Mapping[str, str]) -> Iterator[str]:
    """Lines about flags and variables that have no effect."""
    others = [name for name in flags if name not in (*LNC_FLAGS, CACHE_FLAG)]
    for names, what in (
        ([name for name in others if name in COMPILER_FLAGS], "without effect here"),
        ([name for name in others if name not in COMPILER_FLAGS], "not known here"),
    ):
        if names:
            yield f"{CC_FLAGS}: {what}: {', '.join(f'{name} {flags[name]}'.strip() for name in names)}"
    without = sorted(name for name in variables if name not in HONOURED)
    if without:
        yield f"environment: without effect here: {', '.join(without)}"
