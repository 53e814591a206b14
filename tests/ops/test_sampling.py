"""From logits to a token: transformers judges the stages in float64, and a setting that is off changes no bit."""

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pellucid import messages
from pellucid.errors import UseError
from pellucid.ops.sampling import stages as sample
from pellucid.ops.sampling import truncation as cuts
from pellucid.ops.sampling.settings import LIMITS, OFF, WHOLE, Sampling
from pellucid.ops.sampling.uniform import fresh, sibling, splitmix, uniform
from tiny import law, swapped

choose, draw, stages = sample.choose, sample.draw, sample.stages
V = 300
PROMPT, OUTPUT = tuple(range(0, 40, 3)), [7, 8, 7, 299, 3, 7]
DOCS = Path(__file__).parents[2] / "docs" / "sampling.md"
INF = float("inf")


def logits(seed: int = 0, dtype: torch.dtype = torch.float64, size: int = V) -> Tensor:
    """Return random logits with a few that stand out and some at -inf."""
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    x[::17] = -INF
    return x.to(dtype)


def gap(a: Tensor, b: Tensor) -> float:
    """Return how far two rows of logits are apart up to a constant; infinite if they cut other tokens."""
    a, b = a.double().log_softmax(-1), b.double().log_softmax(-1)
    if not torch.equal(a == -INF, b == -INF):
        return INF
    return float((a - b)[a > -INF].abs().max())


PEERS: dict[str, Callable[[Any], Any]] = {
    "bias": lambda b: SequenceBiasLogitsProcessor([[[id], value] for id, value in b.items()]),
    "repetition": RepetitionPenaltyLogitsProcessor,
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
}
SETTINGS: list[dict[str, Any]] = [
    {"bias": {5: 4.0, 299: -2.5, 0: 1.0}},
    {"repetition": 1.7},
    {"repetition": 0.6},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 23},
    {"top_p": 0.05},
    {"top_p": 0.6},
    {"top_p": 0.999},
    {"min_p": 0.02},
    {"min_p": 0.5},
    {"top_k": 40, "top_p": 0.7, "min_p": 0.05},
    {"bias": {12: 3.0}, "repetition": 1.3, "temperature": 0.8, "top_k": 60, "top_p": 0.9, "min_p": 0.01},
    {"bias": {12: -3.0, 9: 2.0}, "repetition": 1.2, "temperature": 1.9, "top_p": 0.8},
]


def settled(how: dict[str, Any]) -> Sampling:
    return Sampling(**{"temperature": 1.0, "seed": 1, **how})


def put(table: str, **functions: Any) -> tuple[Any, str, Any]:
    """Return a mutant: other functions in a table of stages."""
    return sample, table, {**getattr(sample, table), **functions}


def order(table: str, *names: str) -> tuple[Any, str, Any]:
    """Return a mutant: these stages first."""
    current = getattr(sample, table)
    return sample, table, {name: current[name] for name in (*names, *current)}


@law(
    1e-10,
    short_of_it=put("CUTS", top_p=lambda x, p: sample.largest(x, max(1, len(sample.nucleus(x, p)) - 1))),
    absolute=put("CUTS", min_p=lambda x, share: (x.softmax(0) >= share).nonzero()[:, 0]),
    one_less=put("CUTS", top_k=lambda x, k: sample.largest(x, max(1, k - 1))),
    divided=put("CHANGES", repetition=lambda x, s, h: x.index_copy(0, h.ids(), x[h.ids()] / s.repetition)),
    output_alone=(sample.History, "ids", lambda self: torch.tensor(sorted(set(self.output)))),
    warm=put("CHANGES", temperature=lambda x, s, h: x * s.temperature),
    twice=put("CHANGES", bias=lambda x, s, h: sample.bias(sample.bias(x, s, h), s, h)),
    hot_first=order("CHANGES", "temperature"),
    penalty_first=order("CHANGES", "repetition"),
    min_p_first=order("CUTS", "min_p"),
    top_p_first=order("CUTS", "top_p"),
)
def test_stages_are_transformers() -> float:
    """Every stage, alone and with others, is transformers' in float64."""
    gaps = []
    for seed, how in enumerate(SETTINGS):
        x = logits(seed)
        peer = LogitsProcessorList([PEERS[name](value) for name, value in how.items()])
        theirs = peer(cast(Any, torch.tensor([[*PROMPT, *OUTPUT]])), cast(Any, x[None].clone()))[0]
        *before, (last, cut), (end, shares) = stages(x, settled(how), PROMPT, OUTPUT)
        assert {last, *(name for name, _ in before)} == {"logits", *how} and end == "probabilities" and shares.dtype == torch.float64
        gaps += [gap(cut, theirs), float((shares - theirs.softmax(-1)).abs().max())]
    return max(gaps)


@law(
    1e-12,
    once=put("CHANGES", frequency=lambda x, s, h: sample.presence(x, Sampling(presence=s.frequency), h)),
    prompt_too=put("CHANGES", presence=lambda x, s, h: sample.presence(x, s, sample.History((), [*h.prompt, *h.output]))),
)
def test_penalties_of_the_output() -> float:
    """OpenAI's formula: a counted token's logit loses frequency · count + presence, in greedy decoding too."""
    x, counts = logits(3), Counter(OUTPUT)
    gaps = []
    for presence, frequency in ((0.7, 0.0), (0.0, 0.4), (-0.3, 1.2)):
        how = Sampling(presence=presence, frequency=frequency)
        expected = torch.stack([x[i] - frequency * counts[i] - presence * (counts[i] > 0) for i in range(V)])
        penalised = stages(x, how, PROMPT, OUTPUT)[-1][1]
        gaps.append(float((penalised - expected)[expected > -INF].abs().max()))
    likeliest = int(x.argmax())
    assert choose(x, Sampling(frequency=40.0), (likeliest,), []) == likeliest
    assert choose(x, Sampling(frequency=40.0), (), [likeliest]) == int(x.index_fill(0, torch.tensor(likeliest), -INF).argmax())
    return max(gaps)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_what_is_off_changes_no_bit(dtype: torch.dtype) -> None:
    """No stage runs at its neutral value; a stage that cuts or adds nothing leaves the draw as it is."""
    x = logits(1, dtype)
    wide = x.double() if dtype == torch.float64 else x.to(torch.float32)
    (first, raw), (last, shares) = stages(x, Sampling(**{**OFF, "seed": 1}), PROMPT, OUTPUT)
    assert (first, last) == ("logits", "probabilities")
    assert torch.equal(raw, wide) and torch.equal(shares, wide.double().softmax(0))
    for name in OFF.keys() - {"temperature"}:
        on = {**OFF, name: {"bias": {1: 1.0}, "top_k": 9}.get(name, 0.5)}
        assert [n for n, _ in stages(x, Sampling(**on, seed=1), PROMPT, OUTPUT)] == ["logits", name, "probabilities"]
    x = x.clamp(min=-9.0)
    for nothing in ({}, {"top_k": V}, {"top_k": 10**9}, {"bias": {4: 0.0}}, {"min_p": 1e-300}):
        assert torch.equal(stages(x, settled(nothing))[-1][1], x.double().softmax(0)), nothing
    assert [n for n, _ in stages(x, Sampling(top_k=3, top_p=0.5, min_p=0.5))] == ["logits"]  # the likeliest needs no cut


def support(x: Tensor, **how: Any) -> list[int]:
    """Return the tokens of positive probability."""
    return [i for i, p in enumerate(stages(x, settled(how))[-1][1].tolist()) if p > 0]


def test_support_is_exact() -> None:
    """Ties go to the lowest ids, exactly k; the token that crosses top_p is kept, at least one; min_p is relative to the likeliest."""
    even = torch.zeros(10, dtype=torch.float64)
    even[4] = 1.0
    assert support(even, top_k=1) == [4] and support(even, top_k=4) == [0, 1, 2, 4] and support(even, top_k=10) == [*range(10)]
    quarters = torch.tensor([1, 4, 1, 2, -INF], dtype=torch.float64).log2() * torch.tensor(2.0).log()
    quarters[4] = -INF
    assert support(quarters, top_p=0.0) == support(quarters, top_p=0.49) == [1]
    assert support(quarters, top_p=0.51) == support(quarters, top_p=0.74) == [1, 3]
    assert support(quarters, top_p=0.76) == [0, 1, 3] and support(quarters, top_p=0.99) == [0, 1, 2, 3]
    assert support(quarters, min_p=1.0) == [1] and support(quarters, min_p=0.49) == [1, 3] and support(quarters, min_p=0.24) == [0, 1, 2, 3]
    assert support(quarters, top_k=5) == [0, 1, 2, 3]
    assert support(quarters, top_k=2, top_p=0.7) == [1, 3]  # two thirds of what top_k left, and the one that crosses
    assert support(quarters, top_k=2, top_p=0.6) == [1]
    with swapped(cuts, "spared", lambda x, kept, least, surplus: kept[surplus:]):
        assert support(even, top_k=4) != [0, 1, 2, 4]


@pytest.mark.parametrize("few", [1, 2, 7, 100, 10**6])
def test_a_nucleus_is_found_wherever_it_ends(few: int) -> None:
    """Any number of likeliest tokens tried first gives the nucleus of a sorted list, with ties."""
    with swapped(cuts, "FEW", few):
        for seed in range(6):
            x = logits(seed, size=60)
            x = x.round() if seed % 2 else x
            ranked = sorted(range(60), key=lambda i: (-float(x[i]), i))
            shares, total = x.softmax(0), 0.0
            for kept, i in enumerate(ranked, 1):
                if float(shares[i]) > 1e-9 and total < 0.999:
                    p = total + float(shares[i]) / 2
                    assert support(x, top_p=p) == sorted(ranked[:kept])
                total += float(shares[i])


def test_temperature_near_nothing_is_greedy() -> None:
    """However cold or hot, there is no infinity and no NaN, in the widths of models."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = logits(2, dtype)
        best = choose(x, Sampling())
        assert best == int(x.argmax())
        for cold in (1e-5, 1e-30, 1e-300, 5e-324):
            shares = stages(x, Sampling(temperature=cold, seed=0))[-1][1]
            assert float(shares[best]) == 1.0 and float(shares.sum()) == 1.0
            assert float(sample.probabilities(x, cold)[best]) == 1.0
        hot = stages(x, Sampling(temperature=1000.0, seed=0))[-1][1]
        assert torch.allclose(hot[x > -INF], (x > -INF).double().mean().reciprocal() / V, rtol=0.05) and float(hot[x == -INF].max()) == 0.0


def test_greedy_takes_the_first_of_equals() -> None:
    x = torch.tensor([0.0, 2.0, 5.0, 5.0, 5.0, -INF])
    assert choose(x, Sampling()) == 2
    assert choose(x, Sampling(bias={3: 0.0})) == 2 and choose(x, Sampling(bias={4: 1e-3})) == 4
    assert choose(x, Sampling(repetition=2.0), (2,), [3]) == 4 and choose(-x.clamp(min=0), Sampling(repetition=2.0), (0,)) == 0
    assert choose(x, Sampling(presence=9.0), (), [2, 3, 4]) == 1


def test_log_probabilities_are_the_model_s_own() -> None:
    """The likeliest few of a row, ties by id, do not depend on the sampling."""
    x = logits(5).round()
    of = sample.logprobs(x)
    assert torch.equal(of, x.log_softmax(-1))
    ranked = sorted(range(V), key=lambda i: (-float(x[i]), i))
    for count in (0, 1, 5, V, V + 3):
        assert sample.likeliest(of, count) == tuple((i, float(of[i])) for i in ranked[:count])
    assert sample.likeliest(sample.logprobs(x.to(torch.bfloat16)), 2)[0][0] == ranked[0]


# The draw.

TABLE = [(0, 0, 0.6524484863740322), (0, 1, 0.7012121095215252), (1, 0, 0.27623358227789463), (7, 10**6, 0.0164466591418283)]
TABLE += [(2**64 - 1, 5, 0.32732576421812576)]


def test_uniforms_are_known() -> None:
    """SplitMix64's published outputs, and the numbers that any other implementation must give, hold."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [splitmix(1234567, n) for n in range(5)] == known
    assert [(seed, step, uniform(seed, step)) for seed, step, _ in TABLE] == TABLE
    assert uniform(-1, 5) == uniform(2**64 - 1, 5)
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (0\.\d+) \|$", DOCS.read_text(encoding="utf-8"), re.M)
    assert [(int(seed), int(step), float(u)) for seed, step, u in rows] == TABLE


@pytest.mark.skipif(not shutil.which("node"), reason="runs the page's language")
def test_javascript_gives_the_same() -> None:
    """The program in docs/sampling.md gives the same numbers."""
    (code,) = re.findall(r"```js\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    pairs = ",".join(f"[{seed}n,{step}]" for seed, step, _ in TABLE)
    code += f"console.log(JSON.stringify([{pairs}].map(([seed, step]) => uniform(seed, step))))"
    done = subprocess.run(["node", "-e", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[" + ",".join(repr(u) for _, _, u in TABLE) + "]"


def uneven(u: Tensor, bins: int = 16) -> float:
    """Return the chi-square of pairs (u[i], u[i+1]) over bins x bins, in standard deviations from chance."""
    pairs = (u[:-1] * bins).long() * bins + (u[1:] * bins).long()
    counts = torch.bincount(pairs, minlength=bins**2).double()
    expected = len(pairs) / bins**2
    freedom = bins**2 - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


def lumps(uniform: Callable[[int, int], float]) -> float:
    """Return the most uneven of: successive steps of a seed, one step of successive seeds, one step of siblings."""
    n = 20_000
    streams = [[uniform(5, i) for i in range(n)], [uniform(i, 0) for i in range(n)], [uniform(sibling(9, i), 3) for i in range(n)]]
    return max(abs(uneven(torch.tensor(stream, dtype=torch.float64))) for stream in streams)


def test_uniforms_are_even() -> None:
    """Uniforms have no lumps and no pairs, are multiples of 2^-53 below 1, all different; a Weyl sequence is seen."""
    assert lumps(uniform) < 5.0
    numbers = [uniform(seed, step) for seed in (0, 1, -1) for step in range(5000)]
    assert all(0.0 <= u < 1.0 and (u * 2**53).is_integer() for u in numbers) and len(set(numbers)) == len(numbers)
    assert lumps(lambda seed, step: (seed * 0.75 + step * 0.6180339887498949) % 1.0) > 50.0
    assert uniform(3, 4) not in [uniform(a, 7 - a) for a in range(8) if a != 3]


def test_a_draw_is_the_first_sum_beyond() -> None:
    """A token of probability 0 is never drawn, and many draws at once are those one by one."""
    shares = torch.tensor([0.0, 0.5, 0.0, 0.25, 0.25, 0.0], dtype=torch.float64)
    last = 1.0 - 2.0**-53
    u = torch.tensor([0.0, 0.4999, 0.5, 0.7499, 0.75, last], dtype=torch.float64)
    assert draw(shares, u).tolist() == [1, 1, 3, 3, 4, 4] == [int(draw(shares, float(v))) for v in u]
    for seed in range(50):
        x = torch.rand(37, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        x[x < 0.5] = 0.0
        assert all(float(x[int(draw(x, v))]) > 0 for v in (0.0, last))
    for none in (torch.zeros(4), torch.full((4,), float("nan"))):
        with pytest.raises(UseError):
            draw(none, 0.5)
    for x in (torch.full((4,), -INF), torch.tensor([0.0, float("nan")]), torch.tensor([INF, 0.0])):
        for how in ({}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}, {"repetition": 2.0, "temperature": 0.5}):
            with pytest.raises(UseError):
                choose(x, settled(how), (0,), [1])


def test_a_draw_follows_from_seed_step_and_logits() -> None:
    x, how = logits(4), settled({"top_p": 0.95, "temperature": 3.0})

    def text(how: Sampling, index: int = 0) -> list[int]:
        out: list[int] = []
        while len(out) < 30:
            out.append(choose(x, how, PROMPT, out, index))
        return out

    (*_, (_, shares)) = stages(x, how)
    assert text(how) == text(how) == [int(draw(shares, uniform(1, i))) for i in range(30)]
    texts = [text(how, i) for i in range(4)]
    assert len({tuple(t) for t in texts}) == 4
    assert texts[2] == text(Sampling(**{**asdict(how), "seed": sibling(1, 2)}))  # a sibling's recorded seed repeats it alone
    assert text(Sampling(**{**asdict(how), "seed": 2})) not in texts
    assert len({fresh() for _ in range(20)}) == 20 and all(0 <= fresh() < 2**53 for _ in range(20))
    with swapped(sample, "uniform", lambda seed, step: uniform(seed, 0)):
        assert len(set(text(how))) == 1


# Settings.

NO_NUMBER: list[Any] = [float("nan"), INF, -INF, True, "1", None, [1.0], 10**400]
NO_WHOLE: list[Any] = [1.0, True, "1", float("nan"), [1]]
NO_BIAS: list[Any] = [None, [], {"1": 1.0}, {1.0: 1.0}, {True: 1.0}, {1: True}, {1: None}, {1: INF}, {1: 2e3}, {3: "x" * 10**4}]
WRONG = [(name, value) for name, ends in LIMITS.items() if name != "bias" for value in [*NO_NUMBER, ends[0] - 1e-3, ends[1] * 1.001]]
WRONG += [(name, value) for name, (least, most) in WHOLE.items() for value in [*NO_WHOLE, least - 1, most + 1]]
WRONG += [("top_k", None), *[("bias", value) for value in NO_BIAS]]


@pytest.mark.parametrize("language", messages.LANGUAGES)
def test_settings_are_judged(language: str) -> None:
    """An error is one line: the field, its value, the allowed range."""
    messages.use(language)
    try:
        for name, value in WRONG:
            with pytest.raises(UseError) as wrong:
                Sampling(**{name: value})
            sentence = str(wrong.value)
            assert name in sentence and "\n" not in sentence and len(sentence) < 400
            if name != "bias":
                least, most = {**LIMITS, **WHOLE}[name]
                assert str(most) in sentence and str(least) in sentence
        with pytest.raises(UseError, match="top_p"):
            Sampling.of({"topp": 0.5})
        for id in (-1, V):
            with pytest.raises(UseError, match=str(V - 1)):
                Sampling(bias={id: 1.0}).check(V)
    finally:
        messages.use(None)


def test_settings_at_their_ends() -> None:
    """Both ends of every range are accepted; settings are immutable values."""
    x = logits(6)
    for name, ends in {**LIMITS, **WHOLE}.items():
        for end in ends:
            how = settled({"bias": {3: end}} if name == "bias" else {name: end})
            how.check(V)
            shares = stages(x, how, PROMPT, OUTPUT)[-1][1]
            assert bool(shares.isfinite().all() if not how.greedy else True)
            assert x[choose(x, how, PROMPT, OUTPUT)] > -INF
    mine = {3: 1.0}
    how = Sampling(bias=mine)
    mine[4] = 5.0
    assert how.bias == {3: 1.0} and how == Sampling(bias={3: 1.0}) != Sampling() and hash(how) == hash(Sampling(bias={3: 1.0}))
    assert Sampling.of({"top_k": 3, "seed": -5}) == Sampling(top_k=3, seed=-5) and Sampling.of({}).greedy
