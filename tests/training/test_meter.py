"""The bill of a run beside what it took: the numbers of the bill, of the log and of the process."""

import json
from pathlib import Path

import pellucid
from pellucid.counting.training_memory import training
from pellucid.documents.amount import scaled
from pellucid.documents.recipe_bill import recipe_bill
from pellucid.documents.training import training_document
from pellucid.training import run_recipe
from pellucid.training.meter import METER, MemoryMeter, peak_of, resident, step_seconds
from text_runs import recipe_of
from training import silent


def test_the_panel(tmp_path: Path) -> None:
    path = recipe_of(tmp_path, steps="3", train__micro="4")
    run = pellucid.Run(run_recipe(path, tmp_path / "run", False, 1, silent).parent)
    rows = {row[0]: row[1:] for row in training_document(run)["panels"][-1]["rows"]}  # type: ignore[typeddict-item]
    bill = recipe_bill(path)
    counts = training(bill.bill, bill.way)
    assert rows["work"][0] == scaled(2 * int(counts["flops.total"]), "FLOP") and bill.forwards == 2
    took = sorted(e["seconds"] for e in run.log)[1]
    assert step_seconds(run.log) == took and rows["time, the median"][0] is None and rows["time, the median"][1]
    assert rows["memory, at most"] == [scaled(int(counts["memory.total"]), "B"), scaled(peak_of(run.folder) or 0, "B")]
    assert {"of it weights", "of it gradients", "of it moments", "of it activations"} <= rows.keys()


def test_a_meter(tmp_path: Path) -> None:
    """A run that went on keeps the most; a damaged file is as none; the first steps do not count."""
    meter = MemoryMeter()
    meter.before = resident() - 5000
    meter.write(tmp_path)
    assert (peak_of(tmp_path) or 0) >= 5000
    (tmp_path / METER).write_text(json.dumps({"peak": 1 << 50}), encoding="utf-8")
    MemoryMeter().write(tmp_path)
    assert peak_of(tmp_path) == 1 << 50
    (tmp_path / METER).write_text("[", encoding="utf-8")
    assert peak_of(tmp_path) is None and peak_of(tmp_path / "none") is None
    log = [{"step": i, "seconds": 100.0 if i <= 20 else i / 10} for i in range(1, 24)]
    assert step_seconds(log) == 2.2 and step_seconds(log[:3]) == 100.0 and step_seconds([]) is None
