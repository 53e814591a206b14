"""`pellucid show` names what no weight's name says: where positions enter, and which heads share keys."""

import json
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.api.variant import variant
from pellucid.commands import main
from pellucid.terminal.placing import sentences

SAYS = {
    "pellucid/capitals": ["a table of 64 rows", "each of 4 has keys"],
    "pellucid/capitals-llama": ["turned (RoPE) in 4 of 4 blocks", "4 of queries read 2 of keys and values, 2 in a row one (heads 0 … 1"],
    "pellucid/capitals-deepseek": ["turned (RoPE) in 4 of 4 blocks", "from one row of 32 numbers, and share one turned key of 8"],
    "pellucid/capitals-t5": ["a learned table of distances", "each of 4 has keys"],
    "llama-3-8b": ["in 32 of 32 blocks", "32 of queries read 8 of keys and values, 4 in a row one (heads 0 … 3"],
}


@pytest.mark.parametrize("name", SAYS)
def test_positions_and_heads_are_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", name, "--lang", "en", "-q"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert all(part in printed for part in SAYS[name]) and "view Attention" in printed


def test_the_tokens_that_end_a_text_are_those_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """config.json and generation_config.json may differ; then a line says what a run does, and --json has it always."""
    pellucid.load("pellucid/capitals").save(tmp_path / "m")

    def printed(*more: str) -> str:
        assert main(["show", str(tmp_path / "m"), "--lang", "en", "-q", *more]) == 0
        return capsys.readouterr().out

    assert "A text ends" not in printed() and json.loads(printed("--json"))["stops"] == [0]
    (tmp_path / "m" / "generation_config.json").write_text('{"eos_token_id": [0, 5]}')
    assert "A text ends at 0, 5," in printed() and json.loads(printed("--json"))["stops"] == [0, 5]


def test_heads_of_a_group_read_one_key() -> None:
    """The sentence is what runs: a key head zeroed changes the scores of its own heads alone."""
    model = pellucid.load("pellucid/capitals-llama", dtype="float64")
    ids = torch.tensor([model.ids("法国的首都是")])
    with torch.no_grad(), pellucid.watch(model, only="layers.0.attn.scores") as plain:
        model(ids)
    with torch.no_grad(), pellucid.watch(model, only="layers.0.attn.scores", edit=[pellucid.zero("layers.0.attn.k_rot", G=0)]) as seen:
        model(ids)
    a, b = (w["layers.0.attn.scores"].value[0].nan_to_num(neginf=0.0) for w in (plain, seen))
    assert [bool((x != y).any()) for x, y in zip(a, b, strict=True)] == [True, True, False, False]


def test_a_switch_changes_the_sentence() -> None:
    model = pellucid.load("pellucid/capitals-llama")
    assert "each of 4 has keys" not in " ".join(sentences(model))
    none = variant(pellucid.load("pellucid/capitals"), {"positions": None})
    assert next(iter(sentences(none))).startswith("Positions: none")
