"""Forks: a change of any tensor of any family gives, from where it enters, what the run of all blocks and rows gives."""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from covering import FULL
from judge import judge, ours
from pellucid.api.model import specimens
from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.mask import prefix
from pellucid.batch.step import Step
from pellucid.engine import forks as forking
from pellucid.engine.forks import Fork, ForkedText, Forks
from pellucid.errors import TraceError
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.watching.change import Change, add, function, put, times, zero
from pellucid.watching.watch import watch
from tiny import FAMILIES, far, swapped, tiny

Trials = list[list[Change]]
TOKENS = (5, 80, 17, 3, 44, 9, 61, 30, 12)
OTHERS = ("bert", "bloom", "deepseek_v32", "falcon", "gemma2", "gemma3_text", "llama4_text", "marian", "opt", "phi3", "gemma4_text: as E2B")


@cache
def model_of(name: str) -> Any:
    """A model in float64: of a tiny config, of a judge, or a specimen."""
    if name.startswith("pellucid/"):
        return pellucid.load(name, dtype="float64").module
    return tiny(name) if name in FAMILIES else ours(judge(*name.split(": ")).folder)[1]


def text_of(model: Any, scored: bool = False) -> ForkedText:
    """A text of a model, with two rows after the prompt where a row does not depend on later ones."""
    if isinstance(model, EncoderDecoder):
        return ForkedText(TOKENS[:3], 1, (0, 2), TOKENS)
    return ForkedText(TOKENS, 7, (7, 8), scored=scored)


def lone(model: Any, text: ForkedText, changes: Sequence[Change], pages: PagedCache | None = None) -> Tensor:
    """The logits of the wanted rows by one forward under changes: a plain one, or one over pages, as the engine's."""
    tokens = torch.tensor([text.tokens])
    step = Step.plain(tokens, mask=prefix(text.prompt) if model.config.prefix and not text.scored else None)
    step.prompts = {None: text.tokens[: text.prompt], 0: text.tokens[: text.prompt]}
    if pages is not None:
        pages.prompts[0] = text.tokens[: text.prompt], text.source
        step = Step.paged(pages, {0: len(text.tokens)})
    source = None
    if text.source is not None:
        source = Step.packed([len(text.source)], prompts={0: text.source}) if pages else Step.plain(torch.tensor([text.source]))
    with torch.no_grad(), watch(model, (), edit=changes):
        out = model(tokens, step) if isinstance(model, Decoder) else model(torch.tensor([text.source]), tokens, step, source)
    return out[0, list(text.wanted)]


def trials_of(model: Any, text: ForkedText, seed: int = 0) -> Trials:
    """For each tensor of a run a change at a random place, changes of all its rows, and mixtures of two."""
    draw, out = random.Random(seed), Trials()
    forks = Forks(model, text)
    with torch.no_grad(), watch(model) as seen:
        arguments = [torch.tensor([t]) for t in (text.source, text.tokens) if t is not None]
        model(*arguments)
    for s in {s.path: s for s in seen if s.dtype.is_floating_point}.values():
        assert s.path in forks.blocks
        letters = s.dims.split()
        if "T" in letters:
            after = forks.blocks[s.path] == (forks.last, forks.counts[-1])  # where only the wanted rows may be
            t = draw.choice(text.wanted if after else range(s.shape[letters.index("T")]))
            out.append([times(s.path, 1.5, T=t), add(s.path, 0.25, T=slice(t, None))])
        else:
            out.append([times(s.path, 1.5)])
    out += [[a, b] for (a, *_), (b, *_) in zip(draw.sample(out, 5), draw.sample(out, 5), strict=True)]
    place = forking.entrance(*[(stack, p) for p, stack in forking.stacks(model)][-1])
    out += [[], [put(place, 0.5, T=-1)], [zero(place)], [function("*layers.1.ffn", lambda x: x * 1.1)]]
    return out


def error(model: Any, text: ForkedText, trials: Trials, **how: Any) -> float:
    """The largest difference of a fork's logits from its lone run's."""
    forks = Forks(model, text, **how)
    gaps, known = [far(forks.logits, lone(model, text, how.get("edit", ())))], list[int]()
    for numbers, logits in forks.run(trials):
        known += numbers
        gaps += [far(x, lone(model, text, [*how.get("edit", ()), *trials[n]])) for n, x in zip(numbers, logits, strict=True)]
    assert sorted(known) == list(range(len(trials))) and forks.pages.sound() and forks.pages.holders() <= {forking.ORIGIN}
    return max(gaps)


@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS, *specimens()])
@pytest.mark.quick(15)
def test_a_fork_is_its_lone_run(name: str) -> None:
    """A third of the trials, with PELLUCID_FULL=1 all."""
    model = model_of(name)
    text = text_of(model)
    trials, some = trials_of(model, text), sum(map(ord, name)) % 3
    with swapped(forking, "JOINED", forking.JOINED if some else 0):  # 0: the forks of each block run alone
        assert len(trials) > 20 and error(model, text, trials if FULL else trials[some::3]) < 1e-10


def grown(x: Tensor) -> Tensor:
    """More for each later row: a function of all rows."""
    return x * torch.arange(1, x.shape[1] + 1)[None, :, None]


@pytest.mark.parametrize("name", ["gpt2", "gpt_oss", "t5", "bert", "pellucid/capitals-prefix", "gemma4_text: as E2B"])
@pytest.mark.quick(4)
def test_changes_of_every_run(name: str) -> None:
    """Changes of the run that is forked act in each fork too: before the fork's own, and where it enters behind them."""
    model = model_of(name)
    text, start = text_of(model), add("source", 0.5, S=2) if name == "t5" else add("embed", 0.5, T=2)
    edits: list[list[Change]] = [[start, times("*layers.1.ffn", 1.2)], [function("*layers.0.ffn", grown)]]
    for edit in edits:
        assert error(model, text, trials_of(model, text, 1)[::3], edit=edit) < 1e-10


def test_a_scored_text_has_no_prefix() -> None:
    """Its rows depend on earlier ones alone, so that forks share them."""
    model = model_of("pellucid/capitals-prefix")
    text = text_of(model, scored=True)
    assert Forks(model, text).share_rows and not Forks(model, text_of(model)).share_rows
    assert error(model, text, trials_of(model, text)[::4]) < 1e-10


def test_a_mask_that_hides_nothing_shares_no_rows() -> None:
    model = pellucid.variant(pellucid.load("pellucid/capitals", dtype="float64"), {"layers.*.attn.fill": 0.0}).module
    text = text_of(model)
    assert not Forks(model, text).share_rows and error(model, text, trials_of(model, text)[::4]) < 1e-10


def test_forks_compute_what_differs() -> None:
    """The block and the first row of each, and how many rows a forward was given."""
    model = model_of("gpt2")
    text = ForkedText(TOKENS, len(TOKENS), (len(TOKENS) - 1,))
    places: dict[str, tuple[Change, tuple[int, int]]] = {
        "a head": (zero("layers.1.attn.z", H=1, T=5), (1, 5)), "from the end": (zero("layers.0.ffn", T=-2), (0, 7)),
        "the embedding": (zero("embed", T=slice(3, 5)), (-1, 3)), "all rows": (zero("layers.1.attn.z", H=1), (1, 0)),
        "after the last": (zero("norm", T=8), (2, 8)), "a table": (zero("layers.1.attn.pattern", T=5), (1, 0)),
        "several": (zero("layers.*.attn.q", T=[8, 4]), (0, 4)),
    }  # fmt: skip
    forks = Forks(model, text)
    for change, (block, first) in places.values():
        made = forks.fork(0, [change])
        assert (made.entry, made.first) == ((0, block), first)
    assert forks.fork(0, [change for change, _ in places.values()]).entry == (0, -1)

    def counted(self: Forks, batch: Sequence[Fork], right: Any = Forks.forward) -> Tensor:
        given.append(sum(len(TOKENS) - f.first for f in batch))
        entered.append({f.entry for f in batch})
        assert batch[0].entry == min(entered[-1])
        return right(self, batch)

    for joined, batches in ((0, [1, 1, 1, 1, 1]), (27, [4, 1]), (26, [3, 1, 1])):  # a table's change runs another op, and so alone
        given, entered = [], list[set[Any]]()
        with swapped(Forks, "forward", counted), swapped(forking, "JOINED", joined):
            list(forks.run([[change] for change, _ in places.values()]))
        assert sum(given) == 4 + 2 + 6 + 9 + 1 + 9 + 5 and list(map(len, entered)) == batches
    t5 = Forks(model_of("t5"), text_of(model_of("t5")))
    paths = "source", "encoder.layers.1.ffn", "encoder.norm", "decoder.layers.2.cross.k", "embed", "decoder.layers.1.cross.q"
    entries = [t5.fork(0, [zero(path)]).entry for path in paths]
    assert entries == [(0, -1), (0, 1), (0, 2), (0, 2), (1, -1), (1, 1)]


@pytest.mark.parametrize("limit", ["ROWS", "FORKS"])
def test_batches_of_any_size(limit: str) -> None:
    model = model_of("llama")
    text = text_of(model)
    with swapped(forking, limit, 4):
        assert error(model, text, trials_of(model, text)[::2]) < 1e-10


def test_an_answer_longer_than_its_source() -> None:
    """Pages are enough for the tokens of every fork, not only for its source."""
    model = model_of("t5")
    text = ForkedText(TOKENS, 1, (8,), TOKENS[:2])
    with swapped(forking, "ROWS", 20):
        assert error(model, text, [[times(f"encoder.layers.{n % 2}.ffn", 1.0 + n)] for n in range(12)]) < 1e-10


def test_a_wrong_change_is_an_error() -> None:
    """And leaves no pages behind."""
    model = model_of("gpt2")
    forks = Forks(model, text_of(model))
    for change, words in ((zero("layers.9.ffn"), "layers.9.ffn"), (zero("layers.0.ffn", T=40), "no position")):
        with pytest.raises(TraceError, match=words):
            list(forks.run([[zero("layers.0.attn.z", H=0)], [change]]))
        assert forks.pages.holders() == {forking.ORIGIN} and forks.pages.sound()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.quick(6)
def test_deterministic_forks_have_the_bits_of_lone_runs(name: str, dtype: torch.dtype) -> None:
    """Over the engine's pages, of whatever size."""
    model = tiny(name, dtype)
    text = text_of(model)
    trials = trials_of(model, text)[::3]
    forks = Forks(model, text, deterministic=True)
    for numbers, logits in forks.run(trials):
        with forking.native.any_rows():
            again = [lone(model, text, trials[n], PagedCache(4, 16)) for n in numbers]
        assert all(torch.equal(x, right) for x, right in zip(logits, again, strict=True))


def late_block(self: Forks, number: int, changes: Any, right: Any = Forks.fork) -> Fork:
    made: Fork = right(self, number, changes)
    stack, block = made.entry
    return Fork(number, made.changes, (stack, min(block + 1, self.counts[stack])), made.first)


def early_stream(self: Forks, batch: Sequence[Fork], stack: int, right: Any = Forks.enter) -> Any:
    block, _ = right(self, batch, stack) or (-1, None)
    return None if block < 1 else (block, torch.cat([self.streams[stack][block - 1][:, f.first :] for f in batch], 1))


def late_row(self: Forks, c: Change, paths: Any, right: Any = Forks.first_row) -> int:
    return min(int(right(self, c, paths)) + 1, len(self.text.tokens) - 1)


def neighbours_page(self: Any, request: object, new: object, tokens: int, right: Any = PagedCache.fork) -> None:
    right(self, request, new, tokens)
    for a in self.allocators.values():
        if tokens > 1:
            a.put(new, 0, a.page(new, 1))


def neighbours_rows(self: Forks, batch: Sequence[Fork], stack: int, right: Any = Forks.enter) -> Any:
    return right(self, [*batch[1:], batch[0]], stack)


MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a block late": (Forks, "fork", late_block),
    "the stream of a block before": (Forks, "enter", early_stream),
    "a row late": (Forks, "first_row", late_row),
    "a neighbour's page": (PagedCache, "fork", neighbours_page),
    "a neighbour's rows": (Forks, "enter", neighbours_rows),
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.quick(2)
def test_mutants_are_seen(mutant: str) -> None:
    model = model_of("gpt2")
    text = ForkedText(TOKENS, 7, (8,))
    trials = [[add(f"layers.{block}.{path}", 0.5, T=t)] for block in range(2) for path in ("attn.k", "ffn") for t in (1, 4, 7)]
    trials.append([zero("layers.0.ffn", T=-1)])
    with swapped(forking, "JOINED", 0):
        assert error(model, text, trials) < 1e-10
        with swapped(*MUTANTS[mutant]), suppress(TraceError):  # of a change that acts nowhere
            assert error(model, text, trials) > 1e-6


def test_pages_are_those_that_the_largest_batch_needs() -> None:
    """Pages of two thousand rows stood there for each sweep, however small: 150 MB for GPT-2 small."""
    model = model_of("llama")
    text = text_of(model)
    forks = Forks(model, text)
    before = forks.pages.count
    trials = trials_of(model, text)
    list(forks.run(trials[:3]))
    few = forks.pages.count
    list(forks.run(trials))
    assert before < few <= before + 3 * len(text.tokens) <= forks.pages.count <= before + forking.ROWS
    assert all(pool.shape[0] == forks.pages.count for pools in forks.pages.pools.values() for pool in pools)
    assert forks.pages.allocators[None].sound(())
