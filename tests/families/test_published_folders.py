"""Published folders load over tiny weights with their settings and all fields, or are refused in the words of the table."""

import copy
import json
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers
from torch import Tensor
from transformers import AutoConfig

from judge import KINDS, SHARP, SPREAD, promoted, run
from pellucid.api.model import Model, load
from pellucid.engine.defaults import defaults
from pellucid.errors import PellucidError
from pellucid.families import understand
from pellucid.families.agreeing import AGREEING as FIELDS
from published_folders import ROWS, VOCAB, ids, published, tiny
from tiny import far

Raw = dict[str, Any]

READ = [id for id, row in ROWS.items() if "refused" not in row]
REFUSED = [id for id, row in ROWS.items() if "refused" in row]
KNOWN_AS = {"kimi_k2": "deepseek_v3"}  # transformers has the one under the other's name


def judged(config: Raw) -> Any:
    """Return transformers' model of a config.json in float64, with no parameter at its initial 0 or 1."""
    text = config.get("text_config", config)
    kind = KNOWN_AS.get(text["model_type"], text["model_type"])
    cfg = AutoConfig.for_model(**copy.deepcopy(text) | {"model_type": kind})
    cfg._attn_implementation, cfg._experts_implementation = KINDS[kind].attention, "eager"
    bare = KINDS[kind].task == "MaskedLM" and config.get("architectures", [""])[0].endswith("Model")
    maker = transformers.AutoModel if bare else getattr(transformers, f"AutoModelFor{KINDS[kind].task}")
    torch.manual_seed(0)
    with warnings.catch_warnings(), promoted(), torch.no_grad():
        warnings.simplefilter("ignore")
        hf = maker.from_config(cfg).double().eval()
        for m in hf.modules():  # Gemma keeps √width in float32
            if hasattr(m, "scalar_embed_scale"):
                m.embed_scale.fill_(m.scalar_embed_scale)
        buffers = ((n, b) for n, b in hf.named_buffers() if n.endswith(("correction_bias", "logits_bias")))
        for name, p in [*((n, p) for n, p in hf.named_parameters() if p.requires_grad), *buffers]:
            p += SPREAD * torch.randn_like(p)
            p *= KINDS[kind].sharp if SHARP.fullmatch(name) else 1.0
    return hf


@pytest.fixture(scope="module")
def places() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pellucid-published-") as folder:
        yield Path(folder)


def written(id: str, place: Path) -> Any:
    """Write the tiny copy of a published folder into `place`; return transformers' model of it."""
    config = published(id)
    assert config is not None
    small = tiny(config)
    hf = judged(small)
    hf.save_pretrained(place)
    (place / "config.json").write_text(json.dumps(small))
    (place / "generation_config.json").unlink(missing_ok=True)
    if (generation := published(id, "generation")) is not None:
        (place / "generation_config.json").write_text(json.dumps(ids(generation)))
    if (settings := published(id, "tokenizer")) is not None:
        word(settings).save(str(place / "tokenizer.json"))
        (place / "tokenizer_config.json").write_text(json.dumps(settings))
    return hf


def special(settings: Raw) -> list[str]:
    """Return the special tokens of a tokenizer_config.json."""
    named = [settings.get(f"{name}_token") for name in ("bos", "eos", "pad", "unk")] + settings.get("additional_special_tokens", [])
    return list(dict.fromkeys(t["content"] if isinstance(t, dict) else t for t in named if t))


def word(settings: Raw) -> Library:
    """Return a tokenizer of a few words with those special tokens."""
    pieces = {piece: i for i, piece in enumerate([*special(settings), "[?]", *"abcdefgh"])}
    made = Library(models.WordLevel(pieces, unk_token="[?]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(special(settings))
    return made


def prompts(model: Model) -> tuple[Tensor, ...]:
    """Return ids that reach beyond every tiny window."""
    draw = torch.Generator().manual_seed(1)
    target = torch.randint(3, VOCAB, (2, 21), generator=draw)
    return (torch.randint(3, VOCAB, (2, 17), generator=draw), target) if model.config.encoder is not None else (target,)


@pytest.mark.parametrize("id", READ)
@pytest.mark.quick(7)
def test_a_published_folder_is_read_as_transformers_reads_it(id: str, places: Path) -> None:
    """It loads without a warning, its logits are transformers' in float64, and its generation and tokenizer settings are read."""
    place = places / id.replace("/", "--")
    hf = written(id, place)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = load(place, dtype="float64")
    inputs = prompts(model)
    with promoted(), torch.no_grad():
        theirs = hf(input_ids=inputs[0]).last_hidden_state if not model.config.head else run(hf, *inputs)
    assert far(model(*inputs), theirs) <= 1e-9
    assert model.config.ignored == ()
    if (generation := published(id, "generation")) is not None:
        own, _ = defaults(model.generation, model.name)
        assert own.temperature == (generation.get("temperature", 1.0) if generation.get("do_sample") else 0.0)
        stops = ids(generation).get("eos_token_id")
        assert set(model.stops) == ({stops} if isinstance(stops, int) else {*stops})
    if (settings := published(id, "tokenizer")) is not None and special(settings):
        tokens = {name: model.tokenizer.piece(i) for name, i in model.tokenizer.special.items()}
        assert set(tokens.values()) <= set(special(settings)) and ("eos" in tokens) == bool(settings.get("eos_token"))


@pytest.mark.parametrize("id", REFUSED)
def test_a_folder_that_is_not_read_is_refused_for_its_reason(id: str, tmp_path: Path) -> None:
    config = published(id)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(PellucidError) as refused:
        understand(config or {}, str(tmp_path / "config.json"))
    assert ROWS[id]["refused"] in str(refused.value) and "\n" not in str(refused.value)


def test_the_table_is_as_large_as_it_says() -> None:
    """At least sixty folders have their source; copies are distinguished from those written from memory."""
    assert len(ROWS) >= 60 and len(READ) >= 60
    assert all(row["source"].startswith(("copy in ", "from memory")) for row in ROWS.values())
    assert sum(row["source"].startswith("copy in ") for row in ROWS.values()) >= 25
    assert {c["model_type"] for id in READ if (c := published(id)) is not None} >= {
        *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "gemma3", "phi3"),
        *("deepseek_v2", "deepseek_v3", "kimi_k2", "gpt_oss", "glm", "glm4", "glm4_moe", "falcon", "bloom", "opt", "gpt2", "openai-gpt"),
        *("bert", "t5", "marian", "llama4", "gpt_neox", "gpt_neo", "roberta", "xlm-roberta", "distilbert", "smollm3", "mt5", "granite"),
        *("granitemoe", "cohere", "cohere2", "nemotron", "ernie4_5", "seed_oss", "arcee", "helium", "phi"),
    }  # fmt: skip


DIFFERS: Raw = {
    "max_sequence_length": 4096,
    "is_llama_config": False,
    "rope_interleaved": True,
    "activation": "geglu",
    "sliding_window_size": 512,
    "ff_factor": 3,
}
AGREEING = [(id, name) for id in READ for name in DIFFERS if name in (published(id) or {})]
for own in ("tiiuae/falcon-11B", "distilbert/distilbert-base-uncased"):
    AGREEING.remove((own, "activation"))  # there it is a field of its own


@pytest.mark.parametrize(("id", "name"), AGREEING)
def test_the_same_folder_with_a_value_that_differs_is_refused(id: str, name: str) -> None:
    """The mutants change a field that agreed, or add an unknown one."""
    config = published(id)
    assert DIFFERS.keys() == FIELDS.keys() == {name for _, name in AGREEING}
    assert config is not None and understand(config)[1].ignored == ()
    with pytest.raises(PellucidError, match=f"unknown fields: .*{name} = "):
        understand(config | {name: DIFFERS[name]})
    with pytest.raises(PellucidError, match="unknown fields: use_hyper_heads = True"):
        understand(config | {"use_hyper_heads": True})


def test_logits_of_another_reading_are_far_away(places: Path) -> None:
    """The mutant reads a scaled rope as unscaled, and its logits differ by far more than the bound."""
    id = "meta-llama/Llama-3.1-8B"
    hf, small = written(id, places / "mutant"), json.loads((places / "mutant" / "config.json").read_text())
    (places / "mutant" / "config.json").write_text(json.dumps(small | {"rope_scaling": None}))
    model = load(places / "mutant", dtype="float64")
    with promoted(), torch.no_grad():
        assert far(model(*prompts(model)), run(hf, *prompts(model))) > 1e-6
