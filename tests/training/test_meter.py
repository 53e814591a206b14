"""The bill of a run beside what it took: the numbers of the bill, of the log and of the process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.counting.training_memory import training
from pellucid.documents.amount import scaled
from pellucid.documents.recipe_bill import recipe_bill
from pellucid.documents.training import training_document
from pellucid.training import meter as meter_module
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


GROWTH = """
import sys, torch
from pathlib import Path
from pellucid.training import meter
{edit}
torch.ones(1 << 26).sum()  # before the run: 256 MB, freed
own = meter.MemoryMeter()
torch.ones(1 << 24).sum()  # in it: 64 MB
own.write(Path(sys.argv[1]))
print(meter.peak_of(Path(sys.argv[1])))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system's mark is not set back")
@pytest.mark.parametrize(
    "edit",
    [
        "",
        "meter.forget_most = lambda: None",
        "import resource; meter.resident = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024",
    ],
    ids=["true", "mutant: what ran before counts", "mutant: what started this process counts"],
)
def test_only_the_run_itself_is_measured(tmp_path: Path, edit: str) -> None:
    """Not what ran before it in its process, nor in the process that started this one."""
    here = torch.ones(1 << 26)
    done = subprocess.run([sys.executable, "-c", GROWTH.format(edit=edit), str(tmp_path)], capture_output=True, text=True, check=True)
    assert here[0] == 1
    assert (60e6 < int(done.stdout) < 90e6) == (edit == "")


def test_a_system_without_the_mark_is_asked_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "status").write_text("VmRSS:\t  5 kB\n")
    for status in (tmp_path / "status", tmp_path / "none"):
        monkeypatch.setattr(meter_module, "STATUS", status)
        assert (resident() or 0) > 1 << 20


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
