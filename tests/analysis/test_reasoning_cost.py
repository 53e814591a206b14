"""Reasoning models beside their starts, against the published configurations."""

from pellucid import catalog
from pellucid.analysis.reasoning_cost import CLOSED, PAIRS, caches, compared, statements

NAMES = {"max_position_embeddings", "torch_dtype", "dtype", "transformers_version", "_name_or_path"}


def test_pairs() -> None:
    for (name, start), pair in zip(PAIRS.items(), compared(PAIRS), strict=True):
        a, b = (catalog.models()[one]["config"] for one in (name, start))
        assert pair.equal and pair.parameters[0] == pair.parameters[1] and pair.released[0] > pair.released[1]
        assert {k: v for k, v in a.items() if k not in NAMES} == {k: v for k, v in b.items() if k not in NAMES}


def test_another_start_is_seen() -> None:
    (pair,) = compared({"qwq-32b": "qwen2.5-14b"})
    assert not pair.equal and pair.parameters[0] != pair.parameters[1]


def test_caches_and_statements() -> None:
    latent, grouped = caches(list(PAIRS))
    assert latent.cache(10) == 10 * 61 * (512 + 64) * 2 and grouped.cache(10) == 10 * 64 * 2 * 8 * 128 * 2
    name, own, known = statements(CLOSED)
    assert name == "o1" and len(own) == 1 and not known
