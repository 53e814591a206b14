"""A spec answers for itself: another kind of attention or feed-forward part needs no change where one is only counted, shown or served."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import pellucid
from pellucid import config as c
from pellucid.counting.bill import pairs
from pellucid.counting.variants import with_attention
from pellucid.errors import UseError

ROOT = Path(pellucid.__file__).parent
KINDS = {"Attention", "CrossAttention", "Latent", "Mlp", "GatedMlp", "Moe", "InputWeightedMoe", "SparseMixerMoe"}

ALLOWED = {
    "analysis/catalogue.py": "counts what latent attention would store without its latent",
    "checkpoint/gguf/hybrid_keys.py": "GGUF's keys of hybrids say which layers attend",
    "checkpoint/gguf/selective_keys.py": "GGUF's keys of Jamba say which layers attend",
    "checkpoint/gguf/tensor_names.py": "GGUF's tables of hybrids differ by what mixes the rows of a layer",
    "checkpoint/gguf/written_model.py": "GGUF's keys of a layer differ by its kind",
    "counting/gguf_mixes.py": "llama.cpp's mixes go by the number of experts, and are known of plain attention",
    "counting/variants.py": "makes experts from one MLP",
    "engine/chunk_plans.py": "plain attention alone has a kernel for many rows of several texts",
    "engine/plans.py": "finds the parts whose memories a plan points to",
    "nn/block.py": "chooses the feed-forward part that a spec asks for",
    "documents/part_settings.py": "finds a model's routers",
    "training/balance.py": "finds a model's routers, to move their corrections",
}


def asks(source: str) -> list[int]:
    """Return the lines that ask of which kind a spec or a part is."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
            named = {n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(node.args[1]) if isinstance(n, ast.Name | ast.Attribute)}
            lines += [node.lineno] * bool(named & KINDS)
        elif isinstance(node, ast.MatchClass):
            name = node.cls.id if isinstance(node.cls, ast.Name) else node.cls.attr if isinstance(node.cls, ast.Attribute) else ""
            lines += [node.lineno] * (name in KINDS)
    return lines


def test_the_kind_is_asked_for_in_the_listed_files() -> None:
    asking = {str(path.relative_to(ROOT)): asks(path.read_text("utf-8")) for path in ROOT.rglob("*.py")}
    assert {path: lines for path, lines in asking.items() if lines and path not in ALLOWED} == {}
    assert sorted(path for path, lines in asking.items() if lines) == sorted(ALLOWED), "an exception that none needs"


def test_every_way_of_asking_is_found_mutant() -> None:
    for line in ("isinstance(x, Attention)", "isinstance(x.attn, c.Latent | None)", "isinstance(m, (Mlp, Moe))", "issubclass(k, Moe)"):
        assert asks(line) == [1], line
    assert asks("match x:\n    case Moe(experts=n):\n        pass\n    case c.Latent():\n        pass") == [2, 4]
    assert asks("isinstance(x, Tensor)\nx.kind == 'Latent'") == []


def test_both_kinds_answer_the_same() -> None:
    """A property or method of one attention or feed-forward spec is a field, property or method of the other."""
    for pair in ((c.Attention, c.Latent), (c.Mlp, c.Moe)):
        for kind, other in (pair, pair[::-1]):
            answers = {name for name in vars(other) if not name.startswith("_")} - set(other.__dataclass_fields__)
            assert answers <= {*kind.__dataclass_fields__, *dir(kind)}, kind


class Fourier(c.AttentionSpec):
    """A kind of attention that says only what every kind must."""

    heads, kv_heads, kind, head_width, stored = 4, None, "Fourier", 8, ("K",)


def test_a_kind_need_not_answer_everything() -> None:
    spec = Fourier()
    assert (spec.limits, spec.rows_kept(7), spec.on_rank(96, 1), list(spec.products(1, 7, 7))) == ((None, None), 7, 96, [])
    layer = c.Layer(spec, c.Mlp(48))  # type: ignore[arg-type]
    assert pairs(layer, 3, 4) == 5 + 6 + 7
    for text, key in (("mqa", "count.attn.heads"), ("mla", "count.attn.latent")):
        with pytest.raises(UseError) as error:
            with_attention(c.Config(97, 32, (layer,)), text)
        assert error.value.key == key


def test_a_limit_stops_the_cache_growing() -> None:
    plain = c.Attention(4, 2, 8)
    assert [replace(plain, window=w, chunk=n).rows_kept(9) for w, n in ((None, None), (5, None), (5, 3), (None, 20))] == [9, 5, 3, 9]
    assert (plain.on_rank(96, 1), c.Latent(4, None, 20, 16, 12, c.Rope(8)).on_rank(96, 1)) == (48, 96)
