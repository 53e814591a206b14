"""Counts: of what is published, of what transformers builds, of what runs; and each beside a closed form that knows no code of ours."""

import json
import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid import catalog
from pellucid.api.count import count, described
from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.step import Step
from pellucid.config import Attention, Config, Latent, Mlp, Moe
from pellucid.counting import Number, Setting, counted
from pellucid.counting.bill import pairs
from pellucid.counting.bounds import multiplicity
from pellucid.counting.closed import booked
from pellucid.counting.meta_run import meta_model, run
from pellucid.errors import UseError
from pellucid.families import known
from tiny import DECODERS, FAMILIES, ids, serve, tiny

JUDGE: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "catalogue.json").read_text())
CONFIGURED = [i for i, e in catalog.models().items() if "literal" in e or e.get("config", {}).get("model_type") in known()]


def config_of(name: str) -> tuple[str, Config]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return described(name)


# Parameters


@pytest.mark.parametrize("name", CONFIGURED)
@pytest.mark.quick(7)
def test_published_models(name: str) -> None:
    """Total, active, and the cache of a token, of every model whose numbers were computed elsewhere."""
    family, cfg = config_of(name)
    bill = counted(cfg, name, family, Setting(context=32))
    published = JUDGE.get(name, {})
    assert int(bill["parameters.total"]) == published.get("total", int(bill["parameters.total"]))
    if "active" in published:
        assert int(bill["parameters.active"]) == published["active"]
    if "cache" in published:
        assert int(bill["cache.bytes_per_token"]) == published["cache"]
    assert sum(int(n) for _, n in bill.below("parameters.by_part")) == int(bill["parameters.total"])


def test_every_judged_model_is_counted() -> None:
    assert JUDGE.keys() <= set(CONFIGURED)


def test_two_sizes_of_gpt3_as_printed_and_corrected() -> None:
    """Table 2.1 prints 24 heads of 128 where the width is 2048, and a width of 5140 where 40 heads have 128."""

    def layers(name: str, **change: Any) -> list[dict[str, Any]]:
        (one,) = catalog.models()[name]["literal"]["layers"]
        return [one | {part: one[part] | fields for part, fields in change.items()}]

    assert int(count("gpt3-xl")["parameters.total"]) == 1_517_123_584
    mended = layers("gpt3-xl", attn={"heads": 16, "kv_heads": 16})
    assert int(count("gpt3-xl", fields={"layers": mended})["parameters.total"]) == 1_315_723_264
    assert int(count("gpt3-13b")["parameters.total"]) == 12_936_488_380
    mended = layers("gpt3-13b", ffn={"width": 20480})
    assert int(count("gpt3-13b", fields={"width": 5120, "layers": mended})["parameters.total"]) == 12_853_386_240


def test_numbers_to_check_against() -> None:
    """The figures that popular explanations get wrong."""
    v3 = count("deepseek-v3")
    assert int(v3["parameters.total"]) == 671_026_404_352
    assert int(v3["parameters.active"]) == 37_552_282_624
    assert int(v3["parameters.active_without_input"]) == 36_625_603_584
    assert int(v3["cache.bytes_per_token"]) == 70_272 == 61 * (512 + 64) * 2
    assert int(v3["cache.uncompressed_bytes_per_token"]) == 4_997_120 == 61 * 128 * (128 + 64 + 128) * 2
    layer = {n: int(x) for n, x in v3.below("parameters.layers.3")}
    assert sum(n for path, n in layer.items() if path.startswith("attn.")) == 187_107_328
    assert sum(n for path, n in layer.items() if path in ("ffn.gate", "ffn.up", "ffn.down")) == 256 * 44_040_192
    assert layer["ffn.router.weight"] == 1_835_008 and int(v3["parameters.embed.weight"]) == 926_679_040
    assert int(count("llama-2-7b", dtype="float16")["cache.bytes_per_token"]) == 524_288
    assert int(count("gpt-oss-120b")["cache.bytes_per_token"]) == 73_728
    assert int(count("qwen2.5-0.5b")["parameters.total"]) == 494_032_768
    gpt2 = count("gpt2-small")
    assert int(gpt2["parameters.total"]) == 124_439_808
    parts = {n: int(x) for n, x in gpt2.below("parameters.by_part")}
    assert parts == {"norms": 38_400, "attn": 21_261_312 + 7_087_104, "ffn": 56_669_184, "embed": 38_597_376, "positions": 786_432}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(4)
def test_each_distinct_layer_once_is_the_whole(family: str) -> None:
    """A model of many layers, reduced and full: the same parameters, products, and bytes; what layers share is counted once."""
    cfg = FAMILIES[family]
    cfg = replace(cfg, layers=cfg.layers * 3, encoder=None if cfg.encoder is None else cfg.encoder * 2)
    full = meta_model(cfg, torch.bfloat16)
    bill = counted(cfg, family, family, Setting(context=20, batch=2))
    assert int(bill["parameters.total"]) == sum(p.numel() for p in full.parameters())
    first = run(full, 1, 0, 2, 20) if cfg.encoder else run(full, 20, 0, 2)
    assert int(bill["flops.prefill"]) == sum(first.flops.values())
    step = run(full, 1, 20, 2, 20)
    assert int(bill["flops.decode"]) == sum(step.flops.values())
    stored = [s for p, shapes in step.stored.items() if not p.endswith(("conv", "delta", "mamba")) for s in shapes]
    assert int(bill["cache.bytes_per_token"]) == 2 * sum(torch.Size(s).numel() for s in stored)


def test_a_second_copy_tells_what_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """T5's table of distance biases belongs to the stack; building each kind once would count it for every layer."""
    bill = counted(FAMILIES["t5"], "t5", "t5", Setting(context=8))
    right = int(bill["parameters.total"])
    monkeypatch.setattr(sys.modules["pellucid.counting.distinct"], "min", lambda *a: 1, raising=False)
    assert int(counted(FAMILIES["t5"], "t5", "t5", Setting(context=8))["parameters.total"]) > right


# Products, beside closed forms


def closed(cfg: Config, rows: int, before: int, batch: int, absorbed: bool) -> int:
    """Twice the multiplications of a decoder's forward, by the formulas of textbooks."""
    total = cfg.vocab * cfg.width * rows * batch
    seen = before + rows
    for layer in cfg.layers:
        a, f, n = layer.attn, layer.ffn, rows * batch
        if isinstance(a, Attention):
            total += n * cfg.width * a.width * (2 * a.heads + 2 * a.kv_heads) + 2 * batch * rows * seen * a.heads * a.width
        elif isinstance(a, Latent):
            q = a.heads * (a.key + a.rope.width)
            total += n * (cfg.width * q if a.q_rank is None else a.q_rank * (cfg.width + q))
            total += n * (cfg.width * (a.kv_rank + a.rope.width) + a.heads * a.value * cfg.width)
            if absorbed:
                total += n * a.heads * a.kv_rank * (a.key + a.value) + batch * rows * seen * a.heads * (2 * a.kv_rank + a.rope.width)
            else:
                grown = batch * seen * a.kv_rank * a.heads * (a.key + a.value)
                total += grown + batch * rows * seen * a.heads * (a.key + a.rope.width + a.value)
        if isinstance(f, Mlp):
            total += n * cfg.width * f.width * (3 if f.gated else 2)
        elif isinstance(f, Moe):
            total += n * cfg.width * (f.experts + 3 * f.chosen * f.width + 3 * f.shared + f.shared_gate)
    return 2 * total


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize(("rows", "before", "batch"), [(1, 0, 1), (1, 31, 3), (9, 0, 2), (5, 12, 1)])
@pytest.mark.quick(6)
def test_products_are_the_closed_form(family: str, rows: int, before: int, batch: int) -> None:
    cfg = DECODERS[family]
    flops = sum(run(meta_model(cfg, torch.bfloat16), rows, before, batch).flops.values())
    assert flops in {closed(cfg, rows, before, batch, absorbed) for absorbed in (True, False)}
    assert flops != closed(cfg, rows, before + 1, batch, False)


def test_both_forms_of_mla_are_counted_as_they_ran() -> None:
    """One row is absorbed, many are expanded."""
    cfg = DECODERS["deepseek_v3"]
    model = meta_model(cfg, torch.bfloat16)
    assert sum(run(model, 1, 500, 1).flops.values()) == closed(cfg, 1, 500, 1, True)
    assert sum(run(model, 400, 0, 1).flops.values()) == closed(cfg, 400, 0, 1, False)


@pytest.mark.parametrize("window", [None, 1, 4, 9, 40])
@pytest.mark.parametrize(("rows", "before"), [(1, 0), (7, 0), (1, 12), (5, 3), (20, 0)])
def test_pairs_are_those_of_the_mask(window: int | None, rows: int, before: int) -> None:
    layer = replace(DECODERS["llama"].layers[0], attn=Attention(4, 2, 8, window=window))
    q, k = torch.arange(before, before + rows)[:, None], torch.arange(before + rows)
    mask = (k <= q) & (q - k < (window or 10**6))
    assert pairs(layer, rows, before) == int(mask.sum())


# The cache, beside a real one


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cache_is_what_a_real_cache_holds(family: str) -> None:
    pages, prompt = PagedCache(8, 4), {"a": ids(1, 9)[0]}
    sources = {"a": ids(1, 7)[0]} if family == "t5" else None
    serve(tiny(family, torch.float32), prompt, [{"a": 9}], pages, sources=sources)
    bill = counted(FAMILIES[family], family, family, Setting(context=9, cache="float32"))
    last_rows = sum(int(bill[f"cache.{layer}"]) * multiplicity(bill, layer) for layer, _ in bill.below("cache.text"))
    assert int(bill["cache.bytes_per_token"]) + last_rows == pages.bytes_per_token()
    if family == "t5":
        stored_bytes = sum(t.numel() * t.element_size() for stored, *_ in pages.memory.values() for t in stored)
        assert int(bill["cache.bytes_per_source_token"]) * 7 == stored_bytes


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_adds_what_is_said_and_a_text_the_rest(family: str) -> None:
    """Past every window a token adds the bytes of a token, less those in windows; the rest of a text is of one size."""
    if (cfg := FAMILIES[family]).bidirectional:
        return
    short, long = (counted(cfg, family, family, Setting(context=n, batch=3, source=7)) for n in (400, 401))

    def of(name: str) -> int:
        assert (name in short) == (name in long) and (name not in short or int(short[name]) == int(long[name]))
        return int(short[name]) if name in short else 0

    added = of("cache.bytes_per_token") - of("cache.windowed_bytes_per_token")
    assert int(long["cache.bytes"]) - int(short["cache.bytes"]) == 3 * added
    rows = sum(
        int(short[f"cache.{layer}"]) * multiplicity(short, layer) * short.mixer(layer).rows_kept(400)
        for layer, _ in short.below("cache")
        if layer.startswith(("layers", "decoder")) and (short.mixer(layer).window or short.mixer(layer).chunk) and short.mixer(layer).heads
    )
    assert int(short["cache.bytes"]) == 3 * (400 * added + rows + of("cache.bytes_per_text") + 7 * of("cache.bytes_per_source_token"))


def test_windows_stop_growing() -> None:
    """gpt-oss at 131,072 tokens: 18 layers hold all of them, 18 hold 128."""
    bill = count("gpt-oss-120b", context=131_072)
    assert int(bill["cache.bytes"]) == 18 * 2_048 * 2 * (131_072 + 128) // 2
    assert "18·" in bill["cache.bytes"].filled


# What a person asks for


def test_every_number_has_a_formula_that_gives_it() -> None:
    for name in ("deepseek-v3", "gpt2-small", "t5-small", "gemma-2-9b"):
        bill = count(name)
        for path, n in bill.numbers.items():
            if n.filled:
                filled = n.filled.replace(",", "").replace("·", "*").replace("−", "-")
                value = sum(product(t) for t in terms(filled))
                assert value == n.value, path
            assert all(p in bill for p in n.of), path
    assert count("deepseek-v3")["parameters.layers.0.attn.kv_a.weight"].symbols == "(C+R)·D"


@pytest.mark.parametrize("name", ["deepseek-v3.2", "llama-4-scout", "gpt-oss-20b", "gemma-3-4b", "bert-base", "t5-small", "gpt2"])
@pytest.mark.quick(4)
def test_products_have_their_formula(name: str) -> None:
    """Of every part; and where the form is another's, none is told, rather than a wrong one."""
    bill = count(name, context=37, batch=2, source=11 if name.startswith("t5") else None)
    formulas = {path: n for path, n in bill.numbers.items() if re.match(r"flops\.(prefill|decode)\.", path)}
    assert all(n.symbols.startswith("2·B·") and n.filled.startswith("2·2·") for n in formulas.values() if n.value)
    assert booked(bill, next(iter(formulas)).split(".", 2)[2], 12_345, 37, 37, 37) == Number(12_345)


def terms(text: str) -> list[str]:
    """The summands of a filled formula; one in brackets before a factor stays whole."""
    out, depth, word = [], 0, ""
    for c in text.replace(" - ", " + -"):
        depth += (c == "(") - (c == ")")
        if c == "+" and depth == 0:
            out.append(word)
            word = ""
        else:
            word += c
    return [w.strip() for w in [*out, word]]


def product(term: str) -> float:
    value = 1.0
    for factor in split(term):
        value *= sum(product(t) for t in terms(factor[1:-1])) if factor.startswith("(") else float(factor)
    return value


def split(term: str) -> list[str]:
    out, depth, word = [], 0, ""
    for c in term:
        depth += (c == "(") - (c == ")")
        if c == "*" and depth == 0:
            out.append(word)
            word = ""
        else:
            word += c
    return [*out, word]


WRONG = [
    ({"name": "lama-7b"}, "count.unknown"), ({"name": "gpt-4"}, "count.undisclosed"), ({"dtype": "int3"}, "count.dtype"),
    ({"context": 0}, "count.number"), ({"context": 2000}, "count.number"), ({"batch": 0}, "count.number"),
    ({"batch": True}, "count.number"), ({"device": "h300"}, "count.device.near"), ({"device": "zzz"}, "count.device"),
    ({"fields": {"n_heads": 3}}, "count.field"),
]  # fmt: skip


@pytest.mark.parametrize(("how", "key"), WRONG, ids=lambda x: x if isinstance(x, str) else None)
def test_wrong_use(how: dict[str, Any], key: str) -> None:
    with pytest.raises(UseError) as refused:
        count(**{"name": "gpt2-small", **how})
    assert refused.value.key == key and "\n" not in str(refused.value)
    with pytest.raises(UseError, match=r"near it: .*parameters\.total"):
        count("gpt2-small")["parameter.total"]


def test_steps_that_are_counted_are_ordinary_steps() -> None:
    """A ghost's step is a Step: the same model on a plain one has the same products."""
    model = meta_model(DECODERS["llama"], torch.bfloat16)
    tokens = torch.zeros(2, 9, dtype=torch.long, device="meta")
    from pellucid.watching.watch import watch

    with watch(model, keep=lambda x: None) as seen:
        model(tokens, Step.plain(tokens))
    assert sum(seen.flops.values()) == sum(run(model, 9, 0, 2).flops.values())
