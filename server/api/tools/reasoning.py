"""The reasoning of a chat request: how the model writes it, how much it may be, and what follows it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neuronserve.server.api.config import ApiConfig
from neuronserve.server.api.pipeline.output_format import Constraint, OutputFormat, compile_format
from neuronserve.server.api.pipeline.prompts import content_text
from neuronserve.server.api.service import ServedModel
from neuronserve.server.api.tools.chosen import chosen_parsers
from neuronserve.server.api.tools.plan import ToolPlan, compile_plan
from neuronserve.server.api.wire.chat import ChatRequest
from neuronserve.server.errors import InvalidRequest
from neuronserve.server.text.grammar import GrammarError
from neuronserve.server.text.parsers.formats import CALLS, REASONING, ReasoningParserName, output_reader
from neuronserve.server.text.parsers.lark import Marks, budget_rules, lead
from neuronserve.server.text.parsers.output import OutputParser
from neuronserve.server.text.parsers.shapes import Thinking

BUDGET = "thinking_token_budget"


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """How the output of one request is read: calls, and reasoning of at most `budget` tokens (None: of any number)."""

    tools: ToolPlan
    reasoning: ReasoningParserName = "none"
    budget: int | None = None
    continued: str = ""  # the message that the output goes on with
    ignores_ends: bool = False  # the model's end tokens do not end it

    @property
    def thinking(self) -> Thinking | None:
        return None if self.reasoning == "none" else REASONING[self.reasoning].thinking

    @property
    def tags(self) -> tuple[str, ...]:
        """Marks that the output may have."""
        reasoning = () if self.reasoning == "none" else REASONING[self.reasoning].tags
        return (*(CALLS[self.tools.parser].tags if self.tools.parser != "none" else ()), *reasoning)

    def is_open(self, prompt: str) -> bool | None:
        """Whether the output that follows `prompt` begins within reasoning; None: the model decides."""
        return self.thinking.is_open(prompt, self.continued) if self.thinking else False

    def parser(self, prompt: str) -> OutputParser | None:
        """Parser of the text of one choice that follows `prompt`; None where all of it is content."""
        if self.tools.mode == "none" and self.reasoning == "none":
            return None
        functions = {tool.function.name: tool.function.parameters or {} for tool in self.tools.tools}
        has_calls = self.tools.mode != "none"
        read = output_reader(self.tools.parser, self.reasoning, functions if has_calls else None, self.is_open(prompt))
        return OutputParser(read, self.tools.max_calls)


def output_plan(config: ApiConfig, template: str | None, body: ChatRequest, tools: ToolPlan) -> OutputPlan:
    """Check the fields of a request that are about reasoning. Raises InvalidRequest."""
    _, name = chosen_parsers(config, template)
    budget = body.thinking_token_budget
    if budget is not None and name == "none":
        raise InvalidRequest(
            f"{BUDGET}: this server does not know how the model marks its reasoning; --reasoning-parser names a form.",
            BUDGET,
            "unsupported_parameter",
        )
    return OutputPlan(tools, name, budget if budget != -1 else None, _continued(body), bool(body.ignore_eos))


def _continued(body: ChatRequest) -> str:
    last = body.messages[-1]
    return content_text(last, f"messages[{len(body.messages) - 1}]") if body.continue_final_message else ""


async def compile_output(
    model: ServedModel, plan: OutputPlan, output_format: OutputFormat | None, prompt: str
) -> Constraint:
    """What holds the output that follows `prompt`. Raises InvalidRequest.

    What the answer must be begins behind the reasoning.
    """
    thinking, is_open = plan.thinking, plan.is_open(prompt)
    if output_format is not None and output_format.is_whole and plan.budget is not None:
        raise InvalidRequest(f"{output_format.param} and {BUDGET} exclude each other.", output_format.param)
    if thinking is None or is_open is False or (output_format is not None and output_format.is_whole):
        return await compile_plan(model, plan.tools, output_format)
    # An end token that does not end the output would end the grammar.
    barred = list(model.defaults.eos_token_ids) if plan.ignores_ends else []
    marks = Marks(plan.tags, model.tokenizer.token_id, barred)
    try:
        held = await compile_plan(model, plan.tools, output_format, lead(thinking, marks, is_open, plan.budget))
        if held.grammar or plan.budget is None:
            return held
        rules = "\n".join(budget_rules(thinking, marks, is_open, plan.budget))
        budget = await compile_format(model, OutputFormat(BUDGET, "lark", rules))
        return replace(held, grammar=budget.grammar)
    except GrammarError as error:
        raise InvalidRequest(f"{BUDGET} cannot be used: {error}.", BUDGET, "invalid_grammar") from error


def keep_tags(model: ServedModel, plan: OutputPlan, body: ChatRequest) -> ChatRequest:
    """The request with special tokens left in its text, where the marks of calls or reasoning are such tokens."""
    ids = [model.tokenizer.token_id(tag) for tag in plan.tags]
    if not any(token is not None and model.tokenizer.is_silent(token) for token in ids):
        return body
    return body.model_copy(update={"skip_special_tokens": False})
