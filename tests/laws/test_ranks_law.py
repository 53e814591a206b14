"""Several ranks run on torch.distributed and torchrun alone: three modules speak to them, none has a transport of its own for it, and all
sockets of the package are the server's.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from source_tree import write
from test_structure import PACKAGE, ROOT, imports, sources

EXCHANGES = {"distributed.py", "signs_of_life.py", "data_shards.py"}  # the modules that import torch.distributed
OF_RANKS = {*EXCHANGES, "launched.py", "sharding.py"}
ANYWHERE = {"socket", "socketserver", "selectors", "ssl", "multiprocessing", "xmlrpc"}
ANYWHERE |= {"zmq", "mpi4py", "ray", "accelerate", "deepspeed", "lightning"}
"""What no module imports but those that serve the page and OpenAI's API."""
TRANSPORT = ANYWHERE | {"asyncio", "http", "subprocess", "concurrent", "mmap", "ctypes"}
PICKLED = {"all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "send_object_list", "recv_object_list"}


def own_transport(root: Path) -> Iterator[str]:
    """Yield imports of torch.distributed elsewhere, of transports in the modules of ranks and of sockets, and exchanges that pickle."""
    for path, tree in sources(root):
        for line, name, _ in imports(path, tree):
            if name.startswith("torch.distributed") and str(path) not in EXCHANGES:
                yield f"{path}:{line}: {sorted(EXCHANGES)} alone speak to other ranks"
            library = name.removeprefix("torch.").split(".")[0]  # torch.multiprocessing is Python's
            if library in (TRANSPORT if str(path) in OF_RANKS else set() if path.parts[0] == "server" else ANYWHERE):
                yield f"{path}:{line}: {name} is a transport of our own"
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in PICKLED:
                yield f"{path}:{node.lineno}: {node.attr} pickles"


def test_ranks_have_no_transport_of_their_own() -> None:
    assert [*own_transport(ROOT)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("distributed.py", "import socket\n"),
        ("sharding.py", "from multiprocessing import Process\n"),
        ("sharding.py", "import torch.multiprocessing\n"),
        ("engine/engine.py", "from socket import create_connection\n"),
        ("training/loop.py", "import torch.distributed as dist\n"),
        ("distributed.py", "import torch.distributed as dist\n\ndist.all_gather_object([], 1)\n"),
    ],
)
def test_a_transport_is_seen(name: str, text: str, tmp_path: Path) -> None:
    write(tmp_path, {f"{PACKAGE}/{name}": text})
    assert len([*own_transport(tmp_path)]) == 1
