"""`pellucid count` as a person and a script see it: one model, several side by side, tables, pictures; JSON that its schema judges."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import pellucid
from documented import accept, refused
from pellucid import catalog
from pellucid.commands import main
from pellucid.counting.complexity import compared
from pellucid.terminal import tables
from pellucid.terminal.grid import Grid
from pellucid.terminal.growth import apart, growth
from pellucid.terminal.svg import ink
from pellucid.terminal.treemap import squarified

Captured = pytest.CaptureFixture[str]
CHINESE = re.compile(r"[\u3400-\u9fff]")
EVERYTHING = ["--device", "h200", "--price", "3", "--train", "--lora", "4", "--recompute", "--shards", "2", "--ranks", "tp=2,pp=2"]


def run(capsys: Captured, *given: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["count", *(str(word) for word in given)])
    out, err = capsys.readouterr()
    return code, out, err


def judged(capsys: Captured, *given: object) -> Any:
    """The JSON of a command line, which is one line that the schema takes, and would not with another edition or a field more."""
    code, out, _ = run(capsys, *given, "--json")
    assert code == 0 and out.count("\n") == 1
    cells = json.loads(out)
    accept(cells, "count")
    for other in ({"schema": 2}, {"more": 1}):
        assert refused([cells[0] | other, *cells[1:]] if isinstance(cells, list) else cells | other, "count")
    return cells


def test_one_model_as_json(capsys: Captured) -> None:
    """The contract's fields, and every section that can be asked for."""
    document = judged(capsys, "gpt2-small", "--context", 64, *EVERYTHING)
    assert document["parameters"]["total"] == sum(document["parameters"]["by_part"].values()) == 124_439_808
    assert document["cache"]["bytes_per_token"] == 36_864 and document["cache"]["bytes"] == 64 * 36_864
    assert {"prefill", "decode"} <= document["flops"].keys() and document["ranks"]["bounds"]["prefill"]["price_of_a_million_tokens"] > 0
    assert document["ranks"]["ranks"] == 4 and document["training"]["memory.total"]["value"] > 0
    plain = judged(capsys, "gpt2-small", "--context", 64)
    assert plain["bounds"] == {} and not {"training", "ranks"} & plain.keys()


def test_several_models_are_a_list(capsys: Captured) -> None:
    document = judged(capsys, "gpt2-small", "t5-small", "bert-base", "--context", 16)
    assert [t["model"] for t in document] == ["gpt2-small", "t5-small", "bert-base"]
    assert "bytes_per_source_token" in document[1]["cache"] and document[2]["cache"] == {}


def test_a_number_opens_to_its_formula(capsys: Captured) -> None:
    assert "32·layers.0.attn = 32·16,384 = 524,288" in run(capsys, "llama-2-7b", "--context", 8, "--why", "cache.bytes_per_token")[1]
    why = judged(capsys, "llama-2-7b", "--context", 8, "--why", "cache.bytes_per_token")["why"]
    assert [w["path"] for w in why] == ["cache.bytes_per_token", "cache.layers.0.attn"]
    assert why[0]["value"] == 32 * why[1]["value"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_one_model_in_a_terminal(language: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every section is there, in both languages, and fits any width."""
    monkeypatch.setenv("COLUMNS", "90")
    code, out, err = run(capsys, "gpt-oss-20b", "--context", 64, "--dtype", "mxfp4", *EVERYTHING, "--lang", language)
    assert (code, err) == (0, "")
    assert bool(CHINESE.search(out)) == (language == "zh")
    for text in ("NVIDIA H200 SXM", "4·L·d²", "MQA", "tp 2", "6·A·T", "20,914,757,184", "×6"):
        assert text in out, text
    assert max(len(line) for line in out.splitlines()) <= 90


def test_side_by_side(capsys: Captured) -> None:
    """The same numbers in a terminal, a spreadsheet and a text; not rounded in the spreadsheet."""
    models = ["gpt2-small", "deepseek-v3", "gemma-2-9b"]
    how = ["--context", "64", "--device", "h100"]
    text = run(capsys, *models, *how)[1]
    rows = list(csv.reader(io.StringIO(run(capsys, *models, *how, "--csv")[1])))
    assert rows[0] == ["", *models] and {len(row) for row in rows} == {4}
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["attention"] == ["MHA", "MLA", "GQA"] and by_name["key/value heads"] == ["12", "", "8"]
    assert by_name["parameters"] == ["124439808", "671026404352", "9241705984"]
    assert by_name["cache per token [B]"] == ["36864", "70272", "344064"] and by_name["head width"][1] == "128+64"
    assert float(by_name["per token, at least [s]"][1]) > 0
    assert "671,026,404,352" in text and "70.27 KB" in text
    marked = run(capsys, *models, *how, "--markdown")[1]
    assert "| parameters | 124,439,808 | 671,026,404,352 | 9,241,705,984 |" in marked and marked.startswith("|  | gpt2-small |")


def test_columns_that_find_no_place_stand_below() -> None:
    table = Grid("", ["", "one", "two", "three"], [["row", 1, 22222222, None]])
    assert len(table.lines(60)) == 2
    narrow = [line.plain for line in table.lines(18)]
    assert [line.split()[0] for line in narrow if line] == ["one", "row", "two", "row", "three", "row"]
    assert max(map(len, narrow)) <= 18


def test_what_if(capsys: Captured) -> None:
    """What was changed is said, and counted."""
    fewer = [judged(capsys, "llama-2-7b", "--context", 8, "--set", f) for f in ("kv_heads=1", "num_key_value_heads=1")]
    assert fewer[0]["cache"] == fewer[1]["cache"] and fewer[0]["cache"]["bytes_per_token"] == 2 * 32 * 128 * 2
    document = judged(capsys, "llama-2-7b", "--context", 8, "--attn", "gqa:8", "--experts", "8:2", "--set", "num_hidden_layers=2")
    assert document["cache"]["bytes_per_token"] == 2 * 2 * 8 * 128 * 2 and document["layers"] == 2 and len(document["notes"]) == 2
    assert document["parameters"]["by_part"]["experts"] == 2 * 8 * 3 * 4096 * 11008
    assert "gqa:8" in run(capsys, "llama-2-7b", "--context", 8, "--attn", "gqa:8")[1]


WRONG = [
    ([], "MODEL"), (["gpt2-small", "--price", 3], "--device"), (["gpt2-small", "--svg", "/nix/da.svg"], "/nix/da.svg"),
    (["gpt2-small", "--svg", "x", "--picture", "pie"], "treemap, cache, roofline"), (["gpt2-small", "--ranks", "tp=5"], "12"),
    (["gpt2-small", "--svg", "x", "--picture", "roofline"], "--device"), (["gpt2-small", "--lora", 0], "--lora"),
    (["gpt2-small", "gpt2-xl", "--svg", "x"], "treemap"), (["gpt2-small", "--attn", "gqa:5"], "1, 2, 3, 4, 6, 12"),
    (["gpt2-small", "--experts", "4:5"], "4:5"), (["gpt-4"], "GPT-4"),
    (["palm-8b", "--set", "widht=3"], "literal.widht"), (["palm-8b", "--set", "width=0"], "literal.width"),
    (["llama-3-8b", "--source", 0], "source"), (["--table", "nix"], "nix"), (["gpt2-small", "--dtype", "int3"], "mxfp4"),
    (["gemma-2-9b", "--context", 2**38, "--batch", 2**38], str(2**38)), (["gpt2-small", "--set", "n_head"], "FIELD=VALUE"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "named"), WRONG, ids=lambda x: None)
def test_wrong_use(given: list[object], named: str, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *given)
    assert (code, out) == (2, "") and named in err and re.fullmatch(r"pellucid: [^\n]+\n", err)
    assert list(tmp_path.iterdir()) == []


# Tables


def test_table_of_configurations(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published beside computed; a model on paper has a star; of an undisclosed one, what was stated, and what is unconfirmed."""
    some = {k: v for k, v in catalog.models().items() if k in ("gpt2-small", "palm-8b", "chinchilla-70b", "gpt-4", "deepseek-v3")}
    monkeypatch.setattr(catalog, "models", lambda: some)
    document = judged(capsys, "--table", "configurations")
    rows = {row[0]: row for row in document["rows"]}
    assert rows["GPT-2 small"][2:] == ["MHA", 12, 768, 12, 12, 64, 3072, None, 50257, "117M", 124_439_808, None]
    assert rows["DeepSeek-V3"][-3:] == ["671B", 671_026_404_352, 37_552_282_624] and rows["DeepSeek-V3"][9] == "8/256"
    assert rows["PaLM 8B"][-3:] == ["8.63B*", 8_632_012_800, None]
    assert rows["Chinchilla 70B"][2:5] == ["MHA", 80, 8192] and rows["Chinchilla 70B"][-3:] == ["70B*", 70_056_681_472, None]
    assert rows["GPT-4"][2:] == [None] * 9 + ["undisclosed", None, None]
    rumours = [note for note in document["notes"] if note.startswith("GPT-4: ") and "120 layers" in note]
    assert len(rumours) == 1 and "unconfirmed" in rumours[0]


ON_PAPER = {"transformer-base": 63_045_632, "lamda-137b": 137_703_215_104, "galactica-120b": 121_332_879_360, "gpt3-xl": 1_517_123_584}


@pytest.mark.parametrize(("name", "total"), ON_PAPER.items())
def test_models_known_from_papers(name: str, total: int) -> None:
    assert int(tables.parameters(name)["parameters.total"]) == total


def test_every_disclosed_model_has_a_row() -> None:
    """None breaks the table, and each has a computed count."""
    rows = {entry["id"]: tables.configuration(entry) for entry in catalog.models().values() if "literal" in entry}
    assert len(rows) == 15 and {len(row) for row in rows.values()} == {12}
    assert all(row[-3].endswith("*") and row[-2] > 60e6 for row in rows.values())


def test_table_of_one_model_block_by_block(capsys: Captured) -> None:
    document = judged(capsys, "--table", "deepseek-v3", "--context", 8)
    cells = {(place, part): (times, one) for place, part, times, one, _ in document["rows"]}
    assert cells["layers.0-2", "attn"] == (3, 187_105_280) and cells["layers.3-60", "attn"] == (58, 187_105_280)
    assert cells["layers.0-2", "ffn"] == (3, 396_361_728) and cells["layers.3-60", "experts"] == (58, 256 * 44_040_192)
    assert cells["layers.3-60", "shared"] == (58, 44_040_192) and cells["layers.3-60", "router"] == (58, 1_835_008)
    assert cells["layers.3-60", "norms"] == (58, 16_384) and cells["", "embed"] == cells["", "head"] == (1, 926_679_040)
    counted = [row[4] for row in document["rows"] if row[3] is not None]
    assert sum(counted) == document["rows"][-2][4] == 671_026_404_352


def test_a_table_that_layers_share_is_in_one_row_once() -> None:
    """T5's biases by distance stand in the first layer of each stack, and nowhere else."""
    rows = tables.blocks(pellucid.count("t5-small")).rows
    assert sum(every for *_, one, every in rows if one is not None) == rows[-1][4] == 60_506_624
    assert [row for row in rows if row[1:3] == ["attn", 1]] == [[f"{s}.layers.0-5", "attn", 1, 256, 256] for s in ("encoder", "decoder")]


def test_table_of_gpt2(capsys: Captured) -> None:
    """The usual formula, and what it leaves out: nothing remains."""
    rows = {name: values for name, *values in judged(capsys, "--table", "gpt2")["rows"]}
    assert rows["total"] == [124_439_808, 354_823_168, 774_030_080, 1_557_611_200]
    missing = [a - b for a, b in zip(rows["total"], rows["V·d + 12·L·d²"], strict=True)]
    named = [sum(column) for column in zip(rows["P·d"], rows["9·L·d"], rows["4·L·d + 2·d"], strict=True)]
    assert missing == named == rows["what it leaves out"]


def test_table_of_layers(capsys: Captured) -> None:
    rows = judged(capsys, "--table", "complexity", "--context", 1000)["rows"]
    assert [row[2] for row in rows] == [1000**2 * 512, 1000 * 512**2, 3 * 1000 * 512**2, 3 * 1000 * 512**2, 256 * 1000 * 512]
    assert [row[4] for row in rows] == [1, 1000, 1, 1, 1] and [row[6] for row in rows] == [1, 1000, 334, 7, 4]
    assert all(x >= 1 for k in compared(1, 1) for _, x in (k.work, k.steps, k.path))


# Pictures


@pytest.mark.parametrize(
    ("picture", "models"), [("treemap", ["deepseek-v3"]), ("cache", ["llama-2-7b", "gpt-oss-20b"]), ("roofline", ["t5-small"])]
)
def test_pictures(picture: str, models: list[str], capsys: Captured, tmp_path: Path) -> None:
    """Well-formed, self-contained, and every shape within its frame."""
    file = tmp_path / "x.svg"
    how = ["--context", 256, "--device", "h100", "--svg", file, "--picture", picture]
    assert run(capsys, *models, *how, "-q", "--why", "parameters.total")[0] == 0
    text = file.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "") and all(m in text for m in models)
    for shape in root.iter():
        for name, limit in (("x", width), ("cx", width), ("y", height), ("cy", height)):
            assert 0 <= float(shape.get(name, 0)) <= limit
        points = [tuple(map(float, pair.split(","))) for pair in shape.get("points", "").split()]
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points)


def test_a_short_table_of_positions_has_its_line() -> None:
    """64 positions end before the tokens from which a picture of longer contexts begins."""
    drawn = growth([pellucid.count("pellucid/capitals")])
    assert len(re.findall('points="([^"]+)"', drawn)[-1].split()) == 2 and "pellucid/capitals" in drawn


def test_names_of_lines_do_not_cover_each_other() -> None:
    """The order stays, and a name with enough space stays where its line ends."""
    assert apart([30.0, 10.0, 12.0, 13.0, 90.0]) == [52.0, 10.0, 24.0, 38.0, 90.0] and apart([]) == []


def test_what_is_written_on_a_colour_can_be_read() -> None:
    """Yellow takes dark letters, and the blue of the first part white ones."""
    assert (ink("#ccbb44"), ink("#4477aa"), ink("#ffffff"), ink("#000000")) == ("#222222", "#ffffff", "#222222", "#ffffff")


def test_areas_are_in_proportion() -> None:
    """They fill the whole rectangle, each as large as its value, none overlapping another."""
    values = [60.0, 30.0, 20.0, 5.0, 3.0, 2.0]
    cells = list(squarified(values, (10.0, 20.0, 30.0, 40.0)))
    for value, (x, y, w, h) in zip(values, cells, strict=True):
        assert w * h == pytest.approx(value / 120 * 1200)
        assert x + 1e-9 >= 10 and x + w <= 40 + 1e-9 and y + 1e-9 >= 20 and y + h <= 60 + 1e-9
    for i, (x, y, w, h) in enumerate(cells):
        for a, b, c, d in cells[i + 1 :]:
            assert x + w <= a + 1e-9 or a + c <= x + 1e-9 or y + h <= b + 1e-9 or b + d <= y + 1e-9


def test_public_name() -> None:
    """As the contract writes it."""
    bill = pellucid.count("deepseek-v3", context=4096, batch=1, dtype="bfloat16", device="h200")
    assert int(bill["parameters.total"]) == 671_026_404_352
    assert bill["cache.bytes_per_token"].formula.endswith("= 70,272")
