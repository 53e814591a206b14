"""Make a run that ships: train by a recipe on one thread, and keep what was recorded.

    python recipes/record.py recipes/twelve-countries.toml

Left out are the states, which any step can do without since all of them follow from the seed, and what belongs to one machine. The run's
manifest.json has the SHA-256 and the size of every file, as that of a state.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from pellucid.checkpoint.opening import SPECIMENS
from pellucid.training import run_recipe
from pellucid.training.run_folder import RUN
from pellucid.training.saves import digest

LEFT_OUT = ("saves", "lock", "meter.json")


def record(recipe: Path, place: Path) -> None:
    """Train by `recipe`, and put its run into the folder `place`, in the stead of an earlier one."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / recipe.stem
        run_recipe(recipe, run, False, 1, lambda entry: print(entry, file=sys.stderr))
        for name in LEFT_OUT:
            shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()
        about = json.loads((run / RUN).read_text(encoding="utf-8")) | {"root": "."}  # its corpus ships too, so that no folder is meant
        (run / RUN).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        files = sorted(path for path in run.rglob("*") if path.is_file())
        manifest = {path.relative_to(run).as_posix(): [digest(path), path.stat().st_size] for path in files}
        (run / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(run, place)
    for path in (place, *place.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


if __name__ == "__main__":
    record(path := Path(sys.argv[1]), SPECIMENS / path.stem)
