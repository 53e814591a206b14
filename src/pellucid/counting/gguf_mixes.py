"""The mixes of llama.cpp's quantiser, by which GGUF files are named: which block type each matrix has.

    Q4_K_M    q4_k for most; q6_k for the head, and for values and the feed-forward part's way out in the layers where `more` is true

From llama.cpp, src/llama-quant.cpp (`llama_tensor_get_type_impl` and `tensor_type_fallback`); its quantiser judges them in the tests.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pellucid.checkpoint.gguf.tensor_names import QKV, TABLES
from pellucid.checkpoint.gguf.written_model import OF_FAMILY
from pellucid.config import Attention, Config, Moe
from pellucid.counting.bill import Counted
from pellucid.counting.distinct import PLACE
from pellucid.errors import UseError
from pellucid.families.quantisation import in_blocks

ByLayer = Callable[[int, int], str]  # (the layer's number, how many there are) -> a block type


def more(layer: int, layers: int) -> bool:
    """True in the first and the last eighth of the layers, and in every third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


@dataclass(frozen=True)
class Mix:
    """A mix. plain: the type of most matrices.  value, out: of attention's v and o.  down: of the feed-forward part's way out.

    eight: the type of o in a model of eight experts.  head: that of the head, and of a table that is also the head.
    """

    plain: str
    value: ByLayer | None = None
    down: ByLayer | None = None
    out: str | None = None
    eight: str | None = None
    head: str = "q6_k"


def rising(most: str, some: str) -> ByLayer:
    return lambda layer, layers: most if more(layer, layers) else some


MIXES = {
    "q3_k_s": Mix("q3_k", eight="q5_k"),
    "q3_k_m": Mix(
        "q3_k",
        lambda layer, _: "q5_k" if layer < 2 else "q4_k",
        lambda layer, layers: "q5_k" if layer < layers // 16 else "q4_k",
        "q4_k",
        "q5_k",
    ),
    "q3_k_l": Mix("q3_k", lambda *_: "q5_k", lambda *_: "q5_k", "q5_k"),
    "q4_k_s": Mix(
        "q4_k",
        lambda layer, _: "q5_k" if layer < 4 else "q4_k",
        lambda layer, layers: "q5_k" if layer < layers // 8 else "q4_k",
        eight="q5_k",
    ),
    "q4_k_m": Mix("q4_k", rising("q6_k", "q4_k"), rising("q6_k", "q4_k"), eight="q5_k"),
    "q5_k_s": Mix("q5_k"),
    "q5_k_m": Mix("q5_k", rising("q6_k", "q5_k"), rising("q6_k", "q5_k")),
    "q4_0": Mix("q4_0"),
    "q8_0": Mix("q8_0", head="q8_0"),
}
# of rows that are no whole blocks of 256 numbers: a type of blocks of 32
SMALLER = {"q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
SMALL = 32


@dataclass(frozen=True)
class MixedTypes:
    """The block types of one model's matrices in a mix. fused: q, k and v are one matrix in its files."""

    mix: Mix
    layers: int
    experts: int
    seventy: bool  # llama.cpp's name of 80 layers of llama or qwen2 with grouped keys: values have a bit more
    fused: bool
    tied: bool

    def apart(self, layer: int) -> object:
        """Return what tells a layer from others of its kind: the types that its number decides."""
        return tuple(None if rule is None else rule(layer, self.layers) for rule in (self.mix.value, self.mix.down))

    def form(self, c: Counted) -> str:
        """Return the type of one weight, "" if it stays in float32."""
        if not c.weight.parameter or c.part == "norms" or not in_blocks(c.path, c.weight.shape):
            return ""
        path, part, columns = c.path, c.part, c.weight.shape[-1]
        kind = self.wanted(path, part)
        if columns % 256 and kind in SMALLER:
            kind = "q8_0" if part == "head" or (part == "embed" and self.tied) else SMALLER[kind]
        return kind if columns % SMALL == 0 else "float16"

    def wanted(self, path: str, part: str) -> str:
        """Return the type of a matrix whose rows are whole blocks."""
        mix, match = self.mix, PLACE.fullmatch(path)
        if match is None:
            return mix.head if part == "head" or (part == "embed" and self.tied) else mix.plain
        layer, name = int(match["number"]), match["rest"].removesuffix(".weight").rpartition(".")[2]
        if ".attn." in path and (name == "v" or (self.fused and name in ("q", "k"))):
            kind = mix.plain if mix.value is None else mix.value(layer, self.layers)
            kind = "q5_k" if self.seventy and kind in ("q3_k", "q4_k") else kind
            return "q8_0" if self.experts == 8 else kind
        if ".attn." in path and name in ("k", "o"):
            eight = "q8_0" if name == "k" else mix.eight
            return (eight if self.experts == 8 else mix.out if name == "o" else None) or mix.plain
        return mix.plain if name != "down" or mix.down is None else mix.down(layer, self.layers)


def mixed(cfg: Config, family: str, name: str) -> MixedTypes | None:
    """Return the block types of a model in the mix `name`, None if that is no mix. A UseError for a model without a GGUF file."""
    if name not in MIXES:
        return None
    first = cfg.layers[0].attn
    attends = all(isinstance(layer.attn, Attention) and layer.second is None for layer in cfg.layers)
    if family not in OF_FAMILY or not isinstance(first, Attention) or not attends:
        raise UseError("count.mix", name=name, found=family)
    experts = max((layer.ffn.experts for layer in cfg.layers if isinstance(layer.ffn, Moe)), default=0)
    kind, layers = OF_FAMILY[family], len(cfg.layers)
    seventy = layers == 80 and (kind == "qwen2" or (kind == "llama" and first.kv_heads != first.heads))
    return MixedTypes(MIXES[name], layers, experts, seventy, QKV in TABLES[kind](cfg), cfg.tied)
