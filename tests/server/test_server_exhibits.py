"""Exhibits from the server: what Python runs, on the registry's models; what cannot be shown is refused in one line."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import pellucid
from pellucid.analysis.quality import Quality
from pellucid.documents.exhibit import exhibit_document
from pellucid.errors import RequestError
from pellucid.exhibits import find, names
from pellucid.exhibits.exhibit import Experiment, run_exhibit
from pellucid.messages import phrases, speaking
from pellucid.runs import model_registry
from pellucid.runs.limits import LIMITS
from pellucid.runs.worker import Stop
from pellucid.server.exhibits import Gallery
from served import Served, judge, served

CAPITALS, OTHER = "pellucid/capitals", "The capital of Japan is"


def shown(api: Served, name: str, lang: str = "en", **body: Any) -> dict[str, Any]:
    """Run an exhibit on the server. Returns its document."""
    reply = api.client.post(f"/api/exhibits/{name}?lang={lang}", json=body)
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = judge(reply.json(), "exhibit")
    return document


def refused(api: Served, name: str, body: object) -> str:
    """Ask for an exhibit that the server refuses. Returns its line."""
    reply = api.client.post(f"/api/exhibits/{name}?lang=en", json=body)
    error = judge(reply.json(), "error")["error"]
    assert reply.status_code == 400 and "\n" not in error["message"], reply.text
    return str(error["message"])


def test_the_list_names_all(api: Served) -> None:
    for lang in ("en", "zh"):
        document = api.get("/api/exhibits", "exhibits", lang=lang)
        assert [h["name"] for h in document["exhibits"]] == list(names())
        assert document["exhibits"][0]["title"] == phrases(lang)[f"exhibit.{document['exhibits'][0]['name']}.title"]
    assert api.client.get("/api/exhibits?most=3").status_code == 400


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_an_exhibit_is_pythons(api: Served, lang: str) -> None:
    with speaking(lang):
        own = exhibit_document(run_exhibit(find("norms"), settings={"prompt": OTHER}))
    assert shown(api, "norms", lang, settings={"prompt": OTHER}) == own
    assert own["head"]["controls"][0]["value"] == OTHER
    assert shown(api, "norms", lang, model="pellucid/capitals-llama", settings={})["model"] == "pellucid/capitals-llama"


def test_an_exhibit_ends_when_its_client_leaves(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop ends an exhibit in the middle of a run: no tensor is recorded after it."""
    stop, records, keep = Stop(), list[int](), Experiment.keep

    def leaving(self: Experiment, x: torch.Tensor) -> torch.Tensor:
        out = keep(self, x)
        records.append(1)
        if len(records) == 5:
            stop.set()
        return out

    monkeypatch.setattr(Experiment, "keep", leaving)
    with pytest.raises(RequestError, match="stop"):
        api.session.gallery.run("latent", "", {}, stop)
    assert len(records) == 5


def test_questions_end_when_the_client_leaves(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exhibit that asks for capitals and records nothing ends too."""
    stop, asking = Stop(), Experiment.quality

    def leaving(self: Experiment, *given: Any, **question: Any) -> Quality:
        stop.set()
        return asking(self, *given, **question)

    monkeypatch.setattr(Experiment, "quality", leaving)
    monkeypatch.setattr(Experiment, "trace", lambda self, *given, **how: pytest.fail("it goes on"))
    with pytest.raises(RequestError, match="stop"):
        api.session.gallery.run("facts", "", {}, stop)


def test_a_model_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads, load = list[str](), model_registry.__dict__["load"]

    def counting(name: str, **how: Any) -> pellucid.Model:
        loads.append(name)
        model: pellucid.Model = load(name, **how)
        return model

    monkeypatch.setattr(model_registry, "load", counting)
    with served() as api:
        assert shown(api, "norms")["model"] == shown(api, "residual", model=CAPITALS)["model"] == CAPITALS
        assert loads == [CAPITALS] and api.session.gallery.opened.models == {}


def test_a_specimen_is_shown_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server's own model is narrower, a second one is loaded for exhibits; the mutant takes the registry's."""
    with served(dtype="bfloat16") as api:
        right = shown(api, "norms")
        assert right == shown(api, "norms") and list(api.session.gallery.opened.models) == [CAPITALS]
        with speaking("en"):
            assert right == exhibit_document(run_exhibit(find("norms")))
        monkeypatch.setattr(Gallery, "specimen", lambda self, name: self.registry[name].model)
        assert shown(api, "norms") != right


def test_what_cannot_be_shown_is_refused(api: Served) -> None:
    assert "norms" in refused(api, "norm", {})
    assert "prompt" in refused(api, "norms", {"settings": {"words": 1}})
    assert "settings" in refused(api, "norms", {"settings": [1]})
    assert "settings.prompt" in refused(api, "norms", {"settings": {"prompt": None, "": [1]}})
    assert "model" in refused(api, "norms", {"model": 3})
    assert "places" in refused(api, "norms", {"places": 1})
    assert "capitals-t5" in refused(api, "norms", {"model": "pellucid/capitals-t5"})
    assert api.client.post("/api/exhibits/norms", json={"model": "gpt2"}).status_code == 404
    assert api.client.get("/api/exhibits/norms").status_code == 405


def test_long_prompts_are_refused() -> None:
    with served(limits=replace(LIMITS, tokens=8)) as api:
        assert "8" in refused(api, "norms", {"settings": {"prompt": "Paris " * 20}})
        assert shown(api, "norms", settings={"prompt": OTHER})["claims"]
    with served(limits=replace(LIMITS, work=1000)) as api:
        assert api.client.post("/api/exhibits/norms", json={"settings": {"prompt": OTHER}}).status_code == 413


def test_shapes_alone_show_nothing() -> None:
    with served(device="meta") as api:
        assert "weights" in refused(api, "norms", {"model": CAPITALS})
        assert shown(api, "norms")["model"] == CAPITALS
