"""Bad requests to all endpoints, as in `bad_requests.py`.

Those that encode have more in `test_embeddings.py`, on a model that does.
"""

from __future__ import annotations

from typing import Any

from tests.api.bad_requests import CHAT, HELLO, OF_GENERATION, TEXT, BadRequest, Case
from tests.api.serving import MAX_MODEL_LEN, VOCAB_SIZE

INVOKE = "/invocations"
RESPONSES, BATCHES, CONVERSATIONS = "/v1/responses", "/v1/batches", "/v1/conversations"
CONVERSATION = f"{CONVERSATIONS}/{{conversation_id}}"
LOAD, UNLOAD, ABORT = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/admin/abort-request"
ENCODING = ("/v1/embeddings", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank")
WITHOUT = ("input", "input", "input", "text_1", "text_1", "query", "query", "query")  # the first field that each needs
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}

OF_RESPONSES: list[Case] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [{"role": "king", "content": "a"}]}, "input[0].role"),
    ({"input": [{"content": "a"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"type": "item_reference"}]}, "input[0].id"),
    ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type"),
    ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f"}]}, "input[0].input"),
    ({"input": [{"type": "compaction"}]}, "input[0].encrypted_content"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
    ({"input": "x" * MAX_MODEL_LEN}, "input"),
    ({"input": "refuse me"}, "input"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"include": ["nothing"]}, "include[0]"),
    ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ({"conversation": 3}, "conversation"),
    ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"moderation": {"model": "a"}}, "moderation"),
    ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"background": True, "store": False}, "store"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
    ({"truncation": "some"}, "truncation"),
    ({"stream": "yes"}, "stream"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "namespace", "description": "a", "tools": [TOOL]}]}, "tools[0].name"),
    ({"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "mcp"}]}]}, "tools[0].tools[0].type"),
    ({"tools": [TOOL | {"tools": [TOOL]}]}, "tools[0].tools"),
    ({"tools": [TOOL]}, "tools"),  # its chat template knows none
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"minItems": -1}}}}, "text.format.schema"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
    ({"n": 2}, "n"),
    ({"messages": []}, "messages"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"top_k": -2}, "top_k"),
    ({"best_of": 2}, "best_of"),
]

OF_BATCHES: list[Case] = [
    ({"input_file_id": None}, "input_file_id"),
    ({"input_file_id": 5}, "input_file_id"),
    ({"input_file_id": "f" * 257}, "input_file_id"),
    ({"endpoint": None}, "endpoint"),
    ({"endpoint": 5}, "endpoint"),
    ({"endpoint": "/v1/moderations"}, "endpoint"),
    ({"endpoint": "/v1/messages/batches"}, "endpoint"),
    ({"completion_window": None}, "completion_window"),
    ({"completion_window": 24}, "completion_window"),
    ({"completion_window": "soon"}, "completion_window"),
    ({"completion_window": "999d"}, "completion_window"),
    ({"metadata": {"a": 5}}, "metadata.a"),
    ({"metadata": []}, "metadata"),
    ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after.seconds"),
    ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after.anchor"),
]

OF_ITEMS: list[Case] = [
    ({"items": [{"type": "message", "content": "a"}]}, "items[0].role"),
    ({"items": [{"role": "user", "content": "a"}, {"type": "web_search_call"}]}, "items[1].type"),
    ({"items": [{"type": "item_reference", "id": "msg_1"}]}, "items[0].type"),
    ({"items": [{"role": "user", "content": "a"}] * 21}, "items"),
    ({"items": 5}, "items"),
]

OF_ADAPTERS: list[Case] = [
    ({"lora_name": None}, "lora_name"),
    ({"lora_name": ""}, "lora_name"),
    ({"lora_name": 5}, "lora_name"),
    ({"lora_name": "n" * 5000}, "lora_name"),
    ({"lora_nome": "a"}, "lora_nome"),
]

OF_ABORTS: list[Case] = [
    ({}, "request_id"),
    ({"request_id": ""}, "request_id"),
    ({"request_id": 5}, "request_id"),
    ({"request_id": "x" * 129}, "request_id"),
    ({"request_id": "a", "all": True}, "all"),
]

TEXTS: dict[str, Any] = {"input": "a", "text_1": "a", "text_2": "b", "query": "a", "documents": ["a"]}
OTHERS: list[tuple[str, dict[str, Any], int, str | None]] = [
    *((path, TEXTS, 400, "model") for path in ENCODING),  # the fake model encodes nothing
    *((path, TEXTS | {"model": "gpt-9"}, 404, "model") for path in ENCODING),
    *((path, {}, 400, param) for path, param in zip(ENCODING, WITHOUT, strict=True)),
    (RESPONSES, {"input": "a", "model": "gpt-9"}, 404, "model"),
    (RESPONSES, {"input": "a", "previous_response_id": "resp_1"}, 404, "previous_response_id"),
    (RESPONSES, {"input": "a", "conversation": "conv_1"}, 404, "conversation"),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "msg_1"}]}, 404, "input[0].id"),
    *((f"{RESPONSES}/{path}", {}, 400, "input") for path in ("input_tokens", "compact")),
    *((f"{RESPONSES}/{path}", {"input": 5}, 400, "input") for path in ("input_tokens", "compact")),
    (f"{RESPONSES}/compact", {"input": "a", "model": "gpt-9"}, 404, "model"),
    *((path, {"metadata": {"a": 1}}, 400, "metadata.a") for path in (CONVERSATIONS, CONVERSATION)),
    (CONVERSATION, {}, 400, "metadata"),
    (CONVERSATION, {"metadata": {}}, 404, "conversation_id"),
    (f"{CONVERSATION}/items", {"items": []}, 404, "conversation_id"),
    (f"{RESPONSES}/resp_1/cancel", {}, 404, "response_id"),
    (BATCHES, {"input_file_id": "a", "endpoint": CHAT, "completion_window": "1d"}, 404, "input_file_id"),
    (f"{BATCHES}/batch_1/cancel", {}, 404, "batch_id"),
    ("/v1/files", {"purpose": "batch"}, 415, None),
    (LOAD, {"lora_name": "a"}, 400, "lora_path"),
    (LOAD, {"lora_name": "a", "lora_path": ""}, 400, "lora_path"),
    (LOAD, {"lora_name": "a", "lora_path": "b"}, 403, None),  # without --allow-runtime-lora-updating
    (UNLOAD, {"lora_name": "a"}, 403, None),
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
    (f"{CHAT}/render", {}, 400, "messages"),
    (f"{CHAT}/render", {"messages": HELLO, "temperature": 3}, 400, "temperature"),
    (f"{CHAT}/render", {"messages": HELLO, "model": "gpt-9"}, 404, "model"),
    (f"{TEXT}/render", {}, 400, "prompt"),
    (f"{TEXT}/render", {"prompt": [1, VOCAB_SIZE]}, 400, "prompt"),
    (f"{TEXT}/render", {"prompt": "a", "top_p": 2}, 400, "top_p"),
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
    *((path, {}, 400, "prompt") for path in ("/completion", "/completions", "/generate")),
    *((path, {"prompt": "a", "n_predict": -2}, 400, "n_predict") for path in ("/completion", "/completions")),
    *((path, {"prompt": "a", "top_p": 2}, 400, "top_p") for path in ("/completion", "/completions", "/generate")),
    *((path, {"prompt": "a", "model": "gpt-9"}, 404, "model") for path in ("/completion", "/completions", "/generate")),
    ("/completion", {"prompt": "a", "seed": -2}, 400, "seed"),
    ("/completion", {"prompt": "a", "response_fields": "content"}, 400, "response_fields"),
    ("/completion", {"prompt": "a", "n_probs": 21}, 400, "n_probs"),
    ("/infill", {}, 400, "input_prefix"),
    ("/infill", {"input_prefix": "a"}, 400, "input_suffix"),
    ("/apply-template", {}, 400, "messages"),
    ("/apply-template", {"messages": [{"role": "king", "content": "a"}]}, 400, "messages[0].role"),
    ("/apply-template", {"messages": HELLO, "model": "gpt-9"}, 404, "model"),
    *((path, {}, 400, "content") for path in ("/embedding", "/embeddings")),
    *((path, {"content": "a"}, 400, "model") for path in ("/embedding", "/embeddings")),
    ("/v2/embed", {}, 400, "texts"),
    ("/v2/embed", {"texts": ["a"]}, 400, "model"),
    ("/chat/completions", {}, 400, "messages"),
    ("/tokenize", {"content": 5}, 400, "content"),
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
    *OF_GENERATION,
    *(BadRequest(RESPONSES, {"input": "a", "max_output_tokens": 1} | body, 400, param) for body, param in OF_RESPONSES),
    *(
        BadRequest(BATCHES, {"input_file_id": "a", "endpoint": CHAT, "completion_window": "1d"} | body, 400, param)
        for body, param in OF_BATCHES
    ),
    *(BadRequest(CONVERSATIONS, body, 400, param) for body, param in OF_ITEMS),
    *(BadRequest(f"{CONVERSATION}/items", body, 400, param) for body, param in OF_ITEMS),
    *(BadRequest(LOAD, {"lora_name": "a", "lora_path": "b"} | body, 400, param) for body, param in OF_ADAPTERS),
    *(BadRequest(UNLOAD, {"lora_name": "a"} | body, 400, param) for body, param in OF_ADAPTERS),
    *(BadRequest(ABORT, body, 400, param) for body, param in OF_ABORTS),
    *(BadRequest(*row) for row in OTHERS),
]

# Of what is stored, by other methods: method, path, status and field.
BAD_PATHS: list[tuple[str, str, int, str]] = [
    ("GET", f"{RESPONSES}/resp_1", 404, "response_id"),
    ("GET", f"{RESPONSES}/resp_1?stream=maybe", 400, "stream"),
    ("GET", f"{RESPONSES}/resp_1?starting_after=-2", 400, "starting_after"),
    ("GET", f"{RESPONSES}/resp_1/input_items", 404, "response_id"),
    ("GET", f"{RESPONSES}/resp_1/input_items?limit=0", 400, "limit"),
    ("GET", f"{RESPONSES}/resp_1/input_items?order=up", 400, "order"),
    ("DELETE", f"{RESPONSES}/resp_1", 404, "response_id"),
    *((method, f"{CONVERSATIONS}/conv_1", 404, "conversation_id") for method in ("GET", "DELETE")),
    *((method, f"{CONVERSATIONS}/conv_1/items/msg_1", 404, "conversation_id") for method in ("GET", "DELETE")),
    ("GET", f"{CONVERSATIONS}/conv_1/items?limit=0", 400, "limit"),
    ("GET", "/v1/files?order=up", 400, "order"),
    ("GET", "/v1/files?limit=0", 400, "limit"),
    ("GET", "/v1/files?after=file-1", 404, "after"),
    ("GET", "/v1/files/file-1", 404, "file_id"),
    ("GET", "/v1/files/file-1/content", 404, "file_id"),
    ("DELETE", "/v1/files/file-1", 404, "file_id"),
    ("GET", f"{BATCHES}?limit=x", 400, "limit"),
    ("GET", f"{BATCHES}?after=batch_1", 404, "after"),
    ("GET", f"{BATCHES}/batch_1", 404, "batch_id"),
    ("GET", "/v1/models/gpt-9", 404, "model"),
]
