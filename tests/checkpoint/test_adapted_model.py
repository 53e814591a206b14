"""A model with an adapter in the rest of the program: explained, watched, planned, cast to half, run from the terminal."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import save_file

import adapters
import pellucid
from judge import judge, prompts, run, theirs
from pellucid.api.model import Model, load
from pellucid.api.trace import trace
from pellucid.commands import main
from pellucid.documents.formula import formula
from pellucid.engine.plans import Plans
from pellucid.nn.adapted import AdaptedLinear
from pellucid.ops import native
from pellucid.tracing import watch
from pellucid.watching.tap import terms_of
from test_plan import Alone
from tiny import far, swapped

PROMPT = [5, 17, 33, 60]


def adapted(family: str, dtype: str = "float64") -> Model:
    folder, own, _ = adapters.case(family)
    return load(folder, dtype=dtype, adapter=own)


@pytest.mark.parametrize("family", list(adapters.TARGETS))
def test_every_parameter_is_the_source_of_a_line(family: str) -> None:
    """MLA's kv_b is read and never called: its additions are sources of the keys and values that grow from it."""
    model = adapted(family)
    recorded = trace(model, PROMPT)
    ran = {w for s in recorded for w in s.weights}
    names = {n for n, _ in model.module.named_parameters()}
    assert names <= ran and any("lora_a" in n for n in names)
    if family == "deepseek_v3":
        assert "layers.0.attn.kv_b.adapters.default.lora_b.weight" in recorded["layers.0.attn.k"].weights
        with swapped(AdaptedLinear, "dense_weight", lambda self: self.weight):
            assert not names <= {w for s in trace(model, PROMPT) for w in s.weights}


def test_lines_say_what_was_added() -> None:
    model = adapted("llama")
    recorded = trace(model, PROMPT)
    dims = {s.path: s.dims for s in recorded}
    up = "layers.0.ffn.up"
    low, added = recorded[f"{up}.adapters.default.lora_a"], recorded[f"{up}.adapters.default.lora_b"]
    assert (low.dims, low.shape) == ("B T L", (1, 4, 3)) and added.dims == "B T F"
    assert formula(recorded[up], dims) == f"ffn_norm · W_upᵀ + {7 / 3} · lora_b"
    assert formula(added, dims) == "lora_a · W_lora_bᵀ"
    assert formula(low, dims) == "ffn_norm · W_lora_aᵀ"
    deep = adapted("deepseek_v3")
    k = trace(deep, PROMPT)["layers.0.attn.k"]
    assert formula(k, {}) == f"latent · (W_kv_b + {7 / 3}·W_lora_b·W_lora_a)[:K]ᵀ"


@pytest.mark.parametrize("family", ["llama", "gpt2", "deepseek_v3"])
def test_terms_add_up(family: str) -> None:
    """Every cell of a product with an addition is the sum of its terms."""
    model, checked = adapted(family), 0
    with watch(model.module, terms=True) as seen:
        model(torch.tensor([PROMPT]))
        for s in seen:
            if s.terms is not None and s.op in ("adapted", "linear"):
                for at in ((0,) * len(s.shape), tuple(n - 1 for n in s.shape)):
                    assert abs(s.terms(at).total() - float(s.value[at])) < 1e-9
                checked += s.op == "adapted"
    assert checked > 5 and terms_of(torch.empty(1)) is None


def test_one_request_of_a_crowd_is_watched() -> None:
    """Its rows of all tensors are those that it has alone, also of the head's adapter, which computes the wanted rows only."""
    model, path = adapted("llama"), "head.adapters.default.lora_a"
    with watch(model.module, request=1) as seen:
        model.generate([PROMPT, PROMPT[:2]], 2)
    with watch(model.module) as alone:
        model.generate([PROMPT[:2]], 2)
    assert "layers.0.attn.q.adapters.default.lora_a" in seen.paths() and seen.all(path)[0].dims == "B N L"
    pairs = [*zip(seen.all(path), alone.all(path), strict=True)]
    assert len(pairs) == 2 and all(far(s.value, t.value) < 1e-10 for s, t in pairs)


def test_a_position_of_the_heads_adapter_is_changed() -> None:
    """Its rows are those that the step wants, so a change finds the last position, and no other has an answer."""
    model, path = adapted("llama"), "head.adapters.default.lora_b"
    plain = trace(model, PROMPT)["logits"].value
    changed = trace(model, PROMPT, edit=[pellucid.times(path, 0.0, T=len(PROMPT) - 1)])["logits"].value
    assert far(plain[:, :-1], changed[:, :-1]) == 0 and far(plain[:, -1], changed[:, -1]) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_plan_falls_when_an_adapter_comes_or_goes(dtype: torch.dtype) -> None:
    """Between two steps of one request, too: after each change the step is what the forward gives."""
    if not native.available():
        pytest.skip("no kernels here")
    model = load(adapters.case("llama")[0], dtype=dtype)
    own = adapters.case("llama")[1]
    decode, free = (Alone(model.module, 32, 4, planned=p) for p in (True, False))  # type: ignore[arg-type]

    def same() -> bool:
        return all(torch.equal(decode.step(t), free.step(t)) for t in (7, 8, 9))

    for d in (decode, free):
        d.start(PROMPT)
    assert same() and decode.plan is not None
    model.adapt(own)
    assert same()
    model.unadapt()
    assert same() and decode.plan is not None
    model.adapt(own)
    assert same()
    model.merge()
    assert same() and decode.plan is not None


def test_the_mutant_that_counts_no_editions_replays_a_stale_plan() -> None:
    if not native.available():
        pytest.skip("no kernels here")
    model = load(adapters.case("llama")[0], dtype="float32")
    decode, free = (Alone(model.module, 32, 4, planned=p) for p in (True, False))  # type: ignore[arg-type]
    for d in (decode, free):
        d.start(PROMPT)
        d.step(7)
    with swapped(Plans, "state", lambda self: self.recorded_state):
        model.adapt(adapters.case("llama")[1])
        assert far(decode.step(8), free.step(8)) > 1e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_in_other_dtypes(dtype: torch.dtype) -> None:
    """Additions have the model's dtype; apart from it, we are at most twice as far from float64 as PEFT is, merged or not."""
    _, own, want = adapters.case("llama")
    other = peft.PeftModel.from_pretrained(theirs(judge("llama"), dtype), own).eval()
    model = load(judge("llama").folder, dtype=dtype, adapter=own)
    assert {p.dtype for p in model.module.parameters()} == {dtype}
    ids = prompts("llama")
    with torch.no_grad():
        bound = 2 * far(run(other, *ids), want) + 1e-6
    assert far(model(*ids), want) < bound
    model.merge()
    assert far(model(*ids), want) < bound


def test_on_meta() -> None:
    folder, own, _ = adapters.case("deepseek_v3")
    model = load(folder, device="meta", adapter=own)
    assert model.num_parameters() == adapted("deepseek_v3").num_parameters()
    assert model(torch.tensor([PROMPT], device="meta")).shape == (1, 4, 97)


def test_commands(specimen: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`run`, `explain`, `trace` and `score` with an adapter on the specimen that turns its answer; a folder that is none is one line."""
    monkeypatch.setenv("COLUMNS", "160")  # where a path is not cut
    hf = "transformer.h.0.mlp.c_fc"
    width = specimen.config.width
    draw = torch.Generator().manual_seed(0)
    inner = specimen.module.layers[0].ffn.up.weight.shape[0]  # type: ignore[union-attr, operator, index]
    tensors = {"lora_A": torch.randn(2, width, generator=draw), "lora_B": torch.randn(inner, 2, generator=draw)}
    save_file({f"base_model.model.{hf}.{n}.weight": t for n, t in tensors.items()}, tmp_path / "adapter_model.safetensors")
    settings: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": [hf]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))

    def ran(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out = capsys.readouterr()
        return code, out.out, out.err

    words = ("pellucid/capitals", "The capital of France is")
    plain, adapted_reply = (ran("run", *words, "--max-new-tokens", "3", *more) for more in ((), ("--adapter", str(tmp_path))))
    assert plain[0] == adapted_reply[0] == 0 and plain[1] != adapted_reply[1]
    code, out, _ = ran("explain", *words, "--all", "--adapter", str(tmp_path))
    assert code == 0 and "lora_a" in out and "lora_b" in out and "W_lora_b" in out
    code, out, _ = ran("--json", "explain", *words, "--adapter", str(tmp_path))
    assert code == 0 and "layers.0.ffn.up.adapters.default.lora_a" in out
    code, *_ = ran("trace", *words, "--adapter", str(tmp_path), "--save", str(tmp_path / "trace"))
    assert code == 0 and "layers.0.ffn.up.adapters.default.lora_a" in {s.path for s in pellucid.load_trace(tmp_path / "trace")}
    (tmp_path / "text").write_text("The capital of France is Paris.", encoding="utf-8")
    each = [json.loads(ran("--json", "score", words[0], str(tmp_path / "text"), *more)[1]) for more in ((), ("--adapter", str(tmp_path)))]
    assert each[0]["log_probability"] != each[1]["log_probability"]
    code, out, err = ran("run", *words, "--adapter", str(tmp_path / "none"))
    assert code == 2 and err.count("\n") == 1 and "adapter_config.json" in err
