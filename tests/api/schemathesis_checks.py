"""Checks beside schemathesis's own; its command loads this file in an environment of its own.

A request that /openapi.json allows is accepted. Rules that no schema can express are rows of BEYOND_SCHEMAS: the
operations, and the refusal. Each is a rule between fields, about the model, or about what is stored.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import schemathesis

# As schemathesis itself sees it: a body that is right may name what is not there, or come at a bad time.
ACCEPTED_STATUSES = {401, 403, 404, 408, 409, 429}
LLAMA = r"/completions?|/infill"
GENERATING = rf"(/v1)?/chat/completions(/render)?|/v1/completions(/render)?|/invocations|/generate|{LLAMA}"
TEXT = rf"/v1/completions(/render)?|/invocations|/tokenize|/generate|{LLAMA}"
CHAT = r"(/v1)?/chat/completions(/render)?|/invocations|/tokenize|/apply-template"
MESSAGES = r"/v1/messages(/count_tokens)?"
RESPONSES = r"/v1/responses(/input_tokens|/compact)?"
ITEMS = r"/v1/conversations(/\{conversation_id\}/items)?"
ENCODING = r"/v1/embeddings|/v2/embed|/embeddings?|/pooling|/classify|(/v1)?/score|(/v[12])?/rerank"
FIELDS = "|".join(("id", "name", "input", "text", "tool_use_id", "tool_name", "content", r"source(\.\w+)?"))


class Rule(NamedTuple):
    """Refusals that are right though the schema allows the request."""

    paths: str
    message: str


BEYOND_SCHEMAS = [
    # To JSON Schema 5.0 is an integer. OpenAI wants those without a fraction, and so do we.
    Rule(r".*", r"\S+: must be a valid integer, not -?\d[\d.]*(e\+?\d+)?"),
    # Rules between fields, which OpenAI's own page has in prose.
    Rule(GENERATING, r"stream_options is allowed only with stream\."),
    Rule(GENERATING, r"logprob_token_ids needs logprobs\."),
    Rule(GENERATING, r"structured_outputs needs exactly one of .*"),
    Rule(GENERATING, r"structured_outputs\..* is not supported by this server\."),  # unless its value is empty
    Rule(GENERATING, r"\S+ and \S+ exclude each other\."),
    Rule(GENERATING, r"min_tokens is \d+, but at most \d+ tokens can be generated\."),
    Rule(GENERATING, r"prompt_logprobs .*stream.*"),
    Rule(CHAT, r"top_logprobs needs logprobs to be true\."),
    Rule(f"{CHAT}|{RESPONSES}|{MESSAGES}", r"tool_choice is allowed only when tools are given\."),
    Rule(CHAT, r"tool_choice names the function .*"),
    Rule(f"{CHAT}|{RESPONSES}|{MESSAGES}", r"tools\[\d+\]\S*\.name: two functions are named .*"),
    Rule(CHAT, r"continue_final_message and add_generation_prompt exclude each other\."),
    Rule(CHAT, r"messages\[\d+\]\.content is required for the role .*"),
    Rule(r"/tokenize", r"Exactly one of prompt and messages is required\."),
    Rule(r"/generate", r"Exactly one of prompt and input_ids is required\."),
    Rule(r"/embeddings?", r"content is required\."),
    Rule(LLAMA, r"prompt must be a text, an object with prompt_string, or token ids and texts\."),
    Rule(MESSAGES, r"thinking\.budget_tokens (is required|is \d+; it must be less than max_tokens, which is \d+)\."),
    Rule(MESSAGES, r"tool_choice\.name is required\."),
    Rule(r"/v1/batches", r"completion_window is \S+; it may be 30d\."),
    Rule(r"(/v1)?/score", r"text_1 has \d+ texts and text_2 \d+: .*"),
    # What an item or a block has depends on its type, and which there can be on who speaks.
    Rule(MESSAGES, rf"messages\[\d+\]\.content(\[\d+\]\.content)?\[\d+\]\.({FIELDS}) is required\."),
    Rule(MESSAGES, r"\S+\.type: this server takes only text; blocks of type '[a-z_]+' are not possible here\."),
    Rule(RESPONSES, r"tool_choice\.(name|mode|tools): must be .*"),
    Rule(f"{RESPONSES}|{ITEMS}", r"(input|items)(\[\d+\]\.\S+)? is required.*"),
    Rule(RESPONSES, r"tools\[\d+\]\.tools: only the type 'namespace' has tools\."),
    Rule(RESPONSES, r"tools\[\d+\]\S*\.format\.(syntax|definition): must be .*"),
    Rule(RESPONSES, r"previous_response_id and conversation exclude each other\."),
    Rule(ITEMS, r"items\[\d+\]\.type is 'item_reference'; .*"),
    Rule(r"/v1/messages/batches", r"requests\[\d+\]\.custom_id: .* is the name of an earlier request too\."),
    # The model under test: its vocabulary, its context and the limits of its server.
    Rule(rf"{GENERATING}|{ENCODING}|/detokenize", r"\S+: token id \d+ is out of vocabulary: it is not below \d+\."),
    Rule(GENERATING, r"truncate_prompt_tokens is \d+; it must be -1, or from 1 to the context of \d+\."),
    Rule(ENCODING, r"truncate_prompt_tokens is \d+; it must be -1, or from \d+ to the \d+ of the model\."),
    Rule(ENCODING, r"prompt_name is .*: the model's prompts are .*"),
    Rule(ENCODING, r"\S+ (classifies and makes no embeddings|embeds and has no classes): ask .*"),
    Rule(ENCODING, r"dimensions is for embeddings(: this model classifies| of texts, not of tokens)\."),
    Rule(ENCODING, r"dimensions is \d+: an embedding has \d+\."),
    Rule(ENCODING, r"Exactly one of documents and texts is required\."),
    Rule(ENCODING, r"input(\[\d+\])? has \d+ (characters|tokens); this server encodes texts of up to \d+ tokens\..*"),
    Rule(GENERATING, r"(prompt_|top_)?logprobs is \d+, but this server gives at most \d+\."),
    Rule(f"{GENERATING}|{RESPONSES}", r"This model's maximum context length is .*"),
    Rule(TEXT, r"The prompt is empty\."),
    Rule(TEXT, r"suffix is not supported by this model: its tokenizer has no fill-in-the-middle tokens\."),
    Rule(CHAT, r"chat_template is refused: this server was started without --trust-request-chat-template\."),
    Rule(CHAT, r"thinking_token_budget: this server does not know how the model marks its reasoning; .*"),
    # Whether a schema, a regex or a grammar can be followed is known when it has been compiled.
    Rule(rf"{GENERATING}|{RESPONSES}|{MESSAGES}", r"\S+ cannot be used: .*"),
    # A field of a form may come several times, and the form has no more than so many in all.
    Rule(r"/v1/files", r"The form cannot be read: Too many fields\. .*"),
    # What is stored: a response that was created in another way, a name that is no item of a list.
    Rule(r"/v1/responses/\{response_id\}", r"\S+ cannot be streamed: .*"),
    Rule(r"/v1/responses/\{response_id\}/cancel", r"\S+ was not created with background\."),
    Rule(r"/v1/(responses|conversations)/\{\w+\}/(input_)?items", r"after is .*, which is no item of the list\."),
    Rule(r"/v1/messages/batches/\{batch_id\}(/results)?", r"The batch .* has not ended.*"),
    Rule(r"/v1/audio/(transcriptions|translations)", r".* transcribes no sound\."),
]


@schemathesis.check
def refuses_only_what_no_schema_can_say(_: Any, response: Any, case: Any) -> None:
    """schemathesis's positive_data_acceptance, but for the rows of BEYOND_SCHEMAS."""
    is_right = case.meta is not None and case.meta.generation.mode.is_positive
    if not is_right or not 400 <= response.status_code < 500 or response.status_code in ACCEPTED_STATUSES:
        return
    message = response.json()["error"]["message"]
    is_known = any(
        re.fullmatch(rule.paths, case.path) and re.fullmatch(rule.message, message, re.DOTALL)
        for rule in BEYOND_SCHEMAS
    )
    assert is_known, f"the page allows what is refused: {message}"
