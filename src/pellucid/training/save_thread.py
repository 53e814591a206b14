"""Saves beside the steps: a state is copied in memory, and a thread writes the copy while training goes on.

One save at a time: the next one waits for it, so that states come onto the disk in their order and one copy is held at most. Each is
renamed whole, as without a thread, so a kill at any moment leaves the newest whole one.
"""

import threading
from collections.abc import Callable, Mapping
from types import TracebackType

import torch
from torch import Tensor


class SaveThread:
    """The thread that writes states. At the end of its context every state is on the disk, or the fault of the last one is raised."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.fault: BaseException | None = None
        self.copies: dict[str, Tensor] = {}

    def copied(self, kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies, in the memory of the last save's. Call `wait` before. kind: of tensors that have names of their own."""
        out = {}
        for name, t in tensors.items():
            key = f"{kind} {name}"
            if key not in self.copies or self.copies[key].shape != t.shape:
                self.copies[key] = torch.empty_like(t, device="cpu")
            out[name] = self.copies[key].copy_(t.detach())
        return out

    def start(self, save: Callable[[], object]) -> None:
        """Call `save` in a thread, after the last one. A fault of that is raised here."""
        self.wait()

        def run() -> None:
            try:
                save()
            except BaseException as fault:
                self.fault = fault

        self.thread = threading.Thread(target=run, name="save", daemon=True)  # a second signal ends the process at once
        self.thread.start()

    def wait(self) -> None:
        """Wait for the save that runs, and raise its fault."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault

    def __enter__(self) -> "SaveThread":
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.wait()
        except Exception:
            if fault is None:
                raise
