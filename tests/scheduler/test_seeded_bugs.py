"""The property tests of scheduler, cache and tiers can fail: each of these bugs, put into the server, makes one fail.

A bug is a replacement in the source of one function. A replacement whose old text is not there, once, is an error, so
that the list follows the code.
"""

from __future__ import annotations
import __future__

import inspect
from collections.abc import Callable
from textwrap import dedent, indent
from types import CodeType
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from neuronserve.server.engine.blob_file import BlobFile
from neuronserve.server.engine.drafted import accepted_tokens
from neuronserve.server.kv_cache import prefix_finder
from neuronserve.server.kv_cache.blocks import BlockPool
from neuronserve.server.kv_cache.hashing import HashChain, root_digest
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.kv_cache.parts import Parts
from neuronserve.server.kv_cache.prefix_finder import PrefixFinder
from neuronserve.server.kv_cache.state_slots import StateSlots
from neuronserve.server.kv_cache.tiers import Tier, Tiers
from neuronserve.server.scheduler import decode_run, encodings, router
from neuronserve.server.scheduler.encodings import EncodingBooks, EncodingScheduler
from neuronserve.server.scheduler.fair_queue import FairQueue
from neuronserve.server.scheduler.finish import check_finish
from neuronserve.server.scheduler.pooling import PoolingScheduler
from neuronserve.server.scheduler.router import Router
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.scheduler.sequence import Sequence
from neuronserve.server.scheduler.service import ServicePolicy
from neuronserve.server.scheduler.speculative import SpeculativeScheduler
from neuronserve.server.scheduler.step import StepDraft
from neuronserve.server.scheduler.turns import Turns
from tests.kv_cache import test_blocks as blocks
from tests.kv_cache import test_hashing as hashing
from tests.kv_cache import test_manager as books
from tests.kv_cache import test_state_slots as slots
from tests.scheduler import test_decode_run as runs
from tests.scheduler import test_encodings as encoded
from tests.scheduler import test_fair_queue as fairness
from tests.scheduler import test_pooling as pooling
from tests.scheduler import test_router as routes
from tests.scheduler import test_scheduler_properties as whole
from tests.scheduler import test_service_policies as policies
from tests.scheduler import test_turns as turns

LIMITS = settings(
    max_examples=1000,
    stateful_step_count=40,
    database=None,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
FEW = settings(LIMITS, max_examples=50)

TOKENS = whole.test_every_request_ends_once_with_the_tokens_of_a_model_without_a_cache
HITS = whole.test_a_hit_is_the_longest_prefix_ever_computed
DIGESTS = hashing.test_digests_are_equal_exactly_where_salt_adapter_and_whole_prefix_are
GROWING = blocks.test_a_pool_that_grows_hands_out_every_block_and_each_once
SHARED = books.test_a_table_that_shares_what_it_sees_still_gets_a_block_for_each_that_it_gives_back
ROWS = slots.test_a_row_of_drafts_goes_on_from_the_last_accepted_token
TENANTS = fairness.test_two_that_always_wait_get_the_same_but_for_what_runs
DUE = fairness.test_who_is_due_comes_before_the_more_urgent_and_before_turns
WEIGHTS = policies.test_two_that_always_wait_are_served_by_weight_within_the_published_bound
ORDER = policies.test_what_can_be_in_time_is_served_in_the_order_of_its_policy
LATE = policies.test_under_slo_nothing_starves
RUNS = runs.test_steps_in_one_go_leave_what_single_steps_leave
FORECAST = turns.test_with_one_place_the_order_is_that_of_the_scheduler
ROUTES = routes.RouterMachine
CHOICE = routes.test_the_choice_is_alive_and_has_the_first_token_soonest
KEPT = encoded.test_blocks_of_the_kept_are_distinct_and_those_of_open_requests_stay
ENCODED = encoded.test_every_request_reads_its_own_encodings_and_writes_its_tokens
TEXTS = pooling.test_every_text_ends_once_and_no_step_is_too_large


class Bug(NamedTuple):
    """A wrong text in place of the right one in the source of `function`, and the property that it violates."""

    name: str
    function: Any  # or a property
    old: str
    new: str
    violated: Any


def init(cls: type) -> Callable[..., Any]:
    return vars(cls)["__init__"]  # type: ignore[no-any-return]


BUGS = (
    # Names of prefixes.
    Bug("a digest does not cover its parent", HashChain.extend,
        "parent = sha256(known).digest()", "digests.append(sha256(known).digest())\n        continue", DIGESTS),
    Bug("the salt is left out", root_digest, ' + cache_salt.encode("utf-8", "surrogatepass")', "", DIGESTS),
    Bug("the adapter is left out", root_digest,
        'f"lora {lora}:" if lora else "neuronserve:"', '"neuronserve:"', DIGESTS),
    Bug("the manager drops the adapter", KVCacheManager.open,
        "cache_salt, lora, media", 'cache_salt, "", media', books.Books),
    Bug("pictures are left out", KVCacheManager.open, "lora, media)", "lora)", books.Books),
    Bug("groups share names", prefix_finder.group_tags, "bytes([group]) if group else", "", books.AlternatingBooks),
    # Prefix hits.
    Bug("all tokens are hit", KVCacheManager.lookup, "(len(token_ids) - 1)", "len(token_ids)", books.Books),
    Bug("a window's blocks are not looked for", PrefixFinder._last_missing,
        "num_blocks - 1, ", "num_blocks - 2, ", books.SlidingBooks),
    Bug("blocks are named before they are computed", Scheduler._fits,
        "if not seq.was_admitted:",
        "cache.commit(seq.blocks, seq.token_ids, len(seq.token_ids))\n    if not seq.was_admitted:", TOKENS),
    Bug("a partial block is named", KVCacheManager.commit,
        "num_computed_tokens // self._block_size", "-(-num_computed_tokens // self._block_size)", books.Books),
    Bug("the last block is not named", KVCacheManager.commit,
        "num_computed_tokens // self._block_size", "max(0, num_computed_tokens - 1) // self._block_size", HITS),
    Bug("a reused block keeps its name", BlockPool.take, "self.evict(block)", "pass", books.SlidingBooks),
    Bug("a failed sequence leaves its names", KVCacheManager.discard, "self.pool.forget(block)", "pass", books.Books),
    # Parts of blocks.
    Bug("a part has the last token", Parts.find, "len(token_ids)) - 1]", "len(token_ids))]", books.Books),
    Bug("a part follows another prefix", Parts.stored, "chain.parent(blob.block)", "chain.parent(0)", books.Books),
    Bug("a part has a token that was not computed", Parts.leave,
        "num_full, tag, num_left", "num_full, tag, num_left + 1", HITS),
    Bug("a part is not copied", Parts.copy, "self._copy(source, table[prefix.num_blocks])", "pass", books.Books),
    Bug("the source of a part stays held", Parts.copy, "self._pool.release(source)", "pass", books.Books),
    Bug("a source is held where no block is spare", Parts.hold, "> num_spare", "> num_spare + 99", books.Books),
    Bug("a block that goes on keeps its name", Parts.hold, "pool.evict(block)", "pass", books.Books),
    Bug("parts of pictures are shared", Parts.find, "not chain.media and ", "", books.Books),
    Bug("a part of a block goes to a tier", BlockPool.evict, " and is_whole", "", books.Books),
    # Blocks.
    Bug("a block is released twice", KVCacheManager.free,
        "self._release(group, table[i])",
        "self._release(group, table[i]), self._release(group, table[i])", books.Books),
    Bug("an end releases no block", Scheduler._close,
        "self._cache.free(seq.blocks, seq.token_ids, seq.num_computed_tokens)", "pass", TOKENS),
    Bug("a hit leaves its block in the free list", BlockPool.hold, "self._unlink(block)", "pass", books.Books),
    Bug("named blocks are reused first", BlockPool.release,
        "self._prev[NULL_BLOCK], block", "NULL_BLOCK, block", books.Books),
    Bug("the end of the free list is handed out", BlockPool._instead_of_unused,
        "oldest == NULL_BLOCK or ", "", GROWING),
    Bug("a window's block is not given back", KVCacheManager.drop,
        "self._release(group, table[i])", "pass", books.SlidingBooks),
    Bug("a window's block is given back too early", KVCacheManager._num_behind,
        "num_behind(position) //", "num_behind(position + 1) //", TOKENS),
    Bug("a shared block of a window is not reserved", KVCacheManager._share,
        "self.num_reserved += ", "_ = ", books.AlternatingBooks),
    Bug("reserved blocks are handed out", KVCacheManager.num_free_blocks, " - self.num_reserved", "", SHARED),
    Bug("an admission leaves running sequences no block", KVCacheManager.allocate,
        " - num_growing * self.num_groups", "", books.Books),
    # Tiers.
    Bug("a damaged copy is restored", BlobFile.load,
        "record[0] != self._shape.seal(blob, record[1]) or ", "", books.Books),
    Bug("a slot of a tier is freed twice", Tier.drop,
        "self.free.append(slot)", "self.free += [slot, slot]", books.Books),
    Bug("a mirror outlives its block", Tiers.leave,
        "self.mirrors.pop(blob.name, None)", "self.mirrors.get(blob.name)", books.Books),
    Bug("a mirror's slot is lost", Tiers._drop_mirror, "self.tiers[0].drop(name, slot)", "pass", books.Books),
    Bug("a copy that leaves is not logged", Tiers._slot, "tier.note(name, False)", "pass", books.Books),
    Bug("a copy that moves down is not logged", Tiers._move_down,
        "tier.note(name, True)", "pass", books.Books),
    # Slots of states.
    Bug("a snapshot is overwritten", StateSlots.place,
        "elif state.is_boundary and self.pool.num_free:\n        self._move(state, self.pool.take(), end)\n    elif",
        "elif False and", TOKENS),
    Bug("a state's slot leaks", StateSlots.drop,
        "self.pool.release(state.held.pop(0)[1])", "state.held.pop(0)", TOKENS),
    Bug("rejected drafts stay in the state", StateSlots.accept,
        "count <= len(state.drafts)", "count < len(state.drafts)", ROWS),
    Bug("a rejected boundary becomes a snapshot", StateSlots.accept, "state.left.pop()", "pass", ROWS),
    Bug("a row's states leak", StateSlots.accept,
        "self.pool.release(state.drafts.pop())", "state.drafts.pop()", TOKENS),
    # Drafts.
    Bug("a wrong draft is accepted", accepted_tokens, "token.token_id != draft or ", "", TOKENS),
    Bug("drafts of an earlier step are accepted", SpeculativeScheduler.apply,
        "num_rows > 0, result.further", "num_rows > 0, {**self._further, **result.further}", TOKENS),
    Bug("rejected drafts count as computed", SpeculativeScheduler._apply,
        "[: len(each.token_ids) - each.num_drafts]", "", TOKENS),
    Bug("drafts are not in the budget", StepDraft.place_decode,
        "self.budget - 1 - len(drafts)", "self.budget - 1", TOKENS),
    # Steps.
    Bug("a prompt is not in the budget", StepDraft.place, "self.budget - end + start", "self.budget", TOKENS),
    Bug("the first sequence is preempted", Scheduler._grow, "self._running.last", "self._running.first", TOKENS),
    Bug("a preempted sequence counts as computed", Sequence.rewind,
        "self.num_scheduled_tokens = self.num_computed_tokens = 0", "pass", TOKENS),
    Bug("a preempted sequence keeps its blocks", Scheduler._preempt,
        "self._cache.free(seq.blocks, seq.token_ids, seq.num_computed_tokens)", "pass", TOKENS),
    Bug("prompt logits are not computed after a hit", Sequence.needs_prompt_logits,
        "is not None and", "is None and", TOKENS),
    Bug("one token too many", check_finish,
        "num_generated >= sampling.max_tokens", "num_generated > sampling.max_tokens", TOKENS),
    Bug("min_tokens is ignored", check_finish, "num_generated >= sampling.min_tokens", "True", TOKENS),
    Bug("a resumed request begins again", init(Sequence), ", *request.generated_token_ids]", "]", TOKENS),
    Bug("a run goes on for a step too many", decode_run._count_repeats,
        "int(min(limits)) - 1", "int(min(limits))", RUNS),
    # Order of service.
    Bug("generated tokens are not charged", Scheduler._accept, "self._waiting.serve(seq, 1)", "pass", WEIGHTS),
    Bug("prompts are not charged", Scheduler._fits, "self._waiting.serve(seq, seq.num_pending)", "pass", TENANTS),
    Bug("turns are saved up", FairQueue.add,
        "max(self._served.pop(group, 0.0), self._least)", "self._served.pop(group, 0.0)", FORECAST),
    Bug("weights are ignored", FairQueue.serve, " / seq.weight", "", WEIGHTS),
    Bug("late requests are never served", ServicePolicy.weight, "LATE_WEIGHT", "1e-9", LATE),
    Bug("deadlines are ignored", ServicePolicy._time, "not self.by_deadline", "True", ORDER),
    Bug("priorities are ignored", ServicePolicy.order, "request.priority if", "0 if", ORDER),
    Bug("a promise is ignored", FairQueue.first, "<= self._now", "< 0", DUE),
    Bug("a forecast forgets outputs", Turns.before, "(first.num_tokens + num_generated)", "first.num_tokens", FORECAST),
    # Routers.
    Bug("an ended request stays in the load", Router.end, "engine.num_open_tokens -= entry.num_tokens", "pass", ROUTES),
    Bug("a dead engine is chosen", router.choose, "if engine.is_alive", "", CHOICE),
    Bug("a dead engine keeps its requests", Router.lose, "if entry.engine != index", "", ROUTES),
    Bug("a lost cache is remembered", Router._forget, "self._engines[index].prefixes.clear()", "pass", ROUTES),
    Bug("a generated token stays pending", Router.generated,
        "engine.num_pending_tokens -= entry.num_pending", "pass", ROUTES),
    # Encodings and texts.
    Bug("an encoding in use makes room", EncodingBooks.hold, "not self.holders[key] and ", "", KEPT),
    Bug("an encoding is released while its sequence waits", EncodingScheduler._let_in,
        "self._encoding.pop(request_id, None)",
        "self._encoding.pop(request_id, None)\n            self.books.release(items)", ENCODED),
    Bug("an encoding in flight is encoded again", EncodingScheduler._items_of,
        " and key not in self._in_flight", "", ENCODED),
    Bug("a sequence reads another encoding", EncodingScheduler._let_in,
        "for item in request.media)", "for item in request.media[::-1])", ENCODED),
    Bug("a step has too many encodings", EncodingScheduler._next_encodings, "left -= item.num_tokens", "pass", ENCODED),
    Bug("salts share encodings", encodings._key,
        "sha256(salt + item.digest).digest() if salt else item.digest", "item.digest", ENCODED),
    Bug("a step has too many texts", PoolingScheduler.schedule,
        "if num_tokens > limits.max_num_tokens:", "if False:", TEXTS),
    Bug("an aborted text stays", PoolingScheduler.abort, "del self._waiting[at]", "pass", TEXTS),
)  # fmt: skip


def function_of(bug: Bug) -> Callable[..., Any]:
    found = bug.function.fget if isinstance(bug.function, property) else bug.function
    assert inspect.isfunction(found)
    return found


def seeded(bug: Bug) -> CodeType:
    """Return the function's code with the bug. `outer` stands for the scope of its free variables, as of `super()`."""
    function = function_of(bug)
    source = dedent(inspect.getsource(function))
    assert source.count(bug.old) == 1, f"{function.__qualname__} has {bug.old!r} {source.count(bug.old)} times"
    made = f"def outer({', '.join(function.__code__.co_freevars)}):\n{indent(source.replace(bug.old, bug.new), '    ')}"
    module = compile(made, "<seeded bug>", "exec", __future__.annotations.compiler_flag)
    outer = next(each for each in module.co_consts if isinstance(each, CodeType))
    return next(each for each in outer.co_consts if isinstance(each, CodeType) and each.co_name == function.__name__)


def check(violated: Any, limits: settings) -> None:
    """Run a property, a state machine or a plain test with examples that are the same each time."""
    if isinstance(violated, type) and issubclass(violated, RuleBasedStateMachine):
        run_state_machine_as_test(violated, settings=limits)
    elif hasattr(violated, "hypothesis"):
        limits(given(**violated.hypothesis._given_kwargs)(violated.hypothesis.inner_test))()
    else:
        violated()


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=[bug.name.replace(" ", "-") for bug in BUGS])
def test_a_seeded_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_of(bug), "__code__", seeded(bug))
    with pytest.raises((AssertionError, LookupError, pytest.fail.Exception)):
        check(bug.violated, LIMITS)


@pytest.mark.slow
@pytest.mark.parametrize("violated", dict.fromkeys(bug.violated for bug in BUGS), ids=lambda each: each.__name__)
def test_without_a_bug_nothing_is_found(violated: Any) -> None:
    check(violated, FEW)


def test_a_bug_whose_function_has_changed_is_an_error() -> None:
    with pytest.raises(AssertionError, match="0 times"):
        seeded(BUGS[0]._replace(old="what is not there"))
