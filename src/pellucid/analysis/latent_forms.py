"""MLA's two forms, expanded and absorbed: the work of each in a run, and the matrices and the cache of a catalogue's model."""

from dataclasses import dataclass
from math import prod

from pellucid.api.count import billed, described
from pellucid.counting import Bill
from pellucid.tracing import Trace
from pellucid.watching.records import Seen


def attention_work(run: Trace, step: int) -> int:
    """Return the FLOPs of all blocks' attention ops in a step: scores, sums of values, and what grows from the latent."""
    return sum(s.flops or 0 for s in run if s.step == step and s.path.endswith(".attn.z"))


def grown_bytes(run: Trace, step: int) -> int:
    """Return the bytes that all blocks make on the way in a step and drop after it, in the run's dtype.

    Expanded: the keys and values of all heads, of every token in the cache.  Absorbed: the moved queries, and the sums of latents, of the
    new tokens alone.
    """
    outputs = (z for z in run if z.step == step and z.path.endswith(".attn.z"))
    return sum(prod(one.sizes) * z.value.element_size() for z in outputs for one in stages_of(run, z) if one.grown)


@dataclass(frozen=True)
class FormStage:
    """A stage of attention over latents. name: what it computes.  sizes: of its tensor.  grown: it is made on the way and dropped."""

    name: str
    sizes: tuple[int, ...]
    grown: bool = False

    @property
    def shape(self) -> str:
        """Return the sizes as a text, "6 × 4 × 40"."""
        return " × ".join(map(str, self.sizes))


def stages(run: Trace, step: int) -> list[FormStage]:
    """Return the stages of block 0's attention in a step of a run of one text, by the form that it took."""
    return stages_of(run, run.all("layers.0.attn.z")[step])


def stages_of(run: Trace, z: Seen) -> list[FormStage]:
    """Return the stages of the op that made z, a record of a run of one text. The first is what the cache keeps."""
    attn = z.path.removesuffix(".z")
    k, v, latent, shared = (run.all(f"{attn}.{name}")[z.step].shape for name in ("k", "v", "latent", "k_shared"))
    (_, kept, heads, key), value, narrow, rotary, rows = k, v[-1], latent[-1], shared[-1], z.shape[1]
    cache, out = FormStage("c^KV ; k^R", (kept, narrow + rotary)), (rows, heads, value)
    if z.settings["form"] == "expanded":
        return [
            cache,
            FormStage("k^C = W^UK · c^KV", (kept, heads, key), True),
            FormStage("v^C = W^UV · c^KV", (kept, heads, value), True),
            FormStage("q^C · k^C + q^R · k^R", (heads, rows, kept)),
            FormStage("o = Σ softmax · v^C", out),
        ]
    return [
        cache,
        FormStage("q' = W^UKᵀ · q^C", (rows, heads, narrow), True),
        FormStage("q' · c^KV + q^R · k^R", (heads, rows, kept)),
        FormStage("c' = Σ softmax · c^KV", (rows, heads, narrow), True),
        FormStage("o = W^UV · c'", out),
    ]


def stored_bytes(run: Trace, step: int) -> int:
    """Return the bytes that all blocks have in the cache after a step: latents and shared keys, in the run's dtype."""
    kept = [s.value for s in run if s.step <= step and s.path.endswith((".attn.latent", ".attn.k_shared"))]
    return sum(x.numel() * x.element_size() for x in kept)


@dataclass(frozen=True)
class LatentSizes:
    """A model's MLA. matrices: {name: (numbers in, numbers out)} of a block.  stored: bytes of a token in the cache.

    heads: bytes of a token if each head kept keys and values of its own.
    """

    matrices: dict[str, tuple[int, int]]
    stored: int
    heads: int


def latent_sizes(name: str) -> LatentSizes:
    """Count MLA in a model of the catalogue, in bfloat16."""
    family, cfg = described(name)
    return sizes_of(billed(cfg, family, name))


def sizes_of(bill: Bill) -> LatentSizes:
    """Read the sizes of MLA off a bill."""
    prefix, end = "layers.0.attn.", ".weight"
    own = [c for c in bill.weights if c.path.startswith(prefix) and c.path.endswith(end) and len(c.weight.shape) == 2]
    matrices = {c.path.removeprefix(prefix).removesuffix(end): (c.weight.shape[1], c.weight.shape[0]) for c in own}
    return LatentSizes(matrices, int(bill["cache.bytes_per_token"]), int(bill["cache.uncompressed_bytes_per_token"]))
