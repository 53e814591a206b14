"""One model's numbers are the same by Python, `explain`, `trace --save` and the page: one rule says what it is held in; each says it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.checkpoint import default_dtype as rule
from pellucid.checkpoint.default_dtype import machine_memory, precision
from pellucid.commands import main
from pellucid.errors import UseError
from pellucid.messages import say, speaking
from pellucid.nn.transformer import cast
from pellucid.runs.limits import Limits
from pellucid.tracing import load_trace
from served import served
from tiny import swapped

NAME, PROMPT = "pellucid/capitals", "The capital of France is"
GB = 1_000_000_000
HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Sets how much memory the machine says it has."""
    return lambda n: monkeypatch.setattr(rule, "machine_memory", lambda: n)


@pytest.mark.parametrize("stored", HALVES)
def test_a_quarter_of_the_memory(memory: Callable[[int | None], None], stored: torch.dtype) -> None:
    """Float32 up to exactly a quarter; beyond, on another device, and where no memory is told, as stored."""
    memory(16 * GB)
    assert precision(None, stored, GB).dtype == torch.float32
    assert precision(None, stored, GB + 1).dtype == stored
    assert precision(None, stored, 1, "cuda:0").dtype == precision(None, stored, 1, "meta").dtype == stored
    assert precision("bfloat16", stored, 1).dtype == precision(torch.bfloat16, stored, 1).dtype == torch.bfloat16
    memory(None)
    assert precision(None, stored, 1).dtype == stored
    with pytest.raises(UseError, match="float32, bfloat16"):
        precision("int8", stored, 1)


def test_what_is_wider_stays(memory: Callable[[int | None], None]) -> None:
    for stored in (torch.float32, torch.float64):
        for n in (0, 16 * GB, None):
            memory(n)
            assert precision(None, stored, GB).dtype == stored


def test_why(memory: Callable[[int | None], None]) -> None:
    """The reason has the numbers that it came from."""
    memory(16 * GB)
    assert precision(None, torch.bfloat16, GB).why == say("precision.fits", dtype="float32", stored="bfloat16", memory="16.0")
    assert precision(None, torch.bfloat16, 2 * GB).why == say("precision.large", dtype="bfloat16", stored="bfloat16", memory="16.0")
    assert precision("float64", torch.bfloat16, 1).why == say("precision.asked", dtype="float64", stored="bfloat16")
    assert precision(None, torch.float32, 1).why == say("precision.stored", dtype="float32", stored="float32")


def machine(root: Path, files: dict[str, str]) -> int | None:
    """The memory of a machine whose kernel tells this."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return machine_memory(root)


MACHINE = {"proc/meminfo": "MemTotal:       16000000 kB\nMemFree: 1 kB\n"}
V2 = {"proc/self/cgroup": "0::/box/inner\n"}
V1 = {"proc/self/cgroup": "5:cpu,memory:/box\n3:devices:/other\n"}
GROUPS: dict[str, tuple[dict[str, str], int | None]] = {
    "none": ({}, None),
    "machine": (MACHINE, 16_384_000_000),
    "no limit": ({**MACHINE, **V2, "sys/fs/cgroup/box/inner/memory.max": "max\n"}, 16_384_000_000),
    "own": ({**MACHINE, **V2, "sys/fs/cgroup/box/inner/memory.max": "4096\n", "sys/fs/cgroup/box/memory.max": "8192\n"}, 4096),
    "above": ({**MACHINE, **V2, "sys/fs/cgroup/box/inner/memory.max": "max\n", "sys/fs/cgroup/box/memory.max": "8192\n"}, 8192),
    "root": ({**MACHINE, **V2, "sys/fs/cgroup/memory.max": "2048"}, 2048),
    "version 1": ({**MACHINE, **V1, "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "1024\n"}, 1024),
    "another's": ({**MACHINE, **V1, "sys/fs/cgroup/memory/other/memory.limit_in_bytes": "1024\n"}, 16_384_000_000),
    "beyond the machine": ({**MACHINE, **V1, "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "9223372036854771712"}, 16_384_000_000),
    "damaged": ({"proc/meminfo": "MemTotal:\n", **V2, "sys/fs/cgroup/memory.max": "2048"}, 2048),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_memory_is_what_this_process_may_use(kind: str, tmp_path: Path) -> None:
    files, expected = GROUPS[kind]
    assert machine(tmp_path, files) == expected


def raw(x: torch.Tensor) -> tuple[torch.dtype, bytes]:
    return x.dtype, x.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def ways(folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every tensor of the prompt by each way to it: bits, or of `explain` the dtype with its least and greatest value."""
    yield "python", {s.path: raw(s.value) for s in pellucid.trace(pellucid.load(NAME), PROMPT)}
    assert main(["trace", NAME, PROMPT, "--save", str(folder / "t"), "-q"]) == 0
    yield "trace", {s.path: raw(s.value) for s in load_trace(folder / "t")}
    with served(limits=Limits()) as api:
        run = api.run(NAME, PROMPT)
        yield "page", {s["path"]: raw(api.tensor(run["run"], s["n"])[0]) for s in run["tensors"]}
        row = next(row for row in api.get("/api/models", "models")["models"] if row["name"] == NAME)
        assert {s["dtype"] for s in run["tensors"] if s["path"] == "logits"} == {row["dtype"]}
    capsys.readouterr()
    assert main(["explain", NAME, PROMPT, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    yield "explain", {s["path"]: (s["dtype"], s["min"], s["max"]) for s in row["tensors"]}


def apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The ways whose numbers are not those of Python."""
    notes = dict(ways(folder, capsys))
    python = notes.pop("python")
    recorded = pellucid.trace(pellucid.load(NAME), PROMPT)
    short = {s.path: (str(s.dtype).removeprefix("torch."), s.value.min().item() * 1, s.value.max().item() * 1) for s in recorded}
    return {way for way, row in notes.items() if row != (short if way == "explain" else python)}


def test_the_same_bits_by_every_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert apart(tmp_path, capsys) == set()
    assert pellucid.load(NAME).dtype == torch.float32


@pytest.mark.parametrize(("module", "away"), [("life", "python"), ("runs.model_registry", "page"), ("commands.options", "rest")])
def test_a_way_of_its_own_is_seen(module: str, away: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mutants: one way that loads in another dtype."""
    import pellucid.api.model
    import pellucid.runs.model_registry

    plain = pellucid.api.model.load

    def own(*args: Any, **how: Any) -> Any:
        return plain(*args, **{**how, "dtype": "bfloat16"})

    owner = {"life": pellucid, "runs.model_registry": pellucid.runs.model_registry, "commands.options": pellucid.api.model}[module]
    with swapped(owner, "load", own):
        notes = apart(tmp_path, capsys)
    assert notes == {"python": {"trace", "page", "explain"}, "page": {"page"}, "rest": {"trace", "explain"}}[away]


def test_where_it_does_not_fit(memory: Callable[[int | None], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a small machine all ways compute as stored, and still agree."""
    memory(1_000_000)
    assert apart(tmp_path, capsys) == set() and pellucid.load(NAME).dtype == torch.bfloat16


def test_it_is_said_first(
    memory: Callable[[int | None], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `explain`'s first lines, on stderr by what streams text, by repr, and in the page's list in its reader's language."""
    memory(16 * GB)
    why = say("precision.fits", dtype="float32", stored="bfloat16", memory="16.0")
    model = pellucid.load(NAME)
    assert repr(model).startswith(f"Model('{NAME}': gpt2 · ") and why in repr(model) and "1,374,976" in repr(model)
    for columns in ("80", "140"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["explain", NAME, PROMPT]) == 0
        head = capsys.readouterr().out.splitlines()[:2]
        assert "float32" in head[0] and why in "\n".join(head)
    assert main(["run", NAME, PROMPT, "--max-new-tokens", "2"]) == 0
    streams = capsys.readouterr()
    assert streams.err.splitlines()[0] == say("model.held", model=NAME, held=why) and why not in streams.out
    assert main(["run", NAME, PROMPT, "--max-new-tokens", "2", "-q"]) == 0
    assert capsys.readouterr().err == ""
    with served() as api:
        for language in ("en", "zh"):
            reply = api.client.get("/api/models", params={"lang": language}).json()
            with speaking(language):
                assert {row["held"] for row in reply["models"]} == {
                    say("precision.fits", dtype="float32", stored="bfloat16", memory="16.0")
                }


def test_a_cast_afterwards_is_not_called_by_the_old_reason() -> None:
    model = pellucid.load(NAME)
    cast(model.module, torch.float64)
    assert model.precision_note == "float64"
