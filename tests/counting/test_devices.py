"""A device's memory is what its driver gives to a program, and each number has a source."""

import csv
import io
import itertools
import re

import pytest

import pellucid
from pellucid import catalog
from pellucid.commands import main
from pellucid.counting.bounds import Device
from pellucid.documents.count import bounds
from pellucid.messages import speaking

MIB, GIB = 1 << 20, 1 << 30
REPORTED = {  # what nvidia-smi, rocm-smi and sysctl tell of the whole card, in MiB
    "a100": 81_920, "h100": 81_559, "h200": 143_771, "b200": 183_359, "rtx4090": 24_564, "l40s": 46_068, "rtx3090": 24_576,
    "mi300x": 192 << 10, "mi325x": 256 << 10, "mi355x": 288 << 10, "t4": 15_360, "v100": 32_768, "a10": 23_028, "a30": 24_576,
    "a6000": 49_140, "l4": 23_034, "h20": 97_871, "h800": 81_559, "gb200": 189_471, "b300": 275_040, "rtx3060": 12_288,
    "rtx3080": 10_240, "rtx4060ti": 16_380, "rtx4070": 12_282, "rtx4070tisuper": 16_376, "rtx4080": 16_376, "rtx5060ti": 16_311,
    "rtx5070": 12_227, "rtx5070ti": 16_303, "rtx5080": 16_303, "rtx5090": 32_607, "pro6000": 97_887,
}  # fmt: skip
SHARED = {  # GiB that the processor has too, of which the driver gives a program a part
    "m4max": 128, "m1": 16, "m1pro": 32, "m1max": 64, "m1ultra": 128, "m2": 16, "m2pro": 32, "m2max": 64, "m2ultra": 192, "m3": 16,
    "m3pro": 36, "m3max": 64, "m3ultra": 256, "m4": 32, "m4pro": 64, "dgxspark": 128, "strixhalo": 128, "snapdragonx": 64,
}  # fmt: skip
STATED = {"gaudi3": 128, "tpuv5e": 16, "tpuv5p": 95, "tpuv6e": 32}  # GB that the maker states, where no driver's report is public
H200_NOMINAL = 141e9


@pytest.mark.parametrize("name", catalog.devices())
def test_memory_is_the_drivers(name: str) -> None:
    """What a program can have is at most the whole, and all but a small reserve of it. Each number has a source."""
    entry = catalog.devices()[name]
    memory = Device.of(entry).memory
    assert memory == int(memory) and entry["source"] and re.fullmatch(r"20\d\d-[01]\d", entry["date"])
    if name in REPORTED:
        assert 0.96 * REPORTED[name] * MIB < memory <= REPORTED[name] * MIB
        assert any(word in entry["memory_source"] for word in ("nvidia-smi", "rocm-smi"))
    elif name in SHARED:
        assert 0.6 * SHARED[name] * GIB < memory < SHARED[name] * GIB
    else:
        assert memory == STATED[name] * 1e9 and "a driver's report was not found" in entry["memory_source"]


@pytest.mark.parametrize("name", catalog.devices())
def test_peaks_and_links(name: str) -> None:
    """A narrower number is never multiplied more slowly; a link is slower than the memory and has its source."""
    entry = catalog.devices()[name]
    peak = entry["peak"]
    widths = ("float32",), ("bfloat16", "float16"), ("fp8", "int8"), ("nvfp4", "mxfp4")
    by_width = [[peak[d] for d in names if d in peak] for names in widths]
    assert by_width[0] and by_width[1] and all(max(a) <= min(b) for a, b in itertools.pairwise([w for w in by_width if w]))
    assert ("link" in entry) == ("link_source" in entry) and entry.get("link", 0) < entry["bandwidth"]


def test_the_table_of_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "--table", "devices", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["device"].partition(" ")[0] for row in rows] == list(catalog.devices())
    assert float(rows[1]["memory"]) == catalog.devices()["h100"]["memory"] and rows[1]["nvfp4 FLOP/s"] == ""


@pytest.mark.parametrize(("name", "language"), [(name, ("en", "zh")[i % 2]) for i, name in enumerate(catalog.devices())])
@pytest.mark.quick(7)
def test_sources_are_shown_whole(name: str, language: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The sources of memory and link are sentences, in the language of the rest; documents keep their names."""
    with speaking(language):
        entry = catalog.devices()[name]
    sentences = [entry["memory_source"], *([entry["link_source"]] if "link" in entry else [])]
    assert [bool(re.search("[\u4e00-\u9fff]", one)) for one in sentences[:1]] == [language == "zh"]
    assert language == "zh" or not re.search("[\u4e00-\u9fff，：；（）]", "".join(sentences))
    assert not re.search("keeps? the|tells|both ways|each way|public logs", "".join(sentences)) or language == "en"
    capsys.readouterr()
    assert main(["count", "gpt2-small", "--context", "8", "--device", name, "--lang", language]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert entry["memory_source"] in shown and f"{entry['source']}, {entry['date']}" in shown


def test_a_model_that_fits_is_said_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama 3.1 70B in bfloat16 is 141.1 GB: more than the card is called, less than it has."""
    bill = pellucid.count("llama-3.1-70b", context=4096, device="h200")
    verdict = bounds(bill)
    assert verdict["fits"] and verdict["devices"] == 1 and verdict["largest_batch"] == 6
    monkeypatch.setitem(catalog.read("devices.json")["h200"], "memory", H200_NOMINAL)
    assert not bounds(bill)["fits"]
