"""What follows from a bill: bytes of formats, what fits, what training keeps, what ranks hold; each beside the same thing done in full."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, prod
from typing import Any

import pytest
import torch

from pellucid import catalog
from pellucid.api.count import count
from pellucid.config import Alibi, Attention, Config, Latent, Layer, Mlp, Moe
from pellucid.counting import Bill, Setting, counted
from pellucid.counting.bill import Counted
from pellucid.counting.bounds import Device, parts, unit
from pellucid.counting.distinct import LayerKind
from pellucid.counting.fit import bytes_held, largest, largest_batch, longest_context, price, seconds
from pellucid.counting.formats import FORMATS, size
from pellucid.counting.meta_run import meta_model
from pellucid.counting.number import Number
from pellucid.counting.ranks import Split, cuts, split_of, spread
from pellucid.counting.textbook import closed_forms
from pellucid.counting.variants import cache_of, kinds, other_kinds, with_attention, with_experts
from pellucid.counting.weights import Weight
from pellucid.errors import UseError
from tiny import DECODERS, FAMILIES, LLAMA, MLA, MLP

H100 = Device.of(catalog.devices()["h100"])


def bill_of(cfg: Config, **how: Any) -> Bill:
    return counted(cfg, "tiny", "tiny", Setting(**{"context": 20, "batch": 2, **how}))


# Formats


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("shape", [(128, 128), (129, 257), (3, 5, 33), (1, 1), (4, 130, 96)])
def test_blocks_are_counted_with_their_ragged_edges(dtype: str, shape: tuple[int, ...]) -> None:
    """Beside a walk over every block of the tensor."""
    part = "layers.0.ffn.gate" if dtype == "mxfp4" else "layers.0.attn.q.weight"
    c = Counted(Weight(part, None, shape, "bfloat16"), part, 1, training_share(dtype))
    f = FORMATS[dtype]
    *lead, rows, columns = shape
    blocks = sum(1 for _ in range(0, rows, f.block[0]) for _ in range(0, columns, f.block[1]))
    numbers = rows * ((columns * f.bits + 7) // 8)
    assert int(size(c, dtype, "bfloat16")) == prod(lead) * (numbers + ceil(blocks * f.scale) + f.tensor)
    assert columns % f.block[1] == 0 or blocks > rows // f.block[0] * (columns // f.block[1])


def training_share(dtype: str) -> Any:
    """MXFP4 is for experts, which are known by not all of them working."""
    return 0.5 if dtype == "mxfp4" else 1


def test_other_libraries_formats_have_their_published_sizes() -> None:
    """By hand: of Llama 3.1 8B the products alone, 6,979,321,856 numbers; 1,050,939,392 stay in bfloat16. Its AWQ folder has 5.73 GB."""
    products, plain = 6_979_321_856, 2 * 1_050_939_392
    for dtype, each in (("int4-g128", 4 + 20 / 128), ("nf4", 4.5), ("nf4-double", 4 + 8 / 64 + 32 / 64 / 256)):
        assert int(count("llama-3.1-8b", dtype=dtype)["bytes.total"]) == products * each / 8 + plain
    assert int(count("llama-3.1-8b", dtype="nvfp4")["bytes.total"]) == products * 4.5 / 8 + 4 * 7 * 32 + plain
    assert round(int(count("llama-3.1-8b", dtype="int4-g128")["bytes.total"]) / 1e9, 2) == 5.73
    for bits, block in ((2, 84), (3, 110), (4, 144), (5, 176), (6, 210)):
        matrix = int(count("llama-3.1-8b", dtype=f"q{bits}_k")["bytes.layers.0.attn.q.weight"])
        assert matrix == 4096 * 4096 // 256 * block


def test_formats_touch_what_they_say() -> None:
    """gpt-oss's own format gives the sizes that its makers state; what is spared stays as wide as activations."""
    assert round(int(count("gpt-oss-120b", dtype="mxfp4")["bytes.total"]) / 2**30, 1) == 60.8
    assert round(int(count("gpt-oss-20b", dtype="mxfp4")["bytes.total"]) / 2**30, 1) == 12.8
    v3, plain = count("deepseek-v3", dtype="fp8"), count("deepseek-v3")
    for part in ("embed", "head", "router", "norms"):
        assert int(v3[f"bytes.by_part.{part}"]) == int(plain[f"bytes.by_part.{part}"])
    q_a = 1536 * 7168 + ceil(1536 / 128) * ceil(7168 / 128) * 4
    assert int(v3["bytes.layers.0.attn.q_a.weight"]) == q_a
    assert int(v3["bytes.dequantised"]) == int(plain["bytes.total"]) == 2 * int(plain["parameters.total"]) + 4 * int(plain["buffers.total"])
    assert int(v3["bytes.total"]) < 0.51 * int(plain["bytes.total"])


# What would change


@pytest.mark.parametrize(("text", "per_token"), [("mha", 2 * 4 * 8), ("mqa", 2 * 8), ("gqa:2", 2 * 2 * 8), ("mla:20", 20 + 4)])
def test_other_kinds_of_attention(text: str, per_token: int) -> None:
    """The changed model's own cache, and the same from its parts alone."""
    cfg = with_attention(LLAMA, text)
    bill = bill_of(cfg)
    assert int(bill["cache.bytes_per_token"]) == 2 * 2 * per_token
    assert int(cache_of(cfg, bill)["cache.bytes"]) == int(bill["cache.bytes"]) == 2 * 2 * per_token * 2 * 20
    assert kinds(cfg) == text.split(":")[0].upper()
    assert cfg.layers[0].ffn == LLAMA.layers[0].ffn


def test_every_model_beside_the_other_kinds() -> None:
    """DeepSeek-V3 as MHA would store 57 times as much; windows stay where there are keys and values, and MLA has none."""
    per_token = {name: int(b["cache.bytes_per_token"]) for name, b in other_kinds(count("deepseek-v3", context=8))}
    assert per_token == {"MLA": 61 * 576 * 2, "MHA": 61 * 2 * 128 * 128 * 2, "GQA 8": 61 * 2 * 8 * 128 * 2, "MQA": 61 * 2 * 128 * 2}
    oss = dict(other_kinds(count("gpt-oss-20b", context=1024)))
    assert list(oss) == ["GQA", "MHA", "MQA", "MLA 256+32"]
    assert int(oss["MQA"]["cache.bytes"]) == 12 * (1024 + 128) * 2 * 64 * 2
    assert int(oss["MLA 256+32"]["cache.bytes"]) == 24 * 1024 * 288 * 2


def test_latent_attention_as_heads_keeps_their_width() -> None:
    """The content part's; of a smaller one, all of it turns."""
    narrow = replace(MLA, key=6)
    cfg = replace(DECODERS["deepseek_v3"], layers=(Layer(MLA, MLP), Layer(narrow, MLP)))
    attentions = [one.attn for one in with_attention(cfg, "gqa:2").layers]
    assert attentions == [Attention(4, 2, 16, MLA.rope), Attention(4, 2, 6, replace(MLA.rope, width=6))]


def test_experts() -> None:
    sparse = with_experts(LLAMA, "8:3")
    assert {one.ffn for one in sparse.layers} == {Moe(8, 3, MLP.width, affinity="softmax", corrected=False)}
    bill = bill_of(sparse)
    assert int(bill["parameters.by_part.experts"]) == 2 * 8 * 3 * 32 * MLP.width
    assert int(bill["parameters.total"]) - int(bill["parameters.active"]) == 2 * 5 * 3 * 32 * MLP.width
    mixed = with_experts(DECODERS["deepseek_v3"], "16:4")
    assert mixed.layers[0].ffn == MLP and [f.experts for one in mixed.layers[1:] if isinstance(f := one.ffn, Moe)] == [16, 16]


IMPOSSIBLE = [
    ("mha:2", "count.attn"), ("gqa", "count.attn"), ("gqa:0", "count.attn"), ("mla:0", "count.attn"), ("x", "count.attn"),
    ("gqa:3", "count.attn.groups"), ("mla", "count.attn.latent"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "key"), IMPOSSIBLE)
@pytest.mark.parametrize("attn", [Attention(4, 2, 8, alibi=Alibi()), Attention(4, 2, 8, distances=True)])
def test_impossible_attention(attn: Attention, text: str, key: str) -> None:
    cfg = replace(LLAMA, layers=(Layer(attn, MLP),))
    with pytest.raises(UseError) as refused:
        with_attention(cfg, text)
    assert refused.value.key == key and "\n" not in str(refused.value)


@pytest.mark.parametrize(("text", "key"), [("x", "count.experts"), ("8:9", "count.experts.range"), ("6:2", "count.experts.range")])
def test_impossible_experts(text: str, key: str) -> None:
    with pytest.raises(UseError) as refused:
        with_experts(DECODERS["deepseek_v3"], text)
    assert refused.value.key == key


# What fits


@pytest.mark.parametrize("family", ["gpt_oss", "deepseek_v3", "t5"])
def test_the_largest_that_fits_is_the_largest(family: str) -> None:
    """One more would not fit; found by trying all."""
    bill = bill_of(FAMILIES[family], context=9)
    device = replace(H100, memory=bytes_held(bill, 9, 2) * 1.1)
    batch, context = largest_batch(bill, device), longest_context(bill, device)
    assert batch is not None and bytes_held(bill, 9, batch) <= device.memory < bytes_held(bill, 9, batch + 1)
    assert context is not None and context == max(n for n in range(1000) if bytes_held(bill, n, 2) <= device.memory)
    assert bytes_held(bill, 9, 2) == int(bill["bytes.total"]) + int(bill["cache.bytes"])
    own = sum(int(n) * len(kind.numbers) * layer.attn.rows_kept(9) for kind, layer, n in past_of(bill))
    assert int(bill["cache.bytes"]) == 2 * own + source_bytes(bill)


def past_of(bill: Bill) -> Iterator[tuple[LayerKind, Layer, Number]]:
    """Every kind of layer that keeps a past, with the bytes of one of its rows."""
    for kind, layer in bill.layers():
        number = bill.numbers.get(f"cache.{kind.stack}layers.{kind.first}.attn")
        if number is not None:
            yield kind, layer, number


def source_bytes(bill: Bill) -> int:
    return int(bill["cache.bytes_per_source_token"]) * 9 * 2 if "cache.bytes_per_source_token" in bill else 0


def test_ends_of_the_search() -> None:
    assert [largest(lambda n, most=most: n <= most, 100) for most in (-1, 0, 1, 63, 64, 99, 100)] == [0, 0, 1, 63, 64, 99, None]
    bill = bill_of(DECODERS["gpt2"])
    assert longest_context(bill, H100) is None  # its table of positions ends first
    assert largest_batch(bill, replace(H100, memory=1.0)) == 0


def test_price_is_time() -> None:
    """A decode step writes a token for each request, a prefill reads all of them."""
    bill = bill_of(LLAMA)
    assert price(bill, "decode", H100, 3600.0) == pytest.approx(seconds(bill, "decode", H100) / 2 * 1e6)
    assert price(bill, "prefill", H100, 3600.0) == pytest.approx(seconds(bill, "prefill", H100) / 40 * 1e6)


def test_a_decode_step_reads_no_encoder() -> None:
    """The source was read before: of the encoder nothing moves, of cross attention the remembered rows and no matrix that made them."""
    cfg = FAMILIES["t5"]
    by_path = {p.path: p for p in parts(bill_of(cfg, source=7), "decode", H100)}
    assert not [path for path in by_path if path.startswith("encoder")]
    cross = by_path["decoder.layers.0.cross"]
    assert cross.moved == 3 * (2 * (2 * 32 * 32 + 32) + 2 * 7 * 2 * 32 * 2)
    prefill = {p.path: p for p in parts(bill_of(cfg, source=7), "prefill", H100)}
    assert prefill["decoder.layers.0.attn"].flops == 3 * 2 * 2 * (4 * 32 * 32 + 2 * 32)  # one row, which sees itself


def test_a_table_that_layers_share_moves_once() -> None:
    bill = bill_of(FAMILIES["t5"])
    (attn,) = (p for p in parts(bill, "decode", H100) if p.path == "decoder.layers.0.attn")
    own = [c for c in bill.weights if unit(c.path) == attn.path]
    weights = sum(c.times * int(bill[f"bytes.{c.path}"]) for c in own)
    assert {c.times for c in own} == {1, 3} and attn.moved == weights + int(bill["cache.bytes_per_token"]) * 2 * 21


# Textbooks


@pytest.mark.parametrize("family", DECODERS)
def test_differences_to_textbooks_leave_nothing_over(family: str) -> None:
    bill = bill_of(DECODERS[family])
    by_name = {b.name: b for b in closed_forms(bill)}
    assert list(by_name) == ["attention", "model", "token"]
    for b in by_name.values():
        assert int(b.closed) + sum(n for _, n in b.because) == b.counted
    assert by_name["attention"].counted == int(bill["parameters.by_part.attn"])


def test_scores_of_a_token_are_what_attention_multiplies() -> None:
    """4·H·K for each token seen and each layer; DeepSeek's absorbed form multiplies with the latent instead."""
    because = dict(next(b for b in closed_forms(bill_of(LLAMA)) if b.name == "token").because)
    assert because == {"scores": 2 * 4 * 4 * 8 * 21, "idle": -2 * (97 * 32 + 5 * 32)}
    learned = dict(next(b for b in closed_forms(bill_of(DECODERS["gpt2"])) if b.name == "token").because)
    assert learned["scores"] == because["scores"]  # its positions and its biases multiply nothing
    latent = dict(next(b for b in closed_forms(bill_of(DECODERS["deepseek_v3"])) if b.name == "token").because)
    assert latent["scores"] == 3 * 2 * 4 * (2 * 20 + 8) * 21


# Ranks


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("split", [Split(2), Split(1, 2), Split(4, 2, 4), Split(2, 1, 4), Split(1, 1, 2), Split(2, 1, 1, 2)])
@pytest.mark.quick(4)
def test_ranks_hold_the_model(family: str, split: Split) -> None:
    """What is split adds up to the model; what is not is counted once a rank. Beside a walk over every weight of the whole model."""
    cfg = FAMILIES[family]
    bill = bill_of(cfg, source=11)
    over = spread(bill, split)
    for stage in over.stages:
        assert stage.parameters == sum(by_hand(cfg, path, p, split) for path, p in stage_of(cfg, stage.layers))
    if split == Split(1, 2):
        tied = cfg.vocab * cfg.width * cfg.tied
        again = 8 * 4 if family == "t5" else 0  # the decoder's biases by distance, of which either stage has a part of the layers
        assert sum(s.parameters for s in over.stages) == int(bill["parameters.total"]) + tied + again
        assert sum(s.cache for s in over.stages) == int(bill["cache.bytes"])


def test_each_stage_of_an_encoder_and_a_decoder_has_its_table_and_norm() -> None:
    """A stage a layer: the table stands before either stack and, tied, after the last; an encoder's norm after its own last layer."""
    cfg = FAMILIES["t5"]
    for stage in spread(bill_of(cfg), Split(1, 5)).stages:
        assert stage.parameters == sum(p.numel() for _, p in stage_of(cfg, stage.layers))


def stage_of(cfg: Config, layers: tuple[int, int]) -> list[tuple[str, torch.Tensor]]:
    """The weights of a stage, of the module itself: an encoder's layers and then its decoder's, whose table is the encoder's too."""
    reads, out = len(cfg.encoder or ()), []
    every = {"encoder": range(reads), "decoder": range(reads, reads + len(cfg.layers))}
    for path, p in meta_model(cfg, torch.bfloat16).named_parameters():
        side, words = path.partition(".")[0], path.removeprefix("encoder.").removeprefix("decoder.").split(".")
        ends = [reads - 1 if side == "encoder" else reads + len(cfg.layers) - 1]
        if words[0] == "layers":
            at = [int(words[1]) + (reads if side == "decoder" else 0)]
        elif words[0] == "embed":
            at = [0, reads, *(ends * cfg.tied)]
        else:
            at = ends if words[0] in ("norm", "head") else [0]
        if any(layers[0] <= n < layers[1] for n in (every[side] if ".relative." in path else at)):
            out.append((path, p))
    return out


def by_hand(cfg: Config, path: str, p: torch.Tensor, split: Split) -> int:
    """How much of one weight a rank holds, by its name."""
    stack = cfg.encoder if path.startswith("encoder.") else cfg.layers
    words, n = path.removeprefix("encoder.").removeprefix("decoder.").split("."), p.numel()
    if words[0] in ("embed", "head"):
        return ceil(p.shape[0] / split.tp) * p.shape[1]
    if words[0] != "layers":
        return n
    assert stack is not None
    name, layer = words[3], stack[int(words[1])]
    bias = words[-1] == "bias"
    if words[2] in ("attn", "cross"):
        if name in ("k", "v"):
            assert isinstance(layer.attn, Attention)
            return n // min(layer.attn.kv_heads, split.tp)
        split_up = name in ("q", "q_b", "kv_b", "sinks", "relative") or (name == "o" and not bias)
        return n // split.tp if split_up else n
    if words[2] == "ffn" and name != "router":
        stacked = isinstance(layer.ffn, Moe) and name not in ("shared", "shared_gate")
        if stacked and split.holders > 1:
            return n // split.holders
        return n if name in ("shared_gate", "down_bias") or (name == "down" and bias) else n // split.tp
    return n


def test_what_ranks_send() -> None:
    """Rings: every rank sends (n - 1)/n of what it sums, twice. Two layers and the table, 40 rows of 32 numbers of 2 bytes."""
    bill, x = bill_of(LLAMA), 40 * 32 * 2
    assert sends(bill, Split(2))[0]["prefill"]["all_reduce"] == 2 * 1 * 5 * x // 2
    assert sends(bill, Split(1, 2))[0]["decode"] == {"pipeline": 2 * 32 * 2, "total": 2 * 32 * 2}
    sparse = bill_of(DECODERS["deepseek_v3"])  # two layers of experts, 2 chosen in each; a rank has one of the two requests
    assert sends(sparse, Split(1, 1, 2))[0]["prefill"]["all_to_all"] == 2 * (2 + 2) * (x // 2) // 2
    assert sends(bill, Split()) == [{"prefill": {}, "decode": {}}]
    for split, sums in (
        (Split(1, 1, 1, 2), 1 + 1),
        (Split(2, 1, 1, 2), 1 + 2 + 3 + 3),
    ):  # outputs of experts alone; all parts and the table
        assert (
            sends(sparse, split)[0]["prefill"]["all_reduce"] == 2 * sums * x // 2 and "all_to_all" not in sends(sparse, split)[0]["prefill"]
        )
    for split in (Split(1, 1, 2, 2), Split(2, 1, 1, 4)):
        with pytest.raises(UseError, match="--ranks: experts is"):
            spread(sparse, split)


def test_logits_are_gathered_where_the_vocabulary_is_split() -> None:
    """By the last stage: 97 numbers of 2 bytes, of one row a request, of which a rank has a quarter and sends three times."""
    first, last = sends(bill_of(LLAMA), Split(4, 2))
    assert all("logits" not in first[phase] and last[phase]["logits"] == 3 * 97 * 2 * 2 // 4 for phase in ("prefill", "decode"))
    assert all(by["total"] == sum(n for name, n in by.items() if name != "total") for one in (first, last) for by in one.values())
    assert "logits" not in sends(bill_of(LLAMA), Split(1, 2))[1]["decode"]


def test_what_an_encoder_and_a_decoder_send() -> None:
    """11 rows of each source meet the encoder's 2 layers; one of each target the decoder's 3, which sum once more, over the source."""
    bill, row = bill_of(FAMILIES["t5"], source=11), 2 * 32 * 2
    assert [one["prefill"]["all_reduce"] for one in sends(bill, Split(2))] == [(1 + 2 * 2) * 11 * row + (1 + 3 * 3) * row]
    assert [one["decode"]["all_reduce"] for one in sends(bill, Split(2))] == [(1 + 3 * 3) * row]
    sent = sends(bill, Split(1, 5))
    on = {phase: [one[phase].get("pipeline", 0) for one in sent] for phase in ("prefill", "decode")}
    assert on == {"prefill": [11 * row, 11 * row, 12 * row, 12 * row, 0], "decode": [0, 0, row, row, 0]}  # all hear the source


def sends(bill: Bill, split: Split) -> list[dict[str, dict[str, int]]]:
    return [{phase: {name: int(n) for name, n in by.items()} for phase, by in stage.sent.items()} for stage in spread(bill, split).stages]


def test_stages_are_even() -> None:
    assert list(cuts(61, 4)) == [(0, 16), (16, 31), (31, 46), (46, 61)]
    assert split_of("tp=8,pp=2,ep=16") == Split(8, 2, 16) and Split(8, 2, 16).ranks == 32
    assert split_of("tp=2,experts=2") == Split(2, experts=2) and Split(2, experts=2).ranks == 2


@pytest.mark.parametrize("text", ["", "tp", "tp=0", "tp=2,tp=2", "dp=2", "tp=2;pp=2", "tp=2,"])
def test_splits_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UseError, match="tp=8,pp=2,ep=8"):
        split_of(text)


@pytest.mark.parametrize(
    ("split", "key"),
    [(Split(3), "count.ranks.even"), (Split(1, 4), "count.ranks.layers"), (Split(1, 1, 3), "count.ranks.even"), (Split(4, 1, 6), "")],
)
def test_splits_that_would_cut_something(split: Split, key: str) -> None:
    with pytest.raises(UseError) as refused:
        spread(bill_of(DECODERS["deepseek_v3"]), split)
    assert refused.value.key.startswith(key or "count.ranks")
    cross = Attention(3, 3, 8, causal=False)
    thin = replace(FAMILIES["t5"], layers=tuple(replace(one, cross=cross) for one in FAMILIES["t5"].layers))
    with pytest.raises(UseError, match="layer 2 has H 3"):  # the first after the encoder's two
        spread(bill_of(thin), Split(2))


def test_kinds() -> None:
    mixed = replace(LLAMA, layers=(Layer(MLA, Mlp(8)), Layer(Attention(4, 1, 8), Mlp(8)), Layer(Attention(4, 4, 8), Mlp(8))))
    assert kinds(mixed) == "MLA, MQA, MHA"
    assert isinstance(with_attention(LLAMA, "mla").layers[0].attn, Latent)
