"""Recipes: a TOML file with the model, its tokenizer, its data and its training. Every field is checked by name."""

import re
import tomllib
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from pellucid.checkpoint.disk import read_whole
from pellucid.errors import TrainError
from pellucid.ops.blocks import BITS
from pellucid.training.objectives import OBJECTIVES, Data
from pellucid.training.recipe_data import CHAT, DISTIL, FILES, PREFER, REWARD, data_of
from pellucid.training.recipe_parts import (
    AdapterSettings,
    MultiTokenSettings,
    WatchSettings,
    adapter_settings,
    multi_token_settings,
    watch_settings,
)
from pellucid.training.recipe_tables import (
    AIMS,
    Aim,
    PreferSettings,
    RanksSettings,
    RewardSettings,
    RunLength,
    distil_settings,
    known,
    ranks_settings,
    require,
    run_length,
    wrong,
)
from pellucid.training.texts import Texts

RECIPE_BYTES = 1_000_000
BASE = ("from", "quant", "template")
"""Fields of [model] where it starts from a folder."""
TUNING = (CHAT, PREFER, REWARD)
"""Objectives that start from a folder, beside those of `objectives.OBJECTIVES`."""
TABLES = {"name": str, "model": dict, "adapter": dict, "tokenizer": dict, "data": dict, "train": dict, "eval": dict, "watch": dict}
TABLES |= dict.fromkeys(("multi_token", "ranks", *AIMS), dict)
OPTIONAL = {"adapter", "multi_token", "eval", "watch", "ranks", *AIMS}
AHEAD = ("causal", CHAT)
"""Objectives of models that can have modules for multi-token prediction."""
ONE_PROCESS = RanksSettings()
FROM_ZERO = {"quiz", "skips", "seed", "warmup", "weight_decay", "floor", "correction", "auxiliary"}
MOST, HIGHEST = 2.0**63, ", < 2**63"
BELOW_ONE = {"beta1", "beta2", "momentum", "smoothing"}
OPTIMIZERS, SCHEDULES = ("adamw", "muon"), ("cosine", "linear", "constant", "wsd")
DTYPES, ON_NAN = ("float32", "bfloat16", "float64"), ("stop", "skip")


@dataclass(frozen=True)
class TrainSettings:
    """The [train] table of a recipe: a warm-up, then a learning rate by the schedule, down to `floor` of the full one.

    optimizer: "adamw", or "muon" for the matrices of layers, with this `momentum`, and AdamW for the rest.
    schedule: "cosine" over all steps; "linear"; "constant"; or "wsd", full until the last share `cooldown` of the steps, and linear there.
    batch: documents a step.  micro: documents of one forward, whose gradients are added up; None for all.  pool: batches that are filled
    from one pool sorted by length, so that little is padded.
    dtype: of forward and backward; the weights that the optimizer changes, and its moments, are float32, or float64 with all else.
    recompute: a block keeps its input alone for the backward pass, and runs again there.
    save_beside: a state is copied, and written while the next steps are taken.
    on_nan: what follows where a loss or a gradient is not finite: "stop", the run ends; "skip", the step changes no weight.  skips: how
    many steps in a row may be skipped.
    """

    seed: int
    steps: int
    batch: int
    learning_rate: float
    warmup: int = 100
    optimizer: str = "adamw"
    momentum: float = 0.95  # of Muon
    schedule: str = "cosine"
    cooldown: float = 0.2
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
    dtype: str = DTYPES[0]
    recompute: bool = False
    on_nan: str = ON_NAN[0]
    skips: int = 0
    spread: float = 0.02  # standard deviation of the first weights
    save_every: int = 1000
    save_beside: bool = False
    keep: int | None = 2  # of the newest states; None, "all" in a recipe, keeps every one
    log_every: int = 50

    @property
    def rounds(self) -> bool:
        """True if forwards read weights that are rounded from those that the optimizer changes."""
        return self.dtype == "bfloat16"

    @property
    def full(self) -> str:
        """Return the dtype of the weights that the optimizer changes."""
        return "float32" if self.rounds else self.dtype

    @property
    def stable(self) -> int:
        """Return the number of steps before the cooldown of "wsd": any state up to there can be cooled down, after more steps or fewer."""
        return min(self.steps - 1, self.steps - round(self.cooldown * self.steps))


@dataclass(frozen=True)
class EvalSettings:
    """The [eval] table of a recipe. every: the steps after which the loss of what is held out of training is logged.

    quiz: how many of a corpus' held-out questions are asked then, each time the same, so that a run shows when each fact was learnt.
    """

    every: int
    quiz: int = 0


@dataclass(frozen=True)
class BaseSettings:
    """The [model] table of a recipe that starts from a folder. name: the folder, a specimen or a hub id.

    quant: the blocks that its matrices are held in.  template: a file with a chat template, in place of the folder's own.
    """

    name: str
    quant: str | None = None
    template: str | None = None


Table = TypeVar("Table", TrainSettings, EvalSettings)


@dataclass(frozen=True)
class Recipe:
    """A recipe. model: fields of a Hugging Face config.json.  data, tokenizer: of the corpus, or of texts.

    objective: what is trained, one of `objectives.OBJECTIVES` or TUNING.  root: the folder that its files are relative to.
    base: the folder that it starts from, None for new weights.  adapter: what alone trains then, None for every weight.
    aim: the table of an objective that has one of its own.  ranks: the processes that share the training.
    length: of the run, if not in steps; train.steps is 0 then, until it follows from the data.
    multi_token: modules that train with the model, None for none.
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
    base: BaseSettings | None = None
    adapter: AdapterSettings | None = None
    aim: Aim | None = None
    ranks: RanksSettings = ONE_PROCESS
    length: RunLength | None = None
    multi_token: MultiTokenSettings | None = None

    @property
    def texts_a_row(self) -> int:
        """Return the number of texts that a row of a batch is: the answers of a pair, or those drawn for a prompt."""
        return self.aim.group if isinstance(self.aim, RewardSettings) else 2 if isinstance(self.aim, PreferSettings) else 1


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
    objective = tables.get("objective", "causal")
    every = (*OBJECTIVES, DISTIL, *TUNING)
    if not isinstance(objective, str) or objective not in every:
        raise TrainError("recipe.field", path=path, field="objective", found=repr(objective), allowed=", ".join(every))
    base = base_settings(path, tables)
    if base is not None:
        tables = {**tables, "tokenizer": {"from": base.name}}
    elif objective == DISTIL:
        tables = {**tables, "tokenizer": of_teacher(path, tables)}
    for field, kind in TABLES.items():
        if (field in tables or field not in OPTIONAL) and not isinstance(tables.get(field), kind):
            raise wrong(path, field, tables.get(field), kind.__name__)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", tables["name"]):  # it names the run's folder
        raise TrainError("recipe.field", path=path, field="name", found=repr(tables["name"]), allowed="A-Z a-z 0-9 . _ -")
    for table in sorted(AIMS.keys() & tables.keys() - {objective}):
        raise TrainError("recipe.field", path=path, field="objective", found=repr(objective), allowed=table)
    if objective in TUNING and base is None:
        raise wrong(path, "model.from", None, "str")
    if base is not None and not {"files", "source"} & tables["data"].keys():
        raise wrong(path, "data.files", None, FILES)
    data = data_of(path, root, tables["data"], objective)
    check_tokenizer(path, tables["tokenizer"], isinstance(data, Texts) or objective == DISTIL)
    known(path, "train.", tables["train"], {f.name for f in (*fields(TrainSettings), *fields(RunLength))})
    length = run_length(path, tables["train"])
    if length is not None and length.tokens is not None and objective == REWARD:
        raise TrainError("recipe.field", path=path, field="train.tokens", found=length.tokens, allowed="train.steps, train.epochs")
    train = train_settings(path, tables["train"] if length is None else without_length(tables["train"]))
    train = train if length is None else replace(train, steps=0)
    if objective in AIMS and train.smoothing:
        raise TrainError("recipe.field", path=path, field="train.smoothing", found=train.smoothing, allowed="0")
    evaluate = settings(path, "eval", EvalSettings, tables["eval"]) if "eval" in tables else None
    if evaluate is not None and evaluate.quiz and isinstance(data, Texts):
        raise TrainError("recipe.field", path=path, field="eval.quiz", found=evaluate.quiz, allowed="data.folder")
    watch = watch_settings(path, tables["watch"]) if "watch" in tables else None
    adapter = adapter_settings(path, tables["adapter"], base is not None) if "adapter" in tables else None
    if base is not None and base.quant is not None and adapter is None:
        raise TrainError("recipe.quant", path=path)
    name, model, tokenizer = (tables[field] for field in ("name", "model", "tokenizer"))
    aim = AIMS[objective](path, tables.get(objective, {})) if objective in AIMS else None
    ranks = ranks_settings(path, tables.get("ranks", {}))
    ahead = modules_beside(path, tables, objective)
    return Recipe(path, root, name, model, tokenizer, data, objective, train, evaluate, watch, base, adapter, aim, ranks, length, ahead)


def modules_beside(path: Path, tables: dict[str, Any], objective: str) -> MultiTokenSettings | None:
    """Return what [multi_token] says, checked; None without it. A TrainError beside an objective or an adapter that it does not go with."""
    if "multi_token" not in tables:
        return None
    if objective not in AHEAD:
        raise TrainError("recipe.field", path=path, field="objective", found=repr(objective), allowed=", ".join(AHEAD))
    if "adapter" in tables:
        raise TrainError("recipe.beside", path=path, first="multi_token", second="adapter")
    return multi_token_settings(path, tables["multi_token"])


def base_settings(path: Path, tables: dict[str, Any]) -> BaseSettings | None:
    """Return what [model] says of the folder to start from, checked; None if it has no `from`."""
    given = tables.get("model")
    if not isinstance(given, dict) or "from" not in given:
        return None
    if others := sorted(given.keys() - set(BASE)):
        raise TrainError("recipe.two", path=path, first="from", second=others[0])
    if "tokenizer" in tables:
        raise TrainError("recipe.one", path=path, fields="model.from, tokenizer")
    for field, value in given.items():
        if not isinstance(value, str) or not value or (field == "quant" and value not in BITS):
            allowed = ", ".join(BITS) if field == "quant" else "str"
            raise TrainError("recipe.field", path=path, field=f"model.{field}", found=repr(value), allowed=allowed)
    return BaseSettings(given["from"], given.get("quant"), given.get("template"))


def of_teacher(path: Path, tables: dict[str, Any]) -> dict[str, Any]:
    """Return the [tokenizer] table of a recipe that distils: the teacher's. A TrainError if the recipe has one of its own."""
    if "tokenizer" in tables:
        raise TrainError("recipe.one", path=path, fields="distil.teacher, tokenizer")
    table = tables.get(DISTIL)
    return {"from": distil_settings(path, table if isinstance(table, dict) else {}).teacher}


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
            raise wrong(path, f"tokenizer.{field}", number, f"int >= {least}")


def settings(path: Path, table: str, kind: type[Table], given: dict[str, Any]) -> Table:
    """Return a table of numbers, [train] or [eval], checked against its bounds."""
    known(path, f"{table}.", given, {f.name for f in fields(kind)})
    for field in fields(kind):
        name, is_int = field.name, field.type is not float
        value = given.get(name, field.default)
        if value is None or field.type is str:  # a choice, checked where its table is
            continue
        if field.type is bool:
            require(path, table, given, {name: (isinstance(value, bool), "true, false")})
            continue
        about = "int" if is_int else "number"
        if value is MISSING:
            raise wrong(path, f"{table}.{name}", None, about)
        right = type(value) is int if is_int else type(value) in (int, float)
        high = 1.0 if name in BELOW_ONE else MOST
        if not right or not 0 <= value < high or (value == 0 and name not in FROM_ZERO | BELOW_ONE):
            most = ", < 1" if name in BELOW_ONE else HIGHEST if right and value >= high else ""
            bound = f"{about} {'>=' if name in FROM_ZERO | BELOW_ONE else '>'} 0{most}"
            raise TrainError("recipe.field", path=path, field=f"{table}.{name}", found=repr(value), allowed=bound)
    return kind(**given)


def without_length(given: dict[str, Any]) -> dict[str, Any]:
    """Return a [train] table with one step in place of a length that is not in steps."""
    return {name: value for name, value in given.items() if name not in ("tokens", "epochs")} | {"steps": 1}


def train_settings(path: Path, given: dict[str, Any]) -> TrainSettings:
    """Return the [train] table, checked."""
    if "keep" in given and given["keep"] != "all" and (type(given["keep"]) is not int or given["keep"] < 1):
        raise TrainError("recipe.field", path=path, field="train.keep", found=repr(given["keep"]), allowed='int > 0, "all"')
    if given.get("keep") == "all":
        given = given | {"keep": None}
    for field, choices in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("dtype", DTYPES), ("on_nan", ON_NAN)):
        if (choice := given.get(field, choices[0])) not in choices:
            raise TrainError("recipe.field", path=path, field=f"train.{field}", found=repr(choice), allowed=", ".join(choices))
    if "momentum" in given and given.get("optimizer") != "muon":
        raise TrainError("recipe.field", path=path, field="train.optimizer", found=repr(given.get("optimizer", "adamw")), allowed="muon")
    if "cooldown" in given and given.get("schedule") != "wsd":
        raise TrainError("recipe.field", path=path, field="train.schedule", found=repr(given.get("schedule", "cosine")), allowed="wsd")
    if given.get("on_nan") == "skip" and given.get("skips", 0) == 0:
        raise wrong(path, "train.skips", given.get("skips"), "int > 0")
    if "skips" in given and given.get("on_nan") != "skip":
        raise TrainError("recipe.field", path=path, field="train.on_nan", found=repr(given.get("on_nan", ON_NAN[0])), allowed="skip")
    s = settings(path, "train", TrainSettings, given)
    if s.cooldown > 1:
        raise TrainError("recipe.field", path=path, field="train.cooldown", found=s.cooldown, allowed="number > 0 … 1")
    if s.micro is not None and s.batch % s.micro:
        raise TrainError(
            "recipe.field", path=path, field="train.micro", found=s.micro, allowed=f"train.batch = {s.batch} = n × train.micro"
        )
    return s
