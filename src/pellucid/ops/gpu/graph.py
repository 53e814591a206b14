"""A decode step as a CUDA graph: recorded once, it runs again on the data behind its addresses, without Python between its kernels.

with record(warm=step) as recording:     # `warm` runs the step once, so that kernels are compiled and libraries have their memory
    logits = step()                      # records, and computes nothing yet
graph = recording.plan()
graph.replay()                           # computes: `logits` has the numbers
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import local

import torch

from pellucid.ops.gpu.merging import merging
from pellucid.ops.native.plan import Unplannable


class Graph:
    """The recorded kernels of a step, and the memory that they share."""

    def __init__(self) -> None:
        self.graph = torch.cuda.CUDAGraph()

    def recording(self) -> AbstractContextManager[object]:
        """Record what is computed inside."""
        return torch.cuda.graph(self.graph, capture_error_mode="thread_local")

    def replay(self) -> None:
        """Run the step again; returns before it has ended."""
        self.graph.replay()


class GraphRecording:
    """A graph that is being recorded."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def plan(self) -> Graph:
        return self.graph


class OpenRecordings(local):
    """The state of this thread. recordings: the number of those that are open."""

    recordings = 0


here = OpenRecordings()
make: list[Callable[[], Graph]] = [Graph]  # how a graph is made; a test without a GPU has its own


def capturing() -> bool:
    """True while this thread records a graph, or runs a step before it is recorded."""
    return here.recordings > 0


@contextmanager
def record(warm: Callable[[], object]) -> Iterator[GraphRecording]:
    """Record a step. Raises Unplannable if it waits for the GPU, or copies between it and the host, since a replay would not."""
    here.recordings += 1
    try:
        with merging():
            warm()
        recording = GraphRecording(make[0]())
        with recording.graph.recording(), merging():
            yield recording
    except (RuntimeError, NotImplementedError) as error:
        raise Unplannable("plan.graph", reason=str(error).split("\n")[0]) from error
    finally:
        here.recordings -= 1


def record_also(step: Callable[[], None]) -> Graph:
    """Record another graph: what `step` computes. It has run once before."""
    graph = make[0]()
    with graph.recording():
        step()
    return graph
