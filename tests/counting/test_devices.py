"""A device's memory is what its driver gives to a program, and each number has a source."""

import pytest

import pellucid
from pellucid import catalog
from pellucid.commands import main
from pellucid.counting.bounds import Device
from pellucid.documents.count import bounds

MIB = 1 << 20
REPORTED = {  # what nvidia-smi, rocm-smi and sysctl tell of the whole card, in bytes
    "a100": 81_920 * MIB, "h100": 81_559 * MIB, "h200": 143_771 * MIB, "b200": 183_359 * MIB, "mi300x": 192 << 30,
    "rtx4090": 24_564 * MIB, "m4max": 128 << 30, "l40s": 46_068 * MIB, "rtx3090": 24_576 * MIB,
}  # fmt: skip
NOMINAL = {"a100": 80e9, "h100": 80e9, "h200": 141e9, "b200": 180e9, "mi300x": 192e9, "rtx4090": 24e9, "m4max": 128e9, "rtx3090": 24e9}
NOMINAL["l40s"] = 0.0  # its 48 GB are before ECC
METAL = {"m4max"}  # where the driver gives a program a part of the memory that it shares with the processor


@pytest.mark.parametrize("name", catalog.devices())
def test_memory_is_the_drivers(name: str) -> None:
    """What a program can have is at most the whole, and all but a small reserve of it: more than the name of the card says."""
    entry = catalog.devices()[name]
    memory = Device.of(entry).memory
    assert memory == int(memory) <= REPORTED[name]
    if name not in METAL:
        assert memory > max(NOMINAL[name], 0.98 * REPORTED[name])
    assert any(word in entry["memory_source"] for word in ("nvidia-smi", "rocm-smi", "Metal")) and entry["source"] and entry["date"]


@pytest.mark.parametrize("name", catalog.devices())
@pytest.mark.parametrize("language", ["en", "zh"])
def test_sources_are_shown_whole(name: str, language: str, capsys: pytest.CaptureFixture[str]) -> None:
    entry = catalog.devices()[name]
    capsys.readouterr()
    assert main(["count", "gpt2-small", "--context", "8", "--device", name, "--lang", language]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert entry["memory_source"] in shown and f"{entry['source']}, {entry['date']}" in shown


def test_a_model_that_fits_is_said_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama 3.1 70B in bfloat16 is 141.1 GB: more than the card is called, less than it has."""
    bill = pellucid.count("llama-3.1-70b", context=4096, device="h200")
    verdict = bounds(bill)
    assert verdict["fits"] and verdict["devices"] == 1 and verdict["largest_batch"] == 6
    monkeypatch.setitem(catalog.devices()["h200"], "memory", NOMINAL["h200"])
    assert not bounds(bill)["fits"]
