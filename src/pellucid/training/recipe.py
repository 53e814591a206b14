"""Recipes: a TOML file with the model, its tokenizer, its data and its training. Every field is checked by name."""

import re
import tomllib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from pellucid.checkpoint.disk import read_whole
from pellucid.errors import TrainError
from pellucid.training.corpus import corpora
from pellucid.training.invented import WORDS, Invented, most_facts
from pellucid.training.objectives import OBJECTIVES, Data
from pellucid.training.texts import Texts

RECIPE_BYTES = 1_000_000
NUMBERS = {"texts": 1, "facts": 2, "copies": 0, "length": 2}
"""The least of each number that a corpus of invented facts needs in [data]."""
CHOICES = {"pack": ("documents", "stream", "none"), "long": ("split", "drop", "cut", "refuse")}
LONGEST_ROW = 1 << 20
TABLES = {"name": str, "model": dict, "tokenizer": dict, "data": dict, "train": dict, "eval": dict, "watch": dict}
OPTIONAL = {"eval", "watch"}
FROM_ZERO = {"seed", "warmup", "weight_decay", "floor", "correction", "auxiliary"}
BELOW_ONE = {"beta1", "beta2", "smoothing"}


@dataclass(frozen=True)
class TrainSettings:
    """The [train] table of a recipe: AdamW with a warm-up and a cosine down to `floor` of the learning rate.

    batch: documents a step.  micro: documents of one forward, whose gradients are added up; None for all.  pool: batches that are filled
    from one pool sorted by length, so that little is padded.
    """

    seed: int
    steps: int
    batch: int
    learning_rate: float
    warmup: int = 100
    floor: float = 0.1
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    smoothing: float = 0.0  # of the targets, 0.1 in arXiv 1706.03762 §5.4
    correction: float = 1e-3  # by how much a router's correction moves in a step, arXiv 2408.15664
    auxiliary: float = 0.0  # times a loss that is least where experts are chosen evenly, arXiv 2101.03961
    pool: int = 16
    micro: int | None = None
    spread: float = 0.02  # standard deviation of the first weights
    save_every: int = 1000
    keep: int | None = 2  # of the newest states; None, "all" in a recipe, keeps every one
    log_every: int = 50


@dataclass(frozen=True)
class EvalSettings:
    """The [eval] table of a recipe. every: the steps after which the loss of what is held out of training is logged."""

    every: int


@dataclass(frozen=True)
class WatchSettings:
    """The [watch] table of a recipe: the steps to record. every: each step of this distance.  first: and the first ones.

    tensors: paths with `*`.  gradients: theirs too.  tokens: whose embedding is kept.  prompts: texts to run after each recorded step.
    """

    every: int | None = None
    first: int = 0
    tensors: tuple[str, ...] = ()
    gradients: bool = True
    tokens: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()


Table = TypeVar("Table", TrainSettings, EvalSettings)


@dataclass(frozen=True)
class Recipe:
    """A recipe. model: fields of a Hugging Face config.json.  data, tokenizer: of the corpus, or of texts.

    objective: what is trained, one of `objectives.OBJECTIVES`.  root: the folder that its files are relative to.
    """

    path: Path
    root: Path
    name: str
    model: dict[str, Any]
    tokenizer: dict[str, Any]
    data: Data
    objective: str
    train: TrainSettings
    evaluate: EvalSettings | None = None
    watch: WatchSettings | None = None


def read_recipe(path: Path, root: Path | None = None) -> Recipe:
    """Read and check a recipe. data.folder: a corpus that ships, "pellucid/capitals", or a folder relative to the recipe.

    root: the folder that its files are relative to, if the recipe is a copy.
    """
    root = root or path.parent
    raw = read_whole(path, RECIPE_BYTES, TrainError)
    try:
        tables = tomllib.loads(raw.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise TrainError("recipe.toml", path=path, reason=fault) from None
    known(path, "", tables, {"objective", *TABLES})
    for field, kind in TABLES.items():
        if (field in tables or field not in OPTIONAL) and not isinstance(tables.get(field), kind):
            raise TrainError("recipe.field", path=path, field=field, found=repr(tables.get(field)), allowed=kind.__name__)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", tables["name"]):  # it names the run's folder
        raise TrainError("recipe.field", path=path, field="name", found=repr(tables["name"]), allowed="A-Z a-z 0-9 . _ -")
    objective = tables.get("objective", "causal")
    if not isinstance(objective, str) or objective not in OBJECTIVES:
        raise TrainError("recipe.field", path=path, field="objective", found=repr(objective), allowed=", ".join(OBJECTIVES))
    data = data_of(path, root, tables["data"], objective)
    check_tokenizer(path, tables["tokenizer"], isinstance(data, Texts))
    train = train_settings(path, tables["train"])
    evaluate = settings(path, "eval", EvalSettings, tables["eval"]) if "eval" in tables else None
    watch = watch_settings(path, tables["watch"]) if "watch" in tables else None
    return Recipe(path, root, tables["name"], tables["model"], tables["tokenizer"], data, objective, train, evaluate, watch)


def check_tokenizer(path: Path, given: dict[str, Any], of_texts: bool) -> None:
    """Raise TrainError unless [tokenizer] has a size to train one of; for texts a folder to take one from will do as well."""
    known(path, "tokenizer.", given, {"size", *(("from", "sample_bytes") if of_texts else ())})
    if "from" in given:
        if "size" in given:
            raise TrainError("recipe.one", path=path, fields="tokenizer.size, tokenizer.from")
        if not isinstance(folder := given["from"], str) or not folder:
            raise TrainError("recipe.field", path=path, field="tokenizer.from", found=repr(folder), allowed="str")
        return
    for field, least in (("size", 257), *((("sample_bytes", 1),) if "sample_bytes" in given else ())):
        if type(number := given.get(field)) is not int or not least <= number < (1 << 24 if field == "size" else 1 << 40):
            raise TrainError("recipe.field", path=path, field=f"tokenizer.{field}", found=repr(number), allowed=f"int >= {least}")


def texts_of(path: Path, root: Path, given: dict[str, Any], objective: str) -> Texts:
    """Return the [data] table of a recipe of texts, checked. Its files are looked for when the data is prepared."""
    known(path, "data.", given, {f.name for f in fields(Texts)} - {"root"})
    if objective != "causal":
        raise TrainError("recipe.field", path=path, field="objective", found=repr(objective), allowed="causal")
    files = given["files"]
    right = {
        "files": (isinstance(files, list) and files and all(isinstance(file, str) and file for file in files), '["text/*.txt", ...]'),
        "field": (isinstance(given.get("field", "text"), str), "str"),
        "length": (type(length := given.get("length", 2)) is int and 2 <= length <= LONGEST_ROW, f"int 2 … {LONGEST_ROW}"),
        "held_out": (type(share := given.get("held_out", 0)) in (int, float) and 0 <= share <= 0.5, "number 0 … 0.5"),
        **{field: (field not in given or given[field] in choices, ", ".join(choices)) for field, choices in CHOICES.items()},
    }
    for field, (sound, allowed) in right.items():
        if not sound:
            raise TrainError("recipe.field", path=path, field=f"data.{field}", found=repr(given[field]), allowed=allowed)
    return Texts(root, **{**given, "files": tuple(files)})


def data_of(path: Path, root: Path, given: dict[str, Any], objective: str) -> Data:
    """Return the data that the [data] table names: texts, a folder of facts, or one of words to invent facts from, with its numbers."""
    if "files" in given:
        return texts_of(path, root, given, objective)
    name = given.get("folder")
    if not isinstance(name, str):
        raise TrainError("recipe.field", path=path, field="data.folder", found=repr(name), allowed="str")
    if name.startswith("pellucid/") and name not in corpora():
        raise TrainError("recipe.field", path=path, field="data.folder", found=repr(name), allowed=", ".join(corpora()))
    folder = corpora().get(name, root / name)
    if not (folder / WORDS).exists():
        known(path, "data.", given, {"folder"})
        return folder
    known(path, "data.", given, {"folder", *NUMBERS})
    if objective not in ("causal", "prefix"):
        raise TrainError("recipe.field", path=path, field="objective", found=repr(objective), allowed="causal, prefix")
    most = {"facts": most_facts(folder)}
    for field, least in NUMBERS.items():
        value, high = given.get(field), most.get(field, 2**31)
        if type(value) is not int or not least <= value <= high:
            raise TrainError("recipe.field", path=path, field=f"data.{field}", found=repr(value), allowed=f"int {least} … {high}")
    return Invented(folder, **{field: given[field] for field in NUMBERS})


def known(path: Path, table: str, table_given: dict[str, Any], allowed: set[str]) -> None:
    """Raise TrainError for the first field of a table that is not in `allowed`."""
    for field in sorted(table_given.keys() - allowed):
        raise TrainError("recipe.unknown", path=path, field=table + field, allowed=", ".join(sorted(allowed)))


def settings(path: Path, table: str, kind: type[Table], given: dict[str, Any]) -> Table:
    """Return a table of numbers, [train] or [eval], checked against its bounds."""
    known(path, f"{table}.", given, {f.name for f in fields(kind)})
    for field in fields(kind):
        name, is_int = field.name, field.type is not float
        value = given.get(name, field.default)
        if value is None:
            continue
        about = "int" if is_int else "number"
        if value is MISSING:
            raise TrainError("recipe.field", path=path, field=f"{table}.{name}", found="-", allowed=about)
        right = type(value) is int if is_int else type(value) in (int, float)
        high = 1.0 if name in BELOW_ONE else 2.0**63
        if not right or not 0 <= value < high or (value == 0 and name not in FROM_ZERO | BELOW_ONE):
            bound = f"{about} {'>=' if name in FROM_ZERO | BELOW_ONE else '>'} 0" + (", < 1" if name in BELOW_ONE else "")
            raise TrainError("recipe.field", path=path, field=f"{table}.{name}", found=repr(value), allowed=bound)
    return kind(**given)


def watch_settings(path: Path, given: dict[str, Any]) -> WatchSettings:
    """Return the [watch] table, checked."""
    known(path, "watch.", given, {f.name for f in fields(WatchSettings)})
    if not {"every", "first"} & given.keys():
        raise TrainError("recipe.one", path=path, fields="watch.every, watch.first")
    for name, value in given.items():
        if name in ("every", "first"):
            sound, allowed = type(value) is int and 0 < value < 2**63, "int > 0"
        elif name == "gradients":
            sound, allowed = isinstance(value, bool), "true, false"
        else:
            sound, allowed = isinstance(value, list) and all(isinstance(x, str) and x for x in value), '["...", ...]'
        if not sound:
            raise TrainError("recipe.field", path=path, field=f"watch.{name}", found=repr(value), allowed=allowed)
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return WatchSettings(**values)


def train_settings(path: Path, given: dict[str, Any]) -> TrainSettings:
    """Return the [train] table, checked."""
    if "keep" in given and given["keep"] != "all" and (type(given["keep"]) is not int or given["keep"] < 1):
        raise TrainError("recipe.field", path=path, field="train.keep", found=repr(given["keep"]), allowed='int > 0, "all"')
    if given.get("keep") == "all":
        given = given | {"keep": None}
    s = settings(path, "train", TrainSettings, given)
    if s.micro is not None and s.batch % s.micro:
        raise TrainError(
            "recipe.field", path=path, field="train.micro", found=s.micro, allowed=f"train.batch = {s.batch} = n × train.micro"
        )
    return s
