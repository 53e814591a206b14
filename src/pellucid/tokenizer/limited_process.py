"""A process with limits for code that comes with a file and could run for ever: chat templates, and unpublished regular expressions.

It starts at the first request, answers one request at a time, and is killed and started again when it exceeds its time. It has its setup
message and nothing else: no secrets of the environment, no torch, no folder of its own; it ends when its parent does.
"""

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

from pellucid.errors import TokenizerError

SECONDS = 2.0  # of a processor, for one request
PATIENCE = 20.0  # seconds on the clock, for a machine that is busy
MEMORY = 512 << 20  # bytes of addresses, beside sixteen for each byte of what it was set up with
LONGEST = 256 << 20  # bytes of a message

FAULTS = {
    "time": "worker.time",
    "memory": "worker.memory",
    "died": "worker.died",
    "deep": "template.deep",
    "failed": "template.failed",
    "output": "template.output",
    "refused": "template.refused",
    "syntax": "template.syntax",
    "unsafe": "template.unsafe",
    "library": "tokenizer.library",
}
START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from pellucid.tokenizer.process_entry import serve; serve()"
HEAD = struct.Struct("<Qd")  # bytes of the message that follows, and seconds that it may take
_KEPT = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

Message = dict[str, Any]


class LimitedProcess:
    """A process that serves what `setup` describes: {"serve": "template", ...}. file: the name in errors.

    seconds: of a processor, for setting up, where that may take longer than an answer.
    """

    def __init__(self, setup: Message, file: str, seconds: float = 0.0) -> None:
        self.file, self._seconds = file, seconds
        self._setup, self._lock = json.dumps(setup).encode(), threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._setup_reply: Message = {}
        self._end: Callable[[], object] = lambda: None

    def ask(self, request: Message | None = None) -> Message:
        """Return the answer to a request; without one, the reply to the setup."""
        with self._lock:
            try:
                if self._process is None or self._process.poll() is not None or self._owner != os.getpid():
                    self._start()
                return self._setup_reply if request is None else self._answer(json.dumps(request).encode(), SECONDS)
            except BaseException:  # Ctrl-C too: half an answer may lie in the pipe
                self._end()
                self._process = None
                raise

    def _start(self) -> None:
        self._end()
        path = json.dumps([os.path.abspath(place) for place in sys.path if place])
        self._process = process = subprocess.Popen(
            [sys.executable, "-I", "-c", START, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=os.path.abspath(os.sep),
            env={name: os.environ[name] for name in _KEPT if name in os.environ} | {"TOKENIZERS_PARALLELISM": "false"},
            start_new_session=True,  # Ctrl-C on the terminal is for the parent
        )
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _stop, process, self._owner)
        self._setup_reply = self._answer(self._setup, max(self._seconds, SECONDS))

    def _answer(self, message: bytes, seconds: float) -> Message:
        process = self._process
        assert process and process.stdin and process.stdout
        late = threading.Timer(PATIENCE + 1, process.kill)
        late.start()
        got = None
        try:
            with suppress(OSError, ValueError):
                process.stdin.write(HEAD.pack(len(message), seconds) + message)
                process.stdin.flush()
                got = read(process.stdout)
            code = process.wait() if got is None else 0  # until it is late: one whose answer is too long still lives
        finally:
            late.cancel()
        if got is None:
            slow = -code in [getattr(signal, name, None) for name in ("SIGKILL", "SIGPROF", "SIGALRM")]
            answer: Message = {"fault": "time"} if slow else {"fault": "died", "found": code}
        else:
            answer = json.loads(got[0])
        if kind := answer.get("fault"):
            raise TokenizerError(FAULTS[kind], **{"line": 0, "found": "", **answer, "file": self.file, "limit": seconds})
        return answer


def read(pipe: IO[bytes]) -> tuple[bytes, float] | None:
    """Return one message and its seconds, None if there is no complete one."""
    head = pipe.read(HEAD.size)
    length, seconds = HEAD.unpack(head) if len(head) == HEAD.size else (LONGEST + 1, 0.0)
    raw = pipe.read(length) if length <= LONGEST else b""
    return (raw, seconds) if len(raw) == length else None


def _stop(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if owner == os.getpid():
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with suppress(OSError):
                pipe.close()
