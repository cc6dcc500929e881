"""Tools that Anthropic has defined and the client runs: their names, descriptions and schemas.

Source: Anthropic's documentation of each tool. A model that was not trained on a tool reads here how to call it.
"""

from __future__ import annotations

from typing import Any

from ...wire.messages import ClientToolParam

TEXT = {"type": "string"}
INTEGER = {"type": "integer"}
POINT = {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 2}
BOX = {"type": "array", "items": INTEGER, "minItems": 4, "maxItems": 4}
EDITS = ("view", "create", "str_replace", "insert")
POINTING: tuple[str, ...] = ("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click")
POINTING += ("middle_click", "double_click", "screenshot", "cursor_position")
HOLDING = ("left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click")


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _editor(commands: tuple[str, ...], **more: Any) -> dict[str, Any]:
    return _object(
        ("command", "path"),
        command={"type": "string", "enum": list(commands)},
        path=TEXT | {"description": "Absolute path of a file or a directory."},
        file_text=TEXT | {"description": "Content of the new file, for create."},
        old_str=TEXT | {"description": "Text to replace, which must be there exactly once, for str_replace."},
        new_str=TEXT | {"description": "Text that replaces it, or that is inserted."},
        insert_line=INTEGER | {"description": "Line after which to insert, 0 for the beginning, for insert."},
        view_range=POINT | {"description": "First and last line to view, -1 for the end of the file."},
        **more,
    )


def _computer(actions: tuple[str, ...], **more: Any) -> dict[str, Any]:
    return _object(
        ("action",),
        action={"type": "string", "enum": list(actions)},
        coordinate=POINT | {"description": "x and y in pixels."},
        text=TEXT | {"description": "Text to type, or the key or keys to press, such as ctrl+s."},
        **more,
    )


MEMORY = _object(
    ("command",),
    command={"type": "string", "enum": [*EDITS, "delete", "rename"]},
    path=TEXT | {"description": "Path below /memories."},
    file_text=TEXT,
    old_str=TEXT,
    new_str=TEXT,
    insert_line=INTEGER,
    insert_text=TEXT,
    view_range=POINT,
    old_path=TEXT | {"description": "Path to rename, for rename."},
    new_path=TEXT,
)
BASH = _object(
    (),
    command=TEXT | {"description": "The command to run."},
    restart={"type": "boolean", "description": "True restarts the session; then no command is needed."},
)
MOVES: dict[str, Any] = {
    "start_coordinate": POINT,
    "scroll_direction": {"type": "string", "enum": ["up", "down", "left", "right"]},
    "scroll_amount": INTEGER,
    "duration": {"type": "number", "description": "Seconds to hold a key or to wait."},
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "bash_20241022": BASH,
    "bash_20250124": BASH,
    "text_editor_20241022": _editor((*EDITS, "undo_edit")),
    "text_editor_20250124": _editor((*EDITS, "undo_edit")),
    "text_editor_20250429": _editor(EDITS),
    "text_editor_20250728": _editor(EDITS, insert_text=TEXT | {"description": "Text to insert, for insert."}),
    "memory_20250818": MEMORY,
    "computer_20241022": _computer(POINTING),
    "computer_20250124": _computer((*POINTING, *HOLDING), **MOVES),
    "computer_20251124": _computer((*POINTING, *HOLDING, "zoom"), **MOVES, region=BOX),
}
DESCRIPTIONS = {
    "bash": "Run commands in a bash session that lasts; its directory and variables are kept between calls.",
    "text_editor": "View, create and edit text files.",
    "memory": "Store and read files below /memories, which last from one conversation to the next.",
    "computer": "Use a computer's screen, mouse and keyboard.",
}


def function_of(tool: ClientToolParam) -> dict[str, Any]:
    """The tool as a function of chat."""
    description = DESCRIPTIONS[tool.type.rpartition("_")[0]]
    if tool.display_width_px and tool.display_height_px:
        description += f" The screen has {tool.display_width_px} x {tool.display_height_px} pixels."
    if tool.max_characters:
        description += f" At most {tool.max_characters} characters of a file are shown."
    return {"name": tool.name, "description": description, "parameters": SCHEMAS[tool.type]}
