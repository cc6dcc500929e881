"""The house, held by a test: floors, no circles, pure floors, and the limits of taste (docs/architecture.md)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SERVER = ROOT / "server"
FILES = sorted(SERVER.rglob("*.py"))

WORDS, BOOKS, SCHEDULER, ENGINE, SERVICES, ROOF = range(6)
FLOORS = {
    "errors": WORDS,
    "clock": WORDS,
    "types": WORDS,
    "config": WORDS,
    "kv_cache": BOOKS,
    "device": BOOKS,
    "scheduler": SCHEDULER,
    "engine": ENGINE,
    "api": SERVICES,
    "bench": SERVICES,
    "monitor": SERVICES,
    "planner": SERVICES,
    "settings": ROOF,
    "__main__": ROOF,
    "cli": ROOF,
}
# Third-party packages a floor may import; those not named here may import any.
ALLOWED = {
    "errors": set(),
    "clock": set(),
    "types": set(),
    "config": set(),
    "kv_cache": set(),
    "scheduler": set(),
    "device": {"numpy", "numba", "llvmlite", "ml_dtypes", "psutil"},
    "planner": {"numpy", "rich"},
}
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50
MAX_ARGUMENTS = 6
MAX_KERNEL_ARGUMENTS = 12


def room(path: Path) -> str:
    """The folder or file right below `server/` that `path` belongs to."""
    first = path.relative_to(SERVER).parts[0]
    return first.removesuffix(".py")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Dotted names imported anywhere in the file, inside functions and `if TYPE_CHECKING` too."""
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def own_imports(path: Path) -> set[str]:
    """Modules of this project that the file imports."""
    known = {module_name(p) for p in FILES}
    return {name for name in imports(path) if name in known and name != "server"}


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_go_down(path: Path) -> None:
    if path.parent == SERVER and path.name == "__init__.py":
        assert not own_imports(path)
        return
    here = room(path)
    for name in own_imports(path):
        there = name.split(".")[1]
        assert (
            here == there
            or FLOORS[there] < FLOORS[here]
            or (here, there) in {("cli", "settings"), ("__main__", "cli")}
            or (FLOORS[here] == WORDS == FLOORS[there])
        ), f"{module_name(path)} imports {name}"


def test_no_import_circles() -> None:
    graph = {module_name(p): own_imports(p) for p in FILES}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for target in graph[name]:
                visit(target, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_no_hidden_imports_of_our_own(path: Path) -> None:
    """A function-level or TYPE_CHECKING import of our own modules would hide an arrow of the picture."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import) and id(node) not in top:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            is_own = any(n.split(".")[0] == "server" for n in names) or getattr(node, "level", 0) > 0
            assert not is_own or room(path) == "cli", f"{path}:{node.lineno}"


@pytest.mark.parametrize("path", [p for p in FILES if room(p) in ALLOWED], ids=module_name)
def test_pure_floors_import_only_what_they_may(path: Path) -> None:
    for name in imports(path):
        package = name.split(".")[0]
        allowed = {"server"} | ALLOWED[room(path)] | set(sys.stdlib_module_names)
        assert package in allowed, f"{module_name(path)} imports {name}"


@pytest.mark.parametrize("path", [p for p in FILES if room(p) in {"scheduler", "kv_cache"}], ids=module_name)
def test_decisions_never_read_the_clock_or_the_world(path: Path) -> None:
    banned = {"time", "random", "os", "logging", "socket", "threading", "asyncio", "server.clock"}
    assert not banned & set(imports(path))


@pytest.mark.parametrize("path", [p for p in FILES if room(p) != "settings"], ids=module_name)
def test_only_settings_reads_argv_and_environment(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in {("os", "environ"), ("os", "getenv"), ("sys", "argv")}, (
                f"{path}:{node.lineno}"
            )


@pytest.mark.parametrize("path", [*FILES, *sorted((ROOT / "benchmarks").rglob("*.py"))], ids=module_name)
def test_limits_of_taste(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MAX_FILE_LINES, path
    most = MAX_KERNEL_ARGUMENTS if "kernels" in path.parts else MAX_ARGUMENTS
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{path}:{node.lineno} {node.name} has {length} lines"
            count = len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)
            count -= bool(node.args.args) and node.args.args[0].arg in {"self", "cls"}
            assert count <= most, f"{path}:{node.lineno} {node.name} takes {count} arguments"
