"""Keys and values in int8 by command: the error that `score` tells, the bytes that `count` predicts, and one line for what does not fit."""

import json
from pathlib import Path

import pytest
from jsonschema import validate

import pellucid
from pellucid.commands import main

MODEL, SCHEMAS = "pellucid/capitals", Path(pellucid.__file__).parent / "schemas"


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    """Return the document of a command, once its schema fits."""
    assert main([*words, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    validate(made, json.loads((SCHEMAS / f"{words[0]}.json").read_text(encoding="utf-8")))
    return made  # type: ignore[no-any-return]


def test_score_tells_the_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text("The capital of France is Paris. The capital of Japan is Tokyo.", encoding="utf-8")
    plain, rounded = (document(capsys, "score", MODEL, str(file), *words) for words in ([], ["--kv", "int8"]))
    kv = rounded["kv"]
    assert isinstance(kv, dict) and "kv" not in plain
    assert kv["plain_perplexity"] == plain["perplexity"] != rounded["perplexity"] and 0 < kv["mean_gap"] < kv["largest_gap"] < 1


def test_variants_say_which_rows_are_not_in_int8(capsys: pytest.CaptureFixture[str]) -> None:
    """A latent stays in the dtype of the cache, and its row says so; the rows of heads are in int8 as the model's is."""
    plain, int8 = (
        {kind["kind"]: kind["bytes_per_token"] for kind in document(capsys, "count", "llama-3.1-8b", *more)["cache"]["other_kinds"]}
        for more in ([], ["--kv", "int8"])
    )
    assert int8["MLA 512+64 bfloat16"] == plain["MLA 512+64"] and "MLA 512+64" not in int8
    assert all(int8[kind] < 0.6 * plain[kind] for kind in plain if not kind.startswith("MLA")) and len(int8) == len(plain) > 2


def test_count_predicts_bytes_and_other_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    made = document(capsys, "count", "llama-3.1-8b", "--kv", "int8")
    assert made["cache"]["bytes_per_token"] == 32 * 2 * 8 * (128 + 2)  # type: ignore[index]
    for words in (["count", "deepseek-v3"], ["run", "pellucid/capitals-deepseek", "a"]):
        assert main([*words, "--kv", "int8"]) != 0
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "layers.0.attn is MLA" in error
