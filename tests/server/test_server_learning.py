"""A run of training over the API: its document at a recorded step, and why a cell moved, as Python gives them."""

from collections.abc import Iterator

import pytest

import pellucid
from pellucid.checkpoint.opening import recorded_runs
from pellucid.documents.training import training_document
from pellucid.documents.why import why_document
from pellucid.errors import RequestError
from pellucid.server.learning import Learning
from served import Served, judge, served
from watched_runs import WATCHED, watched_run

WEIGHT = "layers.1.ffn.down.weight"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pellucid.Run:
    return watched_run(tmp_path_factory.mktemp("film"))


@pytest.fixture(scope="module")
def api(run: pellucid.Run) -> Iterator[Served]:
    with served(str(run.folder)) as api:
        yield api


def test_the_document_is_pythons(api: Served, run: pellucid.Run) -> None:
    assert api.get("/api/models", "models")["training"] == str(run.folder)
    for step in (None, *WATCHED):
        given = {} if step is None else {"step": step}
        assert api.get("/api/training", "training", **given) == training_document(run, step)


def test_why_is_pythons(api: Served, run: pellucid.Run) -> None:
    document = api.get("/api/training/why", "moved", step=8, weight=WEIGHT, cell="5,17")
    assert document == why_document(run, 8, WEIGHT, (5, 17))
    assert document["total"] == pytest.approx(document["gradient"], abs=1e-7)
    assert sum(t["product"] for t in document["tokens"]) + document["rest"] == pytest.approx(document["total"], abs=1e-7)


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("step=8&weight=layers.9.x&cell=0", 400, "layers.9.x"),
        (f"step=8&weight={WEIGHT}&cell=a", 400, "cell"),
        (f"step=8&weight={WEIGHT}&cell=999,0", 400, "999"),
        (f"step=99&weight={WEIGHT}&cell=0,0", 400, "99"),
        (f"step=-1&weight={WEIGHT}&cell=0,0", 400, "step"),
        (f"weight={WEIGHT}&cell=0,0", 400, "step"),
        (f"step=8&weight={WEIGHT}&cell=0,0&path=/etc", 400, "path"),
    ],
)
def test_what_is_wrong_is_one_line(api: Served, query: str, status: int, words: str) -> None:
    reply = api.client.get(f"/api/training/why?{query}")
    message = judge(reply.json(), "error")["error"]["message"]
    assert reply.status_code == status and words in message and "\n" not in message, reply.text


def test_a_server_without_a_run_shows_the_one_that_ships() -> None:
    """And the page is told its name; opened by its name, it is the run that the page is about."""
    (name,) = recorded_runs()
    run = pellucid.Run(name)
    with served() as plain:
        known = plain.get("/api/models", "models")
        assert (known["training"], known["shipped"], known["current"]) == (None, name, "pellucid/capitals")
        assert plain.get("/api/training", "training", step=240) == training_document(run, 240)
    with served(name) as opened:
        known = opened.get("/api/models", "models")
        assert (known["training"], known["shipped"], known["current"]) == (str(run.folder), None, name)


def test_a_server_without_any_run() -> None:
    with pytest.raises(RequestError) as caught:
        Learning(None).document(None)
    assert (caught.value.key, caught.value.status) == ("server.training", 404)
