"""Python files beside a model's weights are never run, not even from within the folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pellucid
from pellucid.api.model import SPECIMENS

PLANTED = ("torch.py", "typer.py", "modeling_x.py", "tokenization_x.py", "sitecustomize.py", "pellucid_x.py", "x.pth", "__init__.py")


def planted(folder: Path) -> Path:
    """The specimen with files that leave a mark when they are run, and a config.json that names them."""
    shutil.copytree(SPECIMENS / "capitals", folder)
    for name in PLANTED:
        (folder / name).write_text(f"import pathlib; pathlib.Path({str(folder / 'ran')!r}).write_text({name!r})\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}, "trust_remote_code": True}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run(folder: Path, *python: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(pellucid.__file__).parents[1])
    return subprocess.run([sys.executable, *python], cwd=folder, env=os.environ | {"PYTHONPATH": source}, capture_output=True, text=True)


@pytest.mark.parametrize("where", [".", "absolute"])
@pytest.mark.quick(2)
def test_nothing_beside_the_weights_is_run(where: str, tmp_path: Path) -> None:
    folder = planted(tmp_path / "model")
    done = run(folder, "-m", "pellucid", "run", "." if where == "." else str(folder), "The capital of France is", "--max-new-tokens", "2")
    assert done.returncode == 0 and "Paris" in done.stdout, done.stderr
    assert not (folder / "ran").exists()


def test_the_plant_would_be_seen(tmp_path: Path) -> None:
    """Without the guard a script in the folder is found first."""
    folder = planted(tmp_path / "model")
    run(folder, "-c", "import modeling_x")
    assert (folder / "ran").read_text() == "modeling_x.py"
