"""The CPU level that kernels are compiled for, and the cache folder that begins with a package's kernels."""

from __future__ import annotations

import itertools
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import llvmlite.binding
import numba
import pytest

from neuronserve.server.errors import DeviceError, SettingsError
from neuronserve.server.host.isa import BY_ISA, TARGETS, best_target, isas_of
from neuronserve.server.kernels import dispatch
from neuronserve.server.kernels.isa.cache import mark_prebuilt, source_hash, use_cache
from neuronserve.server.kernels.isa.target import host_features
from tests.depth import thorough

NAMES = [target.name for target in TARGETS]


@pytest.fixture(autouse=True)
def _keep_cache_dir() -> object:
    before = numba.config.CACHE_DIR
    yield
    numba.config.CACHE_DIR = before


@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
def test_a_host_with_just_the_features_of_a_level_gets_that_level(target) -> None:
    host = dict.fromkeys((*target.implied, *target.extra), True)
    assert best_target(host) is target
    for missing in target.implied:
        lower = best_target({**host, missing: False})
        assert lower is None or missing not in lower.implied


def test_levels_are_ordered_best_first() -> None:
    for better, worse in itertools.combinations(TARGETS, 2):
        assert not better.all_features.keys() <= worse.all_features.keys()


@pytest.mark.parametrize(
    ("level", "isa"),
    [
        ("x86-64-v4-amx", "amx"),
        ("x86-64-v4-bf16", "avx512-bf16"),
        ("x86-64-v4-vnni", "avx512-vnni"),
        ("x86-64-v4", "avx512"),
        ("x86-64-v3-vnni", "avx2-vnni"),
        ("x86-64-v3", "avx2"),
        ("armv8-a-i8mm-bf16", "neon-i8mm"),
        ("armv8-a-dotprod", "neon-dot"),
    ],
)
def test_a_level_has_what_the_kernels_of_its_instruction_set_need(level: str, isa: str) -> None:
    (target,) = (each for each in TARGETS if each.name == level)
    assert isas_of(target.all_features)[0] == isa


def test_kernels_are_chosen_by_what_they_are_compiled_for() -> None:
    """A host may have more than its level: an instruction that the level lacks cannot be compiled."""
    code = "from neuronserve.server.kernels.dispatch import host_isas; print(host_isas())"
    assert run_python(code, **BY_ISA["avx2"].environment) == "('avx2', 'portable')"


def test_an_older_host_is_compiled_for_itself() -> None:
    assert best_target({"sse2": True}) is None


@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
def test_llvm_knows_every_level(target) -> None:
    llvmlite.binding.initialize_all_targets()
    machine = llvmlite.binding.Target.from_triple(f"{target.machine}-unknown-linux-gnu").create_target_machine(
        cpu=target.cpu, features=target.features
    )
    assert target.machine in machine.triple


def run_python(code: str, **environment: str) -> str:
    """Run `code` in a process that compiles for its host, unless `environment` says otherwise."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_CPU_")}
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**inherited, **environment}, capture_output=True, text=True, check=True
    )
    assert ran.stderr == ""
    return ran.stdout.strip()


CODEGEN = (
    "import neuronserve.server.kernels.isa.jit as jit, numba.core.registry as registry;"
    "print(registry.cpu_target.target_context.codegen().magic_tuple()[1:])"
)


def test_numba_compiles_for_the_level_of_this_host() -> None:
    target = best_target(host_features())
    if target is None:
        pytest.skip("this host is below every level")
    assert run_python(CODEGEN) == str((target.cpu, target.features))


def test_the_environment_can_ask_for_another_cpu() -> None:
    environment = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse3"}
    assert run_python(CODEGEN, **environment) == "('x86-64', '+sse3')"


def test_a_new_cache_folder_begins_with_the_prebuilt_kernels(tmp_path: Path) -> None:
    shipped = tmp_path / "prebuilt" / source_hash() / "kernels"
    shipped.mkdir(parents=True)
    (shipped / "a.nbi").write_bytes(b"index")
    (shipped / "a.nbi").chmod(0o400)
    path = use_cache(str(tmp_path / "cache"), tmp_path / "prebuilt")
    copy = path / "kernels" / "a.nbi"
    assert copy.read_bytes() == b"index"
    assert copy.stat().st_mode & 0o200  # Numba adds to it
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no incomplete folder is left


@pytest.mark.parametrize(
    ("folder", "changes", "why"),
    [
        (source_hash(), {}, None),
        ("0123456789abcdef", {}, "they were compiled from other sources"),
        ("0123456789abcdef", {"numba": "0.1.2"}, f"they were compiled by Numba 0.1.2, this is {numba.__version__}"),
        (source_hash(), {"python": "3.8"}, "they were compiled for Python 3.8, this is 3."),
        (source_hash(), {"cpu": "some-cpu +amx"}, "they were compiled for some-cpu +amx, this host needs "),
    ],
)
def test_a_start_says_why_it_compiles_beside_prebuilt_kernels(
    tmp_path: Path, folder: str, changes: dict[str, str], why: str | None
) -> None:
    shipped = tmp_path / "prebuilt" / folder
    shipped.mkdir(parents=True)
    mark_prebuilt(shipped)
    (about,) = shipped.iterdir()
    about.write_text(json.dumps(json.loads(about.read_text()) | changes))
    reported: list[str] = []
    use_cache(str(tmp_path / "cache"), shipped.parent, reported.append)
    assert [line.partition(" are not used: ")[2][: len(why or "")] for line in reported] == (
        [] if why is None else [why]
    )
    use_cache(str(tmp_path / "cache"), shipped.parent, reported.append)
    assert len(reported) == (why is not None)  # once for a new cache


def test_a_folder_that_exists_is_kept_as_it_is(tmp_path: Path) -> None:
    shipped = tmp_path / "prebuilt" / source_hash()
    shipped.mkdir(parents=True)
    (shipped / "a.nbi").touch()
    (tmp_path / "cache" / source_hash()).mkdir(parents=True)
    assert not list(use_cache(str(tmp_path / "cache"), tmp_path / "prebuilt").iterdir())


def test_kernels_of_other_sources_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "prebuilt" / "0123456789abcdef").mkdir(parents=True)
    path = use_cache(str(tmp_path / "cache"), tmp_path / "prebuilt")
    assert path.name == source_hash()
    assert not list(path.iterdir())


def test_a_cache_that_cannot_be_written_is_a_setting_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"kernel_cache_dir is .*file.*: cannot write there: File exists"):
        use_cache(str(tmp_path / "file"))


ASSEMBLY = """
from numba import njit, types
from neuronserve.server.kernels.isa import byte_codes, dot_product, simd
dot = {dot}
@njit(types.void(types.int64, types.int64, types.int64))
def step(sums, word, line):
    simd.store(sums, dot(simd.load(sums), word, line))
print(next(iter(step.inspect_asm().values())))
"""


@pytest.mark.parametrize(
    ("isa", "dot", "instruction", "register"),
    [
        thorough("avx512-bf16", "dot_product.dot_bf16_avx512", "vdpbf16ps", "zmm"),
        ("avx512-vnni", "dot_product.dot_i8_avx512_vnni", "vpdpbusd", "zmm"),
        thorough("avx512", "dot_product.dot_i8_avx512", "vpmaddwd", "zmm"),
        thorough("avx512", "dot_product.DOT_BF16.narrow", "vfmadd", "zmm"),
        thorough("avx512", "dot_product.DOT_I8_CODES.wide", "vfmadd", "zmm"),
        thorough("avx512", "dot_product.DOT_E4M3.wide", "vfmadd", "zmm"),
        thorough("avx2-vnni", "dot_product.dot_i8_avx2_vnni", "vpdpbusd", "ymm"),
        thorough("avx2", "byte_codes.dot_i8_avx2", "vpmaddubsw", "ymm"),
        ("avx2", "dot_product.DOT_BF16.wide", "vfmadd", "ymm"),
    ],
)
def test_a_level_is_compiled_to_its_own_instructions(isa: str, dot: str, instruction: str, register: str) -> None:
    """This runs on any x86 host, because the code is not executed."""
    if platform.machine() != "x86_64":
        pytest.skip("this host is no x86")
    assembly = run_python(ASSEMBLY.format(dot=dot), **BY_ISA[isa].environment)
    lines = [line for line in assembly.splitlines() if instruction in line]
    assert lines
    assert all(register in line for line in lines)


def test_an_instruction_set_can_be_forced() -> None:
    if BY_ISA["avx2"].lacks(host_features()):
        pytest.skip("this host has no avx2")
    code = "from neuronserve.server.kernels import dispatch; dispatch.target.use_target('avx2');"
    code += "dispatch.require_isa('avx2'); print(dispatch.host_isas(), dispatch.linear_kernels('bfloat16').isa)"
    assert run_python(code) == "('avx2', 'portable') avx2"


def test_one_that_the_host_lacks_is_refused_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "host_isas", lambda: ("avx2", "portable"))
    monkeypatch.setattr(dispatch.target, "host_features", lambda: BY_ISA["avx512"].all_features)
    with pytest.raises(DeviceError, match=r"^isa is avx512-vnni: this host lacks avx512vnni$"):
        dispatch.require_isa("avx512-vnni")
    with pytest.raises(DeviceError, match=r"^isa is avx512: this process already compiles for avx2$"):
        dispatch.require_isa("avx512")
