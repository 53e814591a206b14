"""The timeline against the catalogue's file."""

import json

from pellucid import catalog
from pellucid.analysis.releases import branches, by_year, in_columns, releases, years
from pellucid.messages import LANGUAGES, phrases, speaking
from tiny import swapped

ENTRIES = json.loads((catalog.HERE / "models.json").read_text(encoding="utf-8"))


def test_every_release_in_order() -> None:
    models = releases()
    assert sorted(m.name for m in models) == sorted(e["name"] for e in ENTRIES) and len(models) == 114
    assert [m.date for m in models] == sorted(e["released"] for e in ENTRIES)
    assert {m.name for m in models if not m.disclosed} == {e["name"] for e in ENTRIES if "statements" in e}
    assert sum(len(m.statements) for m in models) == sum(len(e.get("statements", ())) for e in ENTRIES)
    assert sum(m.unconfirmed for m in models) == sum("unconfirmed" in s["status"] for e in ENTRIES for s in e.get("statements", ()))


def test_years_by_hand() -> None:
    years = {y.year: y for y in by_year(releases())}
    assert [*years] == sorted(years) and sum(len(y.models) for y in years.values()) == 114
    assert {m.name for m in years["2023"].models if m.sparse} == {"Mixtral-8x7B-v0.1"} and years["2023"].sparse == 1
    assert (years["2017"].kinds, years["2017"].disclosed, years["2017"].sparse) == ("MHA 2", 2, 0)


def test_columns_have_every_release_once() -> None:
    for own in by_year(releases()):
        columns = in_columns(own.models, 18)
        assert [m for those in columns for m in those] == [*own.models] and len(columns) == -(-len(own.models) // 18)
        assert max(map(len, columns)) <= 18 and {len(c) for c in columns[:-1]} <= {len(columns[0])}
    assert years() == sorted({e["released"][:4] for e in ENTRIES})


def test_the_tree_has_every_public_model_once() -> None:
    models = releases()
    tree = {kind: branches(models, kind, 2) for kind in ("encoder", "both", "decoder")}
    assert {kind: sum(b.count for b in own) for kind, own in tree.items()} == {"encoder": 3, "both": 7, "decoder": 96}
    assert [b.first for b in tree["encoder"]] == [["BERT base (uncased)", "BERT large (uncased)"], ["all-MiniLM-L6-v2"]]
    assert [b.year for b in tree["decoder"] if b.sparse] == ["2023", "2024", "2025"]


def keys_shown() -> list[str]:
    """Return the texts about models without a public architecture that are keys of messages, and no sentences."""
    ends = {
        key.removeprefix(f"catalog.{part}.") for key in phrases("en") for part in ("claim", "status") if key.startswith(f"catalog.{part}.")
    }
    return [text for m in releases() for one in m.statements for text in (one.text, one.status) if text in ends]


def test_statements_are_sentences_in_both_languages() -> None:
    """Those of the catalogue; the mutant shows its keys."""
    shown = {}
    for lang in LANGUAGES:
        with speaking(lang):
            assert keys_shown() == []
            shown[lang] = [(one.text, one.status) for m in releases() for one in m.statements]
            own = [
                (one["claim"], one["status"]) for m in releases() for e in ENTRIES if e["name"] == m.name for one in catalog.statements(e)
            ]
            assert shown[lang] == own
    assert len({*shown["en"]} & {*shown["zh"]}) == 0 < len(shown["en"])
    with swapped(catalog, "statements", lambda entry: entry.get("statements", [])):
        assert len(keys_shown()) == 2 * len(shown["en"])
