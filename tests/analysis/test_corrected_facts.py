"""The numbers of the errata, against published configurations and sums by hand."""

import math

import pytest
import torch

import pellucid
from pellucid import catalog
from pellucid.analysis.corrected_facts import CORRECTED, biased, blocks, dense, head_widths, query_path, saved_by_sharing
from pellucid.exhibits import names
from pellucid.tracing import Trace

V3 = catalog.models()["deepseek-v3"]["config"]


@pytest.fixture(scope="module")
def run() -> Trace:
    return pellucid.trace(pellucid.load("pellucid/capitals", dtype="float64"), "The capital of France is")


def test_every_correction_has_an_exhibit_and_a_number(run: Trace) -> None:
    assert {fact.exhibit for fact in CORRECTED.values()} <= {*names()}
    assert all(fact.number(run) for fact in CORRECTED.values())


def test_numbers_by_hand(run: Trace) -> None:
    number = {key: fact.number(run) for key, fact in CORRECTED.items()}
    assert number["vocabulary"] == f"{256 + 50_000 + 1:,}" and number["gpt2"] == "124,439,808"
    assert number["heads"] == ", ".join([f"{4 * (512 * 512 + 512):,}"] * 2) and number["maps"] == "[4, 5, 5]"
    assert float(number["rope"]) == pytest.approx(2 * math.pi, abs=1e-4)
    assert (number["future"], number["embedding"], number["relu"]) == ("0", "0", "0, 0, 1, 2")
    d, r = V3["hidden_size"], V3["q_lora_rank"]
    heads = V3["num_attention_heads"] * (V3["qk_nope_head_dim"] + V3["qk_rope_head_dim"])
    assert query_path("deepseek-v3") == f"{d} × {r}, {r} × {heads}"
    assert dense("deepseek-v3") == f"{V3['first_k_dense_replace']} / {V3['num_hidden_layers']}"
    assert (blocks("transformer-base"), blocks("gpt2-small")) == ("6 + 6", "0 + 12")
    assert head_widths("gpt2-small", "deepseek-v3") == f"{768 // 12}, {V3['qk_nope_head_dim'] + V3['qk_rope_head_dim']}"
    assert saved_by_sharing("gpt3-175b") == "1/96, 1/96" and biased("gpt2-") == "0 / 4, 4 / 4"


def test_counts_of_the_published_configurations(run: Trace) -> None:
    number = {key: fact.number(run) for key, fact in CORRECTED.items()}
    d, layers = 768, 12
    qkv, output = layers * 3 * (d * d + d), layers * (d * d + d)
    ffn = layers * (8 * d * d + 5 * d)
    assert number["parts"] == f"{qkv:,}, {output:,}, {ffn:,}" == "21,261,312, 7,087,104, 56,669,184"
    assert number["sizes"] == "124,439,808, 354,823,168, 774,030,080, 1,557,611,200"
    assert number["large"] == "128, 128 × 12288, 12288 × 12288" and number["ahead"] == "11,610,067,968"
    assert number["blocks"] == "187,107,328, 396,361,728" and number["printed"] == "1,517,123,584, 12,936,488,380"
    assert number["routing"] == f"{V3['num_experts_per_tok']} / {V3['n_routed_experts']}, {V3['topk_group']} / {V3['n_group']}, × 2.5"


def test_numbers_of_a_run(run: Trace) -> None:
    number = {key: fact.number(run) for key, fact in CORRECTED.items()}
    assert (number["ids"], number["padded"], number["values"]) == ("4 / 5", "5 / 5", "128 × 128")
    assert number["slices"] == "4 · (32 × 128)" and number["shift"] == "0, 0.5"
    before, after = number["grown"].split(", ")
    assert before == after and float(number["norms"]) > 1 and float(number["shuffled"]) > 1
    piece, cosine = number["sum"].rsplit(" ", 1)
    assert piece.strip() in ("The", "of") and 0 < float(cosine) < 1


def test_an_open_mask_is_seen(run: Trace) -> None:
    model = pellucid.variant(run.runner, {"layers.*.attn.causal": False})
    with torch.no_grad():
        assert float(CORRECTED["future"].number(pellucid.trace(model, "The capital of France is"))) > 0.01
