"""What a buyer asks beside the bill: turns of a conversation, links timed, sources, an assumed model type, modules that look ahead."""

import json
from pathlib import Path

import pytest

import pellucid
from pellucid import catalog
from pellucid.commands import main
from pellucid.counting.bounds import Device, parts
from pellucid.counting.conversation_turns import turns
from pellucid.counting.ranks import split_of
from pellucid.documents.count import over
from pellucid.errors import UseError
from pellucid.messages import phrases, speaking

Captured = pytest.CaptureFixture[str]
H100 = Device.of(catalog.devices()["h100"])
UNKNOWN = {
    "model_type": "next_year", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "rms_norm_eps": 1e-5, "hyper_heads": 3, "rope_scaling": {"rope_type": "linear", "factor": 2.0, "odd": 1},
}  # fmt: skip


def test_turns_with_a_cached_prefix_read_a_text_once() -> None:
    """Their work sums to that of one prompt, whatever their number; without, it is that of every beginning of the text."""
    bill = pellucid.count("llama-3.1-8b", context=900)
    once = sum(p.flops for p in parts(bill, "prefill", H100))
    report = list(turns(lambda n: pellucid.count("llama-3.1-8b", context=n), 3, 900, H100))
    assert [(t.number, t.before, t.read) for t in report] == [(1, 0, 300), (2, 300, 300), (3, 600, 300)]
    assert sum(t.kept for t in report) == pytest.approx(once, rel=1e-12) and report[-1].again == once
    assert [t.cache for t in report] == [131_072 * n for n in (300, 600, 900)]
    assert report[0].kept == report[0].again < report[1].kept < report[2].kept  # later tokens see more keys
    assert all(t.least is not None and t.least_again is not None and t.least <= t.least_again for t in report)
    one = list(turns(lambda n: pellucid.count("llama-3.1-8b", context=n), 1, 900, None))
    assert one[0].kept == once and one[0].least is None


def test_the_tables_of_turns_and_their_limits(capsys: Captured) -> None:
    assert main(["count", "gpt2-small", "--context", "64", "--turns", "4", "--csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 6
    for wrong in ("0", "65"):
        assert main(["count", "gpt2-small", "--context", "64", "--turns", wrong]) == 2
        assert "\n" not in capsys.readouterr().err.strip()
    assert main(["count", "gpt2-small", "gpt2-xl", "--turns", "4"]) == 2


@pytest.mark.parametrize("split_text", ["tp=4", "tp=2,pp=2"])
def test_a_link_is_timed_between_best_and_worst(split_text: str) -> None:
    """The bytes of each stage over the link: behind its work at best, after it at worst. A device without a link tells no time."""
    bill = pellucid.count("llama-3.1-70b", context=8192, batch=8, device="h100")
    report = over(bill, split_of(split_text))
    for phase in ("prefill", "decode"):
        bound, sent = report["bounds"][phase], [s["sent"][phase].get("total", {"value": 0})["value"] / 450e9 for s in report["stages"]]
        takes = bound["exchange"]
        assert takes["seconds"] == pytest.approx(sum(sent))
        assert takes["worst"] == pytest.approx(bound["seconds"] + sum(sent))
        assert takes["best"] == pytest.approx(sum(map(max, zip(bound["stages"], sent, strict=True))))
        assert bound["seconds"] <= takes["best"] <= takes["worst"]
    own = pellucid.count("llama-3.1-70b", context=8192, batch=8, device="mem=80G,bw=2T,bf16=300T")
    assert "exchange" not in over(own, split_of(split_text))["bounds"]["decode"]
    linked = pellucid.count("llama-3.1-70b", context=8192, batch=8, device="mem=80G,bw=2T,bf16=300T,link=32G")
    assert over(linked, split_of("tp=4"))["bounds"]["decode"]["exchange"]["seconds"] == pytest.approx(33_192_960 / 32e9, rel=1e-3)


def test_another_model_type_is_assumed_and_named(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(UNKNOWN))
    bill = pellucid.count(file, assume="llama")
    assert int(bill["parameters.total"]) == 2 * 1000 * 64 + 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64)
    assert bill.family == "llama" and "hyper_heads" in bill.notes[0] and "rope_scaling.odd" in bill.notes[0]
    for kind in ("lama", "fields"):
        with pytest.raises(UseError, match=kind):
            pellucid.count(file, assume=kind)
    assert main(["count", str(file), "--assume", "qwen2"]) == 2  # which needs a field that it lacks
    assert "num_key_value_heads" in capsys.readouterr().err


def test_modules_further_ahead_are_told_apart() -> None:
    """DeepSeek-V3 has one of 11,610,067,968 parameters; Kimi K2's file says none."""
    v3, k2 = pellucid.count("deepseek-v3"), pellucid.count("kimi-k2")
    assert any("11,610,067,968" in note for note in v3.notes) and int(v3["parameters.total"]) == 671_026_404_352
    assert not any("further" in note for note in k2.notes)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_sentence_of_the_catalogue_is_in_both_languages(language: str) -> None:
    entries = catalog.models().values()
    names = {f"note.{key}" for e in entries for key in e.get("notes", ())}
    names |= {f"{kind}.{one[kind]}" for e in entries for one in e.get("statements", ()) for kind in ("claim", "status")}
    devices = catalog.read("devices.json").values()
    parts = [("memory", *part) for d in devices for part in d["memory_source"]]
    parts += [("link", *d["link_source"]) for d in devices if "link" in d]
    names |= {f"{kind}.{key}" for kind, key, _ in parts} | {"and"}
    names |= {f"ref.{ref}" for *_, fields in parts for ref in fields.get("refs", ()) if ref in catalog.WITHOUT_NAME}
    assert {f"catalog.{name}" for name in names} == {k for k in phrases(language) if k.startswith("catalog.")} - {
        "catalog.source.statements"
    }
    with speaking(language):
        assert [e["id"] for e in entries if "statements" in e and catalog.source(e) != phrases(language)["catalog.source.statements"]] == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_sources_are_shown(language: str, capsys: Captured) -> None:
    entry = catalog.models()["deepseek-v3"]
    assert main(["count", "deepseek-v3", "--device", "h200", "--sources", "--lang", language]) == 0
    shown = capsys.readouterr().out
    with speaking(language):
        notes, device = catalog.notes(entry), catalog.devices()["h200"]
    assert len(notes) == len(entry["notes"]) and all(any("\u4e00" <= c <= "\u9fff" for c in note) for note in notes) == (language == "zh")
    for text in (entry["source"], *notes, *entry["published"].values(), device["memory_source"], device["link_source"]):
        assert text in shown
