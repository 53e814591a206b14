"""Objectives: what carries loss, what a batch's neighbours may change (nothing), how a prompt is completed; and balanced experts."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid import config as c
from pellucid.batch import mask
from pellucid.batch.step import Step
from pellucid.checkpoint.fill import targets
from pellucid.engine.generation import generate
from pellucid.engine.requests import Request
from pellucid.errors import TrainError
from pellucid.nn.moe import Moe
from pellucid.nn.transformer import Decoder
from pellucid.training import balance, objectives
from pellucid.training.corpus import CORPORA, pieces, read, sentences, train_tokenizer, translations
from pellucid.training.criterion import loss_of
from pellucid.training.loop import initialise
from pellucid.training.objectives import IGNORED, OBJECTIVES, Causal, Document, Masked, Objective
from tiny import DEEPSEEK_V3, FAMILIES, swapped, tiny
from training import DOCUMENTS, SETTINGS, corpus_of, run_of, silent, state

FOLDER = CORPORA / "capitals"
BOTH_WAYS = c.Layer(c.Attention(4, 4, 8, bias=True, out_bias=True, causal=False), c.Mlp(48, "gelu", False, True), order="post")
BERT = c.Config(97, 32, (BOTH_WAYS,) * 2, True, 1e-12, "layer", 64, types=2, embed_norm=True, final_norm=False, transform="gelu")
SMALL = {"causal": FAMILIES["llama"], "prefix": FAMILIES["llama"], "translation": FAMILIES["t5"], "masked": BERT}
GENERATING = ["causal", "prefix", "translation"]
ROWS = [Document([5, 7, 11], [13, 17, 0]), Document([8], [2, 0]), Document([40, 41, 42, 43, 44, 45], [9, 9, 31, 0])]

BLANKED = [Document([1, 5, 3, 7, 3, 2], [13, 17]), Document([3, 8, 2], [11]), Document([1, 40, 41, 42, 43, 44, 3, 3, 3, 2], [9, 9, 31])]
"""Sentences of ids whose blanks are 3."""


def made(name: str, tokenizer: Any = None) -> Objective:
    return OBJECTIVES[name](tokenizer or train_tokenizer(["a"], 300, OBJECTIVES[name].special))


def model_of(name: str) -> Any:
    """A tiny model in float64 that this objective fits."""
    return tiny(SMALL[name])


def gap(name: str) -> float:
    """How far the loss of a batch is from the mean over its documents' targets, each document alone."""
    objective, model = made(name), model_of(name)
    assert isinstance(model, objective.kind)
    loss, count, rows = 0.0, 0, BLANKED if name == "masked" else ROWS
    with torch.no_grad():
        for document in rows:
            batch = objective.batch([document])
            n = int((batch.targets != IGNORED).sum())
            loss, count = loss + n * float(loss_of(model, batch)), count + n
        return abs(float(loss_of(model, objective.batch(rows))) - loss / count)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_neighbours_in_a_batch_change_nothing(name: str) -> None:
    """Padding is masked and carries no loss; one prefix for a whole batch, or an unmasked source, would change the loss."""
    assert gap(name) < 1e-12
    plain, prefix = Step.plain, mask.prefix
    mutants: dict[str, tuple[Any, str, Any]] = {
        "prefix": (objectives, "prefix", lambda n: prefix(int(n.max()))),
        "translation": (objectives.Step, "plain", staticmethod(lambda tokens, padding=None, mask=None: plain(tokens, None, mask))),
    }
    mutants["masked"] = mutants["translation"]
    if name in mutants:
        with swapped(*mutants[name]):
            assert gap(name) > 1e-6


def test_only_what_is_said_carries_loss() -> None:
    assert made("prefix").batch(ROWS).targets.tolist() == [
        [-100, -100, 13, 17, 0, *[-100] * 4],
        [2, 0, *[-100] * 7],
        [*[-100] * 5, 9, 9, 31, 0],
    ]
    full = [Document([], [*d.given, *d.target]) for d in ROWS]
    assert made("causal").batch(full).targets.tolist()[0] == [7, 11, 13, 17, 0, *[-100] * 4]
    batch = made("translation").batch(ROWS)
    assert batch.inputs[0].tolist()[1] == [8, 0, 0, 0, 0, 0] and batch.inputs[1].tolist()[2] == [0, 9, 9, 31]
    assert batch.targets.tolist()[:2] == [[13, 17, 0, -100], [2, 0, -100, -100]]
    assert made("masked").batch(BLANKED[:2]).targets.tolist() == [[-100, -100, 13, -100, 17, -100], [11, *[-100] * 5]]


def test_a_prompt_is_seen_both_ways_and_an_answer_is_not() -> None:
    objective, model = made("prefix"), model_of("prefix")

    def logits(*ids: int) -> Tensor:
        out: Tensor = model(*objective.batch([Document(list(ids[:3]), list(ids[3:]))]).inputs)
        return out[0]

    with torch.no_grad():
        one, other, later = logits(5, 7, 11, 13, 17), logits(5, 7, 12, 13, 17), logits(5, 7, 11, 14, 17)
    assert (one[0] - other[0]).abs().max() > 1e-6, "the first token sees the last of the prompt"
    assert torch.equal(one[:3], later[:3]) and not torch.equal(one[3], later[3])


@pytest.mark.parametrize("name", GENERATING)
def test_completions_are_those_of_generation(name: str) -> None:
    """Greedy completions, a batch at a time without a cache, against the engine's."""
    tokenizer = train_tokenizer(["a b c d e"], 300)
    cfg = replace(SMALL[name], vocab=tokenizer.get_vocab_size(), prefix=name == "prefix")
    objective, model = made(name, tokenizer), tiny(cfg, std=0.6)
    prompts = ["ab", "a c", "ee d"]
    ids = [tokenizer.encode(p).ids for p in prompts]
    ends, start = frozenset([objective.end]), (objective.end,)
    if name == "translation":
        requests = [Request(start, 16, stops=ends, source=tuple(i)) for i in ids]
    else:
        requests = [Request(tuple(i), 16, stops=ends) for i in ids]
    generated: list[list[int]] = [[] for _ in prompts]
    for output in generate(model, requests):
        generated[output.request] += [] if output.token is None or output.token.id == objective.end else [output.token.id]
    assert objective.complete(model)(prompts) == [tokenizer.decode(row) for row in generated]


def test_translations_state_the_same_fact() -> None:
    """Every English sentence, its Chinese one with the same subject and answer; none held out is trained."""
    book, held_out = read(FOLDER), list(translations(FOLDER, held_out=True))
    assert {s.text for s, _ in held_out} == {s.text for s in sentences(FOLDER, held_out=True) if s.language == "en"}
    assert not {s.text for s, _ in held_out} & {s.text for s, _ in translations(FOLDER)}
    targets = {s.text: target for s, target in held_out}
    assert targets["The capital of France is Paris."] == "法国的首都是巴黎。"
    assert targets["Paris is the capital of France."] == "法国的首都是巴黎。"
    for s, target in held_out:
        country = book.countries[s.country]
        assert country.named["capital" if s.relation == "country" else "name"]["zh"] in target
        if s.relation == "neighbours":
            assert any(book.countries[n].named["name"]["zh"] in target and s.answer == " " + book.countries[n].named["name"]["en"]
                       for n in country.neighbours)  # fmt: skip


@pytest.mark.parametrize("form", ["{subject}的首都", "{subject}{answer}{x}", 3, None])
def test_translations_are_checked(form: object, tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "corpus")
    path = tmp_path / "corpus" / "translations.json"
    forms = json.loads(path.read_text(encoding="utf-8"))
    forms["zh"]["country"] = form
    path.write_text(json.dumps(forms), encoding="utf-8")
    with pytest.raises(TrainError) as caught:
        next(translations(tmp_path / "corpus"))
    assert "zh.country" in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus_of(tmp_path_factory.mktemp("few") / "corpus", "France", "Spain", "Portugal", "Guinea-Bissau", "Japan")


@pytest.fixture(scope="module", params=OBJECTIVES)
def taught(request: pytest.FixtureRequest, few: Path) -> Objective:
    """Each objective with a small vocabulary."""
    kind = OBJECTIVES[request.param]
    return kind(train_tokenizer(pieces(few), 600, kind.special))


@pytest.mark.quick(2)
def test_documents_hold_the_sentences(taught: Objective, few: Path) -> None:
    """Decoded, every document is its prompt, its answer and the end; a prompt's ids are those it was trained with."""
    learnt, documents = list(taught.learnt(few, 1)), taught.documents(few, 1)
    decode, encode = taught.tokenizer.decode, taught.tokenizer.encode
    if isinstance(taught, Masked):
        documents = blanked_whole(taught, few)
    assert len(learnt) == len(documents) > 1_000
    for (prompt, answer), document in list(zip(learnt, documents, strict=True))[::37]:
        if isinstance(taught, Masked):
            assert document.given == encode(prompt).ids and decode(document.target) == answer[:-1]
            continue
        assert document.target[-1] == taught.end and taught.end not in document.given
        if not isinstance(taught, Causal) or document.given:
            assert document.given == encode(prompt).ids and decode(document.target) == answer
        else:
            assert decode(document.target) == prompt + answer


def blanked_whole(objective: Masked, folder: Path) -> list[Document]:
    """The documents whose answer is blanked out whole; each is followed by those of its later tokens alone."""
    made: list[Document] = []
    before, rest = -1, list[int]()
    for d in objective.documents(folder, 1):
        assert d.given.count(objective.mask) == len(d.target)
        if rest:
            assert d.target == rest and d.given[d.given.index(objective.mask) - 1] == before
        else:
            made.append(d)
        before, rest = d.target[0], d.target[1:]
    return made


def test_questions_are_answered_as_they_are_asked(taught: Objective, few: Path) -> None:
    """Held-out prompts of the same kind as the trained ones, and none of them."""
    questions, trained = taught.questions(few), {prompt for prompt, _ in taught.learnt(few)}
    assert len({q.prompt for q in questions}) == len(questions) > 300 and not trained & {q.prompt for q in questions}
    wanted = {"causal": "The capital of France is", "prefix": "The capital of France is", "translation": "The capital of France is Paris."}
    name = next(n for n, kind in OBJECTIVES.items() if kind is type(taught))
    blanks = len(taught.tokenizer.encode(" Paris", add_special_tokens=False))
    prompt = wanted.get(name, "The capital of France is" + " [MASK]" * blanks + ".")
    assert {q.prompt: q.right for q in questions}[prompt] == ("法国的首都是巴黎。" if name == "translation" else " Paris.",)


def test_blanks_are_filled_from_the_left_and_seen_from_both_sides() -> None:
    """Each blank in turn by the likeliest token there, beside what was filled before; what stands behind it matters."""
    tokenizer = train_tokenizer(["a b c d e"], 300, Masked.special)
    objective, model = Masked(tokenizer), tiny(replace(BERT, vocab=tokenizer.get_vocab_size()), seed=2, std=0.6)
    prompts, once = ["ab [MASK] c", "ab [MASK] d", "[MASK][MASK] e", "[MASK]", "a" + "[MASK]" * 9], []
    with torch.no_grad():
        for prompt, text in zip(prompts, objective.complete(model)(prompts), strict=True):
            ids = torch.tensor([tokenizer.encode(prompt).ids])
            blanks = [i for i, token in enumerate(ids[0].tolist()) if token == objective.mask]
            full = torch.where(ids == objective.mask, model(ids).argmax(-1), ids)[0].tolist()
            for at in blanks:
                ids[0, at] = model(ids)[0, at].argmax()
            assert text == tokenizer.decode(ids[0, blanks[0] :].tolist()) and objective.mask not in ids
            once.append(full == ids[0].tolist())
        rows = [model(torch.tensor([tokenizer.encode(p).ids]))[0, 3] for p in prompts[:2]]
    assert not all(once) and not torch.equal(*rows)


# Balanced experts.

MIXTURE = replace(DEEPSEEK_V3, vocab=23, width=16)


def mixture(seed: int = 1) -> Decoder:
    model = Decoder(MIXTURE)
    initialise(model, 3, 0.3, seed)
    return model


def routers(model: Decoder) -> dict[str, Moe]:
    return {path: m for path, m in model.named_modules() if isinstance(m, Moe)}


def test_a_correction_moves_towards_the_mean_load(tmp_path: Path) -> None:
    """One step, by hand: which experts the real rows choose, and the sign of the missing load. Padding is not counted."""
    run = run_of(tmp_path, model=mixture())
    numbers = [0, 7, 3, 8]
    batch = run.objective.batch([run.documents[i] for i in numbers])
    real, loads, chosen = batch.targets != IGNORED, {}, {}
    assert not real.all()
    for path, m in routers(run.model).items():

        def choose(logits: Tensor, path: str = path, choose: Any = m.choose) -> Any:
            share, chosen[path] = choose(logits)
            return share, chosen[path]

        m.choose = choose  # type: ignore[method-assign]
    with torch.no_grad():
        run.model(*batch.inputs)
    for path, experts in chosen.items():
        loads[path] = torch.tensor([float((experts[real] == e).sum()) for e in range(8)])
        assert loads[path].sum() == 2 * real.sum()
    entry = run.one(numbers)
    for path, m in routers(run.model).items():
        assert torch.equal(m.correction, SETTINGS.correction * (loads[path].sum() / 8 - loads[path]).sign())
    assert entry["overload"] == pytest.approx(max(float(n.max() / n.mean()) for n in loads.values()) - 1, abs=1e-3)


def test_experts_write_to_the_residual_as_narrow_parts_do() -> None:
    """First weights of the stacked experts: those that write to the residual are smaller by the root of twice the layers."""
    part = routers(mixture())["layers.1.ffn"]
    up, down = (float(p.detach().std()) for p in (part.up, part.down))
    assert up == pytest.approx(0.3, rel=0.05) and down == pytest.approx(0.3 / 6**0.5, rel=0.05)


def overload(correction: float) -> float:
    """The excess of the fullest expert after 60 corrections by all documents; no weight moves."""
    model = mixture()
    batch, even = made("causal").batch(DOCUMENTS), balance.Balance(model, correction)
    for _ in range(60):
        with even.counting(lambda path: batch.targets != IGNORED), torch.no_grad():
            model(*batch.inputs)
        excess = even.correct()["overload"]
    return excess


def test_experts_become_balanced() -> None:
    """A rate of 0, or the other sign, leaves them less so."""
    even, alone, wrong = overload(1e-2), overload(0.0), overload(-1e-2)
    assert even < alone / 3 and alone < wrong, (even, alone, wrong)


def test_corrections_are_saved_and_resumed(tmp_path: Path) -> None:
    """A run that stopped ends in the same bits, corrections among them; one that forgets them does not."""

    def ended(folder: Path, stop: int | None, forget: bool = False) -> dict[str, bytes]:
        if stop is not None:
            first = run_of(folder, model=mixture())
            first.train(silent, lambda: first.step == stop)
        run = run_of(folder, model=mixture(1 if stop is None else 9))
        if stop is not None:
            run.resume()
        for m in routers(run.model).values() if forget else ():
            m.correction.zero_()
        run.train(silent)
        return state(run)

    full = ended(tmp_path / "a", None)
    assert any(name.endswith("correction") and any(value) for name, value in full.items())
    assert ended(tmp_path / "b", 5) == full != ended(tmp_path / "c", 5, forget=True)
    assert "layers.1.ffn.correction" in targets(mixture())


def test_a_model_without_routers_is_not_watched(tmp_path: Path) -> None:
    def never(*args: Any, **how: Any) -> Any:
        raise AssertionError

    with swapped(balance, "watch", never):
        assert "overload" not in run_of(tmp_path).one([0])


def test_the_auxiliary_loss_by_hand() -> None:
    """Of real rows alone: E · Σ share of the choices · mean affinity, and its gradient moves the router."""
    model, batch = mixture(), made("causal").batch(DOCUMENTS)
    even, real = balance.Balance(model, 0.0, 0.5), batch.targets != IGNORED
    with even.counting(lambda path: real):
        model(*batch.inputs)
    want = 0.0
    for path, m in routers(model).items():
        affinity, chosen = (even.seen[f"{path}.{name}"].value[real] for name in ("affinity", "chosen"))
        share = torch.stack([(chosen == e).double().mean() for e in range(8)])
        want += 0.5 * 8 * float((share * (affinity / affinity.sum(-1, keepdim=True)).mean(0)).sum().detach())
        assert m.router.weight.grad is None
    loss = even.loss(lambda path: real)
    assert isinstance(loss, Tensor) and float(loss.detach()) == pytest.approx(want, rel=1e-5)
    loss.backward()
    assert all(float(m.router.weight.grad.abs().max()) > 0 for m in routers(model).values())  # type: ignore[union-attr]


def test_packed_documents_load_the_routers_as_alone() -> None:
    """A row of several documents has a record of each; the mutant looks at the first alone."""
    texts = [torch.tensor([[5, 6, 7]]), torch.tensor([[8, 9]]), torch.tensor([[3, 4, 5, 6]])]
    packed, step = torch.cat(texts, 1), Step.packed([3, 2, 4])

    def loads(*batches: tuple[Any, ...]) -> list[list[int]]:
        even = balance.Balance(model, 1e-3, 0.5)
        for ids, *steps in batches:
            with torch.no_grad(), even.counting(lambda path: torch.ones_like(ids, dtype=torch.bool)):
                model(ids, *steps)
        return [load.tolist() for load in even.loads.values()]

    model = mixture()
    alone = loads(*((text,) for text in texts))
    assert loads((packed, step)) == alone
    with swapped(balance, "of_all_rows", lambda seen, path: seen.all(path)[0].value), pytest.raises(IndexError):
        loads((packed, step))


def test_without_a_factor_there_is_no_auxiliary_loss() -> None:
    assert balance.Balance(mixture(), 1e-3).loss(torch.ones(1, 1, dtype=torch.bool)) == 0.0
