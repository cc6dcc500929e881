"""The floors of docs/internals/architecture.md: imports go down, no circles, pure rooms, and limits of size."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SERVER = ROOT / "server"
SERVING = sorted(SERVER.rglob("*.py"))
COMMAND = sorted(path for path in (ROOT / "neuronserve").rglob("*.py"))  # links to the other packages are not followed
APPLICATIONS = [
    ROOT / "neuronserve" / "__init__.py",
    ROOT / "neuronserve" / "testing.py",
    ROOT / "testkit" / "pytest_plugin.py",
]
PARTS = ("planner", "console", "testkit", "loadtests", "workload")
BESIDE = sorted(path for name in PARTS for path in (ROOT / name).rglob("*.py"))
FILES = [*SERVING, *BESIDE, *COMMAND]
AROUND = sorted(path for folder in ("tools", "benchmarks") for path in (ROOT / folder).rglob("*.py"))

COMPILER = {"numba", "llvmlite"}
COMPILING_ROOMS = {"kernels", "engine", "bench", "doctor"}
DECIDING_ROOMS = {"scheduler", "kv_cache"}
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50
MAX_ARGUMENTS = 6
MAX_KERNEL_ARGUMENTS = 12


@dataclass(frozen=True, slots=True)
class Room:
    """One row of the table of floors."""

    floor: int
    packages: frozenset[str] | None  # third-party ones that it may import; None = any


def read_rooms() -> dict[str, Room]:
    """The table of docs/internals/architecture.md."""
    row = re.compile(r"^\| (\d+) \| `(\w+)` \| ([^|]+) \|", re.MULTILINE)
    found = {}
    for floor, name, packages in row.findall((ROOT / "docs" / "internals" / "architecture.md").read_text()):
        named = frozenset() if packages == "none" else frozenset(packages.split(", "))
        found[name] = Room(int(floor), None if packages == "any" else named)
    return found


ROOMS = read_rooms()


def room(path: Path) -> str:
    """The package that `path` belongs to, or the folder or file right below `server/`."""
    if path.name == "testing.py" and path.parent.name == "neuronserve":
        return "testing"
    package, *below = path.relative_to(ROOT).parts
    return below[0].removesuffix(".py") if package == "server" else package


@cache
def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    dotted = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return dotted if parts[0] in {"neuronserve", "tools", "benchmarks"} else f"neuronserve.{dotted}"


MODULES = {module_name(path): path for path in FILES}
FACES = {"neuronserve", "neuronserve.server"}  # they import nothing of the project, as a test says


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def named(node: ast.stmt, package: str) -> Iterator[str]:
    """Dotted names that an import statement in `package` names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, base] if base else above)
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def imports(path: Path, is_start_only: bool = False) -> frozenset[str]:
    """Dotted names imported anywhere in the file, or only those imported when it is."""
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    nodes = tree(path).body if is_start_only else ast.walk(tree(path))
    return frozenset(name for node in nodes if isinstance(node, ast.stmt) for name in named(node, package))


def own_imports(path: Path, is_start_only: bool = False) -> set[str]:
    """Modules of this project that the file imports, and the packages they are in, whose code runs too."""
    found = {name for name in imports(path, is_start_only) if name in MODULES and name not in FACES}
    parents = {name.rsplit(".", count)[0] for name in found for count in range(1, name.count("."))}
    return (found | parents) - {module_name(path)} - FACES


@cache
def reached(name: str) -> frozenset[str]:
    """Every module of this project that is imported when `name` is."""
    done, left = set(), [name]
    while left:
        each = left.pop()
        if each not in done:
            done.add(each)
            left += own_imports(MODULES[each], is_start_only=True)
    return frozenset(done)


def test_every_room_has_a_floor() -> None:
    assert {room(path) for path in FILES} - {"__init__"} == set(ROOMS)


@pytest.mark.parametrize("path", [MODULES[name] for name in sorted(FACES)], ids=module_name)
def test_faces_import_nothing_of_the_project(path: Path) -> None:
    assert not own_imports(path)


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_go_down(path: Path) -> None:
    if module_name(path) in FACES:
        return
    here = room(path)
    for name in own_imports(path):
        there = room(MODULES[name])
        assert (
            here == there or ROOMS[there].floor < ROOMS[here].floor or ROOMS[here].floor == ROOMS[there].floor == 0
        ), f"{module_name(path)} imports {name}"


@pytest.mark.parametrize("path", SERVING, ids=module_name)
def test_what_serves_imports_no_other_package(path: Path) -> None:
    """Each of the others can be deleted, and the rest still serves."""
    assert not {name for name in reached(module_name(path)) if name.split(".")[1] in (*PARTS, "cli")}


def test_no_import_circles() -> None:
    graph = {name: own_imports(path) - {name} for name, path in MODULES.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for target in graph[name] - set(trail_parents(name)):
                visit(target, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def trail_parents(name: str) -> Iterator[str]:
    """The packages that `name` is in: they run before it and may import it."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


@pytest.mark.parametrize(
    "path", [p for p in FILES if room(p) != "neuronserve" and p not in APPLICATIONS], ids=module_name
)
def test_no_hidden_imports_of_our_own(path: Path) -> None:
    """A function-level or TYPE_CHECKING import of our own modules would hide an arrow of the picture."""
    assert own_imports(path) == own_imports(path, is_start_only=True)


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_rooms_import_only_the_packages_they_may(path: Path) -> None:
    allowed = None if module_name(path) in FACES else ROOMS[room(path)].packages
    if allowed is None:
        return
    packages = {name.split(".")[0] for name in imports(path)} - {"neuronserve", *sys.stdlib_module_names}
    assert packages <= allowed, f"{module_name(path)} imports {packages - allowed}"


@pytest.mark.parametrize("path", [p for p in FILES if room(p) not in COMPILING_ROOMS], ids=module_name)
def test_the_compiler_is_not_loaded(path: Path) -> None:
    for name in reached(module_name(path)):
        packages = {each.split(".")[0] for each in imports(MODULES[name], is_start_only=True)}
        assert not packages & COMPILER, f"{module_name(path)} loads the compiler through {name}"


@pytest.mark.parametrize("path", [p for p in FILES if room(p) in DECIDING_ROOMS], ids=module_name)
def test_decisions_never_read_the_clock_or_the_world(path: Path) -> None:
    banned = {"time", "random", "os", "logging", "socket", "threading", "asyncio", "neuronserve.server.clock"}
    assert not banned & set(imports(path))


@pytest.mark.parametrize(
    "path",
    [p for p in FILES if "settings" not in p.parts and p.name != "__main__.py" and room(p) != "loadtests"],
    ids=module_name,
)
def test_only_settings_reads_argv_and_environment(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in {("os", "environ"), ("os", "getenv"), ("sys", "argv")}, (
                f"{path}:{node.lineno}"
            )


@pytest.mark.parametrize("path", APPLICATIONS, ids=module_name)
def test_applications_never_get_our_other_packages(path: Path) -> None:
    """A test's process imports `neuronserve.testing` and the pytest plugin: no part of the server comes with them."""
    assert not {name for name in imports(path) if name.startswith(("neuronserve.server", "neuronserve.planner"))}


@pytest.mark.parametrize("path", [*FILES, *AROUND], ids=module_name)
def test_limits_of_taste(path: Path) -> None:
    assert path.read_text().count("\n") <= MAX_FILE_LINES, path
    most = MAX_KERNEL_ARGUMENTS if "kernels" in path.parts else MAX_ARGUMENTS
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{path}:{node.lineno} {node.name} has {length} lines"
            count = len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)
            count -= bool(node.args.args) and node.args.args[0].arg in {"self", "cls"}
            assert count <= most, f"{path}:{node.lineno} {node.name} takes {count} arguments"
