"""One label, one number: `count`, `show`, `explain`, the page's bill and its run agree about a model in every number.

Labels are paths in Python and JSON, and the words of rows in a terminal. Every pair of both is collected, from all forms, and compared.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import pellucid
from covering import FULL
from pellucid.api.count import count, described
from pellucid.commands import main
from pellucid.counting import Bill, bill, training_memory
from pellucid.counting.number import Number
from pellucid.documents import count as bill_json
from pellucid.documents import count_formulas, count_series
from pellucid.documents.amount import scaled
from pellucid.documents.count import document, scenario
from pellucid.documents.run import run_document
from pellucid.documents.run_view import explain
from pellucid.messages import say
from pellucid.terminal import bill as drawing
from pellucid.terminal import columns, structure, tables, training_and_ranks
from test_block_sums import drawn
from tiny import swapped

MODELS: dict[str, dict[str, Any]] = {
    "deepseek-v3": {"dtype": "fp8", "context": 4096, "batch": 2},
    "gpt-oss-20b": {"dtype": "mxfp4", "context": 512},
    "gemma-2-9b": {"dtype": "int4", "context": 8192},
    "llama-3.1-8b": {"dtype": "bfloat16", "context": 1024, "batch": 4},
    "gpt2-small": {"dtype": "float32", "context": 64},
    "t5-small": {"dtype": "bfloat16", "context": 64, "source": 100},
    "bert-base": {"dtype": "bfloat16", "context": 64},
    "pellucid/capitals-llama": {"dtype": "float32", "context": 32},
}
VIEWS: dict[str, dict[str, Any]] = {
    "plain": {}, "price": {"price": 3.0}, "train": {"train": True}, "lora": {"lora": 4}, "ranks": {"ranks": "tp=2,pp=2", "price": 3.0},
    "one rank": {"ranks": "tp=1", "price": 3.0},
}  # fmt: skip
DEVICE = "h200"
Pair = tuple[str, Any]


def flat(value: Any, path: str = "") -> Iterator[Pair]:
    """Yield every number of a document with its path; entries of a list by their name, or their place."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from flat(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            own = inner if isinstance(inner, dict) else {}
            yield from flat(inner, f"{path}[{own.get('stage', '')}{own.get('path', own.get('kind', i))}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def numbers_of(counts: Bill, how: dict[str, Any]) -> Iterator[Pair]:
    """Yield paths and numbers of a bill in Python, in JSON, on the page, by the formulas, and by the reasons of its sums."""
    options = scenario(DEVICE, **how)
    yield from ((path, n.value) for path, n in counts.numbers.items())
    yield from flat(document(counts, options))
    page = count_formulas.count_document(counts, options)
    yield from ((path, n) for path, n in flat({k: v for k, v in page.items() if k != "formulas"}))
    for path in ("parameters.total", "bytes.total", "flops.prefill"):
        yield from ((r["path"], r["value"]) for r in bill_json.reasons(counts, path))
    point = count_series.point(counts.setting.context, counts, options.split or training_and_ranks.Split())
    names = {"bytes": "bytes.total", "cache": "cache.bytes", "prefill": "flops.prefill", "decode": "flops.decode"}
    yield from ((path, point[name]) for name, path in names.items() if point[name] is not None)


def same(counts: Bill, how: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield pairs of paths of one quantity."""
    yield "bounds.weights", "bytes.total"
    yield "bounds.cache", "cache.bytes"
    yield "textbook.model.counted", "parameters.total"
    yield "textbook.attention.counted", "parameters.by_part.attn"
    yield "training.memory.weights.value", "bytes.total" if "lora" in how or "bytes.dequantised" not in counts else "bytes.dequantised"
    yield "training.memory.adapters.value", "training.memory.gradients.value"
    if counts.config.encoder is None:
        yield "training.flops.forward.value", "flops.prefill"
    for phase in ("prefill", "decode"):
        for name in ("seconds", "tokens_per_second", "price_of_a_million_tokens"):
            yield f"bounds.{phase}.{name}", f"ranks.bounds.{phase}.{name}"


def contradictions(pairs: Iterable[Pair]) -> dict[str, list[Any]]:
    """Return the labels that stand for more than one number."""
    seen: dict[str, list[Any]] = {}
    for label, value in pairs:
        known = seen.setdefault(label, [])
        if not any(value == x or (isinstance(x, float) and value == pytest.approx(x, rel=1e-12)) for x in known):
            known.append(value)
    return {label: values for label, values in seen.items() if len(values) > 1}


def of_paths(name: str, form: str) -> dict[str, list[Any]]:
    """Return the contradictions of one run, between labels that are paths."""
    how, counts = VIEWS[form], count(name, device=DEVICE, **MODELS[name])
    pairs = list(numbers_of(counts, how))
    values = dict(pairs)
    pairs += [(a, values[b]) for a, b in same(counts, how) if a in values and b in values]
    pairs += [("parameters.total", sum(int(n) for _, n in counts.below("parameters.by_part")))]
    pairs += [("bytes.total", sum(int(n) for _, n in counts.below("bytes.by_part")))]
    pairs += [(f"parameters.by_part.{part}", n) for part, n in by_table(counts).items()]
    return contradictions(pairs)


def by_table(counts: Bill) -> dict[str, int]:
    """Return the parameters of each part in `count --table MODEL`, all its rows together."""
    sums: dict[str, int] = {}
    for row in tables.blocks(counts).rows:
        if row[3] is not None:
            sums[str(row[1])] = sums.get(str(row[1]), 0) + int(row[4])  # type: ignore[call-overload]
    return sums


ALL = [(name, form) for name in MODELS for form in VIEWS]
BY_TURNS = [(n, f) for n, f in ALL if (list(MODELS).index(n) + list(VIEWS).index(f)) % 2 == 0]


@pytest.mark.parametrize(("name", "form"), ALL if FULL else BY_TURNS)
@pytest.mark.quick(15)
def test_one_path_has_one_number(name: str, form: str) -> None:
    assert of_paths(name, form) == {}


# In a terminal


AMOUNT = r"-?[\d,]+(?:\.\d+)?(?:e[+-]?\d+)?(?: (?:[KMGTPE]?(?:B|FLOP)|[KMGTPE]|s|ms|µs|ns))?"
ROW = re.compile(rf" (?P<indent> *)(?P<label>\S.*?)  +(?:×\d+  +)?(?P<amount>{AMOUNT})(?=  |$)(?P<rest>.*)")


def rows(text: str) -> Iterator[Pair]:
    """Yield labels and first amounts of a terminal's lines. A row's label has its table's title, or the words that follow."""
    title = ""
    for line in text.splitlines():
        row = ROW.fullmatch(line)
        if row is None:
            if re.match(r" ?\S", line):
                title, least, amount = line.strip().partition(": at least ")
                yield from [(title, amount.partition(";")[0])] if least else []
            continue
        rest = row["rest"].strip()
        what = rest if rest.startswith(("products, ", "numbers that ")) else ""
        label = " ".join([row["label"], what]).strip()
        yield f"{title} | {label}" if row["indent"] else label, row["amount"]


def shown(name: str, forms: Iterable[str]) -> Iterator[Pair]:
    """Yield every row of `count` for a model in these forms, and beside another model, exact and rounded."""
    counts = count(name, device=DEVICE, **MODELS[name])
    for form in forms:
        yield from rows("\n".join(line.plain for line in drawing.drawn(counts, 300, scenario(DEVICE, **VIEWS[form]))))
    table = columns.compare([counts, counts], None)
    for label, *cells in csv.reader(io.StringIO(table.csv())):
        word, _, unit = label.partition(" [")
        if word in ROUNDED and cells[0]:
            yield word, scaled(float(cells[0]), unit.rstrip("]")) if unit else f"{int(float(cells[0])):,}"
    yield say("count.total"), f"{int(counts['parameters.total']):,}"
    yield columns.bytes_in(counts.setting.weights), scaled(int(counts["bytes.total"]), "B")


ROUNDED = {say("count.active"), *(columns.bytes_in(how["dtype"]) for how in MODELS.values())}
ONCE = [["plain", "price"], ["plain", "train"], ["plain", "lora"], ["plain", "ranks"]]


@pytest.mark.parametrize("forms", ONCE, ids="+".join)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.quick(15)
def test_one_row_has_one_amount(name: str, forms: list[str]) -> None:
    pairs = list(shown(name, forms))
    assert len(pairs) > 12
    assert contradictions(pairs) == {}


@pytest.mark.parametrize("name", ["pellucid/capitals-llama", "pellucid/capitals-deepseek", "pellucid/capitals-t5"])
@pytest.mark.quick(4)
def test_show_and_explain_say_what_count_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The parameters of a model, of each of its blocks and of every weight are one number in `show`, `explain` and `count`."""
    model, counts = pellucid.load(name), count(name, dtype="float32", context=16)
    structured = structure.document(model)
    explained = run_document(explain(model, [5, 6, 7]).run)
    pairs: list[Pair] = [
        ("total", int(counts["parameters.total"])),
        ("total", structured["parameters"]),
        ("total", explained["parameters"]),
    ]
    pairs += [("total", sum(w["count"] for w in structured["weights"] if w["parameter"]))]
    pairs += [("buffers", sum(w["count"] for w in structured["weights"] if not w["parameter"])), ("buffers", int(counts["buffers.total"]))]
    pairs += [(path, n) for path, n in drawn(described(name)[1], name, model.family.name).items()]
    pairs += [(b["path"], b["parameters"]) for b in explained["blocks"]]
    for group in structure.groups(model):
        pairs += [(path, group.count) for path in group.paths]
    for command in ("show", "explain"):
        capsys.readouterr()
        assert main([command, name, *(["Hello"] if command == "explain" else [])]) == 0
        first = " ".join(capsys.readouterr().out.partition("\n\n")[0].split())  # two lines where one is too narrow
        pairs += [("total", int(re.findall(r"([\d,]+) parameters", first)[0].replace(",", "")))]
    assert contradictions(pairs) == {} and len(dict(pairs)) > 3


# Mutants


def other_totals(counts: Bill, way: training_memory.Way = training_memory.Way()) -> dict[str, Number]:  # noqa: B008
    """Return a training whose weights are always bfloat16: a mutant."""
    totals = dict(honest(counts, way))
    totals["memory.weights"] = Number(2 * int(counts["parameters.total"]))
    return totals


honest = training_memory.training


def unlike(path: str, active: Any) -> str:
    """Return another name of a part: norms within attention are attention's."""
    part = right(path, active)
    return "attn" if part == "norms" and re.search(r"\.attn\.", path) else part


right = bill.part_of


def test_a_table_that_names_parts_otherwise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(counts: Bill) -> dict[str, int]:
        sums: dict[str, int] = {}
        for c in counts.weights:
            if c.weight.parameter:
                part = unlike(c.path, c.active)
                sums[part] = sums.get(part, 0) + c.times * c.weight.count
        return sums

    monkeypatch.setitem(globals(), "by_table", parts)
    assert {"parameters.by_part.norms", "parameters.by_part.attn"} <= of_paths("deepseek-v3", "plain").keys()


def test_weights_of_another_format_are_seen() -> None:
    with swapped(bill_json, "training", other_totals):
        assert "training.memory.weights.value" in of_paths("gemma-2-9b", "lora")


def test_one_devices_numbers_beside_those_of_ranks_are_seen() -> None:
    """A price and times of one device in a run over several are seen."""
    with swapped(bill_json.Scenario, "alone", True):
        assert "bounds.decode.price_of_a_million_tokens" in of_paths("deepseek-v3", "ranks")


@pytest.mark.parametrize(("key", "other"), [("count.dequantised", "count.bytes"), ("count.train.work", "count.total")])
def test_a_label_that_is_given_to_another_number_is_seen(key: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of one name are seen."""

    def renamed(phrase: str, **fields: Any) -> str:
        if phrase == key:
            return columns.bytes_in("fp8") if other == "count.bytes" else say(other)
        return say(phrase, **fields)

    for module in (drawing, training_and_ranks):
        monkeypatch.setattr(module, "say", renamed)
    assert contradictions(shown("deepseek-v3", ["plain", "train"])) != {}
