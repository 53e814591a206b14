"""Other trainers beside ours: their environments, made once, and their steps in a process of their own, which waits while ours runs."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

HERE = Path(__file__).parent
LITGPT = "litgpt==0.5.13"
NANOCHAT = "https://github.com/karpathy/nanochat"
NANOCHAT_COMMIT = "92d63d4e8bb4df75c3b71618f31ddde2378b2bcd"
MADE = ".made"


class MissingError(Exception):
    """A peer that cannot run here, and why, in one line."""


def command(*given: str | Path, cwd: Path | None = None) -> None:
    """Run a command. A MissingError with its last line where it fails."""
    try:
        done = subprocess.run([str(x) for x in given], cwd=cwd, capture_output=True, text=True, check=False)
    except OSError as fault:
        raise MissingError(f"{given[0]}: {fault.strerror}") from None
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise MissingError(f"{' '.join(map(str, given[:3]))} …: {lines[-1].strip() if lines else done.returncode}")


def environment(name: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """Return the Python and the variables that a peer runs with; what it needs is put into `folder` at its first use."""
    own = folder / name
    python = own / "bin" / "python" if name == "litgpt" else Path(sys.executable)
    if not (own / MADE).is_file():
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(parents=True)
        if name == "litgpt":
            command(sys.executable, "-m", "venv", own)
            command(python, "-m", "pip", "install", f"torch=={torch.__version__}", "numpy", LITGPT)
        else:
            command("git", "clone", "--quiet", NANOCHAT, own)
            command("git", "checkout", "--quiet", NANOCHAT_COMMIT, cwd=own)
        (own / MADE).touch()
    variables = {"PYTHONPATH": str(own) if name == "nanochat" else "", "PYTHONDONTWRITEBYTECODE": "1"}
    return python, variables


class Peer:
    """Another trainer's steps; a call takes one. about: what it says of itself. A MissingError if it does not start."""

    def __init__(self, name: str, folder: Path, shape: dict[str, int], batch: int, *options: str) -> None:
        python, variables = environment(name, folder)
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self.process = subprocess.Popen(
            [str(python), str(HERE / "peers.py"), name, json.dumps(shape), "--batch", str(batch), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=os.environ | variables,
        )
        self.about: dict[str, Any] = json.loads(self.answer())

    def __call__(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.answer()

    def answer(self) -> str:
        """Return the next line of the process. A MissingError with its last error where it ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            lines = [text for text in self.errors.read().splitlines() if text.strip()]
            raise MissingError(lines[-1].strip() if lines else "it ended without a word")
        return line

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.errors.close()
