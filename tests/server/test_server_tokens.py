"""A tokenizer alone is served: its tokens are the library's, and the terminal prints the same document."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from pellucid.api.model import SPECIMENS
from pellucid.api.open_tokenizer import open_tokenizer, tokenizer_alone
from pellucid.documents.tokens import tokens_document
from pellucid.runs.limits import LIMITS
from pellucid.tokenizer.tokenizer import Tokenizer
from served import Served, judge, served
from tiny import swapped

TEXT = "The capital of 中华人民共和国 is"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    shutil.copy(SPECIMENS / "capitals-bert" / "tokenizer.json", folder)
    return folder


def tokens_of(api: Served, **body: Any) -> dict[str, Any]:
    reply = api.client.post("/api/tokens", json=body)
    assert reply.status_code == 200, reply.text
    return judge(reply.json(), "tokens")


def test_its_tokens_are_the_librarys(alone: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(alone / "tokenizer.json"))
    for name in (str(alone), str(alone / "tokenizer.json")):
        with served(name) as api:
            first = api.get("/api/models", "models")
            assert (
                first["tokenizer"] == name and first["current"] == "pellucid/capitals" and name not in [m["name"] for m in first["models"]]
            )
            for special in (True, False):
                document = tokens_of(api, model=name, prompt=TEXT, special=special)
                assert document["ids"] == library.encode(TEXT, add_special_tokens=special).ids
                assert document == tokens_document(name, open_tokenizer(name), TEXT, special)
                assert document["bytes"] == len(TEXT.encode())
            back = tokens_of(api, model=name, ids=library.encode(TEXT).ids, special=False)
            assert (back["prompt"], back["text"]) == (None, TEXT)
            assert tokens_of(api, model="pellucid/capitals", prompt=TEXT)["ids"] != document["ids"]
            with swapped(Tokenizer, "encode", lambda self, text, special=True: [3]):  # the mutant
                assert tokens_of(api, model=name, prompt=TEXT)["ids"] != library.encode(TEXT).ids


def test_what_is_refused(alone: Path) -> None:
    name = str(alone)
    with served(name, replace(LIMITS, tokens=4)) as api:
        for body, code in (
            ({"model": name, "prompt": TEXT}, "server.tokens"),
            ({"model": name, "prompt": "a" * 200}, "server.tokens"),
            ({"model": name, "prompt": "a", "ids": [1]}, "server.either"),
            ({"model": name, "prompt": "a", "special": 1}, "server.field"),
            ({"model": name, "ids": [99999999]}, "tokenizer.out_of_range"),
            ({"model": f"{name}x", "prompt": "a"}, "server.model"),
        ):
            reply = api.client.post("/api/tokens", json=body)
            assert reply.status_code in (400, 404) and reply.json()["error"]["code"] == code, (body, reply.text)


def test_what_a_tokenizer_alone_is(alone: Path, tmp_path: Path) -> None:
    assert tokenizer_alone(alone) and tokenizer_alone(alone / "tokenizer.json")
    assert not tokenizer_alone(SPECIMENS / "capitals") and not tokenizer_alone(tmp_path) and not tokenizer_alone(tmp_path / "none")
    shutil.copy(SPECIMENS / "capitals" / "config.json", tmp_path)
    assert not tokenizer_alone(tmp_path / "config.json")
