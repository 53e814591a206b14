"""Chat templates that write tools and their calls as published models' do, with the tokens that they need, and a reply of each."""

import json
from pathlib import Path
from typing import Any

import torch

from chats import NAMED, chat_spec
from pellucid.api.model import Model, load, make

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
TURNS += "{{ c.function.arguments.city }}{% endfor %}<|im_end|>\n{% endfor %}{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
ASKS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
ARGUMENTS = {"city": "Paris", "days": 3}
WRITTEN = json.dumps(ARGUMENTS)
CALL = {"name": "weather", "arguments": ARGUMENTS}
DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>")

# What a template has beside its turns, and its special tokens.
SOURCES: dict[str, tuple[str, tuple[str, ...]]] = {
    "hermes": ("{# <tool_call> #}", ()),
    "thinking": ("{# <tool_call> <think> #}", ()),
    "llama": ('{# <|start_header_id|> "parameters" #}', ("<|python_tag|>",)),
    "mistral": ("{# [TOOL_CALLS] #}", ("[TOOL_CALLS]",)),
    "mistral 11": ("{# [TOOL_CALLS] [ARGS] #}", ("[TOOL_CALLS]", "[ARGS]")),
    "deepseek": ("{# <｜tool▁calls▁begin｜> ```json #}", DEEPSEEK),
    "deepseek 3.1": ("{# <｜tool▁calls▁begin｜> #}", DEEPSEEK),
    "glm": ("{# <tool_call> <arg_key> #}", ()),
    "harmony": ("{# <|channel|> #}", HARMONY),
}
TWO = f'[{json.dumps(CALL)}, {{"name": "now", "arguments": {{}}}}]'
# A reply with content where its format has room for it, and its calls.
REPLIES: dict[str, tuple[str, str, list[tuple[str, Any]]]] = {
    "hermes": (
        f'Let me see.\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>',
        "Let me see.", [("weather", ARGUMENTS), ("now", {})],
    ),
    "llama": (json.dumps({"name": "weather", "parameters": ARGUMENTS}), "", [("weather", ARGUMENTS)]),
    "mistral": (f"[TOOL_CALLS] {TWO}", "", [("weather", ARGUMENTS), ("now", {})]),
    "mistral 11": (f"Hm. [TOOL_CALLS]weather[ARGS]{WRITTEN}[TOOL_CALLS]now[ARGS]{{}}", "Hm.", [("weather", ARGUMENTS), ("now", {})]),
    "deepseek": (
        (f"I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{WRITTEN}\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
        "I look.", [("weather", ARGUMENTS), ("now", {})],
    ),
    "deepseek 3.1": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{WRITTEN}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "", [("weather", ARGUMENTS)],
    ),
    "glm": (
        ("So.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
        "</tool_call>"), "So.", [("weather", ARGUMENTS)],
    ),
    "harmony": (
        (f"<|channel|>analysis<|message|>They ask.<|end|><|start|>assistant<|channel|>final<|message|>I look.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{WRITTEN}"),
        "I look.", [("weather", ARGUMENTS)],
    ),
}  # fmt: skip


def tool_model(path: Path, kind: str, **shape: Any) -> Model:
    """Return a random Llama of bytes with the template of a kind, saved in a folder and loaded. shape: other fields of its config.json."""
    spec, (source, special) = chat_spec(), SOURCES[kind]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    there = {t["content"] for t in spec["added_tokens"]}
    at = 1 + max(t["id"] for t in spec["added_tokens"])
    spec["added_tokens"] += [{"id": at + i, "content": mark, **flags} for i, mark in enumerate(m for m in special if m not in there)]
    hf = {
        "model_type": "llama", "vocab_size": 1 + max(t["id"] for t in spec["added_tokens"]), "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, **shape,
    }  # fmt: skip
    model, draw = make(hf, dtype=torch.float32), torch.Generator().manual_seed(5)
    for name, p in model.module.named_parameters():
        p.data = torch.randn(p.shape, generator=draw) * 0.3 + (p.ndim == 1 and "norm" in name)
    model.save(path)
    (path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": NAMED["bos"], "eos_token": NAMED["eos"]}), encoding="utf-8")
    thinks = "<think>\n" if kind == "thinking" else ""
    (path / "chat_template.jinja").write_text(source + TURNS + ASKS.replace("assistant\n", f"assistant\n{thinks}"), encoding="utf-8")
    model = load(path)
    model.name = kind
    return model
