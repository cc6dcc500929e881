"""Kernels of one cache stay separate, whichever processes compiled them."""

from __future__ import annotations

import operator
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from numba import types
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target

from neuronserve.server.errors import SettingsError
from neuronserve.server.kernels.dispatch import linear_kernels, shared_kernels
from neuronserve.server.kernels.isa.cache import use_cache
from neuronserve.server.kernels.isa.jit import Kernel, inline
from neuronserve.server.kernels.sample.sample import sample
from tests.depth import representative

ROOT = Path(__file__).resolve().parent.parent.parent
KERNELS = (
    *linear_kernels("bfloat16").kernels,
    *linear_kernels("int8").kernels,
    *linear_kernels("int8", "portable").kernels,
    *linear_kernels("float32").kernels,
    *linear_kernels("fp8").kernels,
    *shared_kernels("float32", 64, 32).kernels,
    *shared_kernels("bfloat16", 64, 32).kernels,
    *shared_kernels("bfloat16", 64, 32, "portable").kernels,
    sample,
)

COMPILE = """
import sys
from neuronserve.server.kernels.attention import lanes as attention
from neuronserve.server.kernels.isa import cache
cache.use_cache(sys.argv[1])
getattr(attention, sys.argv[2]).address
"""
COMPILE_ONE = """
import sys
from neuronserve.server.kernels.isa import cache
from neuronserve.server.kernels.logits import finish_logits
cache.use_cache(sys.argv[1])
finish_logits.is_at_hand
finish_logits.make()
print("loaded" if finish_logits.is_loaded else "compiled")
"""
RUN = """
import sys
import numpy as np
from neuronserve.server.kernels.isa import cache
from neuronserve.server.kernels.workers import WorkerPool
from tests.kernels.attention_case import Case
cache.use_cache(sys.argv[1])
pool = WorkerPool(1)
for cell in ("float32", "bfloat16"):
    case = Case((cell, "portable"), 4, 2, 64, 32, 0, [40])
    assert np.abs(case.run(pool, [(0, 0, 40)]) - case.want(0)).max() < 1e-4, cell
"""


def _damage(file: Path, how: str) -> None:
    data = file.read_bytes()
    file.write_bytes({"empty": b"", "half": data[: len(data) // 2], "noise": bytes(reversed(data))}[how])


@pytest.mark.parametrize(
    ("ending", "how"), representative([("nbi", "empty"), ("nbi", "noise"), ("nbc", "half")], ("nbc", "half"))
)
def test_a_damaged_file_of_the_cache_is_compiled_anew(tmp_path: Path, ending: str, how: str) -> None:
    command = [sys.executable, "-c", COMPILE_ONE, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "compiled\n"
    [file] = tmp_path.rglob(f"*.{ending}")
    whole = file.stat().st_size
    _damage(file, how)
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "compiled\n"
    assert file.stat().st_size == whole
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "loaded\n"


def test_environments_with_the_same_sources_share_what_is_compiled(tmp_path: Path) -> None:
    """A copy of the package, with other dates, in another directory."""
    command = [sys.executable, "-c", COMPILE_ONE, str(tmp_path / "cache")]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "compiled\n"
    copy = tmp_path / "neuronserve"
    copy.mkdir()
    (copy / "__init__.py").touch()
    ignored = shutil.ignore_patterns("__pycache__", "prebuilt", "default_model")
    shutil.copytree(ROOT / "server", copy / "server", ignore=ignored, copy_function=shutil.copyfile)
    where = [sys.executable, "-c", "import neuronserve.server as found; print(found.__file__)"]
    assert str(copy) in subprocess.run(where, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == "loaded\n"
    source = copy / "server" / "kernels" / "logits.py"
    source.write_text(source.read_text() + "# changed\n")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == "compiled\n"


def test_a_function_that_cannot_be_kept_is_used(tmp_path: Path) -> None:
    """The file size limit stands for a full disk."""
    command = [sys.executable, "-c", COMPILE_ONE, str(tmp_path)]
    none = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))  # noqa: E731
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, preexec_fn=none)
    assert done.stdout == "compiled\n"
    assert "is compiled but cannot be saved in" in done.stderr
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and file.stat().st_size]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "compiled\n"


def test_numba_is_asked_once_what_an_operator_makes_of_types(monkeypatch: pytest.MonkeyPatch) -> None:
    context = cpu_target.typing_context
    context.refresh()
    add, pair = context.resolve_value_type(operator.add), (types.int64, types.int64)
    signature = add.get_call_type(context, pair, {})
    monkeypatch.setattr(add, "templates", ())
    assert signature.return_type == types.int64
    assert add.get_call_type(context, pair, {}) is signature
    with pytest.raises(NumbaError):
        add.get_call_type(context, (types.int64, types.void), {})


def test_fields_of_global_records_are_numbers_before_types_are_found() -> None:
    record = NamedTuple("record", [("size", int), ("name", object)])(24, object())  # Numba has no type for the record

    @inline
    def function(op):  # type: ignore[no-untyped-def]
        return op + record.size

    function.dispatcher.compile((types.int64,))
    (result,) = function.dispatcher.overloads.values()
    assert result.signature == types.int64(types.int64)
    assert re.search(r"add .*i64 .*\b24\b", str(result.library._final_module))


@pytest.mark.parametrize("kernel", {k.name: k for k in KERNELS}.values(), ids=lambda k: k.name)
def test_a_compiled_kernel_holds_no_function_but_itself(kernel: Kernel) -> None:
    """A function that it called would be a symbol that another kernel's object may have under the same name."""
    assert kernel.address
    folder = Path(kernel._compiled._cache.cache_path)  # the folder when this process first needed the kernel
    files = list(folder.glob(f"*.{kernel.name}-*.nbc"))  # one for each CPU that kernels of this level were compiled for
    assert files
    for cached in files:
        _, machine_code = cached.read_bytes().split(b"\x7fELF", 1)
        before_bitcode = machine_code.split(b"BC\xc0\xde")[0]
        symbols = re.findall(rb"(?:\0|cfunc\.)(_ZN11neuronserve6server[^\0]*)", before_bitcode)
        (name,) = set(symbols)
        assert kernel.name.encode() in name


@pytest.mark.thorough  # compiles two of the largest kernels anew
def test_kernels_compiled_by_different_processes_compute_their_own(tmp_path: Path) -> None:
    def python(code: str, *arguments: str) -> None:
        subprocess.run([sys.executable, "-c", code, str(tmp_path), *arguments], cwd=ROOT, check=True)

    python(COMPILE, "attention_f32")
    python(COMPILE, "attention_bf16")
    python(RUN)


LOADED = """
import sys
from neuronserve.server.kernels.isa import cache
from neuronserve.server.kernels.sample.sample import sample
cache.use_cache(sys.argv[1])
sample.make()
print(sample.is_loaded, "numba.np.arraymath" in sys.modules)
"""


def test_a_process_that_finds_its_kernels_declares_nothing_to_numba(tmp_path: Path) -> None:
    """Declaring would be the longest part of a warm start."""
    run = [sys.executable, "-c", LOADED, str(tmp_path)]
    compiled, loaded = (subprocess.run(run, cwd=ROOT, text=True, capture_output=True, check=True) for _ in range(2))
    assert compiled.stdout.split() == ["False", "True"]
    assert loaded.stdout.split() == ["True", "False"]


ONE_KERNEL = """
import sys
from neuronserve.server.kernels.activate import activate_rows
from neuronserve.server.kernels.bandwidth_probe import read_memory
from neuronserve.server.kernels.isa import cache
print(cache.use_cache(sys.argv[1]), flush=True)
for kernel in (activate_rows, read_memory)[: int(sys.argv[2])]:
    print(bool(kernel.address), kernel._compiled.cache_hits, flush=True)
"""
# Root may write everywhere, unless it drops that capability.
BOUND = ["setpriv", "--bounding-set", "-dac_override"] if os.getuid() == 0 else []


def one_kernel(cache: Path, number: int) -> list[str]:
    """Return the output of a process that needs `number` kernels: its cache, then whether each was there."""
    command = [*BOUND, sys.executable, "-c", ONE_KERNEL, str(cache), str(number)]
    return subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout.split()


@pytest.mark.skipif(bool(BOUND) and shutil.which("setpriv") is None, reason="root without setpriv may write everywhere")
def test_a_filled_cache_that_cannot_be_written_is_used(tmp_path: Path) -> None:
    """A container with a read-only root sees an image's cache like this."""
    first = one_kernel(tmp_path, 1)
    assert first == [str(next(tmp_path.iterdir())), "True", "0"]
    before = sorted(tmp_path.rglob("*"))
    folders = [tmp_path, *filter(Path.is_dir, before)]
    try:
        for folder in folders:
            folder.chmod(0o555)
        path, *found = one_kernel(tmp_path, 2)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert found == ["True", "1", "True", "0"]
    assert path != first[0]
    assert not Path(path).exists()
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_cache_that_cannot_be_written_is_refused_with_the_flag(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"cannot write there: .*; --kernel-cache-dir names another directory"):
        use_cache(str(tmp_path / "file"))


def test_a_cache_below_a_folder_that_cannot_even_be_looked_at_is_refused_with_the_flag(tmp_path: Path) -> None:
    """A name that is too long stands for another user's home, which root may enter."""
    with pytest.raises(SettingsError, match=r"cannot write there: .*; --kernel-cache-dir names another directory"):
        use_cache(str(tmp_path / ("x" * 300)))
