"""The models that are timed: random weights in published shapes, the same for transformers, us and, of the first two, llama.cpp."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from pellucid import config as c
from pellucid import huge_pages
from pellucid.checkpoint.packing import Packing
from pellucid.errors import UseError
from pellucid.families import understand
from pellucid.families.names import plan
from pellucid.nn.transformer import Decoder

GGUF = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}


def randomised(net: Any, dtype: torch.dtype) -> Any:
    """A model of transformers with no bias and no norm at its starting value, and numbers that bfloat16 holds."""
    for p in net.parameters():
        if p.ndim == 1:
            p.add_(torch.randn_like(p) * 0.1)
        p.data = p.data.bfloat16().to(dtype)
    net.generation_config.eos_token_id = None
    net.generation_config.pad_token_id = 0
    return net


def filled(model: Decoder, state: Mapping[str, Tensor]) -> Decoder:
    """Our model with these numbers, where a folder's would lie, its head tied."""
    held = {k: huge_pages.empty(t.shape, t.dtype).copy_(t) for k, t in state.items()}
    model.load_state_dict({**held, "head.weight": held["embed.weight"]}, assign=True)
    model.head.weight = model.embed.weight
    return model.requires_grad_(False)


class Gpt2:
    """124 million parameters: LayerNorm, biases, learned positions, GELU."""

    name, architecture, vocab, positions = "gpt2", "gpt2", 50257, 1024

    def theirs(self, dtype: torch.dtype) -> Any:
        torch.manual_seed(0)
        return randomised(transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval().requires_grad_(False), dtype)

    def ours(self, net: Any, dtype: torch.dtype) -> Decoder:
        attn, mlp = c.Attention(12, 12, 64, bias=True, out_bias=True), c.Mlp(3072, "gelu_tanh", gated=False, bias=True)
        model = Decoder(c.Config(self.vocab, 768, (c.Layer(attn, mlp),) * 12, True, norm="layer", positions=self.positions))
        w = net.transformer
        state = {"embed.weight": w.wte.weight, "positions.weight": w.wpe.weight, "norm.weight": w.ln_f.weight, "norm.bias": w.ln_f.bias}
        for i, h in enumerate(w.h):
            for kind in ("weight", "bias"):
                parts = {
                    "attn_norm": h.ln_1, "ffn_norm": h.ln_2, "attn.o": h.attn.c_proj, "ffn.up": h.mlp.c_fc, "ffn.down": h.mlp.c_proj,
                }  # fmt: skip
                for name, part in parts.items():
                    state[f"layers.{i}.{name}.{kind}"] = getattr(part, kind)
                for name, third in zip("qkv", getattr(h.attn.c_attn, kind).chunk(3, -1), strict=True):
                    state[f"layers.{i}.attn.{name}.{kind}"] = third
        return filled(model, {k: t.T if t.ndim == 2 and k.startswith("layers") else t for k, t in state.items()})

    def gguf(self, writer: Any) -> None:
        writer.add_layer_norm_eps(1e-5)

    def gguf_tensors(self, model: Any) -> Mapping[str, Tensor]:
        told = {"token_embd.weight": model.embed.weight, "position_embd.weight": model.positions.weight}
        for i, layer in enumerate(model.layers):
            attn = layer.attn
            for kind in ("weight", "bias"):
                told[f"blk.{i}.attn_qkv.{kind}"] = torch.cat([getattr(getattr(attn, n), kind) for n in "qkv"])
                for name, part in {
                    "attn_norm": layer.attn_norm, "ffn_norm": layer.ffn_norm, "attn_output": attn.o, "ffn_up": layer.ffn.up,
                    "ffn_down": layer.ffn.down,
                }.items():  # fmt: skip
                    told[f"blk.{i}.{name}.{kind}"] = getattr(part, kind)
        return {**told, "output_norm.weight": model.norm.weight, "output_norm.bias": model.norm.bias}


class Qwen2:
    """494 million parameters: RMSNorm, rotary positions, two heads of keys for fourteen of queries, gated SiLU, a large vocabulary."""

    name, architecture, positions = "qwen2", "qwen2", 2048
    vocab, width, ffn, layers, heads, kv_heads = 151936, 896, 4864, 24, 14, 2

    def theirs(self, dtype: torch.dtype) -> Any:
        torch.manual_seed(0)
        cfg = transformers.Qwen2Config(
            vocab_size=self.vocab, hidden_size=self.width, intermediate_size=self.ffn, num_hidden_layers=self.layers,
            num_attention_heads=self.heads, num_key_value_heads=self.kv_heads, max_position_embeddings=self.positions, rope_theta=1e6,
            tie_word_embeddings=True,
        )  # fmt: skip
        return randomised(transformers.Qwen2ForCausalLM(cfg).eval().requires_grad_(False), dtype)

    def ours(self, net: Any, dtype: torch.dtype) -> Decoder:
        key = self.width // self.heads
        attn, mlp = c.Attention(self.heads, self.kv_heads, key, c.Rope(key, 1e6), bias=True), c.Mlp(self.ffn)
        with torch.device("meta"):
            model = Decoder(c.Config(self.vocab, self.width, (c.Layer(attn, mlp),) * self.layers, True, 1e-6))
        w = net.model
        state = {"embed.weight": w.embed_tokens.weight, "norm.weight": w.norm.weight}
        for i, h in enumerate(w.layers):
            state |= {
                f"layers.{i}.attn_norm.weight": h.input_layernorm.weight,
                f"layers.{i}.ffn_norm.weight": h.post_attention_layernorm.weight,
            }
            state |= {f"layers.{i}.attn.{n}.{k}": getattr(getattr(h.self_attn, f"{n}_proj"), k) for n in "qkv" for k in ("weight", "bias")}
            state[f"layers.{i}.attn.o.weight"] = h.self_attn.o_proj.weight
            state |= {f"layers.{i}.ffn.{n}.weight": getattr(h.mlp, f"{n}_proj").weight for n in ("gate", "up", "down")}
        return filled(model, state)

    def gguf(self, writer: Any) -> None:
        writer.add_head_count_kv(2)
        writer.add_rope_freq_base(1e6)
        writer.add_layer_norm_rms_eps(1e-6)

    def gguf_tensors(self, model: Any) -> Mapping[str, Tensor]:
        told = {"token_embd.weight": model.embed.weight, "output_norm.weight": model.norm.weight}
        for i, layer in enumerate(model.layers):
            told |= {f"blk.{i}.attn_norm.weight": layer.attn_norm.weight, f"blk.{i}.ffn_norm.weight": layer.ffn_norm.weight}
            told |= {f"blk.{i}.attn_{n}.{k}": getattr(getattr(layer.attn, n), k) for n in "qkv" for k in ("weight", "bias")}
            told[f"blk.{i}.attn_output.weight"] = layer.attn.o.weight
            told |= {f"blk.{i}.ffn_{n}.weight": getattr(layer.ffn, n).weight for n in ("gate", "up", "down")}
        return told


class Qwen35:
    """752 million parameters, Qwen3.5-0.8B's text model: 18 layers of 24 keep a state, the others attend. No GGUF of it is written here."""

    name, architecture, positions, vocab = "qwen3_5", "qwen35", 2048, 248320

    def theirs(self, dtype: torch.dtype) -> Any:
        torch.manual_seed(0)
        cfg = transformers.AutoConfig.for_model(
            "qwen3_5_text", vocab_size=self.vocab, hidden_size=1024, intermediate_size=3584, num_hidden_layers=24, num_attention_heads=8,
            num_key_value_heads=2, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=16, linear_key_head_dim=128,
            linear_value_head_dim=128, tie_word_embeddings=True, max_position_embeddings=self.positions,
        )  # fmt: skip
        return randomised(transformers.AutoModelForCausalLM.from_config(cfg).eval().requires_grad_(False), dtype)

    def ours(self, net: Any, dtype: torch.dtype) -> Decoder:
        family, cfg = understand(net.config.to_dict())
        with torch.device("meta"):
            model = Decoder(cfg)
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        groups, disk, state = plan(family.rules_for(cfg), shapes)[0], net.state_dict(), dict[str, Tensor]()
        for g in groups:
            state |= zip(g.ours, g.layout.read([disk[n] for n in g.disk], [shapes[n] for n in g.ours]), strict=True)
        return filled(model, state)

    def gguf(self, writer: Any) -> None:
        raise UseError("convert.family", found="qwen3_5_text", allowed=", ".join(SHAPES))

    def gguf_tensors(self, model: Any) -> Mapping[str, Tensor]:
        return {}


SHAPES = {shape.name: shape for shape in (Gpt2(), Qwen2(), Qwen35())}


@dataclass(frozen=True)
class WeightFormat:
    """How weights are held, and what dtype they compute in: in int8 and int4 in float32, where their sums end."""

    name: str

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.name == "bfloat16" else torch.float32

    def packed(self, model: Decoder) -> Decoder:
        """The model in blocks, where it is to be."""
        if self.name in ("int8", "int4"):
            Packing(self.name, self.dtype).pack(model, [path for path, _ in model.named_parameters()], "random weights")
            model.head._parameters["weight"] = model.embed._parameters["weight"]
        return model


def gguf_file(shape: Gpt2 | Qwen2 | Qwen35, model: Any, held: str, path: Path) -> None:
    """The same numbers as llama.cpp reads them: matrices as they are held, norms, biases, positions in float32; token i is spelled <i>."""
    import gguf

    cfg, first = model.config, model.config.layers[0]
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_context_length(shape.positions)
    writer.add_embedding_length(cfg.width)
    writer.add_block_count(len(cfg.layers))
    writer.add_feed_forward_length(first.ffn.width)
    writer.add_head_count(first.attn.heads)
    writer.add_vocab_size(cfg.vocab)
    writer.add_tokenizer_model("llama")  # its server spells what it writes
    writer.add_token_list([f"<{i}>" for i in range(cfg.vocab)])
    writer.add_token_scores([0.0] * cfg.vocab)
    writer.add_token_types([gguf.TokenType.USER_DEFINED] * cfg.vocab)
    shape.gguf(writer)
    kind = gguf.GGMLQuantizationType[GGUF[held]]
    for name, t in shape.gguf_tensors(model).items():
        x = t.detach().float().numpy()
        if t.ndim == 1 or held == "float32" or name.startswith("position"):
            writer.add_tensor(name, x)
        else:
            writer.add_tensor(name, gguf.quants.quantize(x, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
