"""MLA's two forms, expanded and absorbed: the work of each in a run, and the matrices and the cache of a catalogue's model."""

from dataclasses import dataclass

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
    return sum(numbers_on_the_way(run, z) * z.value.element_size() for z in run if z.step == step and z.path.endswith(".attn.z"))


def numbers_on_the_way(run: Trace, z: Seen) -> int:
    """Return how many numbers the op that made z, a record of a run, made on its way."""
    attn = z.path.removesuffix(".z")
    if z.settings["form"] == "expanded":
        made: list[int] = [run.all(f"{attn}.{name}")[z.step].value.numel() for name in ("k", "v")]
        return sum(made)
    _, rows, heads, _ = z.shape
    latent: int = run.all(f"{attn}.latent")[z.step].shape[-1]
    return 2 * rows * heads * latent


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
