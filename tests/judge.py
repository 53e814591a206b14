"""transformers in float64 throughout, with tiny random weights: what every number of ours is judged by.

Its float32 islands are promoted by rewriting the dtype on its way into torch. Weights are representable in bfloat16, so that a
folder read in any dtype holds the same numbers, and queries and keys are large enough that attention is far from uniform.
"""

import json
import re
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig
from transformers.models.t5.modeling_t5 import T5Attention

from pellucid.checkpoint.fill import fill
from pellucid.checkpoint.folder import Folder
from pellucid.families import Family, understand
from pellucid.model import untied
from pellucid.models import Decoder, EncoderDecoder, build

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


class Promote(TorchFunctionMode):
    """float32 becomes float64 wherever it is named; T5's buckets excepted, which the trained tables took from float32 logarithms."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wider(a: Any) -> Any:
            return torch.float64 if a is torch.float32 else a

        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(wider, args), **{k: wider(v) for k, v in (kwargs or {}).items()})


def _in_float32(distance: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    with torch._C.DisableTorchFunction():
        return _bucket(distance, *args, **kwargs)


_bucket = T5Attention._relative_position_bucket
T5Attention._relative_position_bucket = staticmethod(_in_float32)

LLAMA = {
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
TINY: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 97, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "bos_token_id": 96, "eos_token_id": 96},
    "llama": LLAMA | {"rope_theta": 5e5},
    "qwen3": LLAMA | {"head_dim": 16},
    "deepseek_v3": LLAMA
    | {
        "moe_intermediate_size": 16,
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
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
    },
    "t5": {
        "vocab_size": 97,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_decoder_layers": 3,
        "num_heads": 4,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 16,
    },
    "gpt_oss": LLAMA
    | {
        "intermediate_size": 16,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
    },
}
FAMILIES = list(TINY)

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
DEEP_YARN = YARN | {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}
QUIRKS: dict[str, dict[str, dict[str, Any]]] = {
    "gpt2": {
        "plain": {},
        "narrow relu": {"n_inner": 40, "activation_function": "relu"},
        "own head": {"tie_word_embeddings": False},
        "scale falls": {"scale_attn_by_inverse_layer_idx": True, "n_layer": 3},
        "no scale": {"scale_attn_weights": False, "activation_function": "gelu", "layer_norm_epsilon": 1e-2},
    },
    "llama": {
        "plain": {},
        "biases": {"attention_bias": True, "mlp_bias": True},
        "tied, one kv head": {"tie_word_embeddings": True, "num_key_value_heads": 1, "hidden_act": "gelu_pytorch_tanh"},
        "own head width": {"head_dim": 12, "num_key_value_heads": 4, "rms_norm_eps": 1e-2},
        "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}},
        "llama3": {
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        "yarn": {"head_dim": 16, "rope_parameters": YARN},
        "yarn without truncation": {
            "head_dim": 16,
            "rope_parameters": YARN | {"truncate": False, "beta_fast": 8.0, "attention_factor": 1.3},
        },
    },
    "qwen3": {
        "plain": {},
        "windows by type": {"use_sliding_window": True, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
        "windows from a layer on": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "num_hidden_layers": 3},
        "biases, tied": {"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 1},
        "yarn": {"rope_parameters": YARN, "head_dim": 24},
    },
    "deepseek_v3": {
        "plain": {},
        "no query rank": {"q_lora_rank": None},
        "yarn": {"rope_parameters": DEEP_YARN},
        "yarn, two mscales": {"rope_parameters": DEEP_YARN | {"mscale": 0.7}},
        "one group": {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 3},
        "shares not normalised": {"norm_topk_prob": False, "routed_scaling_factor": 1.5},
        "no shared expert": {"n_shared_experts": 0},
        "two shared experts": {"n_shared_experts": 2, "tie_word_embeddings": True},
        "halves turn": {"rope_interleave": False},
        "biases": {"attention_bias": True, "rms_norm_eps": 1e-2},
        "all dense": {"first_k_dense_replace": 3},
    },
    "t5": {
        "plain": {},
        "v1.1, own head": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        "not scaled": {"tie_word_embeddings": False, "num_decoder_layers": 1},
        "gelu, as deep": {"feed_forward_proj": "gelu", "num_decoder_layers": None, "layer_norm_epsilon": 1e-2},
        "gated silu": {"feed_forward_proj": "gated-silu", "d_kv": 12},
        "far": {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
    },
    "gpt_oss": {
        "plain": {},
        "yarn without truncation": {"rope_parameters": YARN | {"rope_theta": 150000.0, "truncate": False, "beta_fast": 32.0}},
        "all full": {"layer_types": ["full_attention"] * 2},
        "narrow windows": {"sliding_window": 3, "layer_types": ["sliding_attention"] * 2, "num_experts_per_tok": 4},
        "no biases": {"attention_bias": False, "num_key_value_heads": 4},
    },
}
OWN_HEAD = {("t5", "v1.1, own head")}  # transformers always ties T5's head when it builds one, and unties it when a file has both
CASES = [(f, q) for f in FAMILIES for q in QUIRKS[f]]

SHARP = re.compile(r".*(\b[qk]_proj|q_b_proj|kv_b_proj|c_attn|SelfAttention\.[qk]|EncDecAttention\.[qk]|\b[qk]_norm)\.weight")
SHARPER = {"t5": 1.2}  # it divides no scores by the root of their width
SPREAD = 0.15  # of a weight about its initial value
_folders = tempfile.TemporaryDirectory(prefix="pellucid-judge-")


@dataclass
class Judge:
    """One tiny model of transformers, and the folder that it wrote."""

    family: str
    quirk: str
    hf: Any
    folder: Path
    promoted: bool = True

    def logits(self, *ids: Tensor, **kw: Any) -> Tensor:
        """Its logits, float64 where it is promoted; ids, or source ids and target ids."""
        with Promote() if self.promoted else torch.no_grad(), torch.no_grad():
            return run(self.hf, *ids, **kw)

    @property
    def config(self) -> dict[str, Any]:
        return json.loads((self.folder / "config.json").read_text())


def run(hf: Any, *ids: Tensor, **kw: Any) -> Tensor:
    """transformers' logits of ids, or of source ids and target ids."""
    named = dict(zip(("input_ids", "decoder_input_ids"), ids, strict=False))
    return hf(**named, use_cache=False, **kw).logits


def prompts(family: str, length: int = 37, batch: int = 2, seed: int = 1) -> tuple[Tensor, ...]:
    """Random ids [batch length]; where there is an encoder, sources before them that are 4 shorter."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(97, (batch, length), generator=g)
    return (torch.randint(97, (batch, length - 4), generator=g), ids) if family == "t5" else (ids,)


def make(family: str, quirk: str = "plain", promote: bool = True, **more: Any) -> Judge:
    """A tiny model, every parameter away from its initial 0 or 1, saved as transformers saves it."""
    cfg = AutoConfig.for_model(family, **TINY[family] | QUIRKS[family][quirk] | more)
    cfg._attn_implementation, cfg._experts_implementation = "eager", "eager"
    kind = getattr(transformers, "AutoModelForSeq2SeqLM" if family == "t5" else "AutoModelForCausalLM")
    torch.manual_seed(0)
    with warnings.catch_warnings(), Promote() if promote else torch.no_grad(), torch.no_grad():
        warnings.simplefilter("ignore")  # of torch, where an expert has width 0
        hf = kind.from_config(cfg).double().eval()
        if (family, quirk) in OWN_HEAD:
            hf.lm_head.weight = torch.nn.Parameter(torch.randn_like(hf.lm_head.weight))
        for name, p in [*hf.named_parameters(), *((n, b) for n, b in hf.named_buffers() if "correction" in n)]:
            p += SPREAD * torch.randn_like(p)
            p *= SHARPER.get(family, 2.5) if SHARP.fullmatch(name) else 1.0
            p.copy_(p.bfloat16().double())
    folder = Path(tempfile.mkdtemp(dir=_folders.name))
    hf.save_pretrained(folder)
    return Judge(family, quirk, hf, folder, promote)


@cache
def judge(family: str, quirk: str = "plain") -> Judge:
    """The judge of a case, made once; nobody may change it."""
    return make(family, quirk)


def ours(folder: Path, dtype: torch.dtype = torch.float64, config: dict[str, Any] | None = None) -> tuple[Family, Decoder | EncoderDecoder]:
    """Our model of a folder, read from its files alone. config: instead of config.json's."""
    held = Folder(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        family, cfg = understand(config or held.config, "config.json")
    with torch.device("meta"):
        model = build(untied(family, cfg, held))
    fill(model, family, held, str(folder), dtype)
    return family, model.eval()


def theirs(j: Judge, dtype: torch.dtype) -> Any:
    """transformers' own reading of the same folder in a lesser dtype."""
    how = {"dtype": dtype, "attn_implementation": "eager", "experts_implementation": "eager"}
    kind = getattr(transformers, "AutoModelForSeq2SeqLM" if j.family == "t5" else "AutoModelForCausalLM")
    return kind.from_pretrained(j.folder, **how).eval()


__all__ = ["CASES", "FAMILIES", "QUIRKS", "TINY", "Judge", "Promote", "judge", "make", "ours", "prompts", "run", "theirs"]
