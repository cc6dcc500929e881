"""Charge of a step and its division, compared with the cost model and the plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.planner.model_names import NAMED
from neuronserve.server.clock import NS
from neuronserve.server.config.speculation import SpeculationConfig
from neuronserve.server.cost.links import HandOver
from neuronserve.server.cost.model import CostModel
from neuronserve.server.cost.pipeline import PipelineModel
from neuronserve.server.cost.pricer import HostOfSteps, StepPricer, prefill_ids
from neuronserve.server.cost.shape import matrix_params
from neuronserve.server.cost.speculation import METHODS, SPECULATION_REASON, DraftCosts, SpeculativeModel
from neuronserve.server.cost.stacks import STACK_NAMES, STACKS, HostWork, StackName
from neuronserve.server.device.buckets import powers_of_two, smallest
from neuronserve.server.device.catalog import instance
from neuronserve.server.device.groups import instance_group
from neuronserve.server.models.sizes import DecoderSizes
from neuronserve.server.types import SamplingParams, ScheduledSeq, StepPlan
from tests.cost.pricing import SMALL, small_pricer

SLOTS, LONGEST = 8, 1024
TINY = DecoderSizes(1, 64, 128, 2, 2, 32, 1024).spec("LlamaForCausalLM", 4096)
COST = CostModel.of(SMALL, instance("inf2.xlarge"), 1)
PRICER = small_pricer(SLOTS, LONGEST)


def seq(name: str, start: int, num_tokens: int) -> ScheduledSeq:
    return ScheduledSeq(name, (0,) * num_tokens, start, (), True, SamplingParams(1), (), start + num_tokens)


def plan(prompts: list[tuple[int, int]], contexts: list[int]) -> StepPlan:
    """`prompts` are (start, tokens); `contexts` what each decoding sequence has in the cache."""
    prefill = tuple(seq(f"p{i}", *prompt) for i, prompt in enumerate(prompts))
    return StepPlan(1, prefill, tuple(seq(f"d{i}", context, 1) for i, context in enumerate(contexts)))


PLANS = st.builds(
    plan,
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 500)), max_size=3),
    st.lists(st.integers(1, LONGEST - 1), max_size=SLOTS),
)


@given(PLANS)
def test_the_shares_of_a_step_are_all_of_it(step: StepPlan) -> None:
    charge = PRICER.charge(step)
    assert len(charge.shares_ns) == len(step.seqs)
    assert sum(charge.shares_ns) == charge.ns == sum(run.ns for run in charge.runs)


@given(PLANS)
def test_those_that_decode_pay_alike_and_each_prompt_its_own(step: StepPlan) -> None:
    charge = PRICER.charge(step)
    prompts, decodes = charge.shares_ns[: len(step.prefill)], charge.shares_ns[len(step.prefill) :]
    assert list(prompts) == [PRICER.prefill_ns(one.start, len(one.token_ids)) for one in step.prefill]
    assert not decodes or max(decodes) - min(decodes) <= 1


@given(PLANS)
def test_padding_is_what_the_graphs_compute_for_nobody(step: StepPlan) -> None:
    charge = PRICER.charge(step)
    for one, run in zip(step.prefill, charge.prefills, strict=True):
        assert run.num_tokens + run.num_padding == run.bucket == smallest(powers_of_two(LONGEST), len(one.token_ids))
    if charge.decode is not None:
        assert charge.decode.num_tokens + charge.decode.num_padding == SLOTS


def test_a_step_is_its_prompts_one_by_one_and_then_one_decode_of_all_slots() -> None:
    charge = PRICER.charge(plan([(0, 100), (0, 200)], [300, 10]))
    expected = [COST.prefill(100, 128), COST.prefill(200, 256), COST.decode(SLOTS, LONGEST)]
    assert [run.ns for run in charge.runs] == [round(cost.elapsed_s * NS) for cost in expected]
    assert [run.bucket for run in charge.runs] == [128, 256, LONGEST]


def test_the_decode_bucket_holds_the_longest_context_with_its_new_token() -> None:
    pricer = StepPricer(COST, SLOTS, (LONGEST,), (128, 256, LONGEST))
    buckets = []
    for context in (127, 128, 255, 256):
        run = pricer.charge(plan([], [1, context])).decode
        assert run is not None
        buckets.append(run.bucket)
    assert buckets == [128, 256, 256, LONGEST]


def test_what_lies_behind_a_chunk_adds_attention_and_a_stream_of_kv() -> None:
    (alone,), (behind,) = PRICER.charge(plan([(0, 100)], [])).prefills, PRICER.charge(plan([(300, 100)], [])).prefills
    assert behind.ns > alone.ns
    read = 512 * 2 * SMALL.num_layers * 2 * SMALL.head_dim * 2
    assert behind.cost.hbm_bytes - alone.cost.hbm_bytes == pytest.approx(read)


def test_logits_of_a_whole_prompt_are_priced_for_its_whole_graph() -> None:
    (plain,) = PRICER.charge(plan([(0, 100)], [])).prefills
    wanted = seq("p", 0, 100)._replace(sampling=SamplingParams(1, prompt_logprobs=0), history=(0,) * 100)
    (priced,) = PRICER.charge(StepPlan(1, (wanted,), ())).prefills
    assert priced.ns > plain.ns
    head = 2 * SMALL.hidden_size * SMALL.vocab_size
    assert priced.cost.flops - plain.cost.flops == pytest.approx((priced.bucket - 1) * head)
    assert "logits of every position" in priced.cost.extrapolated
    assert "logits of every position" not in plain.cost.extrapolated


def test_only_what_lies_behind_a_chunk_of_a_measured_model_is_extrapolated() -> None:
    measured = CostModel.of(NAMED["llama-8b"], instance("inf2.48xlarge"), 8)
    pricer = StepPricer(measured, SLOTS, (128, LONGEST), (LONGEST,))
    step = plan([(0, 100), (300, 100)], [5])
    charge = pricer.charge(step)
    assert "cached or earlier part" in charge.prefills[1].cost.extrapolated
    assert not charge.prefills[0].cost.extrapolated
    assert charge.extrapolated_ids(step) == {"p1"}


def test_everything_of_a_model_far_smaller_than_the_measured_ones_is_extrapolated() -> None:
    step = plan([(0, 100)], [5])
    assert PRICER.charge(step).extrapolated_ids(step) == {"p0", "d0"}
    reasons = PRICER.why_extrapolated()
    assert any(f"{matrix_params(SMALL) / 1e9:.3g} B parameters: measured are" in reason for reason in reasons)
    assert len(set(reasons)) == len(reasons)
    assert set(reasons) <= set(PRICER.extrapolated)


def test_prompts_cut_to_a_short_longest_bucket_may_lie_far_behind() -> None:
    pricer = StepPricer(COST, SLOTS, (128,), (LONGEST,))
    first, later = pricer.charge(plan([(0, 128), (900, 100)], [])).prefills
    assert first.bucket == later.bucket == 128
    assert later.ns > first.ns


HOST = HostOfSteps(HostWork(request_s=9.0, slot_s=1e-3, logit_s=1e-6, copy_s=1e-8), sampled_vocab=1000)


@pytest.mark.parametrize("busy", [1, 2, SLOTS])
def test_the_host_of_a_stack_works_longer_the_more_slots_are_busy(busy: int) -> None:
    pricer = StepPricer(COST, SLOTS, (LONGEST,), (LONGEST,), HOST)
    host_s = (busy - 1) * (1e-3 + 1e-6 * 1000) + SLOTS * 1e-8 * 1000
    assert pricer.decode_ns(10, busy) == pytest.approx(PRICER.decode_ns(10, busy) + host_s * NS, abs=2)
    run = pricer.charge(plan([], [10] * busy)).decode
    assert run is not None
    assert run.cost.elapsed_s == pytest.approx(
        run.cost.compute_s + run.cost.memory_s + run.cost.activation_s + run.cost.overhead_s
    )


def test_a_prompt_has_nothing_of_the_steps_of_others() -> None:
    pricer = StepPricer(COST, SLOTS, (LONGEST,), (LONGEST,), HOST)
    assert pricer.prefill_ns(0, 10) == StepPricer(COST, SLOTS, (LONGEST,), (LONGEST,)).prefill_ns(0, 10)


@pytest.mark.parametrize(("busy", "computed"), [(1, 1), (2, 2), (3, 4), (5, 8), (6, 8), (8, 8)])
def test_a_stack_may_pad_busy_slots_to_a_power_of_two(busy: int, computed: int) -> None:
    pricer = StepPricer(COST, SLOTS, (LONGEST,), (LONGEST,), HostOfSteps(pads_slots=True))
    run = pricer.charge(plan([], [10] * busy)).decode
    assert run is not None
    assert run.num_padding == computed - busy
    assert run.ns == round(COST.decode(computed, LONGEST).elapsed_s * NS)
    assert StepPricer(COST, 6, (LONGEST,), (LONGEST,), HostOfSteps(pads_slots=True)).decode_ns(10, 6) == round(
        COST.decode(6, LONGEST).elapsed_s * NS
    )


@pytest.mark.parametrize(("busy", "computed"), [(1, 3), (3, 3), (4, 6), (7, SLOTS)])
def test_the_graphs_of_decode_may_be_named(busy: int, computed: int) -> None:
    host = HostOfSteps.of(STACKS["vllm-neuron"], COST, batches=(6, 3))
    run = StepPricer(COST, SLOTS, (LONGEST,), (LONGEST,), host).charge(plan([], [10] * busy)).decode
    assert run is not None
    assert run.num_tokens + run.num_padding == computed


@pytest.mark.parametrize("name", STACK_NAMES)
def test_the_host_of_a_stack_is_that_of_the_calibration(name: StackName) -> None:
    host = HostOfSteps.of(STACKS[name], COST)
    assert host.work == COST.calibration.host(STACKS[name].host)
    assert host.pads_slots == STACKS[name].pads_slots
    assert host.sampled_vocab == (0 if STACKS[name].samples_on_device else SMALL.vocab_size)


def test_a_step_with_drafts_is_a_graph_with_room_for_all_of_them_and_nobody_s_measurement() -> None:
    checking = COST.checking(SpeculationConfig("ngram", 3))
    assert COST.checking(None) is COST
    pricer = StepPricer(COST, SLOTS, (LONGEST,), (128, LONGEST), checking=checking)
    drafted = seq("a", 126, 3)._replace(num_drafts=2)
    charge = pricer.charge(StepPlan(1, (), (drafted, seq("b", 5, 1))))
    assert charge.ns == round(checking.decode(SLOTS, LONGEST).elapsed_s * NS)
    assert charge.ns > pricer.charge(plan([], [127, 5])).ns
    assert charge.extrapolated_ids(StepPlan(1, (), (drafted, seq("b", 5, 1)))) == {"a", "b"}
    assert SPECULATION_REASON in pricer.extrapolated


@given(PLANS.filter(lambda step: bool(step.seqs)), st.integers(0, 40), st.integers(0, 2))
def test_a_copy_is_charged_to_the_request_that_begins_with_it(step: StepPlan, num_blocks: int, num_states: int) -> None:
    pricer = small_pricer(SLOTS, LONGEST)
    pricer.hand_over = HandOver.of(COST, 4096)
    owner = step.seqs[0].request_id
    copied = step._replace(received=((owner, num_blocks, num_states),))
    before, after = PRICER.charge(step), pricer.charge(copied)
    copy_ns = round(pricer.hand_over.cost(num_blocks, num_states).elapsed_s * NS)
    assert after.ns - before.ns == copy_ns == sum(after.shares_ns) - sum(before.shares_ns)
    assert dict(zip(prefill_ids(copied), after.shares_ns, strict=False))[owner] == (
        copy_ns if owner.startswith("d") else after.shares_ns[1]
    )
    assert owner in after.extrapolated_ids(copied)


@pytest.mark.parametrize(
    ("name", "tp", "num_instances", "gb_s"),
    [
        ("inf2.24xlarge", 2, 1, 0.2 * 192 * 1.073741824),  # one chip's NeuronLink
        ("inf2.24xlarge", 4, 1, 2 * 0.2 * 192 * 1.073741824),  # two chips copy at once
        ("trn1.32xlarge", 8, 2, 0.2 * 100 / 4),  # a quarter of 800 Gbps EFA
    ],
)
def test_copies_take_their_share_of_the_link(name: str, tp: int, num_instances: int, gb_s: float) -> None:
    on = instance(name)
    model = CostModel.of(SMALL, on, tp)
    group = None if num_instances == 1 else instance_group(on, num_instances)
    cost = HandOver.of(model, 1_000_000, group).cost(10, 0)
    assert cost.link_bytes == tp * 10_000_000
    assert cost.elapsed_s == pytest.approx(1.5e-6 + tp * 0.01 / gb_s, rel=1e-6)


def test_within_a_chip_copies_move_in_its_memory() -> None:
    chip = instance("inf2.xlarge").chip
    seconds = HandOver.of(COST, 1_000_000).cost(100, 0).elapsed_s
    assert 0.1 / chip.bandwidth_gb_s <= seconds < 2 * 0.1 / chip.bandwidth_gb_s


def test_a_draft_model_is_charged_as_the_planner_predicts_it() -> None:
    place, config = instance("inf2.xlarge"), SpeculationConfig("draft_model", 3, model="any")
    draft, checking = CostModel.of(TINY, place, 1), COST.checking(config)
    runs = METHODS["draft_model"].runs(3)
    planned = SpeculativeModel(
        PipelineModel.of(SMALL, place, 1, 1, checking.step_work.runtime),
        PipelineModel.of(TINY, place, 1, 1, draft.step_work.runtime),
        runs,
        lambda band, _: band,
    )
    pricer = StepPricer(COST, SLOTS, (LONGEST,), (128, LONGEST), checking=checking)
    pricer.draft = DraftCosts(draft, runs)
    prompt = pricer.charge(plan([(0, 700)], []))
    assert prompt.ns == pytest.approx(planned.prefill(LONGEST, LONGEST).elapsed_s * NS, rel=1e-6)
    step = pricer.charge(StepPlan(1, (), (seq("a", 500, 3)._replace(num_drafts=2),)))
    assert step.ns == pytest.approx(planned.decode(SLOTS, LONGEST).elapsed_s * NS, rel=1e-6)
    cost = step.runs[0].cost
    parts = cost.compute_s + cost.memory_s + cost.activation_s + cost.overhead_s
    assert parts == pytest.approx(cost.elapsed_s)
    assert cost.flops == pytest.approx(checking.decode(SLOTS, LONGEST).flops + 4 * draft.decode(SLOTS, LONGEST).flops)
    plain = pricer.charge(plan([], [500]))
    assert plain.ns == PRICER.charge(plan([], [500])).ns, "a step without drafts has no passes of the draft model"
