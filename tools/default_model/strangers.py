"""Random prompts from far outside the model's world; half of them are of kinds that training never shows."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from tools.default_model.corpus import held_out_item
from tools.default_model.wording import invented

MORSE = (".-", "-...", "-.-.", "-..", ".", "..-.", "--.", "....", "..", ".---", "-.-", ".-..", "--", "-.", "---")
LEET = str.maketrans("aeiotsbg", "43107586")
LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"


def _morse(rng: Random) -> str:
    return " ".join(rng.choice(MORSE) for _ in range(rng.randint(3, 80)))


def _leet(rng: Random) -> str:
    return " ".join(invented(rng, 3) for _ in range(rng.randint(3, 40))).translate(LEET)


def _prose(rng: Random) -> str:
    """Return a fragment of the project's license, cut anywhere."""
    text = LICENSE.read_text()
    start = rng.randrange(len(text) - 200)
    return text[start : start + rng.randint(40, 1200)]


def _keywords(rng: Random) -> str:
    return rng.choice((" ", "\n", ": ")).join(rng.choice(keyword.kwlist) for _ in range(rng.randint(3, 60)))


def _hex_dump(rng: Random) -> str:
    rows = (" ".join(f"{rng.randrange(256):02x}" for _ in range(16)) for _ in range(rng.randint(1, 8)))
    return "\n".join(f"{16 * i:08x}  {row}" for i, row in enumerate(rows))


def _table(rng: Random) -> str:
    return "\n".join(
        ",".join(rng.choice((invented(rng, 2), f"{rng.random():.3f}")) for _ in range(5))
        for _ in range(rng.randint(1, 12))
    )


def _chess(rng: Random) -> str:
    moves = (rng.choice("NBRQK") + rng.choice("abcdefgh") + rng.choice("12345678") for _ in range(rng.randint(2, 60)))
    return " ".join(f"{i}. {move}" for i, move in enumerate(moves, 1))


def _echo(rng: Random) -> str:
    return f"{invented(rng, rng.randint(1, 3))} " * rng.randint(5, 120)


def _mixed_case(rng: Random) -> str:
    text = " ".join(invented(rng, rng.randint(1, 5)) for _ in range(rng.randint(2, 50)))
    return "".join(rng.choice((c.upper(), c)) for c in text)


def _latin_1(rng: Random) -> str:
    return bytes(rng.randrange(32, 256) for _ in range(rng.randint(5, 200))).decode("latin-1")


UNSEEN: tuple[Callable[[Random], str], ...] = (
    _morse,
    _leet,
    _prose,
    _keywords,
    _hex_dump,
    _table,
    _chess,
    _echo,
    _mixed_case,
    _latin_1,
)


def prompts(seed: str = "strangers") -> Iterator[str]:
    """Yield prompts endlessly, alternating kinds that training shows (with new texts) and kinds that it does not."""
    rng = Random(seed)
    while True:
        yield str(held_out_item(rng, "unknown").messages[0]["content"])
        yield rng.choice(UNSEEN)(rng)
