"""Where a run starts: at new weights, or at those of a folder; and what of them trains, every weight or a low-rank adapter alone."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from pellucid.checkpoint.adapter import Adapter
from pellucid.checkpoint.default_dtype import named
from pellucid.checkpoint.folder import GGUF, INDEX, WEIGHTS, Folder
from pellucid.checkpoint.gguf.gguf_folder import GgufFolder
from pellucid.checkpoint.multi_token_files import FILE, count_of, read_modules
from pellucid.checkpoint.new_adapter import new_adapter
from pellucid.checkpoint.opening import OpenedModule, open_module, place
from pellucid.checkpoint.tied import resolve
from pellucid.config import Config
from pellucid.counting.sizes import judge_sizes
from pellucid.errors import PellucidError, TrainError
from pellucid.families import understand
from pellucid.families.family import Family
from pellucid.nn.multi_token import MultiTokenPrediction, stands_alone
from pellucid.nn.transformer import Decoder, EncoderDecoder, build, cast
from pellucid.training.identity import digest
from pellucid.training.loop import initialise
from pellucid.training.objectives import Objective, number
from pellucid.training.recipe import Recipe
from pellucid.training.saves import digest as file_digest
from pellucid.training.shards import size_of


class Start(NamedTuple):
    """A model before its first step. hf: fields of its config.json.  adapter: what alone trains.  folder: where its weights are from."""

    family: Family
    hf: dict[str, Any]
    model: Decoder | EncoderDecoder
    adapter: Adapter | None = None
    folder: Folder | GgufFolder | None = None


def fresh(recipe: Recipe, objective: Objective) -> Start:
    """Return the recipe's model before its first step, in the dtype that the optimizer has: with first weights by the seed, or with those
    of its folder.
    """
    if recipe.base is not None:
        return opened(recipe, objective)
    hf = {**recipe.model, "vocab_size": size_of(objective.tokenizer), **numbered(objective)}
    family, cfg = understand(hf, str(recipe.path))
    model = build(cfg)
    fit(recipe, model, hf, objective)
    add_modules(model, recipe, hf)
    initialise(model, len(cfg.layers), recipe.train.spread, recipe.train.seed)
    return Start(family, hf, cast(model, named(recipe.train.full)))


def opened(recipe: Recipe, objective: Objective) -> Start:
    """Return the model of the recipe's folder, whose weights all train, or with a new adapter, which trains alone."""
    assert recipe.base is not None
    got = open_module(base_folder(recipe), judge_sizes, recipe.train.full, quant=recipe.base.quant)
    model, hf = got.module, dict(got.hf)
    fit(recipe, model, hf, objective)
    if (ids := size_of(objective.tokenizer)) > model.config.vocab:
        raise TrainError("train.vocab", path=recipe.path, ids=f"{ids:,}", rows=f"{model.config.vocab:,}")
    a = recipe.adapter
    if a is None:
        if add_modules(model, recipe, hf):
            begin_modules(model, recipe, got)
        model.requires_grad_(True)
        return Start(got.family, hf, model, None, got.folder)
    rooted = a.scale != "alpha/r"
    alpha = 2 * a.rank if a.alpha is None else a.alpha
    try:
        seed = recipe.train.seed
        made = new_adapter(model, got.family, recipe.base.name, a.name, a.rank, alpha, a.targets, rooted, seed, a.dropout, a.dora)
    except PellucidError as fault:
        raise TrainError("recipe.fault", path=recipe.path, reason=fault) from None
    return Start(got.family, hf, model, made, got.folder)


def fit(recipe: Recipe, model: Decoder | EncoderDecoder, hf: dict[str, Any], objective: Objective) -> None:
    """Raise TrainError unless the model is of the kind that the objective trains."""
    if type(model) is not objective.kind:
        raise TrainError("train.kind", path=recipe.path, found=hf.get("model_type"), objective=recipe.objective)


def add_modules(model: Decoder | EncoderDecoder, recipe: Recipe, hf: dict[str, Any]) -> bool:
    """Give a model the modules of the recipe's [multi_token], without weights. False if it has none; a TrainError if the model cannot."""
    if recipe.multi_token is None:
        return False
    if not isinstance(model, Decoder) or not stands_alone(model.config):
        raise TrainError("train.multi_token", path=recipe.path, found=hf.get("model_type"))
    model.multi_token = nn.ModuleList(MultiTokenPrediction(model.config) for _ in range(recipe.multi_token.depth))
    return True


def begin_modules(model: Decoder | EncoderDecoder, recipe: Recipe, got: OpenedModule) -> None:
    """Give the modules of a model that starts from a folder the weights that the folder has of them, and to others first weights."""
    assert isinstance(model, Decoder) and model.multi_token is not None and recipe.multi_token is not None
    dtype, depth = named(recipe.train.full), recipe.multi_token.depth
    initialise(model.multi_token, len(model.config.layers), recipe.train.spread, recipe.train.seed)
    cast(model.multi_token, dtype)
    if isinstance(got.folder, GgufFolder):
        return
    known = min(depth, count_of(got.folder, got.family, model.config))
    for k, one in enumerate(read_modules(got.folder, got.family, model.config, known, dtype)):
        model.multi_token[k] = one


def base_folder(recipe: Recipe) -> Path:
    """Return the folder that the recipe starts from."""
    assert recipe.base is not None
    return folder_named(recipe, recipe.base.name)


def folder_named(recipe: Recipe, name: str) -> Path:
    """Return the folder of a model that the recipe names: relative to the recipe, a specimen's, or that of a hub id."""
    local = recipe.root / name
    return local if local.is_dir() else place(name)


def described(path: Path) -> tuple[Family, Config]:
    """Return the family and the config of a folder, without its weights."""
    folder = Folder(path)
    family, cfg = understand(folder.config, str(folder.path / "config.json"))
    return family, resolve(family, cfg, folder)


def origin(recipe: Recipe, start: Start) -> dict[str, Any]:
    """Return what a run's numbers depend on because of its start, by the names that an error gives; {} for new weights."""
    if start.folder is None or recipe.base is None:
        return {}
    settings = {} if recipe.adapter is None else {f"adapter.{name}": value for name, value in asdict(recipe.adapter).items()}
    settings = {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}  # as JSON gives it back
    for newer in ("adapter.dropout", "adapter.dora"):  # states that are older than a field do not have it
        if not settings.get(newer):
            settings.pop(newer, None)
    return {"base": weights_digest(start.folder), "model.quant": recipe.base.quant, **settings}


def weights_digest(folder: Folder | GgufFolder) -> str:
    """Return the digest of the files that a folder's weights and config come from."""
    path = folder.path
    if isinstance(folder, GgufFolder):
        files = [file for file in sorted(path.parent.iterdir()) if file.suffix == GGUF]
    else:
        files = [file for file in sorted(path.iterdir()) if file.suffix == ".safetensors" or file.name in ("config.json", INDEX)]
    if (alone := path / WEIGHTS) in files:
        files = [file for file in files if file.suffix != ".safetensors" or file in (alone, path / FILE)]
    return digest("".join(file_digest(file) for file in files))


def stops(start: Start) -> list[int]:
    """Return the ids that end the model's texts, by its folder's generation_config.json or its config."""
    given = None if start.folder is None else start.folder.generation_config.get("eos_token_id")
    return [given] if isinstance(given, int) else list(given or start.model.config.stops)


def numbered(objective: Objective) -> dict[str, int]:
    """Return the ids of an objective's tokens, as config.json and generation_config.json name them."""
    return {f"{role}_token_id": number(objective.tokenizer, token) for role, token in objective.ids.items()}
