"""Fields of published files that transformers' own class lacks: silent if they repeat what is read anyway, else unknown.

falcon-11B     hidden_size 4096, ffn_hidden_size 16384, "ff_factor": 4    repeats what is read
                                                        "ff_factor": 8    contradicts it: refused by name
"""

from collections.abc import Callable
from typing import Any

from pellucid.config import Config

LLAMA_POSITIONS = 2048
GATES = {"swiglu": ("silu", True), "geglu": ("gelu_tanh", True)}  # the activation, and whether there is a gate


def rope_interleaved(value: Any, cfg: Config) -> bool:
    """SmolLM2: True if rotary pairs stand side by side."""
    ropes = [layer.attn.rope for layer in cfg.layers]
    return isinstance(value, bool) and all(rope is None or rope.interleaved == value for rope in ropes)


def activation(value: Any, cfg: Config) -> bool:
    """Falcon3: "swiglu", beside hidden_act "silu"."""
    means = GATES.get(value) if isinstance(value, str) else None
    return means is not None and all(not x.ffn.experts and (x.ffn.act, x.ffn.gated) == means for x in cfg.layers)


def max_sequence_length(value: Any, cfg: Config) -> bool:
    """Read the first conversions of LLaMA: max_position_embeddings, or transformers' default where a file has none."""
    return same(value, cfg.context or LLAMA_POSITIONS)


def sliding_window_size(value: Any, cfg: Config) -> bool:
    """gemma-2-9b: sliding_window."""
    windows = {layer.attn.window for layer in cfg.layers} - {None}
    return len(windows) == 1 and same(value, windows.pop())


def ff_factor(value: Any, cfg: Config) -> bool:
    """falcon-11B: ffn_hidden_size over hidden_size."""
    return type(value) is int and all(not x.ffn.experts and x.ffn.width == value * cfg.width for x in cfg.layers)


def is_llama_config(value: Any, cfg: Config) -> bool:
    """SmolLM2: True, since model_type says that it is Llama's block."""
    return value is True and all(x.attn.kv_heads is not None and not x.ffn.experts and x.order == "pre" for x in cfg.layers)


def same(value: Any, read: int | None) -> bool:
    """True if `value` is an integer equal to `read`."""
    return type(value) is int and value == read


AGREEING: dict[str, Callable[[Any, Config], bool]] = {
    f.__name__: f for f in (rope_interleaved, activation, max_sequence_length, sliding_window_size, ff_factor, is_llama_config)
}


def agrees(name: str, value: Any, cfg: Config) -> bool:
    """True if the field repeats what is read."""
    return name in AGREEING and AGREEING[name](value, cfg)
