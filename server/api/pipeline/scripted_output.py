"""Constraint of a scripted output: a grammar of exactly its tokens, so that all else is as with any output.

Calls are written by the model's own chat template, in the form that the model's parser reads.
"""

from __future__ import annotations

import json

from ...errors import InvalidRequest
from ...text.grammar import quoted
from ..http.scripted import Scripted
from ..wire.chat import ChatRequest, Message
from ..wire.tools import CalledFunction, CustomToolCall, ToolCall
from .output_format import Constraint, OutputFormat, compile_format
from .prompts import chat_text
from .stages import Validated

PARAM = "script"


async def scripted_output(request: Validated, scripted: Scripted, prompt: str) -> Constraint:
    """Return the constraint of the output behind `prompt`. Raises InvalidRequest if the model writes no calls."""
    model = request.service.model
    text = await _written(request, scripted, prompt)
    tokens = " ".join(f"<[{token}]>" for token in model.tokenizer.encode(text, add_special_tokens=False))
    return await compile_format(model, OutputFormat(PARAM, "lark", f"start: {tokens or quoted('')}"))


async def _written(request: Validated, scripted: Scripted, prompt: str) -> str:
    """Return the output as the model would write it."""
    body, thinking = request.body, request.plan.thinking
    if not scripted.calls:
        return (
            thinking.closing[0] + thinking.resume if thinking and request.plan.is_open(prompt) else ""
        ) + scripted.text
    if isinstance(body, ChatRequest) and not body.continue_final_message:
        found = await _by_template(request, body, scripted)
        if found is not None:
            return found
    names = ", ".join(call.name for call in scripted.calls)
    raise InvalidRequest(f"{PARAM}: the chat template of this model writes no calls here ({names[:200]}).", PARAM)


async def _by_template(request: Validated, body: ChatRequest, scripted: Scripted) -> str | None:
    """Return what the template adds for the message; None if it writes the prompt in another way then."""
    model, tools = request.service.model, request.plan.tools.offered
    calls: list[ToolCall | CustomToolCall] = [
        ToolCall(id=f"call_{i}", function=CalledFunction(name=call.name, arguments=json.dumps(call.arguments)))
        for i, call in enumerate(scripted.calls)
    ]
    message = Message(role="assistant", content=scripted.text, tool_calls=calls or None)
    longer = body.model_copy(update={"messages": [*body.messages, message], "add_generation_prompt": False})
    before, after = await chat_text(model, body, tools), await chat_text(model, longer, tools)
    added = after.removeprefix(before)
    if not after.startswith(before) or any(call.name not in added for call in scripted.calls):
        return None
    for token in model.defaults.eos_token_ids:
        added = added.partition(model.tokenizer.decode([token], skip_special_tokens=False))[0]
    return added
