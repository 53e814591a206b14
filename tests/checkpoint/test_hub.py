"""Models by their id on the hub, fetched from a hub on this machine: what is asked for, what is used without it, what each fault says."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants, file_download
from safetensors.torch import save

from local_hub import COMMIT, Hub, etag, serving
from pellucid.api.model import SPECIMENS, Model, load
from pellucid.checkpoint import hub as ours
from pellucid.checkpoint.disk import inside
from pellucid.errors import CheckpointError, PellucidError

NAME = "owner/capitals"
CAPITALS = SPECIMENS / "capitals"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that holds the specimen beside pickles and code, and an empty cache."""
    with serving(Hub()) as served:
        served.add(NAME, CAPITALS, **dict.fromkeys(("pytorch_model.bin", "modeling_x.py", "onnx/model.safetensors"), b"\x80\x04never"))
        served.models[NAME]["consolidated.safetensors"] = b"the same once more"
        monkeypatch.setattr(constants, "ENDPOINT", served.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", served.address + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(file_download, "time", SimpleNamespace(sleep=lambda seconds: None, time=lambda: 0.0))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield served


def answer(model: Model) -> list[list[int]]:
    return model.generate([model.tokenizer.encode("The capital of France is")], 3)


def fault(name: str = NAME) -> CheckpointError:
    """The one line that loading ends in."""
    with pytest.raises(PellucidError) as caught:
        load(name)
    assert "\n" not in str(caught.value) and caught.value.__cause__ is None
    assert isinstance(caught.value, CheckpointError)
    return caught.value


def cached(tmp_path: Path) -> list[str]:
    """The blobs in the cache, whole or not."""
    return sorted(p.name for p in tmp_path.glob("hub/models--*/blobs/*"))


def test_a_hub_model_is_the_model_and_only_its_files_are_fetched(hub: Hub, specimen: Model) -> None:
    progress: list[tuple[int, int]] = []
    model = load(NAME, progress=lambda done, total: progress.append((done, total)))
    assert answer(model) == answer(specimen)
    assert all(torch.equal(p, q) for p, q in zip(model.module.parameters(), specimen.module.parameters(), strict=True))
    gets = hub.gets()
    there = {p.name for p in CAPITALS.iterdir()}
    assert set(gets) == there & {"config.json", "generation_config.json", "model.safetensors", *ours.TOKENIZER_FILES}
    assert len(gets) == len(set(gets)) and not {"README.md", "pytorch_model.bin", "consolidated.safetensors"} & set(gets)
    size = (CAPITALS / "model.safetensors").stat().st_size
    assert (size, size) in progress and all(done <= total for done, total in progress)
    hub.requests.clear()
    assert answer(load(NAME)) == answer(specimen)
    assert hub.gets() == []


def test_shards_are_those_that_the_index_lists(hub: Hub, specimen: Model, tmp_path: Path) -> None:
    specimen.save(tmp_path / "shards", shard_bytes=400_000)
    hub.add("owner/shards", tmp_path / "shards", **{"model-extra.safetensors": b"x"})
    table = json.loads(hub.models["owner/shards"]["model.safetensors.index.json"])
    table["weight_map"] |= {"evil": "../../../token", "other": "pytorch_model.bin"}
    shards = {f for f in hub.models["owner/shards"] if f.startswith("model-0")}
    assert len(shards) > 1 and answer(load("owner/shards")) == answer(specimen)
    assert {g for g in hub.gets() if g.endswith(".safetensors")} == shards
    hub.models["owner/evil"] = hub.models["owner/shards"] | {"model.safetensors.index.json": json.dumps(table).encode()}
    assert fault("owner/evil").key == "index.shard"
    assert "pytorch_model.bin" not in hub.gets()


def test_config_alone(hub: Hub) -> None:
    path = ours.fetch_config(NAME)
    assert json.loads(path.read_text()) == json.loads((CAPITALS / "config.json").read_text())
    assert hub.gets() == ["config.json"]
    hub.models["owner/empty"] = {"README.md": b""}
    with pytest.raises(CheckpointError, match=r"config\.json"):
        ours.fetch_config("owner/empty")


def test_an_adapter_is_two_files(hub: Hub, tmp_path: Path, specimen: Model) -> None:
    model = load(NAME, dtype="float32")
    inner, width = model.module.get_parameter("layers.0.ffn.up.weight").shape
    shapes = {"lora_A": torch.ones(2, width), "lora_B": torch.ones(inner, 2)}
    raw = save({f"base_model.model.transformer.h.0.mlp.c_fc.{n}.weight": t for n, t in shapes.items()})
    settings = json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["h.0.mlp.c_fc"]}).encode()
    hub.models["owner/adapter"] = {"adapter_config.json": settings, "adapter_model.safetensors": raw, "training_args.bin": b"\x80\x04"}
    hub.requests.clear()
    model.adapt("owner/adapter")
    assert sorted(hub.gets()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert answer(model) != answer(specimen)
    del hub.models["owner/adapter"]["adapter_model.safetensors"]
    hub.commit = 40 * "b"
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors"):
        load(NAME, adapter="owner/adapter")


def test_a_revision_is_its_own(hub: Hub) -> None:
    load(f"{NAME}@v1")
    assert any(a.path == f"/api/models/{NAME}/revision/v1" for a in hub.requests)
    assert fault(f"{NAME}@gone").key == "hub.unknown"
    for wrong in (f"{NAME}@../../x", f"{NAME}@", f"{NAME}@a/../../b", "owner/na me", "owner/..", f"{NAME}@-x"):
        assert not ours.is_hub_id(wrong)


@pytest.mark.parametrize("how", ["offline", "refused", "500"])
@pytest.mark.quick(4)
def test_the_cache_serves_where_the_hub_is_away(how: str, hub: Hub, specimen: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    load(NAME)
    hub.requests.clear()
    if how == "500":
        hub.status["/revision/main"] = 500
    elif how == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    else:
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert answer(load(NAME)) == answer(specimen)
    (message,) = [str(w.message) for w in warned if w.category is UserWarning]
    assert (
        NAME in message and COMMIT[:8] in message and {"offline": "HF_HUB_OFFLINE", "500": "HTTP 500", "refused": "refused"}[how] in message
    )
    assert hub.gets() == []
    assert fault("owner/other").key == "hub.away"


def test_a_part_of_a_model_in_the_cache_is_no_model(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    ours.fetch_config(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.warns(UserWarning, match="HF_HUB_OFFLINE"):
        ours.fetch_config(NAME)
    message = fault()
    assert message.key == "hub.partly" and "model.safetensors" in str(message)


@pytest.mark.parametrize("token", [None, "hf_wrong", "hf_bad\x01"])
@pytest.mark.quick(4)
def test_a_gated_model_tells_to_log_in_and_keeps_the_token(token: str | None, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add(NAME)
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    message = fault()
    assert token is None or (token not in str(message) and "hf_" not in str(message))
    if token != "hf_bad\x01":
        assert message.key == "hub.login" and "hf auth login" in str(message) and "HF_TOKEN" in str(message)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    load(NAME)


@pytest.mark.parametrize("code", [401, 403])
def test_a_refused_listing_is_not_served_from_the_cache(code: int, hub: Hub) -> None:
    load(NAME)
    hub.status["/revision/main"] = code
    assert fault().key == "hub.login" and str(code) in str(fault())


def test_unknown_ids_and_models_without_safetensors(hub: Hub) -> None:
    message = fault("owner/none")
    assert message.key == "hub.unknown" and "owner/model@revision" in str(message)
    hub.models["owner/pickled"] = {"config.json": b"{}", "pytorch_model.bin": b"", "x.gguf": b""}
    assert fault("owner/pickled").key == "folder.pickled" and "pytorch_model.bin, x.gguf" in str(fault("owner/pickled"))
    hub.models["owner/bare"] = {"config.json": b"{}"}
    assert fault("owner/bare").key == "folder.weightless"
    assert hub.gets() == []


def test_a_broken_connection_goes_on_where_it_broke(hub: Hub, specimen: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.cut["model.safetensors"] = 100_500
    assert answer(load(NAME)) == answer(specimen)
    ranges = [a.range for a in hub.requests if a.method == "GET" and a.path.endswith("model.safetensors")]
    assert ranges == [None, "bytes=100000-"]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("how", ["short", "swapped", "flipped"])
@pytest.mark.quick(5)
def test_nothing_but_what_was_announced_is_used(how: str, name: str, hub: Hub, tmp_path: Path, specimen: Model) -> None:
    """Fewer bytes than announced, other bytes of the same length, one bit: an error, nothing of it stays, and a second try is whole."""
    content = hub.models[NAME][name]
    if how == "short":
        hub.short[name] = len(content) - 10
    else:
        middle = len(content) // 2
        hub.swapped[name] = content[::-1] if how == "swapped" else content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    before = set(cached(tmp_path))
    message = fault()
    assert message.key == ("hub.fetch" if how == "short" else "hub.hash")
    assert etag(name, content) not in set(cached(tmp_path)) - before
    assert not [n for n in cached(tmp_path) if "incomplete" in n]
    hub.short.clear()
    hub.swapped.clear()
    assert answer(load(NAME)) == answer(specimen)


def test_the_mutant_that_verifies_nothing_takes_any_bytes(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    content = hub.models[NAME]["model.safetensors"]
    hub.swapped["model.safetensors"] = content[:-1] + bytes([content[-1] ^ 1])
    monkeypatch.setattr(ours, "verify", lambda path: None)
    load(NAME)


def test_a_redirect_is_followed_and_takes_no_token_along(hub: Hub, specimen: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.elsewhere = True
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert answer(load(NAME)) == answer(specimen)
    away = [a for a in hub.requests if a.path.startswith("/cdn/")]
    assert away and all(a.host == "localhost" and a.token is None for a in away)
    assert any(a.token for a in hub.requests)


def test_a_failing_redirect_does_not_tell_the_signed_address(hub: Hub) -> None:
    hub.elsewhere, hub.status = True, {f"/cdn/{NAME}/model.safetensors": 500}
    message = fault()
    assert message.key == "hub.fetch" and "secret" not in str(message) and "HTTP 500" in str(message)


def test_links_of_the_cache_stay_in_it(hub: Hub, tmp_path: Path) -> None:
    """A blob may lie in the model's blobs, or be a link from there into the store that models share; nowhere else."""
    folder = ours.fetch(NAME)
    link = folder / "model.safetensors"
    assert link.is_symlink() and inside(folder, link.name) == link
    blob = link.resolve()
    store = tmp_path / "hub" / "blobs" / "ab"
    store.mkdir(parents=True)
    blob.rename(store / blob.name)
    blob.symlink_to(store / blob.name)
    assert inside(folder, link.name) == link
    for outside in (tmp_path / "token", tmp_path / "hub" / "models--owner--other" / "x"):
        outside.parent.mkdir(exist_ok=True)
        outside.write_text("secret")
        blob.unlink()
        blob.symlink_to(outside)
        with pytest.raises(CheckpointError, match="outside"):
            inside(folder, link.name)


def test_the_command_honours_the_environment(hub: Hub, tmp_path: Path, specimen: Model) -> None:
    """HF_ENDPOINT and HF_HOME as a user sets them: nothing answers there, so the cache does, and one line says so."""
    ours.fetch(NAME)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "PELLUCID", "LANG"))}
    env |= {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-m", "pellucid", "run", NAME, "The capital of France is", "--max-new-tokens", "1"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip("\n") == specimen.tokenizer.decode(answer(specimen)[0][:1])
    first, *rest = done.stderr.splitlines()
    assert COMMIT[:8] in first and "refused" in first and len(rest) == 1 and "computes in" in rest[0]
    assert not (tmp_path / ".cache").exists()


def test_the_library_speaks_as_before_afterwards(hub: Hub) -> None:
    from huggingface_hub.utils import logging

    before = logging.get_verbosity()
    load(NAME)
    fault("owner/none")
    assert logging.get_verbosity() == before
    assert huggingface_hub.__version__
