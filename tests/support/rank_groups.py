"""A process that imports once what ranks need, and forks a group of them for each request that it reads; and its client. Linux alone.

Under torchrun each rank, and torchrun itself, imports torch again.

python tests/support/rank_groups.py
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from under_torchrun import environment

RankGroups = Callable[..., str]
SECONDS = 1800 if os.environ.get("PELLUCID_FULL") else 280


@contextmanager
def rank_groups() -> Iterator[RankGroups]:
    """Start the process, and end it. Yields a function that runs a part on a number of ranks and returns what a failed rank wrote.

    A part measures into a folder; "command" runs pellucid with the arguments `given` in it.
    """
    with subprocess.Popen(
        [sys.executable, __file__], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def run(part: str, processes: int, folder: Path, given: Sequence[str] = ()) -> str:
            print(json.dumps([part, processes, str(folder), list(given)]), file=requests, flush=True)
            statuses = json.loads(answers.readline() or "null")
            return "" if statuses and not any(statuses) else f"{part}: {statuses}\n{(folder / 'stderr').read_text()[-4000:]}"

        yield run
        requests.close()


def serve() -> None:
    """Answer each line of stdin, of a part, a number of ranks, a folder and arguments, with the statuses of the ranks."""
    import torch
    import torch.distributed.fsdp  # what ranks that share weights out would import, each for itself

    import killed_on_ranks
    import settings_on_ranks
    import traced_on_ranks
    import trained_on_ranks
    from forked_ranks import forked
    from pellucid.commands import main
    from rank_grids import write_measured

    parts = {"trained": trained_on_ranks.grids, "traced": traced_on_ranks.traced, "settings": settings_on_ranks.settings}
    torch.set_num_threads(1)
    answers, nowhere = os.fdopen(os.dup(1), "w"), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    for line in sys.stdin:
        part, processes, name, given = json.loads(line)
        folder = Path(name)
        written = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(written, 2)
        os.close(written)

        def work(rank: int, _: list[int]) -> None:
            if part == "command":
                os.chdir(folder)
                if status := main(given):
                    raise SystemExit(status)
            else:
                write_measured(parts[part], folder)

        if part == "killed":  # forks groups of its own
            killed_on_ranks.measure(folder)
            statuses = [0]
        else:
            statuses = forked(processes, work, SECONDS)
        print(json.dumps(statuses), file=answers, flush=True)


if __name__ == "__main__":
    serve()
