"""A text's score equals one forward's numbers for any windows and chunks, and the command prints it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from documented import accept
from pellucid.commands import main
from pellucid.engine import engine as driving
from pellucid.engine import score as scoring
from pellucid.engine.score import bounds, score
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder
from tiny import DECODERS, far, ids, swapped, tiny


def by_hand(model: Any, text: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([text]))[0, :-1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(text[1:])[:, None])[:, 0]


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.quick(4)
def test_scores_are_the_forward_s(family: str) -> None:
    """Reading 7 rows at a time over pages gives the forward's scores; one row too many in each chunk is seen."""
    model, text = tiny(family), ids(1, 40)[0].tolist()
    with swapped(scoring, "ROWS", 7):
        assert far(score(model, text, window=64), by_hand(model, text)) < 1e-10
        with swapped(driving, "logprobs", lambda x: x.roll(1, 0).log_softmax(-1)):
            assert far(score(model, text, window=64), by_hand(model, text)) > 1e-3


def test_windows_overlap_and_score_each_token_once() -> None:
    model, text = tiny("gpt2"), ids(1, 50)[0].tolist()
    got = score(model, text, window=16, stride=12)
    assert len(got) == 49
    start, done, want = 0, 1, []
    while done < 50:
        stop = min(start + 16, 50)
        want += by_hand(model, text[start:stop]).tolist()[done - start - 1 :]
        start, done = stop - 4, stop
    assert far(got, torch.tensor(want, dtype=torch.float64)) < 1e-10
    assert far(got, by_hand(model, text)) > 1e-3, "windows that forget what came before are another number"


def test_a_decoder_with_a_source_scores_every_token() -> None:
    model, source, text = tiny("t5"), ids(1, 7, seed=1)[0].tolist(), ids(1, 9)[0].tolist()
    model.config = pellucid.config.Config(**{**vars(model.config), "starts": 0})
    with torch.no_grad():
        logits = model(torch.tensor([source]), torch.tensor([[0, *text[:-1]]]))[0]
    want = logits.log_softmax(-1).gather(-1, torch.tensor(text)[:, None])[:, 0]
    assert far(score(model, text, source=source), want) < 1e-10


def test_wrong_use() -> None:
    model: Decoder = tiny("gpt2")
    for how, key in (
        ({"ids": [1]}, "score.short"), ({"ids": [1, 97]}, "decode.id"), ({"window": 1}, "score.window"), ({"window": 65}, "score.window"),
        ({"window": 8, "stride": 8}, "score.stride"), ({"stride": 0}, "score.stride"),
    ):  # fmt: skip
        with pytest.raises(UseError) as refused:
            score(model, **{"ids": [1, 2, 3], **how})
        assert refused.value.key == key
    with pytest.raises(UseError, match="--source"):
        score(tiny("t5"), [1, 2])
    with pytest.raises(UseError, match="reads no source"):
        score(model, [1, 2], source=[3])
    assert bounds(model, None, None) == (64, 32)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command's JSON is the API's, and its text is rounded from it."""
    file = tmp_path / "text.txt"
    file.write_text("The capital of France is Paris.")
    model = pellucid.load("pellucid/capitals", dtype="float32")
    each = model.logprobs(torch.tensor([model.tokenizer.encode("The capital of France is Paris.")]))[0].tolist()
    assert main(["score", "pellucid/capitals", str(file), "--tokens", "--dtype", "float32", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    accept(document, "score")
    assert [x["log_probability"] for x in document["each"]] == pytest.approx(each, abs=1e-4)
    assert document["perplexity"] == pytest.approx(math.exp(-sum(each) / len(each)), rel=1e-4)
    assert document["bits_per_byte"] == pytest.approx(-sum(each) / math.log(2) / len(" capital of France is Paris."), rel=1e-4)
    assert main(["score", "pellucid/capitals", str(file), "--dtype", "float32"]) == 0
    assert f"{document['perplexity']:.4g}" in capsys.readouterr().out


def test_wrong_files_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bytes").write_bytes(b"abc\xff")
    (tmp_path / "empty").write_bytes(b"")
    for name, reason in (("none", "no such file"), ("bytes", "byte 3"), ("empty", "0 tokens"), (".", "no such file")):
        assert main(["score", "pellucid/capitals", str(tmp_path / name)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and reason in err and err.count("\n") == 1
