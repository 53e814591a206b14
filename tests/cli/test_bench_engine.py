"""What `bench` measures through the engine: the first token, a full batch, other libraries in turns. Clocks are made up, no time is
asserted.
"""

import importlib.util
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid.bench import batch_load, peers, timing
from pellucid.counting.bounds import moved
from pellucid.engine.engine import Engine
from pellucid.engine.memory import PAGE
from pellucid.engine.plans import Plans
from pellucid.errors import UseError
from pellucid.ops import native
from pellucid.terminal import bench as drawing
from test_bench import GPT2, Ticking, bill_of, quick
from test_commands import Captured, judged, run, wrong
from tiny import swapped, tiny

__all__ = ["quick"]  # a fixture


@pytest.mark.parametrize("total", [1, 40, 2297])
def test_shares_come_to_the_whole(total: int) -> None:
    for seed in range(20):
        lengths = batch_load.shares(total, 16, seed)
        assert len(lengths) == 16 and min(lengths) >= 1 and (sum(lengths) == total or total < 40)
        assert total < 1000 or max(lengths) < 2 * total / 16
    assert batch_load.shares(2297, 16, 1) == batch_load.shares(2297, 16, 1) != batch_load.shares(2297, 16, 2)


def test_a_batch_starts_at_once() -> None:
    """Every request ends with all its tokens; the timed turn finds no prefix of the first one, and only new tokens count."""
    model, steps = tiny("gpt2", torch.float32), list[int]()
    honest = Engine.advance
    progress: list[tuple[int, int]] = []

    def spied(engine: Engine) -> Any:
        out = honest(engine)
        steps.append(len(engine.queue.running))
        return out

    with swapped(Engine, "advance", spied):
        load = batch_load.batch_load(model, 5, Ticking(4.0), lambda done, total: progress.append((done, total)))
    assert load.requests == 5 == max(steps) and load.seconds == 4.0 and load.rate == load.written / 4
    assert progress[-1] == (2 * load.written, 2 * load.written) and load.read > load.written
    assert load.read + load.written <= 5 * 64


def test_the_first_token_cold_and_warm() -> None:
    """Warm, the whole pages before the last tokens are cached; cold, nothing is. The last tokens are new each time."""
    model, read = tiny("llama", torch.float32), list[int]()
    hook = model.embed.register_forward_hook(lambda m, x, y: read.append(y.shape[1]))
    first = batch_load.first(model, 2 * PAGE + 30, Ticking(1.0), runs=3)
    hook.remove()
    assert first.cached == 2 * PAGE and first.cold == first.warm == [1.0] * 3
    assert read == 4 * [2 * PAGE + 30, 30]
    assert batch_load.first(model, 9, Ticking(1.0)).cached == 0


def test_outside_is_a_step_without_its_plan() -> None:
    """The time outside a plan is a step's seconds without its replay's, by a clock whose ticks tell them apart."""
    if not native.available():
        assert timing.decode(tiny("gpt2", torch.float32), bill_of("gpt2"), 3).outside is None
        return
    spent, clock = [0.0], lambda: spent[0]
    step, replay = Plans.step, native.Plan.replay

    def slow(plans: Plans, feed: Any, proposed: Any, **more: Any) -> Any:
        spent[0] += 5.0
        return step(plans, feed, proposed, **more)

    def quicker(plan: native.Plan) -> None:
        spent[0] += 2.0
        replay(plan)

    with swapped(Plans, "step", slow), swapped(native.Plan, "replay", quicker):
        timed = timing.decode(tiny("gpt2", torch.float32), bill_of("gpt2"), 3, clock)
    assert timed.full == [7.0] * 3 and timed.replayed == [2.0] * 3 and timed.outside == 5.0


def test_pairs_alternate() -> None:
    """The first turn of each library is not counted, the order changes with every pair, and ratios are of pairs."""
    order: list[str] = []

    def turn(name: str, seconds: Iterator[float]) -> peers.Turn:
        def taken() -> tuple[list[int], float, float]:
            order.append(name)
            after = next(seconds)
            return [1, 2], 2 * after, after

        return taken

    pairs = peers.pairs("transformers", turn("a", iter([9, 1, 1, 1, 1, 1])), turn("b", iter([9, 2, 3, 4, 5, 6])), 5)
    assert "".join(order) == "baabbaabbaab" and len(pairs.ours) == peers.PAIRS
    assert pairs.ratio(0) == pairs.ratio(1) == 4.0 and pairs.rate(pairs.ours) == 4.0 and pairs.rate(pairs.theirs) == 1.0


def test_both_write_the_same_tokens(folder: Path) -> None:
    """Transformers and Pellucid write the same tokens from a folder's weights, whatever its generation settings."""
    from pellucid.api.model import load

    model = load(folder, dtype="float32")
    ids = [5, 3, 80, 11]
    net = peers.their_model("x", folder, {}, torch.float32)
    net.generation_config.do_sample, net.generation_config.temperature = True, 5.0
    mine, other = peers.our_turn(Engine.of(model.module, 10, prefix_cache=False), ids, 6), peers.their_turn(net, ids, 6)  # type: ignore[arg-type]
    (a, seconds, first), (b, their_seconds, their_first) = mine(), other()
    assert a == b == mine()[0] and 0 < first < seconds and 0 < their_first < their_seconds


def test_the_command(folder: Path, quick: Path, capsys: Captured) -> None:
    _, document = judged(capsys, "bench", folder, "--new", 3, "--crowd", 3, "--against", "transformers")
    assert document["crowd"]["requests"] == 3 and len(document["against"]["pairs"]) == peers.PAIRS
    assert document["first_token"]["context"] == document["setting"]["context"]
    decode = document["phases"]["decode"]
    best = max(rate["best"] for rate in document["limits"]["read"].values())
    assert (decode["outside"] is not None) == native.available() and document["phases"]["prefill"]["outside"] is None
    assert decode["share"] == pytest.approx(moved(bill_like(folder, document)) / decode["seconds"] / best)
    code, out, _ = run(capsys, "bench", folder, "--new", 2, "--crowd", 2)
    assert code == 0 and "useful" in out and "first token after" in out and "against" not in out


def bill_like(folder: Path, document: dict[str, Any]) -> Any:
    from pellucid.api.count import count

    return count(folder, document["setting"]["context"], dtype=document["setting"]["dtype"])


def test_a_model_without_weights(quick: Path, capsys: Captured) -> None:
    (quick / "config.json").write_text(json.dumps(GPT2))
    _, document = judged(capsys, "bench", quick, "--new", 2, "--dtype", "float32", "--against", "transformers")
    assert document["against"]["peer"] == "transformers" and document["crowd"] is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--against", "vllm"], "transformers, llama.cpp"),
        (["--against", "llama.cpp"], "llama_cpp"),
        (["--crowd", "0"], "--crowd"),
        (["--crowd", "5000"], "1024"),
    ],
)
def test_wrong_use(given: list[str], named: str, quick: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    (quick / "config.json").write_text(json.dumps(GPT2))
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llama_cpp" else find(name))
    assert named in wrong(capsys, "bench", str(quick), *given)


def test_llama_cpp_wants_a_file(quick: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    (quick / "config.json").write_text(json.dumps(GPT2))
    library = types.ModuleType("llama_cpp")
    library.__spec__ = importlib.util.spec_from_loader("llama_cpp", None)
    monkeypatch.setitem(sys.modules, "llama_cpp", library)
    code, _, err = run(capsys, "bench", str(quick), "--new", "2", "--against", "llama.cpp")
    assert code == 2 and "GGUF" in err.splitlines()[-1]
    with pytest.raises(UseError, match="not_there"):
        peers.their_model("not_there", quick, {}, torch.float32)


def test_an_encoder_writes_nothing(quick: Path, capsys: Captured) -> None:
    bert = {"model_type": "bert", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    bert |= {"intermediate_size": 48, "max_position_embeddings": 32, "type_vocab_size": 2}
    (quick / "config.json").write_text(json.dumps(bert))
    assert wrong(capsys, "bench", str(quick), "--crowd", "2")
    _, document = judged(capsys, "bench", quick, "--new", 2)
    assert document["first_token"] is None and drawing.engine(peers.Served()) == []
