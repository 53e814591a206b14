"""Step-by-step generation over pages gives what full forwards give, for one request and for a batch."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import judge as judges
from pellucid.api.model import Model, load
from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.step import Step
from pellucid.engine import engine as driving
from pellucid.engine.engine import Engine
from pellucid.engine.generation import generate
from pellucid.engine.requests import Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import PellucidError, UseError
from pellucid.ops import native
from pellucid.ops.sampling.settings import Sampling
from tiny import DECODERS, FAMILIES, GPT2, V, has_encoder, swapped, tiny

NEW = 9
PROMPTS = [[5, 3, 80, 11], [7], [2, 47, 31, 31, 8, 90, 1, 0, 66, 12, 5], [96, 95]]
SOURCES = [[4, 4, 9], [1, 2, 3, 4, 5, 6, 7], [50], [11, 12]]
STARTS = [[0]] * len(PROMPTS)


def model_of(family: str, dtype: torch.dtype = torch.float64) -> Model:
    """Return a tiny model in the Model that `load` makes."""
    module = tiny(replace(FAMILIES[family], starts=0) if has_encoder(family) else family, dtype)
    return Model(family, module, cast(Any, None), {}, None)


def plain(model: Model, ids: Sequence[int], source: Sequence[int] | None = None) -> Tensor:
    """Return the last logits of one full forward without a cache, [V]."""
    tokens = torch.tensor([list(ids)])
    with torch.no_grad():
        logits: Tensor = model.module(tokens) if source is None else model.module(torch.tensor([list(source)]), tokens)
    return logits[0, -1]


def loop(model: Model, prompt: Sequence[int], new: int, stops: Sequence[int] = (), source: Sequence[int] | None = None) -> list[int]:
    """Generate greedily by a full forward for every token."""
    out: list[int] = []
    while len(out) < new and not (out and out[-1] in stops):
        out.append(int(plain(model, [*prompt, *out], source).argmax()))
    return out


def texts(family: str) -> tuple[list[list[int]], list[list[int]] | None]:
    """Return prompts, or for an encoder the starts and the sources."""
    return (STARTS, SOURCES) if has_encoder(family) else (PROMPTS, None)


def run(
    model: Model, prompts: Sequence[Sequence[int]], new: int, stops: Sequence[int] = (), sources: Sequence[Sequence[int]] | None = None
) -> list[list[int]]:
    """Return `generate`'s new tokens as one list per request."""
    encoder_inputs = [None] * len(prompts) if sources is None else [tuple(s) for s in sources]
    requests = [Request(tuple(p), new, stops=frozenset(stops), source=s) for p, s in zip(prompts, encoder_inputs, strict=True)]
    out: list[list[int]] = [[] for _ in prompts]
    for output in generate(model.module, requests):
        out[output.request] += [] if output.token is None else [output.token.id]
    return out


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(4)
def test_greedy_is_full_forwards(family: str) -> None:
    """A ragged batch, and each of its texts alone, equals the plain loop, with and without a stop."""
    model = model_of(family)
    prompts, sources = texts(family)
    of: list[list[int] | None] = [*sources] if sources else [None] * len(prompts)
    wanted = [loop(model, p, NEW, (), s) for p, s in zip(prompts, of, strict=True)]
    assert run(model, prompts, NEW, sources=sources) == wanted
    for p, s, w in zip(prompts, of, wanted, strict=True):
        assert run(model, [p], NEW, sources=None if s is None else [s]) == [w]
    stop = wanted[0][3]
    cut = [w[: w.index(stop) + 1] if stop in w else w for w in wanted]
    assert run(model, prompts, NEW, [stop], sources) == cut
    assert len({tuple(w) for w in wanted}) > 1 and cut != wanted


WRITERS = [f for f, kind in judges.KINDS.items() if kind.task in judges.WRITES]


@pytest.mark.parametrize("family", WRITERS)
@pytest.mark.quick(21)
def test_greedy_of_every_family_of_files(family: str) -> None:
    """Files saved by transformers, in float64, give the plain loop's texts over pages, beyond the narrow windows of these models."""
    model = load(judges.judge(family).folder)
    sources: list[list[int]] | None = SOURCES if family in judges.SEQ2SEQ else None
    prompts = [[model.config.starts or 0]] * len(SOURCES) if sources else PROMPTS
    wanted = [loop(model, p, NEW, (), s) for p, s in zip(prompts, sources or [None] * len(prompts), strict=True)]
    assert run(model, prompts, NEW, sources=sources) == wanted
    assert len({tuple(w) for w in wanted}) > 1


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (Step, "advance", lambda self: None),  # the cache is never counted
        (PagedCache, "release", lambda self, request: [a.tables.clear() for a in self.allocators.values()]),
        (driving, "choose", lambda logits, *rest: int(logits.argmin())),
    ],
)
def test_mutants_are_seen(owner: Any, name: str, value: Any) -> None:
    """Seen are a cache that does not grow, a release of all requests, and a draw of the unlikeliest token."""
    model, texts = model_of("llama"), None
    stop = loop(model, PROMPTS[0], NEW)[3]
    wanted = [loop(model, p, NEW, [stop]) for p in PROMPTS]
    with swapped(owner, name, value):
        try:
            texts = run(model, PROMPTS, NEW, [stop])
        except (KeyError, UseError, RuntimeError):
            texts = None
    assert texts != wanted


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(4)
def test_batch_is_each_alone(family: str) -> None:
    """The logits of every step of a batch equal those of each text alone, though the texts end at different times."""
    model = model_of(family)
    prompts, sources = texts(family)
    engine, seen = Engine.of(model.module, 400), 0
    inner = engine.run

    def recorded(chunks: Any) -> Any:
        nonlocal seen
        out = inner(chunks)
        for s in chunks:
            assert torch.allclose(out[s][-1], plain(model, s.tokens, s.request.source), rtol=0, atol=1e-10)
            seen += 1
        return out

    engine.run = recorded
    for i, p in enumerate(prompts):
        engine.submit(Request(tuple(p), 2 * i + 1, source=None if sources is None else tuple(sources[i])))
    assert len(list(engine.outputs())) == seen == sum(2 * i + 1 for i in range(len(prompts)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.quick(4)
def test_one_request_goes_by_its_plan(family: str, dtype: torch.dtype) -> None:
    """Model.generate of one request replays a plan that the next request finds; without kernels, and in a batch, the text is the same."""
    model = model_of(family, dtype)
    got = [model.generate([p], NEW, eos=None)[0] for p in PROMPTS]
    (engine,) = model.engines
    if family in ("gpt2", "llama", "qwen3") and dtype != torch.float64 and native.available():
        assert list(cast(Any, engine.run).plans.buffers) == [1]
    if dtype != torch.bfloat16:
        assert got == model.generate(PROMPTS, NEW, eos=None)
        with native.off():
            assert got == [model.generate([p], NEW, eos=None)[0] for p in PROMPTS]


def test_a_kept_engine_takes_any_batch() -> None:
    """A kept engine serves one long text, then many short ones, then a batch that was left unfinished."""
    model = model_of("llama")
    model.generate([[5] * 40], 20, eos=None)
    many = [[i, 3] for i in range(9)]
    left = model.stream(many, NEW)
    next(left)
    left.close()  # type: ignore[attr-defined]
    assert model.generate(many, NEW, eos=None) == [loop(model, p, NEW) for p in many]
    assert len(model.engines) == 2 or model.engines[0].capacity >= 9 * 64


def test_a_chat_s_turns_begin_with_all_before_them() -> None:
    """The second turn computes its new rows only; another call in between clears the cache."""
    model, rows = model_of("llama"), [0]
    model.module.layers[0].register_forward_hook(lambda module, given, out: rows.append(out.shape[1]))  # type: ignore[union-attr, operator, index]
    first = [5] * 130
    reply = [n.token.id for n in model.stream([first], 4, cached=True) if n.token]
    rows.clear()
    second = [*first, *reply, 7, 7]
    again = [n.token.id for n in model.stream([second], 4, cached=True) if n.token]
    assert rows[0] == len(second) - 128 and again == loop(model, second, 4)
    model.generate([[1]], 1)
    rows.clear()
    assert [n.token.id for n in model.stream([second], 4, cached=True) if n.token] == again and rows[0] == len(second)


def test_threads_generate_side_by_side() -> None:
    """No two threads use one engine."""
    model = model_of("llama")
    wanted = [loop(model, p, NEW) for p in PROMPTS]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            assert list(pool.map(lambda p: model.generate([p], NEW, eos=None)[0], PROMPTS)) == wanted
    assert len({id(e) for e in model.engines}) == len(model.engines)


def test_nothing_of_an_old_weight_is_left() -> None:
    """After a weight is changed in place, stored rows serve no other text."""
    model = model_of("llama")
    model.generate([PROMPTS[2]], NEW, eos=None)
    with torch.no_grad():
        model.module.embed.weight.mul_(-1.0)
    assert model.generate([PROMPTS[2]], NEW, eos=None)[0] == loop(model, PROMPTS[2], NEW)


# What Model.generate takes and gives.


def test_tensors_and_lists() -> None:
    model = model_of("llama")
    ids = torch.tensor([p[:2] for p in PROMPTS if len(p) > 1])
    new = model.generate(ids, NEW, eos=None)
    assert new.dtype == torch.long and new.shape == (3, NEW)
    assert new.tolist() == model.generate(ids.tolist(), NEW, eos=None)
    assert model.generate(ids, 0).shape == (3, 0) and model.generate(PROMPTS, 0) == [[]] * 4
    assert model.generate([], NEW) == [] and model.generate(ids[:0], NEW).shape == (0, 0)


def test_stops() -> None:
    """A stop is the last token of its text and fills a tensor's row; without the argument the model's own stops hold."""
    model = model_of("llama")
    ids = torch.tensor([[5, 3], [7, 7], [90, 1]])
    free = model.generate(ids, NEW, eos=None)
    stop, other = int(free[0, 2]), int(free[1, 4])
    ends = [next((i for i, t in enumerate(row) if t in (stop, other)), NEW - 1) for row in free.tolist()]
    cut = [row[: end + 1] for row, end in zip(free.tolist(), ends, strict=True)]
    longest = max(map(len, cut))
    assert model.generate(ids.tolist(), NEW, eos=[stop, other]) == cut and min(map(len, cut)) < longest
    assert model.generate(ids, NEW, eos=(stop, other)).tolist() == [row + row[-1:] * (longest - len(row)) for row in cut]
    assert model.generate([[5, 3]], NEW, eos=stop) == [cut[0]]
    model.generation = {"eos_token_id": [stop, other, V + 5]}
    assert model.stops == (stop, other) and model.generate(ids.tolist(), NEW) == cut
    assert model.generate(ids.tolist(), NEW, eos=None) == free.tolist()
    model.generation = {"eos_token_id": stop}
    assert list(model.stops) == [stop]
    assert [(n.token.id if n.token else None, n.ended) for n in model.stream([[5, 3]], NEW, stops=[stop])] == [
        *((t, None) for t in cut[0][:-1]), (stop, "stop"),
    ]  # fmt: skip


def test_draws_are_each_request_s_own() -> None:
    """A seed gives the same text in any batch; without a seed, or with another, the text differs."""
    model = model_of("llama")

    def drawn(*prompts: list[int], **how: Any) -> list[list[int]]:
        return model.generate(list(prompts), 20, temperature=1.5, eos=None, **how)

    a, b, c = PROMPTS[:3]
    batched = drawn(a, b, c, seed=7)
    assert drawn(a, b, c, seed=7) == batched
    assert [drawn(p, seed=7 + i)[0] for i, p in enumerate((a, b, c))] == batched
    assert drawn(a, c, c, seed=7)[0] == batched[0] and drawn(a, c, c, seed=7)[2] == batched[2]
    assert drawn(a, b, c, seed=8) != batched
    assert drawn(a, a, seed=7)[0] != drawn(a, a, seed=7)[1]
    assert len({str(drawn(a)) for _ in range(3)}) > 1


def test_draws_follow_the_temperature() -> None:
    """Frequencies are the softmax of logits over temperature, and a cold draw is the likeliest token."""
    model = model_of("gpt2")
    first = plain(model, PROMPTS[0])
    assert model.generate([PROMPTS[0]], 5, temperature=1e-4, seed=1, eos=None) == [loop(model, PROMPTS[0], 5)]
    n, hot = 3000, 4.0
    (request,) = model.requests([PROMPTS[0]], 1, Sampling(temperature=hot, seed=3), n=n)
    engine = Engine.of(model.module, 64 * (n + 1), SchedulerLimits(running=n), size=64)
    engine.submit(request)
    drawn = torch.tensor([output.token.id for output in engine.outputs() if output.token])
    share = torch.bincount(drawn, minlength=V) / n
    expected = (first / hot).softmax(-1)
    assert float((share - expected).abs().sum()) < 0.2
    assert float((share - first.softmax(-1)).abs().sum()) > 0.4


def test_encoder_decoder_is_transformers_greedy() -> None:
    """A T5 saved by transformers, in float64, gives the tokens of its own generate."""
    j = judges.judge("t5")
    model = load(j.folder, dtype="float64")
    draw = torch.Generator().manual_seed(2)
    ends = set()
    for length in (1, 5, 17):
        source = torch.randint(2, V, (3, length), generator=draw)
        for stops in (None, [int(model.generate(source, 6, eos=None)[0, 3])]):
            with judges.promoted(), torch.no_grad():
                how = {"eos_token_id": stops, "pad_token_id": 0, "decoder_start_token_id": model.config.starts, "use_cache": False}
                theirs = j.hf.generate(source, max_new_tokens=12, do_sample=False, num_beams=1, **how)
            for row, ours in zip(theirs[:, 1:].tolist(), model.generate(source.tolist(), 12, eos=stops), strict=True):
                assert ours == row[: len(ours)] and not any(row[len(ours) :])
                ends.add(len(ours))
    assert len(ends) > 1


@pytest.mark.parametrize("family", DECODERS)
def test_logprobs(family: str) -> None:
    """The log-probability of each token after the first is the log of its softmax; greedy tokens have the greatest."""
    model = model_of(family)
    ids = torch.tensor([PROMPTS[2]])
    new = model.generate(ids, 5, eos=None)
    text = torch.cat([ids, new], 1)
    scores = model.logprobs(text)
    assert scores.shape == (1, text.shape[1] - 1) and scores.dtype == torch.float64 and not scores.requires_grad
    with torch.no_grad():
        shares = model(text)[0, :-1].softmax(-1)
    assert torch.allclose(scores[0].exp(), torch.stack([shares[i, t] for i, t in enumerate(text[0, 1:])]), rtol=1e-12, atol=0)
    assert torch.equal(scores[0, -5:], model.logprobs(text)[0, -5:])
    assert torch.allclose(scores[0, -5:].exp(), shares[-5:].amax(-1), rtol=1e-12, atol=0)
    assert model_of(family, torch.bfloat16).logprobs(text).dtype == torch.float32


# Errors.

WRONG: list[tuple[str, Callable[[Model], Any]]] = [
    ("decode.id", lambda m: m.generate([[V]], 3)),
    ("decode.id", lambda m: m.generate([[5], [-1]], 3)),
    ("decode.id", lambda m: m.generate([["5"]], 3)),  # type: ignore[list-item]
    ("decode.id", lambda m: m.generate([[5.0]], 3)),  # type: ignore[list-item]
    ("decode.id", lambda m: m.generate(torch.tensor([[V]]), 3)),
    ("generate.empty", lambda m: m.generate([[5], []], 3)),
    ("generate.empty", lambda m: m.generate(torch.zeros(2, 0, dtype=torch.long), 3)),
    ("generate.context", lambda m: m.generate([[5] * 60], 5)),
    ("generate.context", lambda m: m.generate(torch.zeros(1, 65, dtype=torch.long), 0)),
    ("sampling.number", lambda m: m.generate([[5]], 3, temperature=-0.1)),
    ("sampling.number", lambda m: m.generate([[5]], 3, temperature=float("nan"))),
    ("sampling.number", lambda m: m.generate([[5]], 3, temperature=float("inf"))),
    ("sampling.number", lambda m: m.generate([[5]], 3, temperature=cast(Any, "hot"))),
    ("generate.new", lambda m: m.generate([[5]], -1)),
    ("generate.new", lambda m: m.generate([[5]], cast(Any, 1.5))),
    ("generate.new", lambda m: m.generate([[5]], cast(Any, None))),
    ("generate.new", lambda m: m.generate([[5]], cast(Any, True))),
    ("model.ids", lambda m: m.generate(torch.tensor([[5.0]]), 3)),
    ("model.ids", lambda m: m.generate(torch.tensor([[[5, 3]]]), 3)),
    ("decode.id", lambda m: m.logprobs(torch.tensor([[5, V]]))),
]


@pytest.mark.parametrize(("key", "ask"), WRONG)
def test_errors_are_one_line(key: str, ask: Callable[[Model], Any]) -> None:
    """A wrong argument is refused by name before anything runs."""
    model = model_of("gpt2")
    assert GPT2.positions == 64
    with pytest.raises(PellucidError) as caught:
        ask(model)
    assert caught.value.key == key and "\n" not in str(caught.value)
    assert model.generate([[5] * 60], 4, eos=None)[0] == loop(model, [5] * 60, 4)


def test_an_empty_source_is_named() -> None:
    with pytest.raises(UseError, match=r"source\[1\]"):
        model_of("t5").generate([[5], []], 3)
