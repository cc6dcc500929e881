"""The output of a request: its format, its tool calls, and the reasoning before them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...errors import InvalidRequest
from ...text.grammar import GrammarError
from ...text.parsers.call_formats import CALLS
from ...text.parsers.formats import REASONING, ReasoningParserName, output_reader
from ...text.parsers.lark import Marks, budget_rules, lead
from ...text.parsers.output import OutputParser
from ...text.parsers.shapes import Thinking
from ..config import ApiConfig
from ..errors import unsupported
from ..pipeline.output_format import Constraint, OutputFormat, compile_format, requested_format
from ..pipeline.prompts import content_text, template_source
from ..service import ServedModel
from ..wire.chat import ChatRequest
from ..wire.generation import GenerationRequest
from .message import MessageReader
from .plan import ToolPlan, chosen_parsers, compile_plan, tool_plan

BUDGET = "thinking_token_budget"
NO_TOOLS = ToolPlan()


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """Format of one request's output, and how it is read: as calls, and as reasoning of at most `budget` tokens."""

    format: OutputFormat | None = None
    tools: ToolPlan = NO_TOOLS
    reasoning: ReasoningParserName = "none"
    budget: int | None = None
    continued: str = ""  # the message that the output continues
    ignores_ends: bool = False  # the model's end tokens do not end the output

    @property
    def thinking(self) -> Thinking | None:
        return None if self.reasoning == "none" else REASONING[self.reasoning].thinking

    @property
    def tags(self) -> tuple[str, ...]:
        """Marks that the output may contain."""
        reasoning = () if self.reasoning == "none" else REASONING[self.reasoning].tags
        return (*(CALLS[self.tools.parser].tags if self.tools.parser != "none" else ()), *reasoning)

    def is_open(self, prompt: str) -> bool | None:
        """Whether the output behind `prompt` begins within reasoning; None = the model decides."""
        return self.thinking.is_open(prompt, self.continued) if self.thinking else False

    def parser(self, prompt: str) -> OutputParser | None:
        """Return a parser for one choice behind `prompt`; None if all of it is content."""
        if self.tools.mode == "none" and self.reasoning == "none":
            return None
        functions = {tool.function.name: tool.function.parameters or {} for tool in self.tools.tools}
        has_calls = self.tools.mode != "none"
        read = output_reader(self.tools.parser, self.reasoning, functions if has_calls else None, self.is_open(prompt))
        return OutputParser(read, self.tools.max_calls)

    def reader(self, prompt: str | None, has_reasoning: bool = True) -> MessageReader:
        """Return a reader of one choice behind `prompt` as a message."""
        return MessageReader(self.parser(prompt or ""), has_reasoning, self.tools.custom)


def output_plan(model: ServedModel, config: ApiConfig, body: GenerationRequest) -> OutputPlan:
    """Check the fields of a request that are about tools, formats and reasoning. Raises InvalidRequest."""
    output_format = requested_format(model, body)
    if not isinstance(body, ChatRequest):
        return OutputPlan(output_format)
    tools = tool_plan(model, config, body)
    _, name = chosen_parsers(config, template_source(model, body))
    budget = body.thinking_token_budget
    if budget is not None and name == "none":
        raise unsupported(
            BUDGET, ": this server does not know how the model marks its reasoning; --reasoning-parser names a form."
        )
    limit = None if budget == -1 else budget
    return OutputPlan(output_format, tools, name, limit, _continued(body), bool(body.ignore_eos))


def _continued(body: ChatRequest) -> str:
    last = body.messages[-1]
    return content_text(last, f"messages[{len(body.messages) - 1}]") if body.continue_final_message else ""


async def compile_output(model: ServedModel, plan: OutputPlan, prompt: str) -> Constraint:
    """Compile the constraint of the output behind `prompt`. Raises InvalidRequest.

    The format of the answer holds from the end of the reasoning on.
    """
    thinking, is_open, output_format = plan.thinking, plan.is_open(prompt), plan.format
    if output_format is not None and output_format.is_whole and plan.budget is not None:
        raise InvalidRequest(f"{output_format.param} and {BUDGET} exclude each other.", output_format.param)
    if thinking is None or is_open is False or (output_format is not None and output_format.is_whole):
        return await compile_plan(model, plan.tools, output_format)
    # An end token that does not end the output would end the grammar.
    barred = list(model.defaults.eos_token_ids) if plan.ignores_ends else []
    marks = Marks(plan.tags, model.tokenizer.token_id, barred)
    try:
        constraint = await compile_plan(model, plan.tools, output_format, lead(thinking, marks, is_open, plan.budget))
        if constraint.grammar or plan.budget is None:
            return constraint
        rules = "\n".join(budget_rules(thinking, marks, is_open, plan.budget))
        budget = await compile_format(model, OutputFormat(BUDGET, "lark", rules))
        return replace(constraint, grammar=budget.grammar)
    except GrammarError as error:
        raise InvalidRequest(f"{BUDGET} cannot be used: {error}.", BUDGET, "invalid_grammar") from error


def keep_tags(model: ServedModel, plan: OutputPlan, body: GenerationRequest) -> GenerationRequest:
    """Return the request with special tokens left in its text if the marks of calls or reasoning are such tokens."""
    ids = [model.tokenizer.token_id(tag) for tag in plan.tags]
    if not any(token is not None and model.tokenizer.is_silent(token) for token in ids):
        return body
    return body.model_copy(update={"skip_special_tokens": False})
