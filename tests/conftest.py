"""One thread and no network for every test; two models that several of them load, and a server without a port."""

import gc
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["PELLUCID_CACHE"] = ""  # a test of shards makes its own, and leaves nothing in a home

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers

from pellucid.api.model import Model, load, make
from pellucid.ops.native import library
from served import Served, served

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton, as torch's compiler does: its functions are made then
FULL = bool(os.environ.get("PELLUCID_FULL"))  # not of covering.py, which imports transformers: tests start tests of their own
torch.set_num_threads(1)
gc.disable()  # until the tests are collected: it would walk all that they import, 20 times
TEXTS = ["The capital of France is Paris.", "The capital of Japan is Tokyo.", "法国的首都是巴黎。", "Where is the cat? The cat is here."]


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let each worker of `-n` begin with its half of the tests and take over what another has left.

    A module's fixtures are then made by one worker, and page tests, which wait, run beside tests that compute.
    """
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "worksteal"


def pytest_sessionstart() -> None:
    """Stop where the kernels are stale or missing: everything would run through torch, and their tests would show nothing."""
    if (sentence := library.unfit()) is not None:
        pytest.exit(sentence, returncode=1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the quick form keep each n-th case of a test that is marked `quick(n)`, from a case that its name decides.

    Tests of the same families so keep different families, and together most of them.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid}: an address in a name is another one in each worker, which then collect other tests")
        if item.get_closest_marker("quick") is not None and not FULL:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    out = set[pytest.Item]()
    for name, ours in cases.items():
        mark = ours[0].get_closest_marker("quick")
        assert mark is not None
        step = min(mark.args[0], len(ours))
        out |= {item for i, item in enumerate(ours) if (i - crc32(name.encode())) % step}
    if out:
        config.hook.pytest_deselected(items=list(out))
        items[:] = [item for item in items if item not in out]


def pytest_collection_finish() -> None:
    """Leave modules and tests, which stay until the end, out of every later garbage collection."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # tests about what is freed collect themselves
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let each test draw numbers of its own, the same ones in any order and worker."""
    seed = crc32(item.nodeid.encode())
    random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small random GPT-2 with a byte-level tokenizer of its own, as a Hugging Face folder."""
    path = tmp_path_factory.mktemp("model") / "gpt2"
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<|endoftext|>"], initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    hf = {"model_type": "gpt2", "vocab_size": 320, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64}
    model = make({**hf, "bos_token_id": 0, "eos_token_id": 0}, dtype=torch.float32)
    draw = torch.Generator().manual_seed(3)
    for name, p in model.module.named_parameters():
        p.data = torch.randn(p.shape, generator=draw) * 0.3 + (p.ndim == 1 and "norm" in name)
    model.save(path)
    tokenizer.save(str(path / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(about))
    return path


@pytest.fixture(scope="session")
def specimen() -> Model:
    """Return the specimen that ships with the package. Tests share it: do not change it."""
    return load("pellucid/capitals")


@pytest.fixture(scope="module")
def api() -> Iterator[Served]:
    with served() as server:
        yield server
