"""Proposed tokens by command and from Python: the same text, how many were accepted, and what is refused in one line."""

import re
from pathlib import Path
from typing import Any

import pytest

import tiny
from judge import judge
from openai_served import openai_served
from pellucid.api.draft_model import draft_for
from pellucid.api.model import Model, load, make
from pellucid.commands import main
from pellucid.errors import UseError
from pellucid.tokenizer.tokenizer import Tokenizer

MODEL, DRAFT = "pellucid/capitals", "pellucid/capitals-llama"
PROMPT = "The capital of France is"


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["run", MODEL, PROMPT, "--max-new-tokens", "12", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_run_says_how_many_were_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    plain = ran(capsys, "-v")
    for words in (["--draft", DRAFT], ["--speculate", "ngram"], ["--draft", MODEL, "--deterministic"]):
        code, out, err = ran(capsys, "-v", *words)
        assert (code, out) == plain[:2]
        assert re.search(r"\d of (1 proposed token|\d+ proposed tokens) accepted, of 3 new ones", err), err
    assert "1 of 1 proposed" in err and "proposed" not in plain[2]


def test_wrong_uses_are_one_line(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    states = str(judge("qwen3_5_text").folder)
    for command in ("run", "serve"):
        for words in ([MODEL, "--draft", DRAFT, "--speculate", "ngram"], [MODEL, "--speculate", "tree"], [MODEL, "--draft", str(folder)]):
            assert main([command, *words, *(["--max-new-tokens", "1"] if command == "run" else ["--port", "0"])]) != 0
            assert capsys.readouterr().err.count("\n") == 1
    for words in (["--draft", states], ["--draft", "pellucid/capitals-bert"]):
        assert main(["run", MODEL, "--ids", "3 4", *words]) != 0
        assert capsys.readouterr().err.count("\n") == 1
    for words in (["--draft", states], ["--speculate", "ngram"]):
        assert main(["run", states, "--ids", "3 4", *words]) == 2
        assert "states" in capsys.readouterr().err.splitlines()[-1]


def test_drafts_that_write_in_other_tokens_are_refused(folder: Path) -> None:
    target, small = load(MODEL), load(folder)
    with pytest.raises(UseError) as refused:
        target.generate(PROMPT, draft=small)
    assert refused.value.key == "speculate.vocabulary"

    def bare(vocab: int) -> Model:
        cfg: dict[str, Any] = {"model_type": "gpt2", "vocab_size": vocab, "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 64}
        return make(cfg)

    with pytest.raises(UseError) as refused:
        draft_for(bare(tiny.V), bare(tiny.V + 1))
    assert refused.value.key == "speculate.sizes"
    assert draft_for(bare(9), None) is None
    assert target.generate(PROMPT, draft=load(DRAFT)) == target.generate(PROMPT)


def test_the_server_counts_them() -> None:
    """Each answer is the one without a draft, a grammar's too; /metrics tells how many were proposed and accepted."""
    bodies: list[dict[str, Any]] = [
        {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True},
        {"prompt": [5, 6, 7], "max_tokens": 12, "temperature": 1, "seed": 3, "n": 2, "ignore_eos": True},
        {"prompt": PROMPT, "max_tokens": 30, "temperature": 1, "seed": 4, "guided_regex": "(Paris|Tokyo|[a-z]{3,9} ){2,9}"},
    ]
    with openai_served(load(MODEL), deterministic=True) as server:
        plain = [server.complete(b.pop("prompt"), **b)["choices"] for b in map(dict, bodies)]
    with openai_served(load(MODEL), deterministic=True, draft=load(DRAFT)) as server:
        assert [server.complete(b.pop("prompt"), **b)["choices"] for b in map(dict, bodies)] == plain
        text = server.client.get("/metrics").text
        values = {
            name: float(text.partition(f'pellucid:spec_decode_num_{name}_tokens_total{{model_name="{MODEL}"}} ')[2].split()[0])
            for name in ("draft", "accepted")
        }
    assert values["draft"] > values["accepted"] > 0


def test_vocabularies_are_compared_once(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Of a pair that may not go together, every call says so."""
    target, draft, other = load(MODEL), load(DRAFT), load(folder)
    spellings = list[int]()
    spelled = Tokenizer.spelled
    monkeypatch.setattr(Tokenizer, "spelled", lambda self, id: spellings.append(id) or spelled(self, id))
    draft_for(target, draft)
    assert len(spellings) >= 2 * min(target.config.vocab, draft.config.vocab)
    spellings.clear()
    draft_for(target, draft)
    assert not spellings
    for _ in range(2):
        with pytest.raises(UseError):
            draft_for(target, other)
