"""Chat templates in the shapes that published models have, and conversations for them; tests read them with a vocabulary of their own."""

import copy
from functools import cache
from pathlib import Path
from typing import Any

from vocabularies import spec

Messages = list[dict[str, Any]]

TEMPLATES = {file.stem: file.read_text(encoding="utf-8") for file in sorted((Path(__file__).parent / "templates").glob("*.jinja"))}
MARKS = (
    *("<|im_start|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"),
    *("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "<start_of_turn>", "<end_of_turn>", "<｜User｜>", "<｜Assistant｜>", "<s>", "</s>"),
)
PLAIN_MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")  # added, but not special: as Qwen's files have them

USER = {"role": "user", "content": " What is the capital of France?\n"}
TURNS: Messages = [USER, {"role": "assistant", "content": "Paris. "}, {"role": "user", "content": "日本 and naïve café 🎉?"}]
SYSTEM: Messages = [{"role": "system", "content": "Be brief."}, *TURNS]
THOUGHT: Messages = [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nParis."}, {"role": "user", "content": "Sure?"}]
CONVERSATIONS = {"one": [USER], "turns": TURNS, "system": SYSTEM, "thought": THOUGHT}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "<b>&'é", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALLED: Messages = [
    USER,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "東京"}}}],
    },
    {"role": "tool", "content": "sunny", "name": "weather"},
]


@cache
def _spec() -> dict[str, Any]:
    made = copy.deepcopy(spec("bytes"))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    at = len(made["model"]["vocab"])
    for i, mark in enumerate((*MARKS, *PLAIN_MARKS)):
        made["added_tokens"].append({"id": at + i, "content": mark, "special": mark in MARKS, **flags})
    return made


def chat_spec() -> dict[str, Any]:
    """Return a byte-level tokenizer.json with the marks of all these templates."""
    return copy.deepcopy(_spec())


NAMED = {"bos": "<s>", "eos": "</s>"}
