"""A small model's training from nothing, watched: what a step moves and by how much, a word's way, and why one weight moved."""

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from pellucid.analysis.deep_or_wide import config_of
from pellucid.analysis.rows import plane_of
from pellucid.analysis.small_training import corpus, numbers_of, training_run, untrained
from pellucid.batch.step import Step
from pellucid.checkpoint.safetensors_file import read_header, read_tensor, write
from pellucid.runs.answers import visible
from pellucid.tokenizer.tokenizer import Tokenizer
from pellucid.training.loop import TrainingRun
from pellucid.training.why import Why, why_moved
from pellucid.watching.watch import watch

BLOCKS, WIDTH, NEURONS, RATE = 2, 48, 96, 5e-3
WATCHED = 8  # steps of a training
PROMPT = "The capital of France is"  # whose text and maps are watched
WORDS = (" capital", " the", " of", " is")  # tokens of the corpus' tokenizer whose rows may be followed
NO_TEXT = chr(0xFFFD)  # in the place of bytes that are no letter yet
WEIGHT = "layers.1.ffn.down.weight"
STEP_ROUNDING = 1e-7  # of a weight below 1 in float32
ROUNDING = 1e-5  # of the sum of a gradient's parts without their signs, in float32


@dataclass(frozen=True)
class WatchedStep:
    """One step. gradients: {part: the size of its gradient}.  changes: {part: the size of its change in percent of its weights' size}."""

    step: int
    gradients: Mapping[str, float]
    changes: Mapping[str, float]


@dataclass(frozen=True)
class SavedWeights:
    """A file of all weights, read again. size: its bytes.  hash: its SHA-256, first figures.  moved: weights unlike the first file's."""

    parameters: int
    size: int
    hash: str
    moved: int


@dataclass(frozen=True)
class WatchedTraining:
    """A training. losses: of each step.  steps: those that were watched.

    texts: (steps so far, what the model writes after the prompt).  rows: of one word in the table, at the first weights and after each
    watched step [N D].  table: after the last step [V D].  patterns: of the prompt, with the first weights and the last [L H T T].
    files: of the weights at first, after forwards, after the first step, and after the last.  why: of one cell in the last step.
    moved: that cell after the last step less the cell before it.
    """

    losses: Sequence[float]
    steps: Sequence[WatchedStep]
    texts: Sequence[tuple[int, str]]
    rows: Tensor
    table: Tensor
    patterns: tuple[Tensor, Tensor]
    files: tuple[SavedWeights, ...]
    why: Why
    moved: float


def part_of(path: str) -> str:
    """Return the part of the model that a parameter belongs to: the table, a block, the last norm."""
    return ".".join(path.split(".")[:2]) if path.startswith("layers.") else path.split(".")[0]


def sizes(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the length of all numbers of each part together. tensors: {path: tensor}."""
    squares: dict[str, float] = {}
    for path, x in tensors.items():
        squares[part_of(path)] = squares.get(part_of(path), 0.0) + float(x.double().square().sum())
    return {part: square**0.5 for part, square in squares.items()}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of every parameter."""
    return {path: p.detach().clone() for path, p in model.named_parameters()}


def weights_hash(model: nn.Module) -> str:
    """Return the first figures of the SHA-256 of every weight's bytes."""
    made = hashlib.sha256()
    for p in model.parameters():
        made.update(p.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return made.hexdigest()[:16]


def saved(model: nn.Module, folder: Path, number: int) -> SavedWeights:
    """Save a model's weights as file `number` of a folder, and read it again, beside file 0."""
    path, first = folder / f"{number}.safetensors", read_header(folder / "0.safetensors") if number else {}
    write(path, weights_of(model))
    made, own = path.read_bytes(), read_header(path)
    moved = sum(int((read_tensor(own[name]) != read_tensor(entry)).sum()) for name, entry in first.items())
    return SavedWeights(sum(read_tensor(e).numel() for e in own.values()), len(made), hashlib.sha256(made).hexdigest()[:8], moved)


def patterns_of(model: nn.Module, prompt: str) -> Tensor:
    """Return the attention pattern of every block for a prompt [L H T T]."""
    tokens = torch.tensor([corpus()[0].tokenizer.encode(prompt).ids])
    with torch.no_grad(), watch(model, only="*.attn.pattern") as seen:
        model(tokens, Step.plain(tokens))
    return torch.stack([s.value[0].detach().clone() for s in seen])


def watched_step(run: TrainingRun, numbers: list[int]) -> tuple[WatchedStep, float]:
    """Take one step of a training, and return what it moved, and its loss."""
    before = weights_of(run.model)
    loss: float = run.one(numbers)["loss"]
    gradients = {path: p.grad for path, p in run.model.named_parameters() if p.grad is not None}
    moved = {path: p.detach() - before[path] for path, p in run.model.named_parameters()}
    of = sizes(before)
    return WatchedStep(run.step, sizes(gradients), {part: 100 * size / of[part] for part, size in sizes(moved).items()}), loss


@cache
def watched_training(steps: int, word: str, rate: float = RATE) -> WatchedTraining:
    """Train for `steps` steps, every eighth part of them watched. word: one token of the tokenizer, such as " capital"."""
    objective = corpus()[0]
    (id,) = objective.tokenizer.encode(word).ids
    model = untrained(config_of(objective.tokenizer.get_vocab_size(), BLOCKS, WIDTH, NEURONS))
    run, table = training_run(model, steps, rate), model.get_parameter("embed.weight")
    losses, watched = list[float](), list[WatchedStep]()
    why, before = None, 0.0
    with tempfile.TemporaryDirectory() as made, torch.enable_grad():
        files = [saved(model, Path(made), 0)]
        pattern, text = patterns_of(model, PROMPT), written(run, PROMPT)
        rows, texts = [table[id].detach().clone()], [(0, text)]
        files.append(saved(model, Path(made), 1))
        for numbers in numbers_of(run):
            if run.step + 1 == steps:
                why = why_moved(run, numbers, WEIGHT, busiest(run))
                before = cell_of(model, why)
            if (run.step + 1) % (steps // WATCHED):
                losses.append(run.one(numbers)["loss"])
            else:
                one, loss = watched_step(run, numbers)
                losses.append(loss)
                watched.append(one)
                rows.append(table[id].detach().clone())
                texts.append((run.step, written(run, PROMPT)))
            if run.step in (1, steps):
                files.append(saved(model, Path(made), len(files)))
    assert why is not None
    patterns, moved = (pattern, patterns_of(model, PROMPT)), cell_of(model, why) - before
    return WatchedTraining(losses, watched, texts, torch.stack(rows), table.detach(), patterns, tuple(files), why, moved)


def cell_of(model: nn.Module, why: Why) -> float:
    """Return the number in a model's weight that `why` is of."""
    return float(model.get_parameter(why.path).detach()[why.cell])


def written(run: TrainingRun, prompt: str) -> str:
    """Return what the model writes after a prompt, always its likeliest token."""
    return run.objective.complete(run.model)([prompt])[0]


def busiest(run: TrainingRun) -> tuple[int, int]:
    """Return the cell of WEIGHT with the largest momentum."""
    momentum = run.optimizer.state[run.model.get_parameter(WEIGHT)]["exp_avg"].abs()
    row, column = divmod(int(momentum.argmax()), momentum.shape[1])
    return row, column


def most_changed(a: Tensor, b: Tensor) -> tuple[int, int]:
    """Return the block and the head whose pattern differs most between a and b [L H T T]."""
    gaps = (a - b).abs().sum((-2, -1))
    block, head = divmod(int(gaps.argmax()), gaps.shape[1])
    return block, head


def on_plane(rows: Tensor, table: Tensor) -> tuple[list[list[float]], int]:
    """Return rows [N D] on the first two directions of a table [V D], and the share of the table's variance there in percent."""
    mean = table.double().mean(0)
    _, _, directions = torch.linalg.svd(table.double() - mean, full_matrices=False)
    places: list[list[float]] = ((rows.double() - mean) @ directions[:2].T).tolist()
    return places, plane_of(table.double())[1]


def row_moves(rows: Tensor) -> list[float]:
    """Return how far a row moved between each of its places [N D] and the next, as lengths."""
    lengths: list[float] = rows.double().diff(dim=0).norm(dim=-1).tolist()
    return lengths


@cache
def own_tokenizer() -> Tokenizer:
    """Return the corpus' tokenizer as one that knows the bytes of a piece."""
    return Tokenizer(json.loads(corpus()[0].tokenizer.to_str()), "pellucid/capitals")


def text_before(run_ids: Sequence[int], position: int) -> str:
    """Return the text of a document's ids up to a position; the last letter may not be whole, and … stands for it."""
    text: str = corpus()[0].tokenizer.decode(list(run_ids[: position + 1]))
    return text if (letters := text.rstrip(NO_TEXT)) == text else f"{letters}…"


def contributions(why: Why, shown: int) -> tuple[list[tuple[str, str, float, float, float]], float]:
    """Return the largest parts of a gradient, each as token, text so far, x, δ and x · δ, and the sum of all others, δ in thousandths."""
    documents = corpus()[1]
    rows = []
    for pull in why.tokens[:shown]:
        ids = documents[pull.document].target
        piece = visible(own_tokenizer().pieces([pull.id])[0])
        rows.append((piece, text_before(ids, pull.position - 1), sum(pull.x), thousandths(sum(pull.delta)), thousandths(pull.product)))
    return rows, thousandths(sum(pull.product for pull in why.tokens[shown:]))


def thousandths(x: float) -> float:
    return 1000 * x


def fell(losses: Sequence[float]) -> bool:
    """Return True if the last loss is less than three quarters of the first."""
    return losses[-1] < 0.75 * losses[0]


def adds_up(why: Why) -> bool:
    """Return True if the parts of a gradient add up to autograd's, but for rounding."""
    return abs(why.rest) <= ROUNDING * sum(abs(pull.product) for pull in why.tokens)


def step_parts(why: Why) -> dict[str, float]:
    """Return the parts of a weight's move in a step in thousandths: its gradient's, the momentum's of earlier steps, and its decay's."""
    assert why.move is not None
    return {part: thousandths(getattr(why.move, part)) for part in ("gradient", "momentum", "decay")}


def moved_as_computed(run: WatchedTraining) -> bool:
    """Return True if the last step moved the cell of `run.why`, and by the sum of its parts but for rounding."""
    move = run.why.move
    return move is not None and abs(run.moved) > 0 and abs(run.moved - move.total()) <= STEP_ROUNDING


def pieces_of(prompt: str) -> list[str]:
    """Return the text of each token of a prompt."""
    return [visible(p) for p in own_tokenizer().pieces(corpus()[0].tokenizer.encode(prompt).ids)]
