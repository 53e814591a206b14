"""How a byte-level tokenizer cuts a text into words, by llama.cpp's names for it: the pre-tokenizer of a tokenizer.json.

The regular expressions are those of tokenizer/patterns.py, so that a file read from GGUF encodes in this process.
"""

from typing import Any

from pellucid.tokenizer.patterns import CJK, DEEPSEEK, GPT4, GPT4O, QWEN2, TEKKEN

Spec = dict[str, Any]


def split(*patterns: str) -> Spec:
    """Return the pre-tokenizer that cuts at each match, one expression after the other, and then writes bytes as letters."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    cuts: list[Spec] = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    return {"type": "Sequence", "pretokenizers": [*cuts, level]}


GPT2: Spec = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS: Spec = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, GPT2]}
PRE: dict[str, Spec] = {
    "gpt-2": GPT2,
    "llama-bpe": split(GPT4),
    "qwen2": split(QWEN2),
    "deepseek-r1-qwen": split(QWEN2),
    "gpt-4o": split(GPT4O),
    "llama4": split(GPT4O),
    "tekken": split(TEKKEN),
    "glm4": split(GPT4),
    "chatglm-bpe": split(GPT4),
    "deepseek-v3": split(r"\p{N}{1,3}", CJK, DEEPSEEK),
    "smollm": DIGITS,
}
PRE |= {"llama3": PRE["llama-bpe"], "llama-v3": PRE["llama-bpe"], "gpt2": GPT2}
IGNORE_MERGES = {"llama-bpe", "llama3", "llama-v3", "tekken", "glm4"}  # a word that is a token needs no merges
NORMALIZED = {"qwen2", "deepseek-r1-qwen"}  # by Unicode's NFC, in the models' own tokenizers
BEGUN = {"llama-bpe", "llama3", "llama-v3", "tekken"}  # texts begin with bos where a file says nothing
