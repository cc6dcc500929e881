"""Token sequences of the comparison with the reference, and the positions whose logits are stored."""

from __future__ import annotations

from dataclasses import dataclass

# One token; just over a KV block of 16; longer than every window, several blocks, and every original rope context.
LENGTHS = (1, 17, 100)
# Around the ends of blocks of 16 and 32, of the windows (19 and 21), and of the original rope contexts (64).
POSITIONS = (0, 15, 16, 20, 32, 65)


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Token ids, and the positions whose logits are stored: some in the middle, and the last."""

    token_ids: tuple[int, ...]

    @property
    def positions(self) -> tuple[int, ...]:
        last = len(self.token_ids) - 1
        return (*(p for p in POSITIONS if p < last), last)


def token_sequences(vocab: int) -> list[TokenSequence]:
    """Return fixed sequences of ids below `vocab` without a short repeating pattern."""
    return [TokenSequence(tuple((37 * i * i + 101 * i + 11 * n) % vocab for i in range(n))) for n in LENGTHS]
