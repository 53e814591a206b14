"""What training is worth: every row of the goals, measured here or by the tests and campaigns that are named, as one file.

    python benchmarks/train.py                      # every row; takes hours on two cores
    python benchmarks/train.py --only speed half capitals watching [--steps 3] [--pairs 5]
    python benchmarks/train.py --only litgpt nanochat --steps 1 [--peers FOLDER]      # their environments are made there, once
    python benchmarks/train.py --only judged                                      # the tests of each promise, all cases; takes an hour
    python benchmarks/train.py --only half memory --quick --out quick.json        # a tiny model: that rows run, no numbers
    python benchmarks/train.py --specimens RUN...   # steps, tokens and minutes of finished runs, accuracies from their cards

Times are of pairs in turn, ours and each other, in one process, and a peer's in its own, which waits meanwhile; the medians of the
ratios count. Only the rows that ran are written anew into benchmarks/results/train.json. What this machine cannot give stands there with
its reason.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from meta import commit
from peer_process import MissingError, Peer
from products_alone import Products
from torch import Tensor, nn

from pellucid import __version__, load
from pellucid.bench.machine import cpu

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULT = HERE / "results" / "train.json"
ROW = re.compile(r"^\| (\w+) \| (en|zh) \| ([\d,]+) \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \|$", re.M)
SHAPE = {"n_embd": 384, "n_layer": 6, "n_head": 6, "n_positions": 256, "vocab_size": 50304}  # 30 million parameters
BATCH, LENGTH = 16, 256
QUICK = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 512}
WAYS = {
    "ours": ("float32", False),
    "bfloat16": ("bfloat16", False),
    "recompute": ("float32", True),
    "bfloat16 recompute": ("bfloat16", True),
}
"""Our ways to train whose memory is measured: dtype, and whether blocks run again."""
CAPITALS = 5354  # tokens a second of recipes/capitals.toml on one thread, before the first of these measurements
PROMISES = ROOT / "docs" / "training.md"  # what training promises, each with the tests that judge it
CAMPAIGNS = {"kills": "kills", "mutants.recipe": "recipe", "mutants.data": "data"}
"""Rows that are counted by a campaign, `python -m campaigns NAME`, from its own file."""


def ours(folder: Path, dtype: str = "float32", recompute: bool = False, fields: dict[str, Any] | None = None) -> Callable[[], None]:
    """Return a step of our training on random tokens. fields: of another config.json than GPT-2's."""
    from pellucid.families import understand
    from pellucid.nn.transformer import build
    from pellucid.training.corpus import train_tokenizer
    from pellucid.training.loop import TrainingRun, initialise
    from pellucid.training.objectives import Causal, Document
    from pellucid.training.recipe import TrainSettings

    _, cfg = understand(fields or {"model_type": "gpt2", **SHAPE})
    model = build(cfg)
    initialise(model, SHAPE["n_layer"], 0.02, 1)
    documents = [Document([], row) for row in tokens().tolist()]
    settings = TrainSettings(seed=1, steps=1 << 30, batch=BATCH, learning_rate=3e-4, warmup=1, dtype=dtype, recompute=recompute)
    run = TrainingRun(model.train(), Causal(train_tokenizer(["a b c"], 300)), documents, settings, folder)

    def one() -> None:
        run.one(list(range(BATCH)))

    return one


def theirs(compiled: bool = False, half: bool = False) -> Callable[[], None]:
    """Return a step of transformers' model with torch's fused AdamW, on the same tokens. half: under torch's autocast to bfloat16."""
    import transformers

    hf: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SHAPE, attn_pdrop=0, resid_pdrop=0, embd_pdrop=0)).train()
    model = torch.compile(hf) if compiled else hf
    step, x = torch.optim.AdamW(hf.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True), tokens()

    def one() -> None:
        step.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits: Tensor = model(input_ids=x[:, :-1], use_cache=False).logits.float()
        nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(hf.parameters(), 1.0)
        step.step()

    return one


def tokens() -> Tensor:
    return torch.randint(SHAPE["vocab_size"], (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(1))


def seconds(step: Callable[[], None], steps: int) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - began) / steps


def in_turn(own: Callable[[], None], others: dict[str, Callable[[], None]], pairs: int, steps: int) -> dict[str, Any]:
    """Return by the names of `others` the tokens a second of ours and of each, and the median of the ratios.

    They are measured in turn, after a step of each.
    """
    every = [own, *others.values()]
    for step in every:
        step()
    rows = [[seconds(step, steps) for step in every] for _ in range(pairs)]
    rates = [round(BATCH * LENGTH / statistics.median(column), 1) for column in zip(*rows, strict=True)]
    out: dict[str, Any] = {}
    for i, name in enumerate(others, 1):
        ratio = round(statistics.median(row[i] / row[0] for row in rows), 3)
        out[name] = {"ours": rates[0], "theirs": rates[i], "ratio": ratio, "pairs": pairs, "steps": steps}
    return out


def speed(a: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return tokens a second beside transformers, eager and compiled, and beside our step's products alone, which bound it."""
    own = ours(folder)
    with Products() as products:
        own()
    return in_turn(own, {"eager": theirs(), "compiled": theirs(compiled=True), "products": products}, a.pairs, a.steps)


def half(a: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return tokens a second in bfloat16 beside transformers under autocast, eager and compiled, and beside our float32."""
    others = {"eager": theirs(half=True), "compiled": theirs(compiled=True, half=True), "float32": ours(folder)}
    return in_turn(ours(folder, "bfloat16"), others, a.pairs, a.steps)


def recompute(a: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return tokens a second with blocks that run again over those without, in both dtypes."""
    out: dict[str, Any] = {}
    for dtype in ("float32", "bfloat16"):
        out |= in_turn(ours(folder, dtype, recompute=True), {dtype: ours(folder, dtype)}, a.pairs, a.steps)
    return out


def neox() -> dict[str, Any]:
    """Return the config of GPT-NeoX, which litgpt has, in the shape that all rows have."""
    width, sizes = SHAPE["n_embd"], {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "vocab_size": "vocab_size"}
    fields = {"hidden_size": width, "intermediate_size": 4 * width, "max_position_embeddings": SHAPE["n_positions"]}
    return {"model_type": "gpt_neox", "tie_word_embeddings": True, **fields, **{name: SHAPE[own] for name, own in sizes.items()}}


def beside(name: str, a: argparse.Namespace, folder: Path, fields: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return tokens a second beside another trainer, by dtype, eager and compiled; what it says of itself; or why it is missing.

    fields: of the config of our model beside it, by default GPT-2's.
    """
    out: dict[str, Any] = {}
    for dtype in a.dtypes:
        try:
            with ExitStack() as stack:
                options = ("--dtype", dtype, "--threads", str(a.threads))
                started = {
                    way: stack.enter_context(Peer(name, a.peers, SHAPE, BATCH, *options, *more))
                    for way, more in (("eager", ()), ("compiled", ("--compiled",)))
                }
                out["peer"] = started["eager"].about
                out[dtype] = in_turn(ours(folder, dtype, fields=fields), dict(started), a.pairs, a.steps)
        except MissingError as fault:
            out["missing" if not out else f"{dtype} missing"] = str(fault)
            break
    return out


def litgpt(a: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return tokens a second beside litgpt's GPT and loop, both in GPT-NeoX's form."""
    return beside("litgpt", a, folder, neox())


def nanochat(a: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return tokens a second beside nanochat's GPT and optimizer, whose model is another one of as many blocks of this width."""
    return beside("nanochat", a, folder)


def memory(a: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the bytes at most of each, beyond those before the model was made, each in a process of its own; and our bills."""
    from pellucid.api.count import billed
    from pellucid.counting.training_memory import Way
    from pellucid.counting.training_memory import memory as parts
    from pellucid.families import understand

    peaks, bills = dict[str, int](), dict[str, dict[str, int]]()
    family, cfg = understand({"model_type": "gpt2", **SHAPE})
    for name in (*WAYS, "theirs", "theirs bfloat16"):
        command = [sys.executable, __file__, "--peak", name, *(["--quick"] if a.quick else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[name] = max(1, int(done.stdout.splitlines()[-1]))  # a tiny model fits where imports were
    for name, (dtype, again) in WAYS.items():
        bill = billed(cfg, family.name, "30M", LENGTH, BATCH, dtype, dtype, plain=dtype)
        bills[name] = {part: int(n) for part, n in parts(bill, Way(recompute=again, master=dtype != "float32")).items()}
    return {
        "peak": peaks,
        "ratio": {"float32": round(peaks["ours"] / peaks["theirs"], 3), "bfloat16": round(peaks["bfloat16"] / peaks["theirs bfloat16"], 3)},
        "predicted": bills,
        "predicted_over_measured": {name: round(bill["memory.total"] / peaks[name], 3) for name, bill in bills.items()},
    }


def peak(name: str) -> int:
    """Return by how many bytes this process grew, at most, while it took two steps."""
    import transformers  # noqa: F401  counted before, as ours is

    from pellucid.training.meter import forget_most, resident

    with tempfile.TemporaryDirectory() as folder:
        nn.functional.linear(torch.randn(64, 64), torch.randn(64, 64))
        forget_most()
        before = resident() or 0
        step = ours(Path(folder), *WAYS[name]) if name in WAYS else theirs(half="bfloat16" in name)
        step(), step()
        return (resident() or 0) - before


def capitals(a: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the tokens a second of recipes/capitals.toml on one thread, of a part of its steps, and of their products alone."""
    text, steps = (ROOT / "recipes" / "capitals.toml").read_text(encoding="utf-8"), 20 * a.steps
    log = logged(text, folder, steps)
    with Products() as products:
        logged(text, folder, steps)
    rates = [log[-1]["tokens"] / took for took in (sum(entry["seconds"] for entry in log), seconds(products, 1))]
    return {
        "tokens_per_second": round(rates[0], 1),
        "steps": steps,
        "ratio": round(rates[0] / CAPITALS, 3),
        "products_alone": {"tokens_per_second": round(rates[1], 1), "ratio": round(rates[1] / CAPITALS, 3)},
    }


def watching(a: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the time of a watched step over a plain one's, of a run's plain steps with a [watch] over one's without, and of a save."""
    from pellucid.training.saves import save_state

    text, steps = (ROOT / "recipes" / "capitals.toml").read_text(encoding="utf-8"), 20 * a.steps
    over, off = list[float](), list[float]()
    for _ in range(a.pairs):
        plain, watched = (logged(text + more, folder, steps) for more in ("", "\n[watch]\nevery = 4\n"))
        of = {which: [e["seconds"] for e in watched if (e["step"] % 4 == 0) is which] for which in (True, False)}
        over.append(statistics.median(of[True]) / statistics.median(of[False]))
        off.append(statistics.median(of[False]) / statistics.median(e["seconds"] for e in plain))
    state = {f"w{i}": torch.randn(1 << 20) for i in range(30)}
    began = time.perf_counter()
    save_state(folder / "saves", 1, state, {}, {})
    return {
        "watched_over_plain": round(statistics.median(over), 3),
        "off_over_plain": round(statistics.median(off), 3),
        "pairs": a.pairs,
        "save_seconds_per_gigabyte": round((time.perf_counter() - began) / 0.126, 2),
    }


def logged(text: str, folder: Path, steps: int) -> list[dict[str, Any]]:
    """Return the log of the first steps of a recipe, whose model is not measured."""
    from pellucid.training import pipeline, run_recipe

    place = Path(tempfile.mkdtemp(dir=folder))
    (place / "r.toml").write_text(re.sub(r"(?m)^steps = .*$", f"steps = {steps}", text), encoding="utf-8")
    before, pipeline.finish = pipeline.finish, lambda recipe, folder, *rest: folder  # type: ignore[assignment]
    try:
        run_recipe(place / "r.toml", place / "run", False, 1, lambda entry: None)
    finally:
        pipeline.finish = before
    return [json.loads(line) for line in (place / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def judged(a: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return by each promise of docs/training.md that tests judge how many of them passed, with all their cases (PELLUCID_FULL=1)."""
    out: dict[str, Any] = {}
    for line in PROMISES.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and "FULL tests/" in line:
            promise, shown = line.removeprefix("| ").split(" | ")[:2]
            out[promise] = tested(sorted(set(re.findall(r"tests/\w+/test_\w+\.py", shown))))
            print(promise, json.dumps(out[promise]), flush=True)
    return {"promises": out}


def tested(files: list[str]) -> dict[str, Any]:
    """Return how many tests of these files passed, with all their cases."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", *files]
    env = os.environ | {"PELLUCID_FULL": "1", "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("src", "tests", "tests/support"))}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1]
    counts = {kind: int(n) for n, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
    return {"tests": files, **counts, "exit": done.returncode, "seconds": round(time.perf_counter() - began, 1)}


MEASURED = {"speed": speed, "half": half, "recompute": recompute, "memory": memory, "capitals": capitals, "watching": watching}
MEASURED |= {"litgpt": litgpt, "nanochat": nanochat, "judged": judged}


def counted(name: str) -> dict[str, Any]:
    """Return a campaign's attempts by outcome, from its own file."""
    file = HERE / "results" / f"fuzz_{name}.json"
    if not file.is_file():
        return {"missing": f"PYTHONPATH=tests:tests/support python -m campaigns {name}"}
    found = json.loads(file.read_text(encoding="utf-8"))
    return {key: found[key] for key in ("count", "seed", "outcomes", "seconds")}


def beside_trl() -> dict[str, Any]:
    """Return how far losses are from TRL's, from the file that trl_losses.py writes in an environment of its own."""
    file = HERE / "results" / "trl_losses.json"
    if not file.is_file():
        return {"missing": "python benchmarks/trl_losses.py --env FOLDER"}
    found = json.loads(file.read_text(encoding="utf-8"))
    return {key: found[key] for key in ("differences", "allowed", "versions")}


def rows(a: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row that was asked for, by its name."""
    for name, measure in MEASURED.items():
        if not a.only or name in a.only:
            with tempfile.TemporaryDirectory() as folder:
                yield name, measure(a, Path(folder))
    if not a.only or "campaigns" in a.only:  # else they would be stamped with a commit that they did not run at
        for name, own in CAMPAIGNS.items():
            yield name, counted(own)
        yield "formulas.trl", beside_trl()


def specimen(run: Path) -> dict[str, Any]:
    """Return what one run took; minutes are of the training alone, and of its last stretch where it was resumed."""
    last = json.loads((run / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    card = (run / "model" / "README.md").read_text(encoding="utf-8").split("\n# ")[1]
    model = load(run / "model")
    return {
        "name": card.splitlines()[0],
        "parameters": model.num_parameters(),
        "bytes": (run / "model" / "model.safetensors").stat().st_size,
        "steps": last["step"],
        "tokens": last["tokens"],
        "minutes": round(last["tokens"] / last["tokens_per_second"] / 60, 1),
        "last_loss": last["loss"],
        "right": {f"{relation}.{language}": float(share) for relation, language, _, share, _, _ in ROW.findall(card)},
        "bag_of_words": {f"{relation}.{language}": float(bag) for relation, language, _, _, _, bag in ROW.findall(card)},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", choices=sorted({*MEASURED, "campaigns"}))
    parser.add_argument("--specimens", nargs="+", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of one measurement of a pair")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], help="of the rows litgpt and nanochat")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peak", choices=[*WAYS, "theirs", "theirs bfloat16"])
    parser.add_argument("--peers", type=Path, default=Path.home() / ".cache" / "pellucid-peers", help="of their environments")
    parser.add_argument("--quick", action="store_true", help="a tiny model, one pair of one step")
    parser.add_argument("--out", type=Path, default=RESULT)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    if a.quick:
        global BATCH, LENGTH
        SHAPE.update(QUICK)
        BATCH, LENGTH, a.pairs, a.steps = 2, 16, 1, 1
    if a.peak:
        print(peak(a.peak))
        return
    known = json.loads(a.out.read_text(encoding="utf-8")) if a.out.is_file() else {}
    about = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(), "version": __version__}
    machine = {"cpu": cpu(), "torch": torch.__version__, "threads": a.threads}
    if importlib.util.find_spec("transformers") is not None:
        machine["transformers"] = importlib.metadata.version("transformers")
    result = {"schema": 1, "benchmark": "train", **known, "rows": known.get("rows", {}), "runs": known.get("runs", [])}
    if a.specimens:
        write(a.out, result | about | {"machine": machine, "runs": [specimen(run) for run in a.specimens]})
        return
    for name, row in rows(a):
        result["rows"][name] = row if "missing" in row else {**row, **about, "machine": machine}
        print(name, json.dumps(row), flush=True)
        write(a.out, result)


def write(path: Path, result: dict[str, Any]) -> None:
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
