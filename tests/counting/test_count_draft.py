"""A draft in the count: what rows of guesses take is what such rows would run, and the tokens of a step are their expectation."""

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from documented import accept
from pellucid.api.count import count
from pellucid.commands import main
from pellucid.counting import speculation
from pellucid.counting.bounds import Device, parts, shown
from pellucid.counting.meta_run import ran
from pellucid.counting.speculation import Drafted, Guessing
from pellucid.documents.amount import figures
from pellucid.documents.count import document, scenario
from pellucid.documents.count_formulas import count_document
from pellucid.errors import UseError
from test_count_plans import bill_of
from tiny import DECODERS, swapped

DEVICE = Device("a device", 1e12, 1e12, {"float32": 1e12})
FAMILIES = ["llama", "gpt_oss", "qwen2_moe"]  # plain rows, windows, experts; a latent's products have another form in several rows


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_guesses_take_what_they_would_run(family: str) -> None:
    bill, rows = bill_of(DECODERS[family]), 4
    s = bill.setting
    real = 0.0
    for path, flops in ran(bill.reduced.config, rows, s.context, s.batch, None).flops.items():
        if (place := bill.reduced.place(path)) is not None:
            full, times = place
            real += times * flops * (shown(bill, full, rows, s.context) if f"cache.{full}" in bill else 1.0)
    assert sum(p.flops for p in parts(bill, "decode", DEVICE, rows=rows)) == pytest.approx(real, rel=1e-12)
    assert parts(bill, "decode", DEVICE, rows=1) == parts(bill, "decode", DEVICE)


def expected(a: Fraction, k: int) -> Fraction:
    """Return the mean number of tokens of a step, summed over the number of accepted guesses."""
    return sum(((i + 1) * a**i * (1 - a) for i in range(k)), Fraction(0)) + (k + 1) * a**k


@pytest.mark.parametrize("share", ["0", "0.25", "0.7", "1"])
def test_tokens_of_a_step_are_their_expectation(share: str) -> None:
    both = Drafted(count("qwen2.5-7b"), count("qwen2.5-0.5b"), 7)
    for k in (1, 3, 7):
        assert Guessing(both, float(share), k).tokens.value == pytest.approx(float(expected(Fraction(share), k)), rel=1e-12)


def test_the_document_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    """Steps of the draft and the model's own rows make a step; both memories make one; the best number of guesses is the best."""
    how: dict[str, Any] = {"context": 2048, "batch": 2, "device": "h100"}
    model, draft = count("qwen2.5-7b", **how), count("qwen2.5-0.5b", **how)
    made = document(model, scenario("h100", draft=draft))
    own, plain = document(draft)["bounds"], made["bounds"]
    assert made["draft"]["weights"] == own["weights"] and made["draft"]["cache"] == own["cache"]
    assert made["draft"]["held"] == own["weights"] + own["cache"] + plain["weights"] + plain["cache"] and made["draft"]["fits"]
    for row in made["draft"]["rows"]:
        k, step = row["guesses"], row["seconds"]
        checked = sum(p.seconds for p in parts(model, "decode", device_named("h100"), rows=k + 1))
        assert step == pytest.approx(k * own["decode"]["seconds"] + checked, rel=1e-12)
        assert row["tokens_per_second"] == pytest.approx(2 * row["tokens_a_step"] / step)
        assert row["over_plain"] == pytest.approx(row["tokens_per_second"] / plain["decode"]["tokens_per_second"])
        both = Drafted(model, draft, 7)
        rates = [float(Guessing(both, row["accepted"], i).rate(device_named("h100"))) for i in range(1, 8)]
        assert max(rates) == pytest.approx(row["tokens_per_second"])
    assert [row["over_plain"] > 1 for row in made["draft"]["rows"]][-1]
    words = ["count", "qwen2.5-7b", "--draft", "qwen2.5-0.5b", "--context", "2048", "--batch", "2", "--device", "h100"]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    accept(printed, "count")
    assert printed["draft"] == made["draft"]
    assert main(words) == 0
    lines = capsys.readouterr().out
    assert all(figures(row["tokens_per_second"]) in lines for row in made["draft"]["rows"])


def device_named(name: str) -> Device:
    from pellucid.bench import last_measured

    device = last_measured.device(name)
    assert device is not None
    return device


def test_a_draft_that_is_never_right_is_slower() -> None:
    """By exactly its steps where bandwidth sets the pace; a mutant that forgets them is not."""
    model, draft = count("qwen2.5-7b"), count("qwen2.5-0.5b")
    slow = replace(DEVICE, peak={"bfloat16": 1e30, "float32": 1e30})

    def over() -> float:
        return float(Drafted(model, draft, 7).best(0.0, slow).over_plain(slow))

    assert over() < 0.95
    least = speculation.least
    with swapped(speculation, "least", lambda bill, *how: 0.0 if bill is draft else least(bill, *how)):
        assert over() > 0.99


def test_formulas_are_of_the_numbers() -> None:
    how: dict[str, Any] = {"device": "h100"}
    made = count_document(count("qwen2.5-7b", **how), scenario("h100", draft=count("qwen2.5-0.5b", **how), accepted=0.7))
    (row,) = made["draft"]["rows"]
    for name in ("tokens_a_step", "seconds", "tokens_per_second", "over_plain"):
        assert made["formulas"][f"draft.rows.0.{name}"].endswith(f" = {row[name]:.4g}")
    assert made["formulas"]["draft.held"].endswith(f" = {made['draft']['held']:,}")


def test_wrong_uses_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--accepted", "0.7"], ["--draft", "qwen2.5-0.5b", "--accepted", "1.5"], ["--draft", "none-such"],
        ["--draft", "qwen2.5-0.5b", "--csv"], ["--draft", "qwen2.5-0.5b", "--ranks", "tp=2"], ["llama-2-7b", "--draft", "qwen2.5-0.5b"],
        ["--draft", "bert-base"], ["--draft", "qwen2.5-0.5b", "--users", "3"],
    ):  # fmt: skip
        assert main(["count", "qwen2.5-7b", *words]) == 2, words
        assert capsys.readouterr().err.count("\n") == 1, words


def test_models_that_take_no_guesses_are_named() -> None:
    for name, other, key in (("t5-small", "qwen2.5-0.5b", "speculate.source"), ("qwen2.5-7b", "bert-base", "speculate.draft")):
        with pytest.raises(UseError) as refused:
            Drafted(count(name), count(other), 7)
        assert refused.value.key == key
