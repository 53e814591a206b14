"""What the tests of several ranks trace, write and count: the same on each rank."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pellucid.api.model import Model, load
from pellucid.api.trace import trace
from pellucid.counting import Bill, Setting, counted
from pellucid.counting.ranks import Split, spread
from pellucid.distributed import Ranks, join, number
from pellucid.engine.engine import Engine
from pellucid.engine.requests import Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import UseError
from pellucid.families import family
from pellucid.ops.sampling.settings import Sampling
from pellucid.sharding import split
from rank_grids import FULL, GRIDS, OF_EXPERTS, PATIENCE, Measured, config
from tiny import far, ids, tiny

TEXT = "The capital of France is"
COUNTED = (*OF_EXPERTS, "gemma4_text: experts")
"""Families whose bytes are counted on expert ranks: the last has factors of experts that every rank holds."""


class Backwards(Ranks):
    """Ranks that gather the rows of complete experts in another order."""

    def gather_rows(self, x: Tensor) -> Tensor:
        return super().gather_rows(x).flip(0)


@contextmanager
def recorded() -> Iterator[list[tuple[str, int]]]:
    """Record what this rank gives to the exchanges inside: their kind and bytes."""
    sent, reduce, gather = list[tuple[str, int]](), dist.all_reduce, dist.all_gather

    def all_reduce(x: Tensor, *args: Any, **how: Any) -> Any:
        sent.append(("all_reduce", x.nbytes))
        return reduce(x, *args, **how)

    def all_gather(out: list[Tensor], x: Tensor, *args: Any, **how: Any) -> Any:
        sent.append(("logits", x.nbytes))
        return gather(out, x, *args, **how)

    dist.all_reduce, dist.all_gather = all_reduce, all_gather
    try:
        yield sent
    finally:
        dist.all_reduce, dist.all_gather = reduce, gather


def kept_of_a_text(engine: Engine, model: Any, bill: Bill) -> int:
    """Return the bytes that an engine of one page has of a text: of each pool the rows that its part keeps, and one of a page's two states.

    The page is as long as the text, also where a window or a convolution keeps a few of its rows.
    """
    pages, out = engine.storage.pages, 0  # type: ignore[attr-defined]
    for path, part in model.named_modules():
        for pool in pages.pools.get(part, ()):
            out += pool.nbytes // len(pool) * bill.mixer(path).rows_kept(bill.setting.context)
        if part in pages.states:
            out += pages.states[part].nbytes // 2
    return out


def bytes_counted(ranks: Ranks, families: Sequence[str]) -> Measured:
    """Compare with `count --ranks` the bytes of a rank's weights, of its cache for a text, and those sent for a prompt and a token."""
    out: Measured = {}
    split_up = Split(tp=ranks.tensor, experts=ranks.expert)
    for name in families:
        cfg, rows = replace(config(name), vocab=98), 62  # a vocabulary that is shared out evenly; with two tokens more a page
        model = tiny(cfg, torch.float32)
        split(model, ranks)
        dtypes = dict.fromkeys(("weights", "activations", "cache"), "float32")
        bill = counted(cfg, name, name, Setting(context=rows + 2, batch=1, **dtypes))
        (stage,) = spread(bill, split_up).stages
        engine = Engine.of(model, rows + 2, SchedulerLimits(rows + 2), size=rows + 2, prefix_cache=False)
        engine.submit(Request(tuple(ids(1, rows)[0].tolist()), 2))
        sent = list[dict[str, float]]()
        while not engine.idle:
            with recorded() as step:
                engine.step()
            sent.append(by_ring(step, ranks.sharing))
        weights = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
        of_a_prompt = counted(cfg, name, name, Setting(context=rows, batch=1, **dtypes))
        (prompt,) = spread(of_a_prompt, split_up).stages
        out[name] = {
            "weights": (stage.weights, weights),
            "parameters": (stage.parameters, sum(p.numel() for p in model.parameters())),
            "cache": (stage.cache, kept_of_a_text(engine, model, bill)),
            "prefill": ({k: float(n) for k, n in prompt.sent["prefill"].items()}, sent[0]),
            "decode": ({k: float(n) for k, n in stage.sent["decode"].items()}, sent[1]),
        }
    return out


MORE = (
    "bloom", "phi3", "gemma2", "opt", "gptj", "cohere: as Command R+", "granitemoehybrid", "falcon_h1", "qwen3_5_text", "lfm2", "bert",
    "t5", "marian", "gpt_oss", "llama4_text", "falcon", "olmo2", "gemma4_text: half turns, stretched",
    "gemma4_text: experts",
)  # fmt: skip
"""Families with other parts: slopes, sinks, one norm for two parts, values from keys, states, encoders, and two that are refused."""


def forwards(ranks: Ranks) -> Measured:
    """Compare the logits of families that are not trained above; of one that cannot be split, the reason."""
    out: Measured = {}
    for name in MORE:
        alone = tiny(config(name))
        shared = copy.deepcopy(alone)
        given = (ids(2, 7, seed=1), ids(2, 11)) if alone.config.encoder else (ids(2, 11),)
        try:
            split(shared, ranks)
        except UseError as reason:
            out[name] = str(reason)
            continue
        with torch.no_grad():
            out[name] = far(alone(*given), shared(*given))
    return out


def by_ring(sent: list[tuple[str, int]], ranks: int) -> dict[str, float]:
    """Return what a rank of a ring sends: of a tensor that is summed 2·(n − 1)/n, of its own part that is gathered n − 1 times."""
    out = {
        "all_reduce": sum(n for kind, n in sent if kind == "all_reduce") * 2 * (ranks - 1) / ranks,
        "logits": float(sum(n for kind, n in sent if kind == "logits") * (ranks - 1)),
    }
    out = {kind: n for kind, n in out.items() if n}
    return out | {"total": sum(out.values())}


def traced(root: Path) -> Measured:
    """Compare traces, texts and scores of two ranks that share a model with those of one."""
    out: Measured = {}
    tensor, expert, both = (join(*sizes, patience=PATIENCE) for sizes in GRIDS[2][1:4])
    shared_by = [("qwen3_next", tensor), ("pellucid/capitals", tensor)]
    for name, ranks in (
        *shared_by,
        *(("pellucid/capitals-deepseek", ranks) for ranks in ((tensor, expert, both) if FULL else (expert, both))),
    ):
        alone, shared = named(name), named(name)
        shared.split(ranks)
        a, b = (trace(model, TEXT if "/" in name else ids(1, 7)[0].tolist(), 2) for model in (alone, shared))
        assert [s.path for s in a] == [s.path for s in b] and a.new == b.new
        pairs, label = list(zip(a, b, strict=True)), f"{name} {ranks}"
        out[f"{label} shapes"] = [s.path for s, t in pairs if s.shape != t.shape or s.dims != t.dims]
        out[f"{label} made"] = [s.path for s, t in pairs if (s.op, s.inputs, s.weights, s.flops) != (t.op, t.inputs, t.weights, t.flops)]
        out[f"{label} rows"] = [s.path for s, t in pairs if s.rows is not None and (t.rows is None or not torch.equal(s.rows, t.rows))]
        out[f"{label} values"] = max(far(s.value, t.value) for s, t in pairs)
        if "/" in name:
            *of_one, preempted, hits = texts(alone)
            out[f"{label} texts"] = {"equal": [*of_one, preempted, hits] == texts(shared), "preempted": preempted, "from the cache": hits}
        if number() == 0:
            b.save(root / label.replace("/", "-").replace(" ", "-"))
    alone, shared = load(name, dtype="float32"), load(name, dtype="float32")
    shared.split(expert)  # one rank replays its decode steps as plans
    out["float32 texts"] = texts(alone)[:-2] == texts(shared)[:-2]  # bursts of several steps find other pages in the cache
    right = trace(shared, TEXT)
    shared.sharding = replace(shared.sharding, ranks=Backwards(**vars(expert)))
    wrong = trace(shared, TEXT)
    out["backwards"] = max(far(s.value, t.value) for s, t in zip(right, wrong, strict=True))
    families = {tensor: ("gpt2", "llama", "deepseek_v3", "qwen2_moe", "qwen3_next"), expert: COUNTED, both: ("deepseek_v3", "qwen2_moe")}
    counted_bytes = {str(ranks): bytes_counted(ranks, names) for ranks, names in families.items()}
    return out | {"bytes": counted_bytes, "forwards": forwards(tensor)}


def named(name: str) -> Model:
    """Load a specimen, or return a tiny model of a family without a tokenizer."""
    return load(name, dtype="float64") if "/" in name else Model(name, tiny(config(name)), family(name), {}, None)


def texts(model: Model) -> list[Any]:
    """Return texts of several requests at once, greedy and sampled, with pages so few that some are preempted, and once more with what the
    prefix cache has; then how often a text was preempted, and how many tokens the prefix cache had.
    """
    prompts = [model.ids(text) for text in ("The capital of France is", "The capital of Spain is", "The capital of France is Paris. The")]
    engine = Engine.of(model.module, 40, SchedulerLimits(16, 3), size=4)
    got: dict[int, list[int]] = {}
    for turn in range(2):  # the second time from the prefix cache
        for i, prompt in enumerate(prompts * 2):
            sampling = Sampling(temperature=1.0, seed=i) if i % 2 else Sampling()
            got[engine.submit(Request(tuple(prompt), 12, sampling))] = []
        for output in engine.outputs():
            if output.token is not None:
                got[output.request].append(output.token.id)
        del turn
    return [*got.values(), engine.queue.preempted, engine.storage.cache.hits]  # type: ignore[attr-defined]
