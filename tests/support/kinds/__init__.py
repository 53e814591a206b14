"""One module a family: its tiny model, its quirks, its changes and its refusals. The tests of all families read these.

tiny      the config.json that transformers makes the model from;  quirks: {name: fields that differ}, "plain" among them
dtypes    the quirks that are judged in float32 and bfloat16 too
changes   (quirk, fields): fields of the same shapes with other results, which the comparison must notice
refused   (quirk, fields, words): fields that contradict each other, and words of the error
"""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.families import DASHED

Raw = dict[str, Any]

LLAMA: Raw = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 128,
}
DEEPSEEK: Raw = LLAMA | {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}
GEMMA: Raw = LLAMA | {"head_dim": 16, "num_hidden_layers": 3, "sliding_window": 8, "query_pre_attn_scalar": 12}
YARN: Raw = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
DEEP_YARN: Raw = YARN | {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}
LLAMA3: Raw = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE: Raw = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.1, 1.3, 1.5, 1.6, 1.8, 2.0],
    "long_factor": [1.0, 1.2, 1.9, 3.5, 6.0, 11.0, 17.0, 24.0],
    "original_max_position_embeddings": 32,
}


@dataclass(frozen=True)
class Kind:
    """A family's tiny model, and the settings of its tests.

    task: transformers' class is AutoModelFor<task>.  sharp: the factor of queries' and keys' weights, so that attention is far from
    uniform.  own_head: quirks whose file stores a head that transformers would tie.  silent: a pattern of parameters without effect.
    chooses: a pattern of parameters that only choose, so that a nudge may change nothing.  islands: True if transformers computes a
    part in float32 in every dtype.  attention: transformers' implementation of attention.  reads: fields that it reads, and that are
    harmless in others.  first_row: the number that transformers gives to the first position.  absent: an id that no prompt has.
    """

    tiny: Raw
    quirks: dict[str, Raw]
    dtypes: tuple[str, ...] = ("plain",)
    changes: tuple[tuple[str, Raw], ...] = ()
    refused: tuple[tuple[str, Raw, str], ...] = ()
    task: str = "CausalLM"
    sharp: float = 2.5
    own_head: tuple[str, ...] = ()
    silent: str = r"(?!)"
    chooses: str = r"(?!)"
    islands: bool = True
    attention: str = "eager"
    reads: tuple[str, ...] = ()
    first_row: int = 0
    absent: int = -1


STEMS = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem != "__init__")
KINDS: dict[str, Kind] = {DASHED.get(stem, stem): importlib.import_module(f"kinds.{stem}").KIND for stem in STEMS}
FAMILIES = list(KINDS)
CASES = [(f, q) for f in FAMILIES for q in KINDS[f].quirks]
WRITES = ("CausalLM", "Seq2SeqLM", "ImageTextToText")  # the tasks of models that write; transformers has Mistral 4 under the last alone
SEQ2SEQ = {f for f, kind in KINDS.items() if kind.task == "Seq2SeqLM"}
