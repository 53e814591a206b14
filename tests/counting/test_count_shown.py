"""A bill shows itself in one line, in a few, and as a table, each number its own; README names as many families as there are."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import pellucid
from pellucid import catalog
from pellucid.api.model import specimens
from pellucid.counting import summary
from pellucid.documents.amount import Amount, figures, scaled
from pellucid.documents.count import training_bounds
from pellucid.families import known
from pellucid.messages import phrases
from pellucid.terminal import bill as terminal_bill
from pellucid.terminal import verdict
from pellucid.terminal.training_and_ranks import any_of
from test_commands import Captured, run
from tiny import swapped

ROOT = Path(__file__).parents[2]
MODELS = ["deepseek-v3", "t5-small", "bert-base", "pellucid/capitals"]


class Cells(HTMLParser):
    """The cells of a table, row by row, and every tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


@pytest.mark.parametrize("name", MODELS)
def test_a_bill_shows_itself_in_short(name: str) -> None:
    bill = pellucid.count(name, context=32)
    total = f"{int(bill['parameters.total']):,}"
    assert "\n" not in repr(bill) and len(repr(bill)) < 150 and name in repr(bill) and total in repr(bill)
    first, *lines = str(bill).splitlines()
    assert first == repr(bill) and 3 <= len(lines) <= 7
    shown = dict(re.fullmatch(r"(\S+) +([\d,]+)", one).groups() for one in lines)  # type: ignore[union-attr,misc]
    table = Cells(bill._repr_html_())
    for numbers in (shown, {row[0]: row[1] for row in table.rows}):
        assert numbers == {path: f"{int(bill[path]):,}" for path in summary.MAIN if path in bill}
    assert all("…" in formula or formula == bill[path].formula.rpartition(" = ")[0] for path, _, formula in table.rows)


def test_a_name_is_not_markup() -> None:
    bill = pellucid.count("gpt2-small", context=8)
    bill.model, bill.notes = "<script>x</script>", ["<img src=x>"]
    assert not {"script", "img"} & set(Cells(bill._repr_html_()).tags)


@pytest.mark.parametrize("readme", ["README.md", "README.zh.md"])
def test_readme_says_how_many_families_there_are(readme: str) -> None:
    """And specimens and published models: as many as `pellucid models` lists."""
    text = (ROOT / readme).read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if "`pellucid models`" in line and "hub" in line)
    assert set(map(int, re.findall(r"\d+", line))) == {len(known()), len(catalog.models())} and len(specimens()) == 7


def test_models_counts_what_it_lists(capsys: Captured) -> None:
    document = json.loads(run(capsys, "models", "--json")[1])
    assert document["families"] == known() == sorted(set(known())) and len(document["catalogue"]) == len(catalog.models())
    assert f"{len(known())}" in run(capsys, "models")[1]


VERDICTS = [
    ("llama-3.1-8b", "--device h100 --context 8192 --batch 16", True),
    ("llama-3.1-70b", "--device h100", False),
    ("llama-3.1-70b", "--device h100 --ranks tp=2", True),
    ("llama-3.1-405b", "--device h100 --ranks tp=4", False),
    ("bert-base", "--device h100", True),
    ("t5-small", "--device mem=1G,bw=1G,bf16=1T", True),
    ("pellucid/capitals", "--device mem=1M,bw=1G,bf16=1T", False),
]


@pytest.mark.parametrize(("model", "options", "fits"), VERDICTS)
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.quick(5)
def test_the_verdict_stands_first(
    model: str, options: str, fits: bool, language: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the model's own line, with the numbers of the bounds below it, which are those of the JSON."""
    monkeypatch.setenv("COLUMNS", "300")
    judge_verdict(capsys, model, options, fits, language)
    with swapped(verdict, "scaled", lambda n, unit: f"{n / 2} {unit}"), pytest.raises(AssertionError):
        judge_verdict(capsys, model, options, fits, language)


def judge_verdict(capsys: Captured, model: str, options: str, fits: bool, language: str) -> None:
    command = ["count", model, *options.split(), "--lang", language]
    code, text, _ = run(capsys, *command)
    document = json.loads(run(capsys, *command, "--json")[1])
    report = document["ranks"]["bounds"] if "ranks" in document else document["bounds"]
    first = " ".join(text.split("\n\n")[0].splitlines()[1:])
    assert code == 0 and report["fits"] is fits and (say_in(language, fits) in first)
    used = report["held"] if "held" in report else report["weights"] + report["cache"]
    assert scaled(used, "B") in first
    if not fits:
        assert ("devices" in report) == (str(report.get("devices", "?")) in first.split("·")[-1])
        return
    phase = report.get("decode", report.get("prefill"))
    assert figures(phase["tokens_per_second"]) in first and str(Amount(phase["seconds"], "s")) in first
    assert "largest_batch" not in report or any_of(report["largest_batch"]) in first
    by = {one: sum(p["seconds"] for p in phase["parts"] if p["sets"] == one) for one in ("compute", "bandwidth")}
    assert first.rstrip(".").endswith(phrases(language)["count." + max(by, key=lambda one: by[one])])


TRAINED = [
    ("qwen2.5-0.5b", "--device h100", True), ("llama-3.1-8b", "--device h100", False),
    ("llama-3.1-8b", "--device h100 --shards 8", True), ("llama-3.1-8b", "--device h100 --ranks tp=2", True),
]  # fmt: skip


@pytest.mark.parametrize(("model", "options", "fits"), TRAINED)
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.quick(4)
def test_the_verdict_on_training_stands_first(
    model: str, options: str, fits: bool, language: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --train, before that on serving; it has the numbers of the block below it and of the JSON."""
    monkeypatch.setenv("COLUMNS", "300")

    def holds() -> bool:
        command = ["count", model, "--train", *options.split(), "--lang", language]
        first, second = run(capsys, *command)[1].splitlines()[1:3]
        report = json.loads(run(capsys, *command, "--json")[1])["training_bounds"]
        numbers = [scaled(report["held"], "B"), scaled(report["memory"], "B")]
        numbers += [figures(report["tokens_per_second"]), str(Amount(report["seconds"], "s"))] if fits else []
        words = {"en": ("a step of training does not fit", "a step of training fits"), "zh": ("放不下一步训练", "放得下一步训练")}
        stands = words[language][fits] in first and all(n in first for n in numbers)
        return report["fits"] is fits and stands and say_in(language, True) in second

    assert holds()
    with swapped(terminal_bill, "training_bounds", lambda bill, view: training_bounds(bill, view) | {"held": 1, "fits": not fits}):
        assert not holds()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_column_of_the_bounds_has_a_heading(language: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a bill tells the bytes of weights and of the cache apart."""
    monkeypatch.setenv("COLUMNS", "300")
    command = ["count", "gpt2-xl", "--device", "rtx4090", "--context", "1024", "--lang", language]
    text = run(capsys, *command)[1]
    report = json.loads(run(capsys, *command, "--json")[1])["bounds"]
    words = phrases(language)
    assert words["count.fits"].format(
        weights=scaled(report["weights"], "B"), cache=scaled(report["cache"], "B"), memory=scaled(report["memory"], "B")
    ) in text  # fmt: skip
    tables = [table for table in re.split(r"\n(?! {2})", text) if "FLOP/B" in table]
    assert len(tables) == 2
    for table in tables:
        head, *rows = ([cell for cell in re.split(r" {2,}", line.strip()) if cell] for line in table.splitlines()[1:])
        assert len(rows) == 4 and {len(row) for row in rows} == {len(head)} == {8}


def say_in(language: str, fits: bool) -> str:
    """Return the words of a verdict."""
    return {"en": ("does not fit on", "fits on"), "zh": ("放不下", "放得下")}[language][fits]
