"""The entry of the limited process: it sets its own limits, then answers requests in a loop."""

import json
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pellucid.tokenizer.limited_process import HEAD, MEMORY, PATIENCE, read


def serve() -> None:
    """Set up by the first message on stdin, then answer every other until stdin ends."""
    if not hasattr(signal, "setitimer"):
        return _serve(lambda seconds: None)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def allow(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, seconds and PATIENCE)

    _serve(allow)


def _serve(allow: Callable[[float], None]) -> None:
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    kind: Any = None
    served: Any = None
    while got := read(source):
        raw, seconds = got
        if served is None:
            _limit(MEMORY + 16 * len(raw))
        allow(seconds)
        try:
            message = json.loads(raw)
            if served is None:
                kind = _kind(message["serve"])
                served = kind(message)
                answer = served.setup_reply
            else:
                answer = served(message)
            raw = json.dumps(answer).encode()
        except BaseException as broken:
            raw = json.dumps(kind.fault(broken)).encode()
        sink.write(HEAD.pack(len(raw), 0) + raw)
        sink.flush()
        allow(0)


def _kind(name: str) -> Any:
    """Return the class that serves: made from the setup message, called with every other; `setup_reply` and `fault` as in Rendering."""
    if name == "template":  # imported here: rendering templates needs no tokenizers library, and the reverse
        from pellucid.tokenizer.rendering import Rendering

        return Rendering
    from pellucid.tokenizer.backend import LocalEncoder

    return LocalEncoder


def _limit(memory: int) -> None:
    """Limit this process to `memory` bytes of addresses, no written files and no core dumps."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
