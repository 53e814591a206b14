"""One step's attention by kind: what it reads and computes, and that each timed turn runs it."""

import torch

from pellucid.analysis import step_reading
from pellucid.analysis.step_reading import CONTEXT, HEADS, LATENT, RANK, ROTARY, WIDTH, grouped_reading, readings
from pellucid.analysis.turns_timed import in_turn


def test_bytes_and_flops_by_hand() -> None:
    own = {one.kind: one for one in readings()}
    assert {kind: one.read for kind, one in own.items()} == {
        "MHA": 2 * CONTEXT * 32 * WIDTH * 4,
        "GQA": 2 * CONTEXT * 8 * WIDTH * 4,
        "MQA": 2 * CONTEXT * WIDTH * 4,
        LATENT: CONTEXT * (RANK + ROTARY) * 4,
    }
    pairs = 2 * HEADS * CONTEXT
    assert {own[kind].flops for kind in ("MHA", "GQA", "MQA")} == {pairs * 2 * WIDTH}
    assert own[LATENT].flops == pairs * (2 * RANK + ROTARY) + 2 * HEADS * 2 * WIDTH * RANK


def test_it_is_attention_over_the_whole_cache() -> None:
    """By torch's own, and the mutant: a cache whose last half is another gives another row."""
    one = grouped_reading("GQA", 8)
    q, k = step_reading.filled(1, 1, HEADS, WIDTH), step_reading.filled(CONTEXT, 8, WIDTH)
    heads = [t.repeat_interleave(HEADS // 8, 1).transpose(0, 1)[None].double() for t in (k, k)]
    want = torch.nn.functional.scaled_dot_product_attention(q.transpose(1, 2).double(), *heads).transpose(1, 2)
    assert (one.step() - want).abs().max() < 1e-4
    half = [t[:, :, : CONTEXT // 2] for t in heads]
    assert (torch.nn.functional.scaled_dot_product_attention(q.transpose(1, 2).double(), *half).transpose(1, 2) - want).abs().max() > 1e-2


def test_every_turn_runs() -> None:
    ran: list[str] = []
    times = in_turn({name: lambda name=name: ran.append(name) for name in ("a", "b")}, 3)  # type: ignore[misc]
    assert ran == ["a", "b"] * 4 and all(0 < t.fastest <= t.median for t in times.values())
