"""Kinds of positions by hand: rows added, queries and keys turned, scores biased, and what a shift of all tokens changes."""

import pytest
import torch

import pellucid
from pellucid.analysis import position_kinds as kinds
from pellucid.errors import UseError

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def runs() -> dict[str, pellucid.Trace]:
    learned, rotary, t5 = (pellucid.load(f"pellucid/{name}", dtype="float64") for name in ("capitals", "capitals-llama", "capitals-t5"))
    models = {
        "learned": learned,
        "sinusoids": pellucid.variant(learned, kinds.SINUSOIDS),
        "rotary": rotary,
        "alibi": pellucid.variant(learned, kinds.ALIBI),
        "buckets": t5,
    }
    return {name: pellucid.trace(model, PROMPT) for name, model in models.items()}


def test_where_each_enters(runs: dict[str, pellucid.Trace]) -> None:
    counts = {name: kinds.entrances(run) for name, run in runs.items()}
    assert counts["learned"] == counts["sinusoids"] == kinds.Entrances(1, 0, 0, 0, 4)
    assert counts["rotary"] == kinds.Entrances(0, 8, 0, 0, 4)
    assert counts["alibi"] == kinds.Entrances(0, 0, 4, 0, 4)
    assert counts["buckets"] == kinds.Entrances(0, 0, 3, 0, 3)  # of the encoder, which reads the prompt


def test_a_value_that_turns_is_counted(runs: dict[str, pellucid.Trace], monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs["rotary"]
    monkeypatch.setattr(next(s for s in run if s.path.endswith("attn.v")), "op", "rotate")
    assert kinds.entrances(run).values == 1


def test_shift(runs: dict[str, pellucid.Trace]) -> None:
    """A score of rows that are added is that of the table's later rows; the others keep the distance alone."""
    moved = {name: kinds.moved_on(run, 7) for name, run in runs.items()}
    assert all(moved[name].scores > 1 and moved[name].values > 0.1 for name in ("learned", "sinusoids"))
    assert all(moved[name].scores < 1e-10 and moved[name].values == 0 for name in ("rotary", "alibi", "buckets"))
    assert all(kinds.moved_on(run, 0) == kinds.Shift(0, 0) for run in runs.values())
    run = runs["learned"]
    module = run.runner.module
    part = module.layers[0]
    with torch.no_grad():
        x = part.attn_norm(module.embed.weight[run.ids] + module.positions.weight[7 : 7 + len(run.ids)])
        v = part.attn.v(x) - part.attn.v(part.attn_norm(run["start"].value[0]))
    assert moved["learned"].values == pytest.approx(float(v.abs().max()), abs=1e-12)
    with pytest.raises(UseError, match="64"):
        kinds.moved_on(run, 60)


def test_bias(runs: dict[str, pellucid.Trace]) -> None:
    slopes, table, none = (kinds.bias(runs[name]) for name in ("alibi", "buckets", "rotary"))
    assert max(b.spread for b in (slopes, table, none)) < 1e-10
    assert [*slopes.by_distance] == [0, 1, 2, 3, 4] and [*table.by_distance] == [*range(-4, 5)]
    assert slopes.by_distance[3] == pytest.approx([-3 * 2.0 ** (-2 * h) for h in range(1, 5)])
    assert max(abs(v) for own in none.by_distance.values() for v in own) < 1e-10
    weight = runs["buckets"].runner.module.encoder.layers[0].attn.relative.weight  # 16 buckets: 8 a side, of which 4 are of one distance
    assert table.by_distance[2] == pytest.approx(weight[2].tolist()) and table.by_distance[-2] == pytest.approx(weight[10].tolist())
    assert kinds.bent(slopes.by_distance) < 1e-10 and kinds.bent(table.by_distance) > 0.1
    assert kinds.bent({1: [-1.0], 2: [-2.5]}) == 0.5 and kinds.lines({1: [3.0, 4.0], 2: [5.0, 6.0]}) == {0: [3.0, 5.0], 1: [4.0, 6.0]}


def test_a_bias_of_positions_has_a_spread(runs: dict[str, pellucid.Trace]) -> None:
    run = pellucid.trace(runs["alibi"].runner, PROMPT)
    run["layers.0.attn.scores"].value[0, 0, 4, 3] += 0.5
    assert kinds.bias(run).spread == pytest.approx(0.5)


def test_rows(runs: dict[str, pellucid.Trace]) -> None:
    rows = kinds.position_rows(runs["learned"], 3)
    assert rows == runs["learned"].runner.module.positions.weight[:5, :3].tolist() and kinds.position_rows(runs["alibi"], 3) == []
