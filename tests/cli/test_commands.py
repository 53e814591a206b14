"""Exit codes, one line for each error, JSON that its schema accepts and both languages, for all commands."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import pellucid
from documented import SCHEMAS, accept, refused, schema_of
from pellucid import messages
from pellucid.api.model import specimens
from pellucid.commands import app, main
from pellucid.commands.screen import Screen, common_options
from pellucid.errors import UseError
from pellucid.terminal import structure
from pellucid.tracing import load_trace

CHINESE = re.compile(r"[\u3400-\u9fff]")
Captured = pytest.CaptureFixture[str]


def run(capsys: Captured, *given: object) -> tuple[int, str, str]:
    """Return a command line's exit code, stdout and stderr."""
    capsys.readouterr()
    code = main([str(word) for word in given])
    out, err = capsys.readouterr()
    return code, out, err


def judged(capsys: Captured, *given: object) -> tuple[int, dict[str, Any]]:
    """Return a command line's exit code and its JSON, one line that its schema accepts."""
    code, out, _ = run(capsys, *given, "--json")
    assert out.count("\n") == 1
    document: dict[str, Any] = json.loads(out)
    accept(document, str(given[0]))
    assert refused(document | {"schema": 2}, str(given[0]))
    return code, document


def wrong(capsys: Captured, *given: object) -> str:
    """Return the one line of a wrong use, which exits with 2 and prints nothing else."""
    code, out, err = run(capsys, *given)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"pellucid: [^\n]+\n", err), err
    return err


def test_every_command_has_a_schema() -> None:
    names = {p.stem for p in SCHEMAS.glob("*.json")}
    assert names >= set(app.COMMANDS)
    for name in names:
        jsonschema.Draft202012Validator.check_schema(schema_of(name))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_help(language: str, capsys: Captured) -> None:
    code, out, _ = run(capsys, "--help", "--lang", language)
    assert code == 0
    assert re.findall(r"^  ([a-z]+)  ", out, re.M) == list(app.COMMANDS)
    for name in app.COMMANDS:
        code, out, err = run(capsys, name, "--help", "--lang", language)
        assert (code, err) == (0, "")
        assert bool(CHINESE.search(out.replace("中文", ""))) == (language == "zh")
        assert all(option in out for option in ("--json", "-q, --quiet", "--lang en|zh", "-h, --help"))
        options = " ".join(re.findall(r"^  (-.+?)  ", out, re.M))
        assert ("--out" in options) == ("--save" in options), name  # one place to write, under either name
    assert run(capsys)[0] == 2


def imported(*lines: str, of: tuple[str, ...]) -> list[str]:
    """Return which of these modules the commands load in a process of their own."""
    code = "import sys, contextlib\nfrom pellucid.commands import main\n"
    code += "".join(f"with contextlib.suppress(SystemExit): main({line.split()})\n" for line in lines)
    code += f"print(*[m for m in {of} if m in sys.modules], file=sys.stderr)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=True)
    return done.stderr.splitlines()[-1].split()


def test_help_is_quick_to_import() -> None:
    """Help, version and a wrong use load neither torch nor rich."""
    assert imported("--help", "explain --help", "nix", of=("torch", "rich", "numpy")) == []


def test_a_recorded_run_is_no_prompt(tmp_path: Path, capsys: Captured) -> None:
    assert main(["trace", "pellucid/capitals", "The", "--save", str(tmp_path / "t"), "-q"]) == 0
    assert "pellucid open" in wrong(capsys, "explain", tmp_path / "t")


def test_nothing_is_compiled() -> None:
    """Counting, explaining and running do not import torch's compiler, which takes a second; on meta torch itself would."""
    compiler = ("torch", "torch._dynamo", "triton")
    assert imported("count gpt2 deepseek-v3", "explain Hello", "run pellucid/capitals Hello --max-new-tokens 2", of=compiler) == ["torch"]
    code = "import torch, sys; a = torch.empty(2, device='meta'); a + a; print('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout == "True\n"


@pytest.mark.parametrize("own", [None, "7"])
def test_threads_sleep_soon(own: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command sets how long torch's threads look, before torch is imported, unless that is set."""
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if own is not None:
        monkeypatch.setenv("GOMP_SPINCOUNT", own)
    code = "import os, sys; from pellucid.commands import main; main(); print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == f"{own or '2000'} False"


def test_version(capsys: Captured) -> None:
    assert run(capsys, "--version") == (0, f"pellucid {pellucid.__version__}\n", "")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["nix"], "nix"),
        (["--nix"], "--nix"),
        (["run"], "MODEL"),
        (["run", "nix/da/x", "hi"], "nix/da/x"),
        (["run", "{folder}", ""], "prompt"),
        (["run", "{folder}", "hi", "--temperature", "-1"], "temperature"),
        (["run", "{folder}", "hi", "--temperature", "warm"], "warm"),
        (["run", "{folder}", "hi", "--max-new-tokens", "-1"], "max_new_tokens"),
        (["run", "{folder}", "hi", "--max-new-tokens", "999"], "positions"),
        (["trace", "{folder}", "hi"], "--save"),
        (["trace", "{folder}", "hi", "--save", "{tmp}/t", "--only", "nix*"], "nix*"),
        (["trace", "{folder}", "hi", "--save", "{folder}"], "gpt2"),
        (["diff", "{tmp}/a", "{tmp}/b"], "index.jsonl"),
        (["diff", "{tmp}/a"], "B"),
        (["diff", "{tmp}/a", "--without", "3", "--atol", "1"], "--atol"),
        (["show"], "MODEL"),
        (["show", "{tmp}"], "config.json"),
        (["show", "{folder}", "--dtype", "int3"], "int3"),
        (["train", "{tmp}/nix.toml"], "nix.toml"),
        (["run", "{folder}", "hi", "--temprature", "1"], "near: --temperature"),
        (["run", "{folder}", "hi", "--frob"], "--frob"),
        (["count", "gpt2", "--device", "h100x4"], "near: h100, "),
        (["count", "gpt2", "--users", "2", "--devices", "h100,zzz"], "zzz"),
        (["count", "gpt2", "--users", "2", "--dtype", "int4", "--batch", "1"], "--batch, --dtype"),
        (["count", "recipes/stories.toml", "--turns", "4"], "--device, --price and --json"),
        (["explain", "{folder}"], "its prompt is missing"),
        (["explain", "word " * 100], "64 positions"),
        (["explain", "pellucid/reader"], "its prompt is missing"),
        (["env", "--lang"], "--lang"),
        (["env", "more"], "more: too many words; see pellucid env --help"),
        (["run", "{folder}", "hi", "there"], "there: too many words; a prompt of several words"),
    ],
)
def test_wrong_use(given: list[str], named: str, folder: Path, tmp_path: Path, capsys: Captured) -> None:
    filled = [word.format(folder=folder, tmp=tmp_path) for word in given]
    assert named in wrong(capsys, *filled)
    assert CHINESE.search(wrong(capsys, *filled, "--lang", "zh")) or "--lang" in given
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("given", "tokens"), [("8k", 8192), ("128K", 131072), ("131,072", 131072), ("1M", 1048576), ("4096", 4096)])
def test_tokens_are_counted_as_contexts_are_named(given: str, tokens: int, capsys: Captured) -> None:
    assert judged(capsys, "count", "llama-3.1-8b", "--context", given)[1]["setting"]["context"] == tokens


@pytest.mark.parametrize("given", ["1e6", "-8k", "8kk", "1,07", "k"])
def test_other_numbers_of_tokens_are_refused(given: str, capsys: Captured) -> None:
    assert wrong(capsys, "count", "llama-3.1-8b", "--context", given).startswith(f"pellucid: --context is {given}; allowed: ")


def test_settings_stand_anywhere() -> None:
    assert common_options(["--json", "explain", "--lang", "zh", "x", "-q"])[0] == ["explain", "x"]
    rest, settings = common_options(["explain", "--lang=en", "--", "--json", "-q"])
    assert rest == ["explain", "--", "--json", "-q"]
    assert (settings.json, settings.quiet, settings.language) == (False, False, "en")
    with pytest.raises(UseError):
        common_options(["--lang"])


def test_run_streams_what_the_model_generates(folder: Path, capsys: Captured) -> None:
    model = pellucid.load(folder)
    ids = model.tokenizer.encode("The capital")
    expected = model.generate([ids], max_new_tokens=6)[0]
    code, out, err = run(capsys, "run", folder, "The capital", "--max-new-tokens", 6)
    assert (code, out, err) == (
        0,
        model.tokenizer.decode(expected, skip_special=True) + "\n",
        f"{folder} computes in float32, as stored.\n",
    )
    code, document = judged(capsys, "run", folder, "The capital", "--max-new-tokens", 6)
    assert (document["ids"], document["new"]) == (ids, expected)
    drawn = [judged(capsys, "run", folder, "1,2,3", "--ids", "--temperature", 2, "--seed", seed)[1]["new"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 64 - 3 or document["stopped"] or drawn[0][-1] in model.stops  # as many as the positions hold


def test_run_reads_stdin(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe is one prompt; at a terminal each line is one, until Ctrl-D."""
    _, continuation, _ = run(capsys, "run", folder, "The capital", "--max-new-tokens", 4)
    monkeypatch.setattr(sys, "stdin", io.StringIO("The capital\n"))
    assert run(capsys, "run", folder, "--max-new-tokens", 4)[:2] == (0, continuation)
    lines = iter(["The capital", "", "The capital"])

    def typed(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", typed)
    code, out, err = run(capsys, "run", folder, "--max-new-tokens", 4)
    assert (code, out) == (0, continuation + continuation + "\n")
    assert "Ctrl-D" in err


def test_trace_and_diff(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    """A saved trace equals the API's; diff names the first tensor that differs, its cell and both values."""
    a, b, c, part = (tmp_path / name for name in ("a", "b", "c", "part"))
    code, document = judged(capsys, "trace", folder, "The capital", "--save", a, "--steps", 2)
    assert (code, document["steps"]) == (0, 2)
    trace = pellucid.trace(pellucid.load(folder), "The capital", 2)
    assert pellucid.first_difference(load_trace(a), trace) is None
    assert document["tensors"] == len(trace)
    assert run(capsys, "trace", folder, "The capital", "--save", b, "--steps", 2)[0] == 0
    assert run(capsys, "trace", folder, "The capitai", "--save", c)[0] == 0
    assert run(capsys, "trace", folder, "The capital", "--save", part, "--only", "*.pattern", "--only", "logits", "-q")[1] == ""
    assert load_trace(part).paths() == ["layers.0.attn.pattern", "layers.1.attn.pattern", "logits"]
    code, same = judged(capsys, "diff", a, b)
    assert (code, same["equal"], same["compared"], same["only_a"]) == (0, True, len(trace), 0)
    code, some = judged(capsys, "diff", a, part)
    assert (code, some["compared"], some["only_a"]) == (0, 3, len(trace) - 3)

    changed = load_trace(a)
    seen = next(s for s in changed if s.path == "layers.1.attn.q")
    seen.value = seen.value.clone()
    seen.value[0, 1, 2, 3] += 0.5
    changed.save(tmp_path / "changed")
    code, out, _ = run(capsys, "diff", a, tmp_path / "changed")
    assert code == 1
    assert out.startswith("layers.1.attn.q[0, 1, 2, 3] ")
    assert f"{float(seen.value[0, 1, 2, 3]):.9g}" in out
    code, document = judged(capsys, "diff", a, tmp_path / "changed")
    assert (code, document["difference"]["index"]) == (1, [0, 1, 2, 3])
    assert document["difference"]["values"][1] - document["difference"]["values"][0] == pytest.approx(0.5)
    assert run(capsys, "diff", a, tmp_path / "changed", "--atol", 0.6)[0] == 0
    code, document = judged(capsys, "diff", a, c)
    assert code == 1 and document["difference"]["path"] == "embed"
    assert document["difference"]["shapes"][0] != document["difference"]["shapes"][1]
    assert CHINESE.search(run(capsys, "diff", a, c, "--lang", "zh")[1])


def test_show_reads_no_weights(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    """The shown parameters add up to the model's count, and a file reduced to its header shows the same."""
    model = pellucid.load(folder)
    code, document = judged(capsys, "show", folder)
    assert (code, document["parameters"]) == (0, model.num_parameters())
    assert sum(w["count"] for w in document["weights"] if w["parameter"]) == model.num_parameters()
    assert {w["path"]: w["shape"] for w in document["weights"]} == {p: list(w.shape) for p, w in model.module.named_parameters()}
    assert document["tied"] == {"head.weight": "embed.weight"}
    out = run(capsys, "show", folder)[1]
    assert "2 alike" in out and "(H K) D" in out and f"{model.num_parameters():,} parameters" in out
    assert run(capsys, "show", folder, "--all")[1].count("attn.q.weight") == 2
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes((folder / "config.json").read_bytes())
    weights = (folder / "model.safetensors").read_bytes()
    head = 8 + int.from_bytes(weights[:8], "little")
    with (bare / "model.safetensors").open("wb") as f:
        f.write(weights[:head])
        f.truncate(len(weights))  # zeros: a hole on disk
    assert judged(capsys, "show", bare)[1]["weights"] == document["weights"]


def test_show_counts_each_group(folder: Path) -> None:
    model = pellucid.load(folder, device="meta")
    groups = structure.groups(model)
    assert sum(g.count * max(1, len(g.paths)) for g in groups) == model.num_parameters()
    assert [g.paths for g in groups if g.paths] == [["layers.0", "layers.1"]]
    assert len(structure.groups(model, everything=True)) == len(groups) + 1


@pytest.mark.parametrize("language", ["en", "zh"])
def test_show_says_all_of_a_model_with_a_long_path(language: str) -> None:
    model = pellucid.load("pellucid/capitals", device="meta")
    with messages.speaking(language):
        head = [line.plain for line in structure.drawn(model, 1000)[:1]]
        for width in range(20, 100, 7):
            lines = [line.plain.strip() for line in structure.drawn(model, width)]
            shown = "".join(lines[: lines.index("")]).replace(" ", "")
            assert shown == head[0].replace(" ", ""), width


@pytest.mark.parametrize("name", [*specimens(), "deepseek-v3"])
def test_show_names_the_fields_of_a_config_alone(name: str) -> None:
    """A constant of a class of specs (its kind, what it stores) is no setting of a model."""
    layers = pellucid.load(name, device="meta").config.layers
    for spec in (spec for layer in layers for spec in (layer.attn, layer.cross, layer.ffn) if spec is not None):
        text = structure.fields(spec, everything=True)
        while (bare := re.sub(r"[(\[{][^()\[\]{}]*[)\]}]", "", text)) != text:  # without values in brackets
            text = bare
        assert [shown.split()[0] for shown in text.split(", ")] == [f.name for f in fields(spec)]


def test_env(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    code, document = judged(capsys, "env")
    assert code == 0
    assert document["packages"]["torch"] == version("torch")
    assert document["settings"]["HF_TOKEN"] is True
    out = run(capsys, "env", "--lang", "zh")[1]
    assert "hf_secret" not in out and "hf_secret" not in json.dumps(document)
    assert "zh" in out


def test_train_calls_the_recipe(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings reach the run, progress is written to stderr and the folder to stdout."""
    import pellucid.training

    def made(
        path: Path, out: Path | None, resume: bool, threads: int | None, progress: Any, restart: bool, inexact: bool, root: Path | None
    ) -> Path:
        progress({"step": 3, "loss": 1.23456})
        assert (path.name, out, resume, threads, restart, inexact) == ("r.toml", tmp_path, True, 2, False, False)
        return tmp_path / "model"

    monkeypatch.setattr(pellucid.training, "run_recipe", made)
    code, out, err = run(capsys, "train", "r.toml", "--out", tmp_path, "--resume", "--threads", 2)
    assert (code, out, err) == (0, f"{tmp_path / 'model'}\n", "step 3  loss 1.235\n")
    assert run(capsys, "train", "r.toml", "--out", tmp_path, "--resume", "--threads", 2, "-q")[2] == ""
    assert judged(capsys, "train", "r.toml", "--out", tmp_path, "--resume", "--threads", 2)[1]["model"] == str(tmp_path / "model")


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt, 130), (BrokenPipeError, 141)])
def test_interrupts_are_quiet(raised: type[BaseException], code: int, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*given: object) -> None:
        raise raised

    closed: list[bool] = []
    monkeypatch.setattr(Screen, "close", lambda self: closed.append(True))
    monkeypatch.setattr(Screen, "text", stop)
    got, out, err = run(capsys, "env")
    assert (got, out, err.strip()) == (code, "", "")
    assert bool(closed) == (raised is BrokenPipeError)


def test_language_comes_back(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """--lang holds for its command alone; without it the environment decides."""
    monkeypatch.setenv("PELLUCID_LANG", "zh")
    assert CHINESE.search(wrong(capsys, "nix"))
    assert not CHINESE.search(wrong(capsys, "nix", "--lang", "en"))
    assert messages.language() == "zh"


def test_warnings_are_lines(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    """A warning is one plain line on stderr, and -q leaves it out."""
    import shutil

    shutil.copytree(folder, tmp_path / "m")
    about = json.loads((tmp_path / "m" / "tokenizer_config.json").read_text())
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps(about | {"pad_token": "<nix>"}))
    code, _, err = run(capsys, "run", tmp_path / "m", "The", "--max-new-tokens", 1)
    assert code == 0
    assert err.count("\n") == 2 and "<nix>" in err.splitlines()[0] and "Warning" not in err
    assert run(capsys, "run", tmp_path / "m", "The", "--max-new-tokens", 1, "-q")[2] == ""
