"""Answers of a given form: every text parses and validates, or ends by length; what cannot be held to is refused in one line."""

import json
import os
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from openai_served import OpenAiServed, long_folder, openai_served
from pellucid.api.model import Model, load
from pellucid.engine import allowed as allowed_module
from pellucid.engine import engine as engine_module
from pellucid.engine.engine import Engine
from pellucid.engine.grammar import GrammarCompiler, GrammarConstraint, compute_masks
from pellucid.engine.requests import Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.ops.sampling.settings import Sampling
from schemas import schemas
from tiny import swapped

PATH, PROMPT = "/v1/completions", "The capital of France is"
COUNT, NEW = (500 if os.environ.get("PELLUCID_FULL") else 64), 220
WORDS = ["Paris", 'To"kyo', "日本\n"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    model = load(long_folder(tmp_path_factory.mktemp("forms") / "long"))
    model.name = "long"
    return model


@pytest.fixture(scope="module")
def compiler(model: Model) -> GrammarCompiler:
    return GrammarCompiler(model.tokenizer, model.config.vocab, [model.tokenizer.special["eos"]])


@pytest.fixture(scope="module")
def server(model: Model) -> Iterator[OpenAiServed]:
    with openai_served(model, load("pellucid/capitals-llama")) as served:
        yield served


def texts(model: Model, constraints: list[GrammarConstraint], new: int = NEW, heat: float = 1.0) -> list[tuple[str, str | None]]:
    """Return a random model's text under each constraint, and how it ended."""
    engine = Engine.of(model.module, 64 * (new + 64), SchedulerLimits(512, 64))
    for i, constraint in enumerate(constraints):
        engine.submit(Request((65, 66), new, Sampling(heat, seed=i), frozenset({model.tokenizer.special["eos"]}), constraint=constraint))
    out: list[tuple[list[int], str | None]] = [([], None) for _ in constraints]
    for o in engine.outputs():
        assert o.error is None, o.error
        ids, _ = out[o.request]
        out[o.request] = ids + ([] if o.token is None or o.ended == "stop" else [o.token.id]), o.ended
    return [(model.tokenizer.decode(ids), ended) for ids, ended in out]


def schema_faults(model: Model, compiler: GrammarCompiler, count: int) -> list[str]:
    """Return the kinds of schemas with an answer that ended by itself and does not validate; and all if few end."""
    given = schemas(count)
    answers = texts(model, [compiler.compile("json", schema) for _, schema in given])
    ended_whole, faults = 0, list[str]()
    for (kind, schema), (text, ended) in zip(given, answers, strict=True):
        if ended != "stop":
            continue
        ended_whole += 1
        try:
            jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(("uuid", "ipv4", "email"))).validate(
                json.loads(text)
            )
        except (ValueError, jsonschema.ValidationError):
            faults.append(kind)
    return faults if ended_whole > count * 0.6 else [*faults, f"{ended_whole} of {count}"]


def test_every_answer_validates(model: Model, compiler: GrammarCompiler) -> None:
    assert schema_faults(model, compiler, COUNT) == []


def test_mutants(model: Model, compiler: GrammarCompiler) -> None:
    """A mask that is not laid on the logits, and one that is always of the text's beginning, are seen."""
    allowed = GrammarConstraint.allowed
    with swapped(allowed_module, "compute_masks", lambda texts: None):  # it would follow texts that no longer fit, at every step
        with swapped(engine_module, "allowed", lambda *a: None):
            assert schema_faults(model, compiler, 16)
        with swapped(GrammarConstraint, "allowed", lambda self, written, index: allowed(self, written[:1], index)):
            assert schema_faults(model, compiler, 16)


def test_a_likeliest_token_that_may_come_needs_no_mask(model: Model, compiler: GrammarCompiler) -> None:
    """The texts are those that masks give, and some tokens need none. The mutant takes every likeliest token."""
    forms = [compiler.compile("regex", pattern) for pattern in (r"[^a]{30}", r"(.|\n){40}", "[a-m]{20}")]

    def greedy(admits: Any, made: list[int]) -> list[tuple[str, str | None]]:
        with swapped(GrammarConstraint, "admits", admits), swapped(allowed_module, "compute_masks", lambda due: made.append(len(due))):
            return texts(model, [form.copy() for form in forms], 40, 0.0)

    some, all_ = list[int](), list[int]()
    by_masks = greedy(lambda *a: False, all_)
    assert greedy(GrammarConstraint.admits, some) == by_masks and sum(some) < sum(all_)
    assert greedy(lambda *a: True, []) != by_masks


def test_a_text_goes_back_to_before_a_proposal(compiler: GrammarCompiler) -> None:
    """Where proposals were not accepted, up to a text's end and beyond what its grammar takes, the masks are those of a fresh matcher."""
    draw = random.Random(2)
    for kind, grammar in (
        ("regex", "(ab|cd){1,3}x?"),
        ("json", {"type": "object", "properties": {"a": {"type": "integer"}}}),
        ("choice", ["aa", "ab"]),
    ):
        form, text = compiler.compile(kind, grammar), list[int]()
        for _ in range(40):
            mask = form.allowed(text, 0).flags
            assert torch.equal(mask, form.copy().allowed(text, 0).flags)
            admitted = [form.admits(text, 0, id) for id in range(len(mask))]  # of a text that is over, its end is not
            assert all(a == bool(m) or (m and id in compiler.stops) for id, (a, m) in enumerate(zip(admitted, mask, strict=True)))
            ids = [int(i) for i in mask.nonzero().flatten() if int(i) not in compiler.stops]
            if not ids or draw.random() < 0.4:
                del text[draw.randrange(len(text) + 1) :]
            else:
                text.append(draw.choice(ids))


def masks_differ(compiler: GrammarCompiler) -> bool:
    """Return whether masks that were computed together differ anywhere from lone ones, on texts that go on, go back and end."""
    draw = random.Random(3)
    forms = [
        compiler.compile("regex", "(ab|cd){1,3}x?"),
        compiler.compile("choice", ["aa", "ab"]),
        compiler.compile("json", {"type": "null"}),
    ]
    texts: list[list[int]] = [[] for _ in forms]
    for _ in range(40):
        compute_masks((form, text, 0) for form, text in zip(forms, texts, strict=True) if draw.random() < 0.8)
        for form, text in zip(forms, texts, strict=True):
            if draw.random() < 0.3:
                del text[draw.randrange(len(text) + 1) :]
            mask = form.allowed(text, 0).flags
            if not torch.equal(mask, form.copy().allowed(text, 0).flags):
                return True
            ids = [int(i) for i in mask.nonzero().flatten() if int(i) not in compiler.stops]
            text += [draw.choice(ids)] if ids else []
    return False


def test_masks_computed_together_are_those_computed_alone(compiler: GrammarCompiler) -> None:
    """Also where a text went on or back in between: the mutant keeps a mask that its matcher has left."""
    assert not masks_differ(compiler)
    follow = GrammarConstraint.follow

    def stale(self: GrammarConstraint, written: Sequence[int], index: int) -> Any:
        kept = dict(self.masks)
        try:
            return follow(self, written, index)
        finally:
            self.masks.update(kept)

    with swapped(GrammarConstraint, "follow", stale):
        assert masks_differ(compiler)


def test_a_restart_and_several_texts_keep_their_place(model: Model, compiler: GrammarCompiler) -> None:
    """The mask is a function of the new tokens: read again, cut, and of another text of the same request."""
    one, ids = compiler.compile("choice", ["abc", "abd", "x"]), model.tokenizer.encode

    def after(text: str, index: int = 0) -> str:
        return model.tokenizer.decode(one.allowed(ids(text, special=False), index).flags.nonzero().flatten().tolist())

    known = {text: after(text) for text in ("", "a", "ab", "abc", "x")}
    assert [sorted(known[text]) for text in ("", "a", "ab")] == [["a", "x"], ["b"], ["c", "d"]]
    for text, index in (("ab", 0), ("x", 1), ("", 1), ("abc", 0), ("a", 2)):
        assert after(text, index) == known[text]
    assert one.copy().allowed((), 0).flags.sum() == 2


FORMS: list[tuple[dict[str, Any], str]] = [
    ({"guided_choice": WORDS}, "|".join(map(re.escape, WORDS))),
    ({"guided_regex": "[a-c]{3,5}"}, "[a-c]{3,5}"),
    ({"guided_grammar": 'root ::= "x" [0-9] [0-9]? "y"'}, "x[0-9]{1,2}y"),
    ({"grammar": 'start: "x" /[0-9]/ "y"'}, "x[0-9]y"),
    ({"structured_outputs": {"regex": "a|b"}}, "a|b"),
    ({"structured_outputs": {"choice": ["one", "two"]}}, "one|two"),
    ({"structured_outputs": {"json": '{"const": 5}'}}, "5"),
    ({"guided_json": {"enum": [1, "a"]}}, '1|"a"'),
    ({"json_schema": {"type": "boolean"}}, "true|false"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "null"}}}}, "null"),
    ({"response_format": {"type": "json_object", "schema": {"const": 7}}}, "7"),
    ({"response_format": {"type": "json_schema", "schema": {"const": "a"}}}, '"a"'),
]


@pytest.mark.parametrize(("form", "pattern"), FORMS)
def test_forms(server: OpenAiServed, form: dict[str, Any], pattern: str) -> None:
    """Each way in which clients ask for a form, of several texts at once, streamed too, whatever else is set."""
    for name in server.models:
        how = {"model": name, "max_tokens": 30, "temperature": 1.5, "seed": 4, "ignore_eos": True, **form}
        choices = server.complete(PROMPT, n=3, **how)["choices"]
        assert all(re.fullmatch(pattern, c["text"]) and c["finish_reason"] == "stop" for c in choices), choices
        streamed = "".join(c["choices"][0]["text"] for c in server.stream(PATH, prompt=PROMPT, **how))
        assert streamed == choices[0]["text"]


def test_json_objects_and_chats(server: OpenAiServed) -> None:
    for text_of in (
        lambda **how: server.post("/v1/chat/completions", messages=[{"role": "user", "content": "a"}], **how)["choices"][0]["message"][
            "content"
        ],
        lambda **how: server.complete("a", **how)["choices"][0]["text"],
    ):
        for seed in range(3):
            text = text_of(model="long", response_format={"type": "json_object"}, max_tokens=60, seed=seed, temperature=1)
            assert text.startswith("{")
    both = {"response_format": {"type": "text"}, "max_tokens": 5}
    assert server.complete(PROMPT, **both) and server.complete(PROMPT, structured_outputs={"json_object": False}, max_tokens=1)


def test_the_mask_is_a_stage_that_is_shown(server: OpenAiServed, model: Model) -> None:
    """A watched answer has the logits that the mask left, and the probability that it took away can be read off."""
    fields = {"guided_choice": ["Tokyo"], "pellucid": {"watch": ["sample.logits", "sample.allowed"]}}
    answer = server.complete(PROMPT, model="pellucid/capitals-llama", max_tokens=3, **fields)
    id = answer["pellucid"]["trace"]
    assert server.operation.inspector is not None
    run = server.operation.inspector.result().session.runs[id]
    logits, allowed = (next(s.value for s in run.trace.seen if s.path == f"sample.{n}" and s.step == 0) for n in ("logits", "allowed"))
    kept = allowed > -torch.inf
    assert 0 < int(kept.sum()) < 10 and torch.equal(allowed[kept], logits[kept])
    assert float(logits.softmax(0)[kept].sum()) < 0.01 and answer["choices"][0]["text"] == "Tokyo"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": {"type": "foo"}}, "guided_json"),
    ({"guided_json": {"$ref": "http://127.0.0.1:1/x"}}, "guided_json"),
    ({"guided_json": {"not": {"type": "string"}}}, "guided_json"),
    ({"guided_json": 5}, "guided_json"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_regex": "["}, "guided_regex"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": [1]}, "guided_choice"),
    ({"guided_grammar": "what is this"}, "guided_grammar"),
    ({"guided_grammar": "root ::= " + "(" * 5000}, "guided_grammar"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": 5}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_object", "schema": 5}}, "response_format.schema"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_what_cannot_be_held_to_is_named(server: OpenAiServed, fields: dict[str, Any], param: str) -> None:
    error = server.wrong(PATH, 400, param, model="long", prompt=PROMPT, **fields)
    assert "\n" not in error["message"] and param.partition(".")[0] in error["message"]


def test_without_the_library_one_line_says_so(model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with openai_served(model) as server:
        error = server.wrong(PATH, 400, "guided_regex", model="long", prompt=PROMPT, guided_regex="a")
    assert "pellucid[serve]" in error["message"]
