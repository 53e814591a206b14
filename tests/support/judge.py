"""transformers in float64 throughout, with tiny random weights: the judge of every number of ours.

Its float32 islands are promoted by rewriting the dtype on its way into torch. Weights are representable in bfloat16, so that a
folder read in any dtype holds the same numbers, and queries and keys are large enough that attention is far from uniform.
"""

import json
import re
import tempfile
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig

from kinds import CASES, FAMILIES, KINDS, SEQ2SEQ, WRITES
from pellucid.analysis.verify import promoted
from pellucid.checkpoint.fill import fill
from pellucid.checkpoint.folder import Folder
from pellucid.checkpoint.tied import resolve
from pellucid.families import understand
from pellucid.families.family import Family
from pellucid.nn.transformer import Decoder, EncoderDecoder, build

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


SHARP = re.compile(
    r".*(\b[qk]_(proj|lin)|qkv_proj|\b(query|key|query_key_value|positions_embed|embed_positions)|Wqkv|q_b_proj|kv_b_proj|c_attn|\battn\.[qk]|SelfAttention\.[qk]|EncDecAttention\.[qk]|\b[qk]_norm|([qk]|query|key)_layernorm(\.norms\.\d+)?)\.weight"
)
SPREAD = 0.15  # of a weight about its initial value
STORED = ("correction_bias", "expert_bias", "logits_bias", "layer_scalar")  # that no gradient changes, buffers or parameters
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
        """Return its logits, float64 where it is promoted, of ids, or of source ids and target ids."""
        with promoted() if self.promoted else nullcontext(), torch.no_grad():
            return run(self.hf, *ids, **kw)

    @property
    def config(self) -> dict[str, Any]:
        return json.loads((self.folder / "config.json").read_text())


def run(hf: Any, *ids: Tensor, **kw: Any) -> Tensor:
    """Return transformers' logits of ids, or of source ids and target ids."""
    named = dict(zip(("input_ids", "decoder_input_ids"), ids, strict=False))
    return hf(**named, use_cache=False, **kw).logits


def prompts(family: str, length: int = 37, batch: int = 2, seed: int = 1) -> tuple[Tensor, ...]:
    """Return random ids [batch length], and before them sources that are 4 shorter if the family has an encoder."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(97, (batch, length), generator=g)
    ids = ids + (ids == KINDS[family].absent)
    return (torch.randint(97, (batch, length - 4), generator=g), ids) if family in SEQ2SEQ else (ids,)


def make(family: str, quirk: str = "plain", promote: bool = True, **more: Any) -> Judge:
    """Return a tiny model, every parameter away from its initial 0 or 1, saved as transformers saves it."""
    cfg = AutoConfig.for_model(family, **KINDS[family].tiny | KINDS[family].quirks[quirk] | more)
    cfg._attn_implementation, cfg._experts_implementation = KINDS[family].attention, "eager"
    kind = getattr(transformers, f"AutoModelFor{KINDS[family].task}")
    torch.manual_seed(0)
    with warnings.catch_warnings(), promoted() if promote else nullcontext(), torch.no_grad():
        warnings.simplefilter("ignore")  # of torch, where an expert has width 0
        hf = kind.from_config(cfg).double().eval()
        for m in hf.modules():  # Gemma keeps √width in float32
            if hasattr(m, "scalar_embed_scale") and promote:
                m.embed_scale.fill_(m.scalar_embed_scale)
        if quirk in KINDS[family].own_head:
            hf.lm_head.weight = torch.nn.Parameter(torch.randn_like(hf.lm_head.weight))
        learned = ((n, p) for n, p in hf.named_parameters() if p.requires_grad or n.endswith(STORED))
        for name, p in [*learned, *((n, b) for n, b in hf.named_buffers() if n.endswith(STORED))]:
            p += SPREAD * torch.randn_like(p)
            p *= KINDS[family].sharp if SHARP.fullmatch(name) else 1.0
            p.copy_(p.bfloat16().double())
    folder = Path(tempfile.mkdtemp(dir=_folders.name))
    hf.save_pretrained(folder)
    return Judge(family, quirk, hf, folder, promote)


@cache
def judge(family: str, quirk: str = "plain") -> Judge:
    """Return the judge of a case, made once. Tests share it: do not change it."""
    return make(family, quirk)


def ours(folder: Path, dtype: torch.dtype = torch.float64, config: dict[str, Any] | None = None) -> tuple[Family, Decoder | EncoderDecoder]:
    """Return our model of a folder, read from its files alone. config: instead of config.json's."""
    folder_read = Folder(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        family, cfg = understand(config or folder_read.config, "config.json")
    with torch.device("meta"):
        model = build(resolve(family, cfg, folder_read))
    fill(model, family, folder_read, str(folder), dtype)
    return family, model.eval()


def theirs(j: Judge, dtype: torch.dtype) -> Any:
    """Return the model that transformers reads from the same folder in a lesser dtype."""
    how = {"dtype": dtype, "attn_implementation": KINDS[j.family].attention, "experts_implementation": "eager"}
    kind = getattr(transformers, f"AutoModelFor{KINDS[j.family].task}")
    return kind.from_pretrained(j.folder, **how).eval()


__all__ = ["CASES", "FAMILIES", "KINDS", "SEQ2SEQ", "WRITES", "Judge", "judge", "make", "ours", "promoted", "prompts", "run", "theirs"]
