"""Dataclasses whose methods are made late are as others are."""

from __future__ import annotations

import dataclasses
import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from neuronserve.server.host.late_methods import make_methods_late

CLASSES = """
from dataclasses import KW_ONLY, InitVar, dataclass, field

@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list, hash=False)

@dataclass(frozen=True, slots=True)
class Named(Point):
    _: KW_ONLY
    name: str = "n"

@dataclass(order=True)
class Plain:
    a: int
    scale: InitVar[int] = 1
    inner: "Plain | None" = field(default=None, compare=False)

    def __post_init__(self, scale):
        self.a *= scale

@dataclass
class Own:
    a: int

    def __repr__(self):
        return "own"
"""
CALLS = (
    "Point(1)",
    "Point(y=1, x=3, tags=['t'])",
    "Point()",
    "Point(1, z=1)",
    "Point(1) == Point(1), Point(1) == Point(2), Point(1) == Named(1), Point(1) != 1",
    "hash(Point(1)) == hash(Point(1)), len({Point(1), Point(1), Point(1, 3)})",
    "setattr(Point(1), 'x', 2)",
    "delattr(Point(1), 'y')",
    "setattr(Named(1), 'name', 'm')",
    "Named(1, name='m'), Named(1, 2, [], 'm')",
    "Point(1).tags is Point(1).tags",
    "Point.__init__.__qualname__, Point.__name__, Point.__match_args__",
    "Plain(2, scale=3), Plain(1) < Plain(2), sorted([Plain(3), Plain(1)])",
    "hash(Plain(1))",
    "Own(1), Own(1) == Own(1)",
    "dataclasses.replace(Named(1), x=5), dataclasses.asdict(Named(1))",
    "pickle.loads(pickle.dumps(Named(1, name='m')))",
)


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    """The same classes twice: made as Python does, and late."""
    monkeypatch.syspath_prepend(str(tmp_path))
    if hasattr(dataclasses, "_create_fn"):
        monkeypatch.setattr(dataclasses, "_create_fn", dataclasses._create_fn)  # put back afterwards
    modules = []
    for name in ("made_at_once", "made_late"):
        (tmp_path / f"{name}.py").write_text(CLASSES)
        modules.append(importlib.import_module(name))
        make_methods_late()
    yield modules[0], modules[1]
    for name in ("made_at_once", "made_late"):
        del sys.modules[name]


@pytest.mark.parametrize("call", CALLS)
def test_a_class_does_what_it_would(late: tuple[ModuleType, ModuleType], call: str) -> None:
    at_once, then = (_outcome(module, call) for module in late)
    assert then == at_once
    assert _outcome(late[1], call) == at_once  # with what the first call has made


def test_a_method_is_made_by_its_first_call(late: tuple[ModuleType, ModuleType]) -> None:
    if sys.version_info >= (3, 13):
        pytest.skip("this Python makes all methods of a class at once")
    point = late[1].Point
    before = point.__init__
    point(1)
    assert point.__init__ is not before
    assert point.__init__.__code__.co_varnames == ("self", "x", "y", "tags")
    made = point.__init__
    late[1].Named(1)
    assert point.__init__ is made


def _outcome(module: ModuleType, call: str) -> str:
    try:
        return repr(eval(call, {**vars(module), "dataclasses": dataclasses, "pickle": pickle}))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
