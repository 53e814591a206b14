"""A change means the same cells of a text in a plain forward, in chunks, over a cache and in a batch of requests."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from covering import FULL
from pellucid import Change, add, mean, put, take, times, without, zero
from pellucid.api.model import Model
from pellucid.engine.engine import Engine
from pellucid.engine.requests import Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import PellucidError, TraceError, UseError
from pellucid.ops import native
from pellucid.watching import cells
from pellucid.watching.cells import Place
from pellucid.watching.change import require_number
from pellucid.watching.watch import watch
from tiny import FAMILIES, far, has_encoder, ids, inputs, law, tiny

CELLS, CHANGE = sys.modules["pellucid.watching.cells"], sys.modules["pellucid.watching.change"]
PROMPT = "The capital of France is"
DIRECTION = torch.linspace(-1, 2, 64, dtype=torch.float64)


@pytest.fixture(scope="module")
def model() -> Model:
    return pellucid.load("pellucid/capitals", dtype="float64")


def logits(model: Any, edit: Any, *given: Tensor) -> Tensor:
    with torch.no_grad(), pellucid.watch(model, only=(), edit=edit):
        return model(*given)  # type: ignore[no-any-return]


def by_hand(path: str, f: Callable[[Tensor], None]) -> dict[str, Callable[[Tensor], Tensor]]:
    """An edit that changes the tensor in place by f."""

    def edit(x: Tensor) -> Tensor:
        f(x)
        return x

    return {path: edit}


def half(x: Tensor) -> None:
    x[:, 2:] *= 0.5


def moved(x: Tensor) -> None:
    x[:, 4] += DIRECTION[: x.shape[-1]].to(x)


def no_row(x: Tensor) -> None:
    x[:, 1:3] = 0.0


def no_direction(x: Tensor) -> None:
    unit = (DIRECTION[: x.shape[-1]] / DIRECTION[: x.shape[-1]].norm()).to(x)
    x -= (x @ unit)[..., None] * unit


def halved(path: str, width: int) -> Change:
    return times(path, 0.5, T=slice(2, None))


def steered(path: str, width: int) -> Change:
    return add(path, DIRECTION[:width], T=4)


def silenced(path: str, width: int) -> Change:
    return zero(path, T=(1, 2))


def cleared(path: str, width: int) -> Change:
    return without(path, DIRECTION[:width])


PAIRS = {"times": (halved, half), "add": (steered, moved), "zero": (silenced, no_row), "without": (cleared, no_direction)}


@law(
    1e-12,
    one_further=(CHANGE, "chosen_rows", lambda index, at, *rest: (cells.chosen_rows(index, at, *rest) + 1).clamp(max=len(at) - 1)),
    all_rows=(CHANGE, "chosen_rows", lambda index, at, *rest: torch.arange(len(at))),
)
def test_a_change_is_the_edit_by_hand() -> float:
    gaps = []
    for family in FAMILIES:
        module, given = tiny(family), inputs(family)
        path = "layers.1.ffn" if not has_encoder(family) else "decoder.layers.1.ffn"
        for change, hand in PAIRS.values():
            width = module.config.width
            gaps.append(far(logits(module, [change(path, width)], *given), logits(module, by_hand(path, hand), *given)))
    return max(gaps)


def test_heads_and_cells_by_letter(model: Model) -> None:
    given = torch.tensor([model.ids(PROMPT)])

    def head(x: Tensor) -> None:
        x[:, 4, 3] = 2.0

    def block(x: Tensor) -> None:
        x[:, :, [0, 2], 5:] = 0.0

    path = "layers.2.attn.z"
    assert torch.equal(logits(model, [put(path, 2.0, H=3, T=-1)], given), logits(model, by_hand(path, head), given))
    assert torch.equal(logits(model, [zero(path, H=(0, 2), K=slice(5, None))], given), logits(model, by_hand(path, block), given))
    assert not torch.equal(logits(model, [put(path, 2.0, H=2, T=-1)], given), logits(model, by_hand(path, head), given))


def test_changes_of_one_path_act_in_order(model: Model) -> None:
    given = torch.tensor([model.ids(PROMPT)])
    path = "layers.1.ffn"
    first, second = put(path, 1.0, T=2), times("layers.*.ffn", 3.0, T=2)
    with pellucid.watch(model, only=path, edit=[first, second]) as seen:
        model(given)
    assert seen[path].value[0, 2].eq(3.0).all() and seen[path].source == "edited"
    with pellucid.watch(model, only=path, edit=[second, first]) as seen:
        model(given)
    assert seen[path].value[0, 2].eq(1.0).all()


def test_words_and_ends_in_a_padded_batch(model: Model) -> None:
    """A word is its pieces, and -1 the prompt's last token, wherever padding has put them."""
    long, short = (model.ids(text) for text in ("The capital of France is", "France is"))
    width = len(long) + 2
    rows = [[0] * (width - len(t)) + list(t) for t in (long, short)]
    padding = torch.tensor([[0] * (width - len(t)) + [1] * len(t) for t in (long, short)])
    edit = [add("layers.0.out", torch.ones(128), T="France"), zero("layers.1.attn.z", H=1, T=-1)]
    with torch.no_grad(), pellucid.watch(model, only=(), edit=edit):
        both = model(torch.tensor(rows), padding=padding)
    for row, text in enumerate((long, short)):
        alone = logits(model, edit, torch.tensor([text]))
        assert far(both[row, width - len(text) :], alone[0]) < 1e-10
        assert far(alone, model(torch.tensor([text]))) > 1e-3


STEERING = [
    add("layers.1.ffn", 3 * DIRECTION[:32], T=slice(3, None)),
    zero("layers.0.attn.z", H=0, T=5),
    times("layers.0.ffn", 0.3, T=-2),
    add("layers.1.out", "layers.0.out", T=slice(2, None)),
    times("layers.1.ffn.in", 0.5, T=slice(3, None)),
]
NEW = 6
Continued = list[tuple[int, Any]]  # each new token with the log-probabilities of all


def continued(module: Any, prompts: list[list[int]], edit: Any, chunk: int, running: int, exact: bool = False) -> list[Continued]:
    """Each prompt's new tokens with all log-probabilities: `running` requests at once, in chunks of `chunk` rows."""
    out = []
    for first in range(0, len(prompts), running):
        group = prompts[first : first + running]
        limits = SchedulerLimits(max(chunk, running + 1), running=running)
        engine = Engine.of(module, len(group) * 32, limits, prefix_cache=False, deterministic=exact)
        for p in group:
            engine.submit(Request(tuple(p), NEW, logprobs=97))
        with watch(module, only=(), edit=edit):
            texts: dict[int, list[tuple[int, Any]]] = {n: [] for n in range(len(group))}
            for output in engine.outputs():
                texts[output.request] += [] if output.token is None else [(output.token.id, dict(output.token.top))]
        out += texts.values()
    return out


def furthest(a: list[Continued], b: list[Continued]) -> float:
    """The largest difference of a log-probability; two tokens are infinitely far."""
    pairs = [(x, y) for s, t in zip(a, b, strict=True) for x, y in zip(s, t, strict=True)]
    return max(abs(p[i] - q[i]) if one == other else float("inf") for (one, p), (other, q) in pairs for i in p.keys() & q.keys())


def uncached(module: Any, prompts: list[list[int]], edit: Any) -> list[Continued]:
    """The same without a cache: each text whole in every forward. A prompt's end stays where the prompt ended."""
    out = []
    for prompt in prompts:
        own = [
            replace(c, at={k: len(prompt) + v if k == "T" and isinstance(v, int) and v < 0 else v for k, v in c.at.items()}) for c in edit
        ]
        text, new = list(prompt), list[tuple[int, Any]]()
        for _ in range(NEW):
            reached = [c for c in own if not isinstance(c.at.get("T"), int) or c.at["T"] < len(text)]
            row = logits(module, reached, torch.tensor([text]))[0, -1].log_softmax(-1)
            new.append((int(row.argmax()), dict(enumerate(row.tolist()))))
            text.append(new[-1][0])
        out.append(new)
    return out


def in_rows(self: Place, axis: str, right: Any = Place.along) -> tuple[Tensor, Tensor]:
    """A mutant: positions counted from the step's first row."""
    at, texts = right(self, axis)
    return torch.arange(at.shape[1]).expand(at.shape), texts


PROMPTS = [ids(n, seed=n).tolist() for n in (4, 9, 5, 12, 7, 6)]


@law(
    1e-10,
    in_rows_of_the_step=(
        Place,
        "along",
        lambda self, axis, right=Place.along: (torch.arange(right(self, axis)[0].shape[1])[None], right(self, axis)[1]),
    ),
    end_of_the_chunk=(CELLS, "from_start", lambda position, prompt, text: position if position >= 0 else position + 1),
)
def test_steering_is_the_same_with_and_without_a_cache_in_chunks_and_in_a_batch() -> float:
    gaps = []
    for family in ("gpt2", "llama", "deepseek_v3", "gpt_oss") if FULL else ("deepseek_v3",):
        module = tiny(family)
        right = uncached(module, PROMPTS, STEERING)
        assert furthest(right, uncached(module, PROMPTS, [])) > 1e-3
        for chunk, running in ((512, 1), (3, 1), (512, 6), (4, 6)):
            try:
                gaps.append(furthest(right, continued(module, PROMPTS, STEERING, chunk, running)))
            except TraceError:  # a mutant that finds no row
                gaps.append(float("inf"))
    return max(gaps)


@pytest.mark.skipif(not native.available(), reason="no kernels here")
def test_deterministic_steering_has_the_same_bits_in_a_batch_of_16() -> None:
    model = pellucid.load("pellucid/capitals", dtype="float32")
    edit = [add("layers.1.out", torch.linspace(-2, 2, 128), T=slice(4, None)), times("layers.0.ffn", 0.5, T=-1)]
    prompts = [
        model.ids(f"The capital of {name} is") for name in ("France", "Japan", "Italy", "Peru", "Chile", "Egypt", "Cuba", "Iraq")
    ] * 2
    alone = continued(model.module, prompts, edit, 512, 1, exact=True)
    for chunk in (512, 3):
        assert furthest(alone, continued(model.module, prompts, edit, chunk, 16, exact=True)) == 0.0
    assert furthest(alone, continued(model.module, prompts, [], 512, 16, exact=True)) > 1e-3


def test_one_request_of_a_batch(model: Model) -> None:
    """A change with a request acts on that request's rows alone."""
    prompts = PROMPTS[:3]
    edit = [replace(c, request=1) for c in STEERING]
    module = tiny("llama")
    mixed = continued(module, prompts, edit, 512, 3)
    assert furthest(mixed[1:2], continued(module, prompts[1:2], STEERING, 512, 1)) < 1e-10
    assert furthest([mixed[0], mixed[2]], continued(module, [prompts[0], prompts[2]], [], 512, 1)) < 1e-10


# From another run


def test_the_last_row_of_another_run_brings_its_answer(model: Model) -> None:
    france, japan = (pellucid.trace(model, f"The capital of {name} is", 3) for name in ("France", "Japan"))
    assert pellucid.trace(model, PROMPT, 3, edit=[take("norm", japan)]).new == japan.new != france.new
    at = take("layers.2.attn.z", japan, H=1, T=-1)
    patched = pellucid.trace(model, PROMPT, edit=[at])
    right = france.all("layers.2.attn.z")[0].value.clone()
    right[0, 4, 1] = japan.all("layers.2.attn.z")[0].value[0, 4, 1]
    assert torch.equal(patched.all("layers.2.attn.z")[0].value, right)


def test_a_word_takes_the_place_of_another(model: Model) -> None:
    other = pellucid.trace(model, "Of Japan the capital is")
    edit = [take("layers.0.ffn", other, {"T": "Japan"}, T="France")]
    with pellucid.watch(model, only="layers.0.ffn", edit=edit) as seen:
        model(torch.tensor([model.ids(PROMPT)]))
    assert torch.equal(seen["layers.0.ffn"].value[0, 3], other.all("layers.0.ffn")[0].value[0, other.ids.index(model.ids(" Japan")[0])])


def test_tables_are_taken_from_the_same_step(model: Model) -> None:
    other = pellucid.trace(model, "The capital of Japan is", 2)
    edit = [take("layers.1.attn.pattern", other, H=2)]
    patched = pellucid.trace(model, PROMPT, 2, edit=edit)
    for mine, theirs in zip(patched.all("layers.1.attn.pattern"), other.all("layers.1.attn.pattern"), strict=True):
        assert torch.equal(mine.value[:, 2], theirs.value[:, 2]) and not torch.equal(mine.value, theirs.value)


def test_the_mean_over_texts_and_positions(model: Model) -> None:
    others = pellucid.trace(model, "The capital of Japan is", 3)
    values = torch.cat([s.value for s in others.all("layers.1.attn.z")], 1)[0]
    with pellucid.watch(model, only="layers.1.attn.z", edit=[mean("layers.1.attn.z", others, H=2)]) as seen:
        model(torch.tensor([model.ids(PROMPT)]))
    assert far(seen["layers.1.attn.z"].value[0, :, 2], values.mean(0)[2].expand(5, -1)) < 1e-12


def test_routed_rows_are_those_of_the_texts_positions() -> None:
    """An expert's rows belong to the token that they came from; rows without a token are changed by the other axes alone."""
    module = tiny("deepseek_v3")
    given = inputs("deepseek_v3")
    with watch(module) as plain:
        module(*given)
    path = next(s.path for s in plain if s.dims.split()[0] == "N" and s.rows is not None)
    with watch(module, only=path, edit=[put(path, 7.0, T=3)]) as seen:
        module(*given)
    at = plain[path].rows % 11 == 3
    assert seen[path].value[at].eq(7.0).all() and torch.equal(seen[path].value[~at], plain[path].value[~at]) and at.sum() > 1


def test_a_score_of_minus_infinity_hides_a_token(model: Model) -> None:
    """Attention knockout: no weight is left on it, and the others' weights sum to 1. A whole number cannot be infinite."""
    ids = torch.tensor([model.ids(PROMPT)])
    with pellucid.watch(model, only="layers.0.attn.pattern", edit=put("layers.0.attn.scores", -math.inf, T=4, S=3)) as seen:
        model(ids)
    row = seen["layers.0.attn.pattern"].value[0, :, 4]
    assert row[:, 3].eq(0).all() and far(row.sum(-1), torch.ones(len(row)).double()) < 1e-12 and row[:, 2].gt(0).all()
    with pytest.raises(PellucidError, match="does not fit"):
        require_number(math.inf, torch.int64, "chosen = inf")


EMPTIED: dict[str, tuple[dict[str, Any], str]] = {  # cells of layers.0.attn.scores, and what the refusal names
    "a row of every head": ({"T": 4}, "scores[T=4]: .*further rows: 0.*pattern[T=4] = 0"),
    "a row of one head": ({"H": 1, "T": 4}, "scores[H=1, T=4]: .*pattern[H=1, T=4] = 0"),
    "all that the mask leaves": ({"H": 1, "T": slice(1, 3), "S": slice(0, 3)}, "scores[H=1, T=1]: .*further rows: 1"),
}


@pytest.mark.parametrize("case", EMPTIED)
def test_a_row_without_a_key_is_refused(model: Model, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: without the check the answer is no number."""
    at, line = EMPTIED[case]
    change, ids = put("layers.0.attn.scores", -math.inf, **at), torch.tensor([model.ids(PROMPT)])
    pattern = line.replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(UseError, match=pattern):
        logits(model, [change], ids)
    cells = tuple(at.get(letter, slice(None)) for letter in "BHTS")
    with pytest.raises(UseError, match=pattern):
        logits(model, by_hand("layers.0.attn.scores", lambda x: x.__setitem__(cells, -math.inf)), ids)
    monkeypatch.setattr(sys.modules["pellucid.ops.attend"], "require_keys", lambda *given: None)
    assert logits(model, [change], ids).isnan().any()


def test_a_row_without_a_key_is_named_by_its_place(model: Model) -> None:
    """A text of a batch, and a position of the text where a cache holds the others. A row whose own key is left is computed."""
    one = model.ids(PROMPT)
    with pytest.raises(UseError, match=r"\[B=1, T=2\]"):
        logits(model, [put("layers.1.attn.scores", -math.inf, B=1, T=2)], torch.tensor([one, one]))
    with (
        pytest.raises(UseError, match=r"layers.1.attn.scores\[T=6\]"),
        pellucid.watch(model, (), edit=put("layers.1.attn.scores", -math.inf, T=6)),
    ):
        model.generate(torch.tensor([one]), 4, eos=None)
    assert logits(model, [put("layers.1.attn.scores", -math.inf, T=4, S=slice(0, 4))], torch.tensor([one])).isfinite().all()
    assert logits(model, [zero("layers.1.attn.pattern", T=4)], torch.tensor([one])).isfinite().all()


@pytest.mark.parametrize("name", ["gpt_oss", "t5", "deepseek_v3", "llama"])
def test_a_row_without_a_key_in_other_attentions(name: str) -> None:
    """A sink is a key that no change takes away; latent, grouped and cross attention are asked too."""
    module, given = tiny(name), inputs(name)
    with watch(module, inside="listed") as seen:
        module(*given)
    path = [s.path for s in seen if s.path.endswith(".scores")][-1]
    edit = [put(path, -math.inf, T=2)]
    if name == "gpt_oss":
        assert logits(module, edit, *given).isfinite().all()
    else:
        with pytest.raises(UseError, match="no key to attend to"):
            logits(module, edit, *given)


# What is refused

V = torch.ones(3)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no such axis": (lambda: zero("layers.0.ffn", H=3), "it has B T D"),
    "no such head": (lambda: zero("layers.0.attn.z", H=4), "allowed: 0..3"),
    "a position that no text has": (lambda: zero("layers.0.ffn", T=9), "no position of the text"),
    "before the start": (lambda: zero("layers.0.ffn", T=-6), "5 tokens"),
    "no such word": (lambda: zero("layers.0.ffn", T="Spain"), '"Spain" occurs 0 times'),
    "a word twice": (lambda: zero("layers.0.ffn", T="a"), "occurs 3 times"),
    "a vector too short": (lambda: add("layers.0.ffn", V), "shape (3,)"),
    "a direction too short": (lambda: without("layers.0.ffn", V), "shape (3,)"),
    "a fraction of an integer": (lambda: put("layers.0.nothing", 1.0), "met no tensor; nearest"),
    "no change": (lambda: "layers.0.ffn = 0", "found str"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_change_is_one_line(model: Model, case: str) -> None:
    make, part = REFUSED[case]
    with pytest.raises(PellucidError) as caught:
        logits(model, [make()], torch.tensor([model.ids(PROMPT)]))
    assert part in str(caught.value) and "\n" not in str(caught.value)
