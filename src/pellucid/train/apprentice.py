"""From a recipe to a model folder: corpus, tokenizer, training, examination, and the card that tells how it did."""

import fcntl
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import tokenizers
import torch

from pellucid.checkpoint.disk import reason
from pellucid.checkpoint.fill import unfill
from pellucid.checkpoint.folder import save_folder
from pellucid.errors import TrainError
from pellucid.families import Family, understand
from pellucid.models import Decoder, build, cast
from pellucid.train import corpus
from pellucid.train.card import card
from pellucid.train.loop import Run, initialise
from pellucid.train.quiz import greedy, quiz
from pellucid.train.recipe import Recipe, read_recipe

LOCK = "lock"
Progress = Callable[[dict[str, Any]], None]


def run_recipe(path: Path, out: Path | None, resume: bool, threads: int | None, progress: Progress) -> Path:
    """Train what a recipe tells, and return the folder of the finished model, `out`/model.

    out: the run's folder, runs/<name> where None.  resume: go on from its newest saved state.  progress: takes each log entry.
    """
    recipe = read_recipe(path)
    folder = out or Path("runs") / recipe.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        used = any(f.name != LOCK for f in folder.iterdir())
    except OSError as fault:
        raise TrainError("train.folder", folder=folder, reason=reason(fault)) from None
    if used and not resume:
        raise TrainError("train.exists", folder=folder)
    if threads is not None:
        torch.set_num_threads(threads)
    with alone(folder), stopping() as stopped:
        tokenizer, documents = prepare(recipe)
        family, hf, model = fresh(recipe, tokenizer)
        run = Run(model, documents, recipe.train, folder)
        for warning in run.resume() if resume else ():
            progress({"warning": warning})
        if not run.train(progress, stopped):
            raise TrainError("train.stopped", step=run.step, steps=recipe.train.steps, folder=folder)
        return finish(recipe, folder / "model", family, hf, model, tokenizer, progress)


def prepare(recipe: Recipe) -> tuple[tokenizers.Tokenizer, list[list[int]]]:
    """The corpus' tokenizer, and its documents as ids: one sentence each, ended by the end of text."""
    tokenizer = corpus.train_tokenizer(corpus.pieces(recipe.data), recipe.tokenizer["size"])
    texts = [s.text for s in corpus.sentences(recipe.data, seed=recipe.train.seed)]
    end = tokenizer.token_to_id(corpus.END_OF_TEXT)
    assert end is not None
    return tokenizer, [[*e.ids, end] for e in tokenizer.encode_batch(texts)]


def fresh(recipe: Recipe, tokenizer: tokenizers.Tokenizer) -> tuple[Family, dict[str, Any], Decoder]:
    """A model of the recipe's configuration with its first weights, in float32."""
    end = tokenizer.token_to_id(corpus.END_OF_TEXT)
    hf = {**recipe.model, "vocab_size": tokenizer.get_vocab_size(), "bos_token_id": end, "eos_token_id": end}
    family, cfg = understand(hf, str(recipe.path))
    model = build(cfg)
    if not isinstance(model, Decoder):
        raise TrainError("train.kind", path=recipe.path, found=hf.get("model_type"))
    initialise(model, len(cfg.layers), recipe.train.spread, recipe.train.seed)
    return family, hf, model


def finish(
    recipe: Recipe,
    folder: Path,
    family: Family,
    hf: dict[str, Any],
    model: Decoder,
    tokenizer: tokenizers.Tokenizer,
    progress: Progress,
) -> Path:
    """Round to bfloat16, examine what is saved, and write the folder with its card."""
    cast(model.eval(), torch.bfloat16)
    cast(model, torch.float32)
    scores = quiz(recipe.data, greedy(model, tokenizer), tokenizer)
    progress({"scores": {f"{s.relation}.{s.language}": round(s.accuracy, 4) for s in scores}})
    cast(model, torch.bfloat16)
    end = tokenizer.token_to_id(corpus.END_OF_TEXT)
    tensors = {name: t.clone() for name, t in unfill(model, family.rules(model.config))}
    architecture = {
        "gpt2": "GPT2LMHeadModel",
        "llama": "LlamaForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
        "deepseek_v3": "DeepseekV3ForCausalLM",
        "gpt_oss": "GptOssForCausalLM",
    }
    config = {"architectures": [architecture[family.name]], **hf, "dtype": "bfloat16"}
    save_folder(folder, config, tensors, {"bos_token_id": end, "eos_token_id": end}, overwrite=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), corpus.END_OF_TEXT)
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.config.context, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card(recipe, model, scores), encoding="utf-8")
    return folder


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the run's folder: two runs in one would overwrite each other."""
    try:
        f = (folder / LOCK).open("w")
    except OSError as fault:
        raise TrainError("train.folder", folder=folder, reason=reason(fault)) from None
    with f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TrainError("train.locked", folder=folder) from None
        yield


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether SIGINT or SIGTERM has come; the run then ends at the next step's border, saved."""
    asked: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    before = {s: signal.signal(s, hear) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
