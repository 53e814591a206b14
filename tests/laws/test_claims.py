"""The claims of the READMEs hold: the number of model types and models, and speeds with their processor, from the newest results."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pellucid import catalog
from pellucid.families import known

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
READMES = "README.md", "README.zh.md"
CPU_LINE, FIRST = "pip install torch --index-url", "pip install . && pellucid explain"


def newest() -> tuple[list[dict[str, Any]], set[str]]:
    """Return the newest decode case of each shape and format, and the processors that they and the mixed requests ran on."""
    cases = {}
    for file in sorted(RESULTS.glob("decode-*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        for case in document["cases"]:
            if "shape" in case and "share_of_bound" in case:  # the first files had other fields
                cases[case["shape"], case["held"]] = case, document["machine"]["cpu"]
    mixed = json.loads((RESULTS / "serve.json").read_text(encoding="utf-8"))["crowd"]
    return [case for case, _ in cases.values()], {cpu for _, cpu in cases.values()} | {mixed["machine"]["cpu"]}


def claims() -> Iterator[str]:
    """Yield each claim as its digits stand in both languages."""
    cases, _ = newest()

    def span(values: list[float]) -> str:
        return rf"{min(values):.2f} [^ ]+ {max(values):.2f}"

    if (shares := [case["share_of_bound"] for case in cases]) and max(shares) <= 1:  # beyond 1 a large cache kept weights: no bound
        yield span(shares)
    for peer in ("llama.cpp", "transformers"):
        ratios = [case["ratio_per_pair_median"]["decode"] for case in cases]
        yield span([ratio[peer] for ratio in ratios if peer in ratio])
    yield span([case["prefill"]["ratio_per_pair_median"]["llama.cpp"] for case in cases])
    mixed = json.loads((RESULTS / "serve.json").read_text(encoding="utf-8"))["crowd"]
    yield rf" {mixed['ratio_per_pair_median']['llama-server']:.2f} "


def wrong(text: str) -> Iterator[str]:
    """Yield the claims that a README lacks or has wrong."""
    if not re.search(rf"\b{len(known())} (model types|种 model_type)", text):
        yield "model types"
    if not re.search(rf"\b{len(catalog.models())} (published models|个已公布的模型)", text):
        yield "published models"
    yield from (claim for claim in claims() if not re.search(claim, text))
    _, processors = newest()
    for cpu in processors:
        maker, clock = re.findall(r"Intel|AMD|Apple", cpu), re.findall(r"[\d.]+ ?GHz", cpu)
        yield from (word for word in (*maker, *(c.removesuffix("GHz").strip() for c in clock), "Linux") if word not in text)
    if not 0 <= text.find(CPU_LINE) < text.find(FIRST):
        yield "the line for a machine without a GPU"


@pytest.mark.parametrize("name", READMES)
def test_the_claims_of_a_readme_hold(name: str) -> None:
    assert list(wrong((ROOT / name).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f"{len(known())} ", f"{len(known()) - 1} "),
        (" 4.81 ", " 4.95 "),
        ("1.41 ", "1.42 "),
        ("1.46 ", "1.47 "),
        ("Intel", "An"),
        (re.escape(CPU_LINE), "pip install torch"),
    ],
)
@pytest.mark.parametrize("name", READMES)
def test_a_wrong_claim_is_seen(name: str, old: str, new: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert (changed := re.sub(old, new, text)) != text
    assert list(wrong(changed))
