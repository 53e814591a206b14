"""The examples that need no arguments run to their end."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["silence_a_head", "logit_lens"])
def test_an_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 4 and len(set(lines)) == len(lines)
