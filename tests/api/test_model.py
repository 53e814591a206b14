"""What `load` returns and `save` writes: the same bits for us and for transformers, dtypes by rule, names that do not exist, no network."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import judge as judges
import pellucid
from pellucid.api import model as model_module
from pellucid.api.model import Model, load, make, specimens
from pellucid.checkpoint.fill import unfill
from pellucid.checkpoint.folder import INDEX, WEIGHTS
from pellucid.errors import CheckpointError, PellucidError, TokenizerError, UseError
from tiny import far, ids, swapped


def theirs(folder: Path, dtype: Any = "auto") -> Any:
    """transformers' model of a folder."""
    family = json.loads((folder / "config.json").read_text())["model_type"]
    kind = getattr(transformers, f"AutoModelFor{judges.KINDS[family].task}")
    how = {"attn_implementation": "eager", "experts_implementation": "eager"}
    return kind.from_pretrained(folder, dtype=dtype, local_files_only=True, **how).eval()


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """The same names, dtypes, shapes and bits."""
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and a[n].shape == b[n].shape and raw(a[n]) == raw(b[n]) for n in a)


def raw(t: Tensor) -> bytes:
    return bytes(t.detach().contiguous().view(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize("family", judges.FAMILIES)
@pytest.mark.quick(20)
def test_what_is_saved_is_what_was_loaded(family: str, tmp_path: Path) -> None:
    """transformers' folder, loaded and saved by us, is read by transformers bit for bit; in shards too, and by us."""
    j = judges.judge(family)
    model = load(j.folder)
    assert model.dtype == torch.float64 and model.family.name == family
    model.save(tmp_path / "one")
    model.save(tmp_path / "many", shard_bytes=6000)
    assert (tmp_path / "one" / WEIGHTS).is_file() and len(list((tmp_path / "many").glob("model-*.safetensors"))) > 2
    for folder in (tmp_path / "one", tmp_path / "many"):
        again = load(folder)
        assert same(again.tensors(), model.tensors()) and again.config == model.config
        assert same(theirs(folder).state_dict(), theirs(j.folder).state_dict())  # GLM's correction is in float32 whatever is stored
    assert same(theirs(tmp_path / "one").state_dict(), theirs(tmp_path / "many").state_dict())
    assert not (tmp_path / "one" / INDEX).exists() and (tmp_path / "many" / INDEX).is_file()


@pytest.mark.parametrize("family", judges.FAMILIES)
@pytest.mark.quick(13)
def test_what_is_saved_in_bfloat16(family: str, tmp_path: Path) -> None:
    """A cast model says so in its config.json, and both sides read it as that."""
    j = judges.judge(family)
    load(j.folder, dtype="bfloat16").save(tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["dtype"] == "bfloat16"
    again, hf = load(tmp_path / "m", dtype="bfloat16"), theirs(tmp_path / "m")
    assert again.precision.stored == hf.dtype == torch.bfloat16
    assert same(hf.state_dict(), theirs(j.folder, torch.bfloat16).state_dict())


def test_round_trip_mutants_are_seen(folder: Path, tmp_path: Path) -> None:
    """A weight that is transposed, left out, or rounded on its way."""
    model = load(folder)

    def transposed(module: Any, rules: Any) -> Any:
        return ((n, t.t().contiguous() if n.endswith("attn.c_proj.weight") else t) for n, t in unfill(module, rules))

    def rounded(module: Any, rules: Any) -> Any:
        return ((n, t.bfloat16().float()) for n, t in unfill(module, rules))

    for number, wrong in enumerate((transposed, rounded)):
        with swapped(model_module, "unfill", wrong):
            model.save(tmp_path / str(number))
        assert not same(load(tmp_path / str(number)).tensors(), model.tensors())
    with swapped(model_module, "unfill", lambda *a: [x for x in unfill(*a) if "wpe" not in x[0]]):
        model.save(tmp_path / "less")
    with pytest.raises(CheckpointError, match="wpe"):
        load(tmp_path / "less")


def test_everything_travels(folder: Path, tmp_path: Path) -> None:
    """The tokenizer's files as they came, generation_config.json; weights that lie there are not overwritten unasked."""
    model = load(folder)
    model.generation = {"eos_token_id": 7, "temperature": 0.5}
    model.save(tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "m" / name).read_bytes() == (folder / name).read_bytes()
    again = load(tmp_path / "m")
    assert again.generation == model.generation and again.stops == (7,)
    text = "The capital of France is Paris. 法国"
    assert again.tokenizer.encode(text) == model.tokenizer.encode(text) and again.tokenizer.decode(again.tokenizer.encode(text)) == text
    with pytest.raises(CheckpointError) as caught:
        model.save(tmp_path / "m")
    assert caught.value.key == "folder.holds"
    model.save(tmp_path / "m", overwrite=True)


# Dtypes and devices.


def stored(folder: Path, tmp_path: Path, dtype: torch.dtype) -> Path:
    """The folder's model, stored in a dtype."""
    target = tmp_path / str(dtype)
    load(folder, dtype=dtype).save(target)
    return target


def test_dtypes(folder: Path, tmp_path: Path) -> None:
    """Float32 at least on a CPU that has the memory; or what was asked for, by name or as torch has it."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        at = stored(folder, tmp_path, dtype)
        assert load(at).dtype == torch.promote_types(dtype, torch.float32)
        assert load(at, device="meta").dtype == dtype
        for name, other in model_module.DTYPES.items():
            assert load(at, dtype=name).dtype == load(at, dtype=other).dtype == other
        assert {p.dtype for p in load(at, dtype="float32").module.parameters()} == {torch.float32}
    half = load(stored(folder, tmp_path / "again", torch.float16))
    assert same(half.tensors(), {n: t.half().float() for n, t in load(folder).tensors().items()})
    for wrong in ("int8", "", "float", "torch.float32"):
        with pytest.raises(UseError) as caught:
            load(folder, dtype=wrong)
        assert caught.value.key == "model.dtype" and "bfloat16" in str(caught.value)


@pytest.mark.parametrize("family", judges.FAMILIES)
@pytest.mark.quick(13)
def test_meta_has_shapes_alone(family: str) -> None:
    """Nothing but shapes: the same names, the same count, and a forward that computes none."""
    j = judges.judge(family)
    model, real = load(j.folder, device="meta"), load(j.folder)
    assert all(p.is_meta for p in model.module.parameters())
    assert {n: p.shape for n, p in model.module.named_parameters()} == {n: p.shape for n, p in real.module.named_parameters()}
    trained = [p for p in j.hf.parameters() if p.requires_grad]
    bias = [b for name, b in j.hf.named_buffers() if name == "final_logits_bias"]  # Marian's, a buffer there
    assert model.num_parameters() == real.num_parameters() == sum(p.numel() for p in trained + bias)
    given = [x.to("meta") for x in judges.prompts(family)]
    with torch.no_grad():
        out = model(*given)
    assert out.is_meta and out.shape == (*given[-1].shape, j.config["vocab_size"])


def test_repr_and_counts(specimen: Model) -> None:
    assert specimen.family.name in repr(specimen) and f"{specimen.num_parameters():,}" in repr(specimen)
    assert specimen.num_parameters() == sum(p.numel() for p in set(specimen.module.parameters()))


# Names.


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("pellucid/none", "model.specimen"),
        ("pellucid/../checkpoint", "model.specimen"),
        ("pellucid/", "model.specimen"),
        ("pellucid/.", "model.specimen"),
        ("nothing", "model.unknown"),
        ("a/b/c", "model.unknown"),
        ("-a/b", "model.unknown"),
        ("a b/c\x1b[31m", "model.unknown"),
        ("https://example.org/model", "model.unknown"),
        ("owner/model-that-is-not-here", "hub.away"),
    ],
)
def test_unknown_names(name: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that names what there is; no name becomes a path of its own."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PellucidError) as caught:
        load(name)
    message = str(caught.value)
    assert caught.value.key == key and "\n" not in message and "\x1b" not in message
    assert key == "hub.away" or not specimens() or specimens()[0] in message


def test_a_file_is_no_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UseError):
        load(folder / "config.json")
    with pytest.raises(PellucidError, match=r"config\.json"):
        load(tmp_path)


def test_a_folder_without_a_tokenizer(folder: Path, tmp_path: Path) -> None:
    """Ids do without one; text is an error that says so."""
    for name in ("config.json", WEIGHTS):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    model = load(tmp_path)
    assert len(model.generate([[5, 3]], 2, eos=None)[0]) == 2
    with pytest.raises(CheckpointError) as caught:
        pellucid.trace(model, "text")
    assert caught.value.key == "model.tokenizer"


# Calls.


@pytest.fixture(scope="module")
def llama() -> Model:
    return load(judges.judge("llama").folder)


@pytest.fixture(scope="module")
def t5() -> Model:
    return load(judges.judge("t5").folder)


@torch.no_grad()
def test_padding(llama: Model, t5: Model) -> None:
    """A row with padding on either side is the row alone; without the mask it is not."""
    row = ids(1, 6)
    for before, after in ((3, 0), (0, 2), (1, 4)):
        padded = torch.cat([ids(1, before, seed=1), row, ids(1, after, seed=2)], 1)
        mask = torch.tensor([[0] * before + [1] * 6 + [0] * after])
        cut = slice(before, before + 6)
        assert far(llama(padded, padding=mask)[:, cut], llama(row)) < 1e-12
        assert before == 0 or far(llama(padded)[:, cut], llama(row)) > 1e-3
        target = ids(1, 4, seed=3)
        assert far(t5(padded, target, padding=mask), t5(row, target)) < 1e-12
        assert far(t5(padded, target), t5(row, target)) > 1e-6


@torch.no_grad()
def test_prefix(llama: Model) -> None:
    """The first tokens see each other both ways, later ones the past alone; a prefix of one token is none."""
    a = ids(1, 8)
    b = a.clone()
    b[0, 3] = (b[0, 3] + 1) % 97
    plain, ahead = llama(a), llama(a, prefix=4)
    assert far(llama(a, prefix=1), plain) == 0.0 and far(llama(b)[:, :3], plain[:, :3]) == 0.0
    assert far(llama(b, prefix=4)[:, :3], ahead[:, :3]) > 1e-3
    assert far(llama(b, prefix=3)[:, :3], llama(a, prefix=3)[:, :3]) == 0.0


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ((torch.zeros(1, 3),), "model.ids"),
        ((torch.zeros(1, 3, dtype=torch.int32),), "model.ids"),
        ((torch.zeros(3, dtype=torch.long),), "model.ids"),
        ((torch.zeros(1, 1, 3, dtype=torch.long),), "model.ids"),
        (([[1, 2]],), "model.ids"),
        ((torch.tensor([[97]]),), "decode.id"),
        ((torch.tensor([[0, -1]]),), "decode.id"),
        ((torch.tensor([[1]]), torch.tensor([[1]])), "model.target"),
    ],
)
def test_ids_are_checked(given: tuple[Any, ...], key: str, llama: Model) -> None:
    with pytest.raises(UseError) as caught:
        llama(*given)
    assert caught.value.key == key and "\n" not in str(caught.value)


def test_source_and_target_are_checked(t5: Model) -> None:
    for given, key in (((ids(1, 3),), "model.source"), ((ids(1, 3), torch.tensor([[97]])), "decode.id")):
        with pytest.raises(UseError) as caught:
            t5(*given)
        assert caught.value.key == key


def test_learned_positions_end(folder: Path) -> None:
    model = load(folder)
    with torch.no_grad():
        assert model(torch.zeros(1, 64, dtype=torch.long)).shape == (1, 64, 320)
    with pytest.raises(UseError) as caught:
        model(torch.zeros(1, 65, dtype=torch.long))
    assert caught.value.key == "generate.context"


@pytest.mark.parametrize(
    ("config", "generation", "stops"),
    [
        (5, None, (5,)),
        ([5, 6], None, (5, 6)),
        (5, {"eos_token_id": 7}, (7,)),
        (5, {"eos_token_id": [8, 9]}, (8, 9)),
        (5, {"eos_token_id": None}, (5,)),
        (5, {"max_length": 20}, (5,)),
        (5, {"eos_token_id": 0}, (0,)),
        (5, {"eos_token_id": [7, 320, -1]}, (7,)),
    ],
)
def test_stops(config: Any, generation: dict[str, Any] | None, stops: tuple[int, ...], folder: Path, tmp_path: Path) -> None:
    """generation_config.json's stops go before config.json's; ids outside the vocabulary are none."""
    hf = json.loads((folder / "config.json").read_text()) | {"eos_token_id": config}
    (tmp_path / "config.json").write_text(json.dumps(hf))
    (tmp_path / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert tuple(load(tmp_path).stops) == stops


def test_unknown_fields_are_named(folder: Path, tmp_path: Path) -> None:
    """An unknown field is refused by name; with `ignore_fields` of that name the model loads."""
    hf = json.loads((folder / "config.json").read_text()) | {"wobble": 3}
    (tmp_path / "config.json").write_text(json.dumps(hf))
    (tmp_path / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())
    with pytest.raises(PellucidError, match="wobble"):
        load(tmp_path)
    assert load(tmp_path, ignore_fields=["wobble"]).num_parameters() > 0


def test_made_from_a_config() -> None:
    model = make({"model_type": "gpt2", "vocab_size": 50, "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 8}, device="meta")
    assert model.module.embed.weight.is_meta and model.num_parameters() == 50 * 8 + 8 * 8 + 12 * 64 + 13 * 8 + 2 * 8


# A prompt's life.


def test_trace_is_generate(specimen: Model) -> None:
    """A text or its ids; its new tokens are generate's; the first step has the logits of every row."""
    text = "The capital of France is"
    tokens = specimen.tokenizer.encode(text)
    recorded, again = pellucid.trace(specimen, text, steps=4), pellucid.trace(specimen, tokens, steps=4)
    assert recorded.ids == again.ids == tokens and (recorded.prompt, again.prompt) == (text, None) and recorded.new == again.new
    assert recorded.new == specimen.generate([tokens], 4)[0] and recorded.steps == len(recorded.new)
    with torch.no_grad():
        assert far(recorded.all("logits")[0].value, specimen(torch.tensor([tokens]))) < 1e-1
    assert recorded.all("logits")[0].shape[1] == len(tokens)
    with pytest.raises(TokenizerError):
        pellucid.trace(specimen, "\ud800")
    with pytest.raises(UseError):
        pellucid.trace(specimen, "")


def test_trace_of_an_encoder_decoder(t5: Model) -> None:
    recorded = pellucid.trace(t5, [5, 6, 7], steps=3)
    assert recorded.new == t5.generate([[5, 6, 7]], 3)[0]
    assert recorded.all("source")[0].shape == (1, 3, 32) and recorded.steps == len(recorded.new)


LOADING = """
import sys
from pathlib import Path
import torch  # which looks for CUDA with a process of its own
heard = []
def hook(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "subprocess.Popen", "os.exec", "os.system"):
        heard.append(event)
sys.addaudithook(hook)
torch.set_num_threads(1)
import pellucid
from pellucid.errors import PellucidError
try:
    model = pellucid.load(sys.argv[1])
    model.generate([[5, 3]], 2)
    pellucid.trace(model, [5, 3])
except PellucidError as fault:
    print(type(fault).__name__)
print(heard, sorted({"transformers", "peft", "pickle5", "huggingface_hub"} & set(sys.modules)))
"""


def loading(name: str) -> str:
    """What a fresh process hears of sockets, processes and judges while it loads and runs a model with the network allowed."""
    env = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DOWNLOAD_TIMEOUT": "1"}
    return subprocess.run([sys.executable, "-c", LOADING, name], env=env, capture_output=True, text=True, timeout=200, check=True).stdout


def test_loading_asks_no_network(folder: Path) -> None:
    """No socket, no process, no judge; and none of the hub's library for a folder."""
    assert loading(str(folder)).strip() == "[] []"


def test_a_hub_id_would_be_heard() -> None:
    """The mutant: an id of the hub asks the network, and the check hears it."""
    assert "socket" in loading("owner/model-that-is-not-here")


@pytest.mark.parametrize(
    ("how", "key"),
    [({"dtype": torch.int8}, "model.dtype"), ({"device": "gpu9"}, "model.device"), ({"dtype": "complex64"}, "model.dtype")],
)
def test_what_no_machine_has_is_one_line(how, key):
    with pytest.raises(PellucidError) as caught:
        load("pellucid/capitals", **how)
    assert caught.value.key == key and "\n" not in str(caught.value)


def test_padding_and_prefix_are_checked(specimen):
    ids = torch.tensor([[1, 2, 3]])
    for how, key in (({"padding": torch.ones(1, 2)}, "model.padding"), ({"prefix": -1}, "model.prefix"), ({"prefix": "x"}, "model.prefix")):
        with pytest.raises(PellucidError) as caught:
            specimen(ids, **how)
        assert caught.value.key == key
    with pytest.raises(PellucidError) as caught:
        load("")
    assert caught.value.key == "model.unknown"
