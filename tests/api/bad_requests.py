"""Bad requests: path, body, status and the field that the error names. A row is a request that some client once sent,
or could."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.api.serving import MAX_MODEL_LEN, VOCAB_SIZE

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
INVOKE = "/invocations"
HELLO = [{"role": "user", "content": "hi"}]
Case = tuple[dict[str, Any], str]


class BadRequest(NamedTuple):
    path: str
    body: dict[str, Any]
    status: int
    param: str | None


# Fields of every generation request: each row is sent to both endpoints.
GENERATION: list[Case] = [
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": MAX_MODEL_LEN + 1}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": "all"}, "truncate_prompt_tokens"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
    ({"allowed_token_ids": [VOCAB_SIZE]}, "allowed_token_ids"),
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
    ({"max_tokens": 0}, "max_tokens"),
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
    ({"logit_bias": {str(VOCAB_SIZE): 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 400: 1}}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(2000)}}, "logit_bias"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": ["a", 5]}, "stop[1]"),
    ({"stop": 5}, "stop"),
    ({"stop": "x" * 2000}, "stop"),
    ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids"),
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
    ({"response_format": {"type": "json_schema", "schema": {}}}, "response_format.schema"),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
    ({"structured_outputs": {"regex": "a+", "choice": ["a"]}}, "structured_outputs"),
    ({"guided_json": {"$ref": "#"}}, "guided_json"),
    ({"guided_regex": "(a+)+\\b"}, "guided_regex"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"prompt_logprobs": 0}, "prompt_logprobs"),
    ({"best_of": 3}, "best_of"),
    ({"use_beam_search": True}, "use_beam_search"),
]

CHAT_ONLY: list[Case] = [
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"chat_template": ["{{ 1 }}"]}, "chat_template"),
    ({"echo": "yes"}, "echo"),
    ({"verbosity": "loud"}, "verbosity"),
    ({"prediction": {}}, "prediction.type"),
    ({"prediction": {"type": "content"}}, "prediction.content"),
    ({"prediction": {"type": "guess", "content": "a"}}, "prediction.type"),
    ({"service_tier": 5}, "service_tier"),
    ({"service_tier": "x" * 33}, "service_tier"),
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
    ({"prompt": "a", "logprobs": 1, "echo": True}, "echo"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "best_of": 2}, "best_of"),
    ({"prompt": "a", "prompt_embeds": "x"}, "prompt_embeds"),
]

OTHERS: list[tuple[str, dict[str, Any], int, str | None]] = [
    *((path, {"input": "a"}, 404, None) for path in ("/v1/audio/speech", "/v1/images/edits", "/v1/moderations")),
    *((path, {}, 404, None) for path in ("/v1/nothing", "/v1/chat", "/v1/completions/1", "/nothing", "/v2/models")),
    *((path, {}, 405, None) for path in ("/v1/models", "/v1/models/fake", "/health", "/ping", "/version", "/metrics")),
    *((path, {}, 405, None) for path in ("/load", "/inventory", "/server_info", "/tokenizer_info", "/openapi.json")),
    (INVOKE, {}, 400, "messages"),
    (INVOKE, {"inputs": "a"}, 400, "messages"),
    (INVOKE, {"messages": []}, 400, "messages"),
    (INVOKE, {"messages": HELLO, "temperature": 3}, 400, "temperature"),
    (INVOKE, {"messages": HELLO, "stream": "no"}, 400, "stream"),
    (INVOKE, {"messages": HELLO, "model": "gpt-9"}, 404, "model"),
    (INVOKE, {"prompt": None}, 400, "prompt"),
    (INVOKE, {"prompt": [1, VOCAB_SIZE]}, 400, "prompt"),
    (INVOKE, {"prompt": "a", "top_p": 2}, 400, "top_p"),
    ("/tokenize", {"messages": HELLO, "chat_template": "{{ 1 }}"}, 400, "chat_template"),
    ("/tokenize", {"messages": HELLO, "chat_template": 1}, 400, "chat_template"),
    ("/tokenize", {"messages": [{"role": "king", "content": "a"}]}, 400, "messages[0].role"),
    ("/tokenize", {"messages": HELLO, "chat_template_kwargs": []}, 400, "chat_template_kwargs"),
    ("/tokenize", {"prompt": 5}, 400, "prompt"),
    ("/tokenize", {"prompt": ""}, 400, "prompt"),
    ("/tokenize", {"prompt": "a", "add_special_tokens": "no"}, 400, "add_special_tokens"),
    ("/tokenize", {"prompt": "a", "return_token_strs": 1}, 400, "return_token_strs"),
    ("/detokenize", {"tokens": [1.5]}, 400, "tokens[0]"),
    ("/detokenize", {"tokens": [VOCAB_SIZE]}, 400, "tokens"),
    ("/detokenize", {"tokens": [1], "model": "gpt-9"}, 404, "model"),
    ("/start_profile", {}, 409, None),
    ("/stop_profile", {}, 409, None),
    (CHAT, {"model": "gpt-9", "messages": HELLO}, 404, "model"),
    (TEXT, {"model": "gpt-9", "prompt": "a"}, 404, "model"),
    ("/tokenize", {}, 400, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": HELLO}, 400, "prompt"),
    ("/tokenize", {"messages": []}, 400, "messages"),
    ("/tokenize", {"model": "other", "prompt": "a"}, 404, "model"),
    ("/detokenize", {}, 400, "tokens"),
    ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
    ("/detokenize", {"tokens": [10**9]}, 400, "tokens"),
    ("/detokenize", {"tokens": "abc"}, 400, "tokens"),
]

BAD_REQUESTS = [
    *(
        BadRequest(CHAT, {"messages": HELLO, "max_tokens": 1} | body, 400, param)
        for body, param in GENERATION + CHAT_ONLY
    ),
    *(BadRequest(TEXT, {"prompt": "a", "max_tokens": 1} | body, 400, param) for body, param in GENERATION + TEXT_ONLY),
    *(BadRequest(*row) for row in OTHERS),
]
