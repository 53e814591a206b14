"""What tests of several ranks share: scripts that were run under torchrun once."""

import json
from collections.abc import Callable

import pytest

from rank_grids import Measured
from under_torchrun import SUPPORT, torchrun


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Measured]:
    """The function that runs a script such as trained_on_ranks.py on a number of processes, once, and returns what it measured."""
    known: dict[tuple[str, int], Measured] = {}

    def measure(part: str, processes: int) -> Measured:
        if (part, processes) not in known:
            folder = tmp_path_factory.mktemp("ranks")
            done = torchrun(processes, str(SUPPORT / f"{part}_on_ranks.py"), str(folder))
            assert done.returncode == 0, done.stderr[-4000:]
            known[part, processes] = json.loads((folder / "measured.json").read_text())
        return known[part, processes]

    return measure
