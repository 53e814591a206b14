"""What tests of several ranks share: parts that were run on forked ranks once."""

import json
import sys
from collections.abc import Callable, Iterator

import pytest

from rank_grids import Measured
from rank_groups import rank_groups


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, int], Measured]]:
    """The function that runs a part such as that of trained_on_ranks.py on a number of ranks, once, and returns what it measured."""
    if sys.platform != "linux":
        pytest.skip("forks ranks")
    known: dict[tuple[str, int], Measured] = {}

    def measure(part: str, ranks: int) -> Measured:
        if (part, ranks) not in known:
            folder = tmp_path_factory.mktemp("ranks")
            assert (fault := run(part, ranks, folder)) == "", fault
            known[part, ranks] = json.loads((folder / "measured.json").read_text())
        return known[part, ranks]

    with rank_groups() as run:
        yield measure
