"""The pipeline from a recipe to a model folder: corpus, tokenizer, training, quiz, and model card."""

import fcntl
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from pellucid.checkpoint.adapter import Adapter, save_adapter
from pellucid.checkpoint.disk import read_whole, reason, replacing
from pellucid.checkpoint.fill import unfill
from pellucid.checkpoint.folder import save_folder
from pellucid.checkpoint.multi_token_files import COUNT, as_layers, write_file
from pellucid.distributed import grid, join
from pellucid.errors import CheckpointError, StoppedError, TrainError
from pellucid.families.family import Family
from pellucid.messages import say
from pellucid.nn.transformer import Decoder, Encoder, EncoderDecoder, build, cast
from pellucid.sharding import split
from pellucid.tokenizer.chat_template import TEMPLATE_BYTES, TEMPLATE_FILE
from pellucid.training import corpus, invented
from pellucid.training.aim import criterion_of
from pellucid.training.card import card
from pellucid.training.criterion import Criterion
from pellucid.training.facts import FactQuiz
from pellucid.training.held_out import HeldOut
from pellucid.training.identity import digest
from pellucid.training.loop import TrainingRun
from pellucid.training.meter import MemoryMeter
from pellucid.training.objectives import Document, Objective, objective_of
from pellucid.training.quiz import quiz
from pellucid.training.recipe import Recipe, read_recipe
from pellucid.training.recipe_tables import DistilSettings
from pellucid.training.run_folder import write_run
from pellucid.training.run_length import with_steps
from pellucid.training.saves import states
from pellucid.training.shards import TOKENIZER, load_tokenizer, open_shards
from pellucid.training.start import Start, base_folder, folder_named, fresh, numbered, origin, stops
from pellucid.training.text_card import score_of_texts, text_card
from pellucid.training.text_objective import CausalText, TaughtText, of_shards
from pellucid.training.text_rows import TrainingRows
from pellucid.training.texts import Texts
from pellucid.training.watched import StepRecorder

LOCK, DATA = "lock", "data"
FEW = 64  # documents that are looked at for a stop
Progress = Callable[[dict[str, Any]], None]


def run_recipe(
    path: Path,
    out: Path | None,
    resume: bool,
    threads: int | None,
    progress: Progress,
    restart: bool = False,
    inexact: bool = False,
    on: Progress = lambda entry: None,
    root: Path | None = None,
) -> Path:
    """Train by a recipe, and return the folder of the finished model, `out`/model, or of the adapter, `out`/adapter.

    out: the run's folder, by default runs/<name>.  resume: resume from its newest saved state.  progress: called with what is shown.
    restart: resume, but start at step 1 if no saved state verifies.  inexact: resume a state of another machine too.
    on: called with each log entry, one for each step.  root: the folder that the recipe's files are relative to, by default its own.

    The first SIGINT or SIGTERM during or after training is a StoppedError with everything saved; an earlier or second one is a
    KeyboardInterrupt.
    """
    recipe, resume = read_recipe(path, root), resume or restart or inexact
    grid = recipe.ranks
    ranks, folder = join(grid.data, grid.tensor, grid.expert, grid.shard), out or Path("runs") / recipe.name
    check_ranks(recipe)
    torch.set_num_threads(threads or torch.get_num_threads())  # until it is called MKL takes fewer as it likes, and rounds otherwise
    with stopping() as stop, ExitStack() as lock:
        with ranks.in_turn():
            make_folder(folder, resume)
            if ranks.first:
                lock.enter_context(alone(folder))
            objective = prepare(recipe, folder)
            meter = MemoryMeter()
            start = fresh(recipe, objective)
            documents, out_of_training = both = examples(recipe, objective)
            recipe = with_steps(recipe, objective, documents)
            criterion = criterion_of(recipe, start, objective, both, folder / DATA)
            kept = held_out(recipe, objective, out_of_training, criterion)
            sharding = split(start.model, ranks, getattr(torch, recipe.train.dtype) if recipe.train.rounds else None)
            run = TrainingRun(start.model, objective, documents, recipe.train, folder, kept, origin(recipe, start), criterion, sharding)
            if isinstance(documents, TrainingRows):
                progress(documents.figures())
            for warning in (*doubts(recipe, start, objective, documents), *(run.resume(restart, inexact) if resume else ())):
                progress({"warning": warning})
        if not ranks.alike(int(digest(json.dumps(run.identity, default=str))[:15], 16)):
            raise TrainError("ranks.differ", path=path, count=ranks.count)
        with stop.at_a_step():
            recorder = None if recipe.watch is None else StepRecorder(run, recipe, recipe.watch)
            if ranks.first:
                write_run(folder, recipe, objective.tokenizer, run.identity, run.step)
            taken, begun = quizzing(recipe, run, on), run.step
            try:
                ended = run.train(progress, lambda: stop.received, taken, None if recorder is None else recorder.take)
            except TrainError as fault:
                fault.exit_code = 1  # the run had begun; 2 is for what is wrong before
                raise
            if ranks.first and run.step > begun:
                meter.write(folder)
        try:
            if ended and not stop.received:
                return finish(recipe, folder / ("model" if start.adapter is None else "adapter"), joined(recipe, start, run), run, progress)
        except KeyboardInterrupt:
            pass  # the state of the last step is saved, and a run that goes on from it finishes
        raise StoppedError("train.stopped", step=run.step, steps=recipe.train.steps, folder=folder)


def make_folder(folder: Path, resume: bool) -> None:
    """Make a run's folder. A TrainError if it cannot be made, or has a run and is not to be resumed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        used = any(f.name not in (LOCK, DATA) for f in folder.iterdir())
    except OSError as fault:
        raise TrainError("train.folder", folder=folder, reason=reason(fault)) from None
    if used and not resume:
        raise TrainError("train.exists", folder=folder)


def check_ranks(recipe: Recipe) -> None:
    """Raise TrainError for what a recipe asks of several ranks and they cannot do."""
    r, s, a = recipe.ranks, recipe.train, recipe.adapter
    several = r.processes > 1
    refused = {
        "objective": (several and recipe.objective == "reward", recipe.objective),
        "watch": (several and recipe.watch is not None, "…"),
        "multi_token": (several and recipe.multi_token is not None, "…"),
        "train.auxiliary": (r.data > 1 and s.auxiliary > 0, s.auxiliary),  # of each forward's loads, which are those of other documents
        "adapter.dropout": (r.data > 1 and a is not None and a.dropout > 0, "…"),  # drawn by micro-batch
        "adapter.dora": ((r.processes > r.data or r.shard > 1) and a is not None and a.dora, "true"),  # rows are measured whole
        "eval.quiz": (several and recipe.evaluate is not None and recipe.evaluate.quiz > 0, "…"),
    }
    for field, (wrong, value) in refused.items():
        if wrong:
            raise TrainError("recipe.ranks", path=recipe.path, field=field, found=value, grid=grid(*vars(r).values()))


def joined(recipe: Recipe, start: Start, run: TrainingRun) -> Start:
    """Return the model that the ranks of a run have trained, complete, with its adapter; every rank takes part."""
    if not run.sharding.divided:
        return start
    if start.adapter is None:
        again = start._replace(model=build(start.model.config))
    else:
        run.weights.unrounded(start.model)
        again = fresh(recipe, run.objective)
    run.sharding.fill(again.model, start.model)
    return again


def prepare_data(path: Path, out: Path | None, root: Path | None = None) -> Path:
    """Make the shards of a recipe of texts alone, also where some are damaged, and return their folder, `out`/data."""
    recipe = read_recipe(path)
    join(1, 1)
    folder = out or Path("runs") / recipe.name
    if not isinstance(recipe.data, Texts):
        raise TrainError("data.facts", path=path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise TrainError("train.folder", folder=folder, reason=reason(fault)) from None
    with alone(folder):
        prepare(recipe, folder, remake=True)
    return folder / DATA


def prepare(recipe: Recipe, folder: Path, remake: bool = False) -> Objective:
    """Return the recipe's objective with its tokenizer, and of texts with the shards in the run's folder. remake: damaged ones too."""
    if isinstance(recipe.data, Texts):
        shards = open_shards(recipe.data, tokenizer_table(recipe), folder / DATA, bool(states(folder / "saves")), remake)
        return of_shards(shards, recipe.data)
    kind = objective_of(recipe.objective)
    if "from" in (table := tokenizer_table(recipe)):
        return kind(tokenizer_with_end(Path(table["from"])))
    pieces = invented.word_pieces(recipe.data) if isinstance(recipe.data, invented.Invented) else corpus.pieces(recipe.data)
    return kind(corpus.train_tokenizer(pieces, recipe.tokenizer["size"], kind.special))


def tokenizer_table(recipe: Recipe) -> dict[str, Any]:
    """Return the [tokenizer] table; of a folder to start from its tokenizer and chat template, or the recipe's; or the teacher's."""
    if recipe.base is None:
        teacher = recipe.aim.teacher if isinstance(recipe.aim, DistilSettings) else None
        return recipe.tokenizer if teacher is None else {"from": str(folder_named(recipe, teacher).resolve())}
    table = {"from": str(base_folder(recipe).resolve())}
    return table if recipe.base.template is None else table | {"template": recipe.base.template}


def tokenizer_with_end(folder: Path) -> Tokenizer:
    """Return the tokenizer of a folder whose sentences end as the corpus's do. A TrainError if it has no such end."""
    tokenizer = load_tokenizer(folder / TOKENIZER)
    if tokenizer.token_to_id(corpus.END_OF_TEXT) is None:
        raise TrainError("data.end", path=folder)
    return tokenizer


def examples(recipe: Recipe, objective: Objective) -> tuple[Sequence[Document], Sequence[Document]]:
    """Return what is trained on and what is held out; of facts nothing is held out unless the recipe evaluates it."""
    if isinstance(objective, CausalText):
        return objective.rows_of(recipe.train.seed)
    out = objective.documents(recipe.data, recipe.train.seed, held_out=True) if recipe.evaluate is not None else []
    return objective.documents(recipe.data, recipe.train.seed), out


def doubts(recipe: Recipe, start: Start, objective: Objective, documents: Sequence[Document]) -> list[str]:
    """Return a warning for each thing that a run may do, and that its reader may not have meant."""
    out = []
    if isinstance(objective, TaughtText) and (endless := unstopped(start, documents)):
        out.append(endless)
    config = start.model.config
    if isinstance(recipe.data, Texts) and config.positions is None and config.context is not None and recipe.data.length > config.context:
        out.append(say("data.context", found=recipe.data.length, most=config.context))
    return out


def unstopped(start: Start, documents: Sequence[Document]) -> str | None:
    """Return a warning if what is learnt of the first documents has no token that ends the model's texts; None if it has."""
    ends = stops(start)
    learnt = {i for document in documents[:FEW] for i in document.losses()}
    return None if learnt.intersection(ends) else say("data.unstopped", stops=", ".join(map(str, ends)) or "-")


def held_out(recipe: Recipe, objective: Objective, documents: Sequence[Document], criterion: Criterion) -> HeldOut | None:
    """Return what is held out of training, with how often its loss is logged. None if the recipe does not ask for it."""
    if recipe.evaluate is None or not documents:
        return None
    return HeldOut(objective, list(documents), recipe.evaluate.every, recipe.train.micro or recipe.train.batch, criterion)


def quizzing(recipe: Recipe, run: TrainingRun, on: Progress) -> Progress:
    """Return what is called with each log entry: `on`, after the recipe's questions where they are due."""
    if recipe.evaluate is None or not recipe.evaluate.quiz:
        return on
    quiz = FactQuiz(run.objective, recipe.data, recipe.evaluate.quiz, recipe.evaluate.every, recipe.train.steps, run.folder)
    quiz.begin(run.step)

    def taken(entry: dict[str, Any]) -> None:
        if quiz.due(entry["step"]):
            quiz.take(run.model, entry["step"])
        on(entry)

    return taken


def finish(recipe: Recipe, folder: Path, start: Start, run: TrainingRun, progress: Progress) -> Path:
    """Measure what is saved, and write the folder of the model with its card, or of the adapter; the first rank does."""
    if not run.ranks.first:
        return folder
    if start.adapter is not None:
        return finish_adapter(recipe, folder, start, start.adapter, run, progress)
    model, family, objective = start.model, start.family, run.objective
    cast(model.eval(), torch.bfloat16)
    modules = without_modules(model)
    layers = None if modules is None else as_layers(model, modules, family)  # type: ignore[arg-type]
    counted = {} if layers is None or modules is None else {COUNT: len(modules)}
    cast(model, torch.float32)
    about_it = described(recipe, family, model, run, progress)
    cast(model, torch.bfloat16)
    tensors = {name: t.clone() for name, t in unfill(model, family.rules_for(model.config))} | (layers or {})
    config = {"architectures": [family.architecture], **start.hf, **counted, "dtype": "bfloat16"}
    if start.folder is None:
        generation, copies = None if isinstance(model, Encoder) else numbered(objective), own_files(model, objective)
    else:
        with start.folder.carried() as contents:
            generation, copies = start.folder.generation_config, dict(contents)
    copies |= template_of(recipe) | {"README.md": about_it.encode()}
    try:
        save_folder(folder, config, tensors, generation, copies, overwrite=True)
        write_file(folder, modules if layers is None else None)
    except (CheckpointError, OSError) as fault:
        raise TrainError("train.folder", folder=folder, reason=fault) from None
    return folder


def without_modules(model: nn.Module) -> nn.ModuleList | None:
    """Take a model's modules for multi-token prediction from it, and return them; None if it has none."""
    modules: nn.ModuleList | None = getattr(model, "multi_token", None)
    if modules is not None:
        model.multi_token = None  # type: ignore[assignment]
    return modules


def finish_adapter(recipe: Recipe, folder: Path, start: Start, adapter: Adapter, run: TrainingRun, progress: Progress) -> Path:
    """Measure the model with its adapter, and write the adapter's folder in PEFT's format, with its card and the recipe's template."""
    about_it = described(recipe, start.family, start.model.eval(), run, progress)
    try:
        if not run.sharding.divided:  # else they were joined so
            run.weights.unrounded(start.model)
        save_adapter(folder, start.model, adapter, overwrite=True)
        for name, content in (template_of(recipe) | {"README.md": about_it.encode()}).items():
            with replacing(folder / name) as part:
                part.write_bytes(content)
    except (CheckpointError, OSError) as fault:
        raise TrainError("train.folder", folder=folder, reason=fault) from None
    return folder


def own_files(model: Decoder | EncoderDecoder, objective: Objective) -> dict[str, bytes]:
    """Return the files of a new model's tokenizer by name."""
    named = {f"{role}_token": token for role, token in objective.names.items()}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.config.positions or model.config.context, **named}
    return {
        "tokenizer.json": objective.tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": (json.dumps(about, indent=2) + "\n").encode(),
    }


def template_of(recipe: Recipe) -> dict[str, bytes]:
    """Return the recipe's chat template under the name that a folder has it by; {} if it has none of its own."""
    if recipe.base is None or recipe.base.template is None:
        return {}
    return {TEMPLATE_FILE: read_whole(recipe.root / recipe.base.template, TEMPLATE_BYTES, TrainError)}


def described(recipe: Recipe, family: Family, model: Decoder | EncoderDecoder, run: TrainingRun, progress: Progress) -> str:
    """Return the card of a model: a quiz of facts, or the loss of texts that were held out and samples."""
    objective = run.objective
    if isinstance(objective, CausalText):
        score = score_of_texts(recipe, model, objective, run.criterion)
        if score.loss is not None:
            progress({"held_out": score.loss, **(score.figures or {"bits_per_byte": score.bits_per_byte})})
        return text_card(recipe, family, model, objective, score)
    scores = quiz(objective.questions(recipe.data), objective.learnt(recipe.data), objective.complete(model), objective.tokenizer)
    progress({"scores": {f"{s.relation}.{s.language}": round(s.accuracy, 4) for s in scores}})
    return card(recipe, family, model, objective, scores)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock the run's folder, so that two runs cannot overwrite each other. A TrainError if it is locked."""
    try:
        f = (folder / LOCK).open("a+", encoding="utf-8")
    except OSError as fault:
        raise TrainError("train.folder", folder=folder, reason=reason(fault)) from None
    with f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            f.seek(0)
            raise TrainError("train.locked", folder=folder, process=f.read(20).strip() or "?") from None
        try:
            os.ftruncate(f.fileno(), 0)
            os.write(f.fileno(), f"{os.getpid()}\n".encode())
        except OSError as fault:
            raise TrainError("train.folder", folder=folder, reason=reason(fault)) from None
        yield


class StopSignal:
    """The handler of SIGINT and SIGTERM: a KeyboardInterrupt, except that the first one inside `at_a_step` only sets `received`."""

    def __init__(self) -> None:
        self.received = self.waits = False

    def receive(self, number: int, frame: FrameType | None) -> None:
        if self.received or not self.waits:
            raise KeyboardInterrupt
        self.received = True

    @contextmanager
    def at_a_step(self) -> Iterator[None]:
        """Let the body end between two steps, with the state saved, on the first signal."""
        self.waits = True
        try:
            yield
        finally:
            self.waits = False


@contextmanager
def stopping() -> Iterator[StopSignal]:
    """Yield a StopSignal that handles SIGINT and SIGTERM; restore the handlers afterwards. Only the main thread gets signals."""
    stop = StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {s: signal.signal(s, stop.receive) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
