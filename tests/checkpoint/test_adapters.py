"""LoRA adapters, judged by PEFT in float64: on the model, merged, stacked, written, and refused where they are not what they say."""

import copy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file

import adapters
from judge import judge, promoted, prompts
from pellucid.api.model import load
from pellucid.checkpoint import adapter, adapter_file
from pellucid.errors import PellucidError
from pellucid.nn.adapted import AdaptedLinear, Addition
from tiny import far, swapped

FAMILIES = list(adapters.TARGETS)
Q = "base_model.model.model.layers.0.self_attn.q_proj"


def error(family: str, merge: bool = False, **settings: Any) -> float:
    """How far our logits with an adapter are from PEFT's."""
    folder, own, want = adapters.case(family, **settings)
    model = load(folder, dtype="float64", adapter=own)
    if merge:
        model.merge()
        assert not any(isinstance(m, AdaptedLinear) for m in model.module.modules())
    return far(model(*prompts(family)), want)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_pefts(family: str) -> None:
    folder, _, want = adapters.case(family)
    assert error(family) < 1e-9
    assert far(load(folder, dtype="float64")(*prompts(family)), want) > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_is_unmerged(family: str) -> None:
    folder, own, want = adapters.case(family)
    model = load(folder, dtype="float64", adapter=own)
    before = model(*prompts(family))
    model.merge()
    assert far(model(*prompts(family)), before) < 1e-10 * max(1.0, float(want.abs().max()))
    assert not model.adapters
    model.save(out := adapters.fresh())
    assert far(load(out, dtype="float64")(*prompts(family)), before) < 1e-10 * max(1.0, float(want.abs().max()))


SETTINGS = {
    "rslora": {"use_rslora": True},
    "patterns": {"rank_pattern": {"v_proj": 5, r"layers\.1\.self_attn\.q_proj": 2}, "alpha_pattern": {"^model.layers.0.mlp.up_proj": 1}},
    "one layer": {"layers_to_transform": [1], "target_modules": ["q_proj", "k_proj"]},
    "dora, rslora": {"use_dora": True, "use_rslora": True},
    "saved": {"modules_to_save": ["lm_head", "norm", "input_layernorm"], "target_modules": ["q_proj", "up_proj"]},
}


@pytest.mark.parametrize("name", list(SETTINGS))
@pytest.mark.parametrize("merge", [False, True])
def test_settings_are_pefts(name: str, merge: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "case", adapters.case.__wrapped__)
    assert error("llama", merge, **SETTINGS[name]) < 1e-9


class Without(Addition):
    """A mutant: the addition is not scaled."""

    def __init__(self, a: Any, b: Any, scale: float, *more: Any) -> None:
        super().__init__(a, b, 1.0, *more)


@pytest.mark.parametrize(
    ("family", "owner", "name", "mutant"),
    [
        ("llama", adapter, "Addition", Without),
        ("llama", adapter_file.math, "sqrt", lambda x: x),
        ("gpt2", adapter, "transposed", lambda group, shapes: False),
        ("deepseek_v3", AdaptedLinear, "dense_weight", lambda self: self.weight),
        ("t5", AdaptedLinear, "forward", lambda self, x: torch.nn.functional.linear(x, self.weight, self.bias)),
    ],
)
def test_mutants_are_far(family: str, owner: Any, name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "case", adapters.case.__wrapped__)
    settings = {"use_rslora": True} if name == "sqrt" else {}
    adapters.trained(judge(family), **settings)
    folder, own, want = adapters.case(family, **settings)
    with swapped(owner, name, mutant):
        try:
            assert far(load(folder, dtype="float64", adapter=own)(*prompts(family)), want) > 1e-3
        except (RuntimeError, IndexError):
            assert name == "transposed"


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_written_is_what_peft_wrote_and_reads(family: str) -> None:
    folder, own, want = adapters.case(family)
    model = load(folder, dtype="float64", adapter=own)
    model.save_adapter(again := adapters.fresh())
    a, b = (load_file(f / "adapter_model.safetensors") for f in (own, again))
    repeated = {n for n in a if "base_layer" in n}  # of an adapted head PEFT writes the model's own weight too
    assert a.keys() - repeated == b.keys() and all(torch.equal(a[n], b[n]) and a[n].dtype == b[n].dtype for n in b)
    with promoted():
        theirs = peft.PeftModel.from_pretrained(copy.deepcopy(judge(family).hf), again).double().eval()
    state = peft.get_peft_model_state_dict(theirs)
    assert all(torch.equal(state[n], b[n]) for n in b)
    assert far(adapters.logits(theirs, *prompts(family)), want) == 0
    with pytest.raises(PellucidError, match="adapter_model"):
        model.save_adapter(again)
    model.save_adapter(again, overwrite=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_taken_off_nothing_stays(family: str) -> None:
    folder, own, _ = adapters.case(family)
    model = load(folder, dtype="float64")
    before, names = model(*prompts(family)), [n for n, _ in model.module.named_modules()]
    kinds, size = [type(m) for m in model.module.modules()], model.num_parameters()
    model.adapt(own)
    assert far(model(*prompts(family)), before) > 0.1 and model.num_parameters() > size
    model.unadapt()
    assert torch.equal(model(*prompts(family)), before)
    assert [n for n, _ in model.module.named_modules()] == names and [type(m) for m in model.module.modules()] == kinds
    assert model.num_parameters() == size and model.tensors()


def test_several_add_up_by_name() -> None:
    j, x = judge("llama"), prompts("llama")
    first, second = adapters.trained(j), adapters.trained(j, seed=2, target_modules=["q_proj", "k_proj"], r=5)
    own, other = adapters.saved(first), adapters.saved(second)
    both = first
    both.load_adapter(other, adapter_name="other")
    both.base_model.set_adapter(["default", "other"])
    model = adapters.plain("llama")
    model.adapt(own)
    one = model(*x)
    model.adapt(other, "other")
    assert far(model(*x), adapters.logits(both.double(), *x)) < 1e-9 < far(model(*x), one)
    model.unadapt("other")
    assert torch.equal(model(*x), one)
    for wrong in ("other", None):
        with pytest.raises(PellucidError):
            model.adapt(own, "default") if wrong is None else model.unadapt(wrong)
    with pytest.raises(PellucidError, match="letters"):
        model.adapt(own, "a.b")
    model.adapt(other, "other")
    with pytest.raises(PellucidError, match="default, other"):
        model.save_adapter(adapters.fresh())
    with pytest.raises(PellucidError, match="default, other"):
        model.save(adapters.fresh())


def test_a_tied_head_is_not_merged() -> None:
    """qwen3 with a tied head: the addition is the head's alone, and a merge would be the embedding's too."""
    j = judge("qwen3", "biases, tied")
    model = adapters.trained(j, target_modules=["lm_head", "q_proj"])
    ours = load(j.folder, dtype="float64", adapter=adapters.saved(model))
    assert far(ours(*prompts("qwen3")), adapters.logits(model, *prompts("qwen3"))) < 1e-9
    with pytest.raises(PellucidError) as caught:
        ours.merge()
    assert caught.value.key == "adapter.tied" and "head" in str(caught.value)
    assert far(ours(*prompts("qwen3")), adapters.logits(model, *prompts("qwen3"))) < 1e-9


def shape(*sizes: int) -> torch.Tensor:
    return torch.ones(sizes)


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("adapter.setting", {"peft_type": "IA3"}, {}, "IA3"),
    ("adapter.setting", {"peft_type": "PREFIX_TUNING"}, {}, "peft_type"),
    ("adapter.half", {"use_dora": True}, {}, "lora_magnitude_vector"),
    ("adapter.setting", {"bias": "all"}, {}, "bias"),
    ("adapter.setting", {"lora_bias": True}, {}, "lora_bias"),
    ("adapter.setting", {"target_parameters": ["mlp.experts.down_proj"]}, {}, "target_parameters"),
    ("adapter.setting", {"init_lora_weights": "pissa"}, {}, "pissa"),
    ("adapter.setting", {"layer_replication": [[0, 2]]}, {}, "layer_replication"),
    ("adapter.setting", {"not_known_yet": 1}, {}, "not_known_yet"),
    ("adapter.setting", {"r": 0}, {}, " 0"),
    ("adapter.setting", {"r": "3"}, {}, "r is 3"),
    ("adapter.setting", {"lora_alpha": None}, {}, "lora_alpha"),
    ("adapter.setting", {"rank_pattern": [1]}, {}, "rank_pattern"),
    ("adapter.pattern", {"alpha_pattern": {"(a+)+": 2}}, {}, "(a+)+"),
    ("adapter.pattern", {"rank_pattern": {".*.*.*x": 2}}, {}, "x"),
    ("adapter.pattern", {"rank_pattern": {"(q": 2}}, {}, "(q"),
    ("adapter.pattern", {"rank_pattern": {".?" * 12 + "X": 2}}, {}, "X"),  # forty of them would take years
    ("adapter.pattern", {"alpha_pattern": {"(.|.)" * 12 + "X": 2}}, {}, "X"),
    ("weights.shape", {"r": 4}, {}, "lora_A"),
    ("weights.shape", {}, {f"{Q}.lora_A.weight": shape(3, 31)}, "(3, 31)"),
    ("weights.shape", {}, {f"{Q}.lora_B.weight": shape(3, 32)}, "q_proj.lora_B"),
    ("adapter.half", {}, {f"{Q}.lora_B.weight": None}, "q_proj.lora_B.weight"),
    ("adapter.missing", {}, {f"{Q}.lora_A.weight": None, f"{Q}.lora_B.weight": None}, "layers.0.self_attn.q_proj"),
    ("adapter.extra", {"target_modules": ["v_proj"]}, {}, "v_proj"),
    ("adapter.layer", {"target_modules": "x"}, {f"{Q.replace('0', '7')}.lora_A.weight": shape(3, 32)}, "layers.7"),
    ("adapter.layer", {"target_modules": "x"}, {"base_model.model.model.norm.lora_A.weight": shape(3, 32)}, "model.norm"),
    ("adapter.tensor", {}, {"base_model.model.model.embed_tokens.lora_embedding_A": shape(3, 97)}, "lora_embedding_A"),
    ("adapter.tensor", {}, {f"{Q}.lora_magnitude_vector.weight": shape(32)}, "lora_magnitude_vector"),
    ("adapter.tensor", {}, {"stray": shape(1)}, "stray"),
    ("adapter.tensor", {}, {f"{Q}.lora_A.weight": torch.ones(3, 32, dtype=torch.int8)}, "lora_A"),
    ("adapter.own", {}, {"base_model.model.lm_head.weight": shape(97, 32)}, "lm_head"),
    ("adapter.own", {}, {"base_model.model.lm_head.base_layer.weight": shape(97, 32)}, "lm_head"),
    ("weights.shape", {"modules_to_save": ["norm"]}, {"base_model.model.model.norm.weight": shape(31)}, "31"),
    ("adapter.saved", {"modules_to_save": ["classifier"]}, {}, "classifier"),
]


@pytest.mark.parametrize(("key", "settings", "tensors", "message"), REFUSED)
def test_refused_by_name_and_nothing_is_changed(key: str, settings: dict[str, Any], tensors: dict[str, Any], message: str) -> None:
    model = adapters.plain("llama")
    own = adapters.case("llama")[1]
    with pytest.raises(PellucidError) as caught:
        model.adapt(adapters.changed(own, tensors, **settings))
    text = str(caught.value)
    assert caught.value.key == key and message in text and "\n" not in text and "adapter_" in text
    assert not model.adapters and not any(isinstance(m, AdaptedLinear) for m in model.module.modules())
    model.adapt(adapters.changed(own))


def test_an_adapter_of_another_model(tmp_path: Path) -> None:
    for family, other in (("llama", "gpt2"), ("gpt2", "llama"), ("qwen3", "llama")):
        with pytest.raises(PellucidError):
            adapters.plain(family).adapt(adapters.case(other)[1])
    with pytest.raises(PellucidError, match=r"adapter_config\.json"):
        adapters.plain("llama").adapt(tmp_path)


ENDLESS = [".?" * 40 + "X", "(.|.)" * 40 + "X", "(?:.|.)" * 40 + "X", "((.|.)(.|.)|.)" * 9, "a?" * 3, "a{0,9}" * 3, "(?=.)q", "(?i)q",
           "[[]q", "x" * 301]  # fmt: skip
READ_AS_PEFT_DOES = ["q_proj", r"layers\.1\.self_attn\.q_proj", "^model.layers.0.mlp.up_proj", r".*\.layers\.\d+\.mlp", "(q|k|v)_proj",
                     r".*layers\.(0|1|2|3)\..*(q|v)_proj", r"layers\.[0-3]\.mlp\.(?:up|down)_proj", r"a\(b\)\*", "[^|]q"]  # fmt: skip


def check_patterns() -> None:
    assert [p for p in ENDLESS if adapter_file.bounded(p)] == []
    assert [p for p in READ_AS_PEFT_DOES if not adapter_file.bounded(p)] == []


def test_a_pattern_has_few_ways_to_match() -> None:
    """The form of a pattern bounds the time of a match, so that none has to be tried."""
    check_patterns()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("REPEATS", 99),
        ("REPEATS", 1),
        ("WAYS", 2**99),
        ("WAYS", 7),
        ("LENGTH", 999),
        ("ways", lambda plain: plain.count("|")),
        ("bounded", lambda text: len(text) <= 300 and ")*" not in text and sum(map(text.count, "*+")) <= 2),
    ],
)
def test_the_check_sees_a_wrong_bound(name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_file, name, wrong)
    with pytest.raises(AssertionError):
        check_patterns()
