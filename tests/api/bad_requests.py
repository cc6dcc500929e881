"""Bad requests to what generates: path, body, status and the field that the error names.

A row is a request that some client once sent, or could. Those to other endpoints: `bad_endpoints.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.api.serving import MAX_MODEL_LEN, VOCAB_SIZE

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]
Case = tuple[dict[str, Any], str]


class BadRequest(NamedTuple):
    path: str
    body: dict[str, Any]
    status: int
    param: str | None


# Fields of every generation request: each row is sent to both endpoints. Those past the sizes of the fake model, and
# those that no model takes.
PAST_SIZES: list[Case] = [
    ({"truncate_prompt_tokens": MAX_MODEL_LEN + 1}, "truncate_prompt_tokens"),
    ({"allowed_token_ids": [VOCAB_SIZE]}, "allowed_token_ids"),
    ({"logit_bias": {str(VOCAB_SIZE): 1}}, "logit_bias"),
    ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids"),
    ({"logprob_token_ids": [VOCAB_SIZE]}, "logprob_token_ids"),
]
GENERATION: list[Case] = [
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": "all"}, "truncate_prompt_tokens"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
    ({"allowed_token_ids": [1] * 9000}, "allowed_token_ids"),
    ({"allowed_token_ids": [1], "guided_regex": "a"}, "allowed_token_ids"),
    ({"bad_words": "a"}, "bad_words"),
    ({"bad_words": [""]}, "bad_words[0]"),
    ({"bad_words": ["a"] * 129}, "bad_words"),
    ({"bad_words": ["a"], "response_format": {"type": "json_object"}}, "bad_words"),
    ({"bad_words": ["a"], "allowed_token_ids": [1]}, "bad_words"),
    ({"return_tokens_as_token_ids": 1}, "return_tokens_as_token_ids"),
    ({"model": 5}, "model"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 10**400}, "n"),
    ({"top_k": 10**400}, "top_k"),
    ({"seed": 10**400}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"temperature": 10**400}, "temperature"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"five": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 400: 1}}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(2000)}}, "logit_bias"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": ["a", 5]}, "stop[1]"),
    ({"stop": 5}, "stop"),
    ({"stop": "x" * 2000}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stop_token_ids": list(range(129))}, "stop_token_ids"),
    ({"priority": 2**40}, "priority"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": "s" * 129}, "cache_salt"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"functions": [{}]}, "functions"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_object", "schema": 5}}, "response_format.schema"),
    ({"response_format": {"type": "json_schema", "schema": {}}}, "response_format.json_schema"),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
    ({"structured_outputs": {"regex": "a+", "choice": ["a"]}}, "structured_outputs"),
    ({"guided_json": {"$ref": "#"}}, "guided_json"),
    ({"guided_regex": "(a+)+\\b"}, "guided_regex"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": True}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"logprob_token_ids": [1]}, "logprob_token_ids"),
    ({"logprob_token_ids": []}, "logprob_token_ids"),
    ({"logprob_token_ids": [1] * 129}, "logprob_token_ids"),
    ({"best_of": 2}, "best_of"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"length_penalty": 2.0}, "length_penalty"),
    ({"early_stopping": True}, "early_stopping"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": "1s"}, "timeout"),
]

CHAT_ONLY: list[Case] = [
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"chat_template": ["{{ 1 }}"]}, "chat_template"),
    ({"echo": "yes"}, "echo"),
    ({"documents": [{"text": "a"}]}, "documents"),  # its chat template knows none
    ({"documents": ["a"]}, "documents[0]"),
    ({"include_reasoning": "yes"}, "include_reasoning"),
    ({"thinking_token_budget": -2}, "thinking_token_budget"),
    ({"thinking_token_budget": 5}, "thinking_token_budget"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice.allowed_tools.mode"),
    ({"verbosity": "loud"}, "verbosity"),
    ({"prediction": {}}, "prediction.type"),
    ({"prediction": {"type": "content"}}, "prediction.content"),
    ({"prediction": {"type": "guess", "content": "a"}}, "prediction.type"),
    ({"service_tier": 5}, "service_tier"),
    ({"service_tier": "x" * 33}, "service_tier"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "king", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [*HELLO, {"role": "user", "content": 5}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
    ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call"),
    ({"messages": [{"role": "user", "content": "refuse me"}]}, "messages"),
    ({"messages": [{"role": "user", "content": "x" * MAX_MODEL_LEN}]}, "messages"),
    ({"messages": [{"role": "user", "content": "x" * 2**20}]}, "messages"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"logprobs": 5}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
    ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
    ({"tools": [{"type": "custom", "custom": {"name": "a b"}}]}, "tools[0].custom.name"),
    ({"tools": [{"type": "custom", "custom": {"name": "a", "format": {}}}]}, "tools[0].custom.format.type"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]}, "messages[0].tool_calls[0].custom"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),  # its chat template knows none
]

TEXT_ONLY: list[Case] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": [["a"]]}, "prompt[0][0]"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": [[1], []]}, "prompt[1]"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [1, VOCAB_SIZE]}, "prompt"),
    ({"prompt": [[1], [10**400]]}, "prompt[1][0]"),
    ({"prompt": [1] * MAX_MODEL_LEN}, "prompt"),
    ({"prompt": ["a"] * 2049}, "prompt"),
    ({"prompt": "a", "logprobs": 21}, "logprobs"),
    ({"prompt": "a", "logprobs": -1}, "logprobs"),
    ({"prompt": "a", "max_tokens": 0, "min_tokens": 1}, "min_tokens"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),  # its tokenizer has no tokens for that
    ({"prompt": "a", "suffix": 5}, "suffix"),
    ({"prompt": "a", "suffix": "b", "echo": True}, "echo"),
    ({"prompt": "a", "prompt_embeds": "x"}, "prompt_embeds"),
]

# Of Anthropic's API, whose errors have no field for the name: their message begins with it.
MESSAGES = "/v1/messages"
NAMED: list[Case] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens"),
    ({"model": None}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].source"),
    ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].source"),
    ({"messages": [{"role": "user", "content": [{"type": "container_upload"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].input"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"system": 5}, "system"),
    ({"temperature": 1.5}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"stop_sequences": ["a"] * 5}, "stop_sequences"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 8}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "deep"}}, "thinking.type"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
    ({"tools": [{"name": "a", "input_schema": {}}]}, "tools"),  # its chat template knows none
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"mcp_servers": [{}]}, "mcp_servers"),
    ({"compaction": {"type": "enabled"}}, "compaction"),
    ({"thread": {"type": "create"}}, "thread"),
    ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management.edits[0].type"),
    ({"context_management": {"edits": [{}]}}, "context_management.edits[0].type"),
    ({"stream": "yes"}, "stream"),
]

OF_GENERATION = [
    *(
        BadRequest(CHAT, {"messages": HELLO, "max_tokens": 1} | body, 400, param)
        for body, param in PAST_SIZES + GENERATION + CHAT_ONLY
    ),
    *(
        BadRequest(TEXT, {"prompt": "a", "max_tokens": 1} | body, 400, param)
        for body, param in PAST_SIZES + GENERATION + TEXT_ONLY
    ),
]
