"""Books of the tiers below the device: copies of blobs of one kind (KV blocks, or snapshots of states) by name.

A blob has a fixed size, a name that covers all that it was computed from, and the token ids of its block, which a copy
must match. Stores have the bytes (engine/blob_file.py). The first one is fastest; a copy that it has no room for moves
to the next one. In each the least recently used copy goes first.

A *mirror* is a copy of a blob that is still on the device, made at once so that it outlives the engine. Other copies
are made when the device needs the room. Engines that hand requests over read each other's copies: see `Peer`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, MutableMapping, Sequence
from itertools import islice
from math import inf

from .events import CacheLog
from .hashing import Blob
from .stores import Peer, Store

_LOOKS = 8  # oldest mirrors that are considered for replacement
_LEAST_GAIN = 0.9  # a prefix is loaded if that is predicted to take less than this share of computing it
_FULL = 4  # steps with less than such a part of the most prompt tokens are not measured
_DECAY = 0.95  # weight of the steps before the last one in the measured speed of computation


class PrefillRate:
    """Measured speed of computing prompts."""

    def __init__(self, token_s: float = inf) -> None:
        """`token_s`: seconds a token until a step was measured."""
        self.token_s = token_s
        self._tokens = self._seconds = 0.0
        self._most = 0

    def saw(self, num_tokens: int, seconds: float) -> None:
        """Record a step that computed `num_tokens` tokens of prompts. One with few of them says little."""
        self._most = max(num_tokens, self._most)
        if num_tokens * _FULL >= self._most > 0:
            self._tokens = self._tokens * _DECAY + num_tokens
            self._seconds = self._seconds * _DECAY + seconds
            self.token_s = self._seconds / self._tokens


class Tier:
    """Slots of one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.log: CacheLog | None = None  # None: nobody follows the copies
        self.begin()

    def begin(self) -> None:
        """Forget all copies."""
        self.slots: dict[bytes, int] = {}  # by name, least recently used first
        self.free = [*reversed(range(self.store.num_slots))]

    def find_left(self) -> None:
        """Take over the copies that an earlier engine has left."""
        self.slots = {name: slot for slot, name in self.store.open()}
        for name in self.slots:
            self.note(name, True)
        used = set(self.slots.values())
        self.free = [slot for slot in reversed(range(self.store.num_slots)) if slot not in used]

    def note(self, name: bytes, is_there: bool) -> None:
        """Log that there is a copy, or none any more."""
        if self.log is not None:
            self.log.note(name, self.store.medium, is_there)

    def touch(self, name: bytes) -> None:
        """Make a copy the most recently used one."""
        self.slots[name] = self.slots.pop(name)

    def drop(self, name: bytes, slot: int) -> None:
        """Erase a copy and free its slot."""
        self.note(name, False)
        self.store.erase(slot)
        self.free.append(slot)


class Tiers:
    """Copies of one kind of blob in several stores, the fastest first. A name is on the device, in a tier, or in both.

    An engine may use them only after its predecessor has ended. So nothing is read or written before the first call,
    which comes with the first request.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        rate: PrefillRate,
        num_mirrors: int = 0,
        takes_evicted: bool = True,
        peers: Sequence[Peer] = (),
    ) -> None:
        """`num_mirrors`: slots of the first store for mirrors; `takes_evicted`: copy what the device evicts."""
        self.tiers = tuple(Tier(store) for store in stores)
        self.peers = peers
        self._shown: list[tuple[Peer, MutableMapping[bytes, int]]] = []  # copies of peers when they were last asked
        self._num_received = 0
        self.rate, self.num_mirrors, self._takes_evicted = rate, num_mirrors, takes_evicted
        self.mirrors: dict[bytes, int] = {}  # name and slot, oldest first
        self._is_open = False

    @property
    def usage(self) -> float:
        """Share of the first tier's slots in use, 0 to 1."""
        return 1 - len(self.tiers[0].free) / self.tiers[0].store.num_slots

    def keep(self, blob: Blob, place: int, is_held: Callable[[bytes], bool]) -> None:
        """Mirror a blob of the device, in place of an old one that no sequence holds if there are enough."""
        self._open()
        if not self.num_mirrors or self._find(blob.name) is not None:
            return
        if len(self.mirrors) < self.num_mirrors or self._drop_mirror(is_held):
            slot = self._slot(0)
            if slot is not None and self._save(slot, blob, place):
                self.mirrors[blob.name] = slot
                self.tiers[0].note(blob.name, True)

    def leave(self, blob: Blob, place: int) -> None:
        """Copy a blob that the device forgets, unless there is a copy."""
        if not self.tiers:
            return
        self._open()
        first, mirror = self.tiers[0], self.mirrors.pop(blob.name, None)
        if mirror is not None:
            first.slots[blob.name] = mirror
        elif blob.name in first.slots:
            first.touch(blob.name)
        elif self._takes_evicted and (slot := self._slot(0)) is not None and self._save(slot, blob, place):
            first.slots[blob.name] = slot
            first.note(blob.name, True)

    def seconds(self, name: bytes) -> float:
        """Return the predicted seconds of loading a copy; infinity if there is none.

        A peer's copy counts as free: that it is not computed again is what a hand-over is for.
        """
        self._open()
        found = self._find(name)
        if found is not None:
            return found[0].store.load_s
        return 0.0 if self._is_shown(name) else inf

    def is_worth(self, seconds: float, num_tokens: int) -> bool:
        """Return whether loading copies in `seconds` is predicted to be cheaper than computing so many tokens."""
        return seconds < _LEAST_GAIN * num_tokens * self.rate.token_s

    def is_offered(self, name: bytes, num_tokens: int) -> bool:
        """Return whether there is a copy that is worth loading instead of computing so many tokens."""
        self._open()
        found = self._find(name)
        if found is None:
            return self._is_shown(name)
        if self.is_worth(found[0].store.load_s, num_tokens):
            return True
        found[0].store.relax()
        return False

    def touch(self, name: bytes) -> None:
        """Make the copies of a blob the most recently used ones."""
        for tier in self.tiers:
            if name in tier.slots:
                tier.touch(name)

    def load(self, blob: Blob, place: int) -> bool:
        """Copy a blob back to the device; return False, having dropped the copy, when it is not whole."""
        found = self._find(blob.name)
        if found is None:
            return self._receive(blob, place)
        tier, slot = found
        if not tier.store.load(slot, blob, place):
            self.forget(blob.name)
            return False
        self.touch(blob.name)
        return True

    def forget(self, name: bytes) -> None:
        """Drop the copies of a blob."""
        for tier, slots in [(self.tiers[0], self.mirrors), *((tier, tier.slots) for tier in self.tiers)]:
            if name in slots:
                tier.drop(name, slots.pop(name))

    def clear(self) -> None:
        """Drop all copies and release their memory."""
        self.mirrors, self._is_open, self._shown = {}, False, []
        for tier in self.tiers:
            tier.begin()
            tier.store.clear()

    def ask_peers(self) -> None:
        """Find the copies that peers have now."""
        self._shown = [(peer, peer.copies()) for peer in self.peers]

    def take_received(self) -> int:
        """Return the number of copies that peers gave since the last call."""
        count, self._num_received = self._num_received, 0
        return count

    def audit(self, cached: Container[bytes]) -> list[str]:
        """Return the violations, one line each; `cached` are the names on the device.

        A slot is free or has one name, a mirror's name is on the device, and there are no more mirrors than allowed.
        """
        problems = [] if len(self.mirrors) <= self.num_mirrors else [f"{len(self.mirrors)} mirrors"]
        problems += [f"mirror {name.hex()} is not on the device" for name in self.mirrors if name not in cached]
        for level, tier in enumerate(self.tiers):
            mirrors = [] if level else [*self.mirrors.values()]
            if sorted([*tier.free, *tier.slots.values(), *mirrors]) != [*range(tier.store.num_slots)]:
                problems.append(f"tier {level}: free + used is not all")
        return problems

    def transfers(self) -> list[dict[str, tuple[int, float]]]:
        """Return the transfers of each store and peer."""
        return [*[tier.store.transfers for tier in self.tiers], *[peer.transfers for peer in self.peers]]

    def _is_shown(self, name: bytes) -> bool:
        return any(name in copies for _, copies in self._shown)

    def _receive(self, blob: Blob, place: int) -> bool:
        for peer, copies in self._shown:
            if blob.name in copies:
                if peer.load(copies[blob.name], blob, place):
                    self._num_received += 1
                    return True
                del copies[blob.name]  # the peer has reused the slot
        return False

    def _open(self) -> None:
        if not self._is_open:
            self._is_open = True
            for tier in self.tiers:
                tier.find_left()

    def _find(self, name: bytes) -> tuple[Tier, int] | None:
        if name in self.mirrors:
            return self.tiers[0], self.mirrors[name]
        return next(((tier, tier.slots[name]) for tier in self.tiers if name in tier.slots), None)

    def _save(self, slot: int, blob: Blob, place: int) -> bool:
        is_saved = self.tiers[0].store.save(slot, blob, place)
        if not is_saved:
            self.tiers[0].free.append(slot)
        return is_saved

    def _drop_mirror(self, is_held: Callable[[bytes], bool]) -> bool:
        """Free the slot of an old mirror that no sequence holds, which is needed later than the others."""
        for name in list(islice(self.mirrors, _LOOKS)):
            slot = self.mirrors.pop(name)
            if not is_held(name):
                self.tiers[0].drop(name, slot)
                return True
            self.mirrors[name] = slot
        return False

    def _slot(self, level: int) -> int | None:
        """Return a slot for a new copy, None when there is none. The least recently used copy moves down for it."""
        tier = self.tiers[level]
        if tier.free:
            return tier.free.pop()
        name = self._victim(tier)
        if name is None:
            return None
        slot = tier.slots.pop(name)
        tier.note(name, False)
        if level + 1 < len(self.tiers):
            self._move_down(level + 1, name, tier.store, slot)
        return slot

    def _victim(self, tier: Tier) -> bytes | None:
        """Return the copy that a full tier can spare, None when all are mirrors."""
        return next(iter(tier.slots), None)

    def _move_down(self, level: int, name: bytes, source: Store, source_slot: int) -> None:
        tier = self.tiers[level]
        if name in tier.slots:
            tier.touch(name)
            return
        slot = self._slot(level)
        if slot is None:
            return
        if tier.store.move(slot, source, source_slot):
            tier.slots[name] = slot
            tier.note(name, True)
        else:
            tier.free.append(slot)


def sum_transfers(tiers: Iterable[Tiers]) -> dict[str, tuple[int, float]]:
    """Return the bytes and seconds of all stores by direction."""
    sums: dict[str, tuple[int, float]] = {}
    for transfers in (each for tier in tiers for each in tier.transfers()):
        for direction, (num_bytes, seconds) in [*transfers.items()]:  # a thread may add one meanwhile
            before = sums.get(direction, (0, 0.0))
            sums[direction] = before[0] + num_bytes, before[1] + seconds
    return sums
