"""What an objective takes beside the step of its own model, and how many tables of rows × ids its loss holds.

a teacher        its weights, in float32 or wider, all the time, and one forward without gradients for each of the student's
drawn answers    before the first forward of a step, the keys and values of all its answers
a preference     before the first step, log-probabilities by the first weights

What a forward without gradients holds is seen in one on meta, where storages come and go as on a device.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.counting.bill import BYTES, Bill
from pellucid.counting.number import Number, product
from pellucid.counting.training_peak import LiveBytes

ROWS = 64
"""Rows of logits whose loss is computed at once: training.logits_loss has them from here."""
PIECE = 1 << 17
"""Numbers of a weight that AdamW changes at once, which with their gradients and moments lie in a processor's cache."""


def at_least(size: int) -> int:
    """Return the bytes of a number that the optimizer changes, where forwards have numbers of `size` bytes: float32, or wider."""
    return max(4, size)


def wide(bill: Bill) -> int:
    """Return the bytes of a number in the tables that a loss, a teacher or first weights make."""
    return at_least(int(BYTES[bill.setting.activations]))


@dataclass(frozen=True)
class MomentBytes:
    """The bytes that are held at one moment of a run. bytes: beyond what lasts.  first: before the first step, when there are weights
    alone.
    """

    name: str
    bytes: Number
    first: bool = False


@dataclass(frozen=True)
class Extra:
    """What an objective takes beside the step of its own model, by name. lasting: bytes all the time.  flops: of one forward's share.

    tables: of rows × ids in float32 or wider, as many as its loss holds at most; None for those of the cross-entropy.
    modules: for multi-token prediction, that train with the model.
    """

    tables: int | None = None
    lasting: tuple[tuple[str, Number], ...] = ()
    moments: tuple[MomentBytes, ...] = ()
    flops: tuple[tuple[str, Number], ...] = ()
    modules: int = 0


NOTHING = Extra()


def loss(bill: Bill, extra: Extra, size: int) -> Number:
    """Return the bytes that the loss holds of logits and what is made of them. size: bytes of a logit."""
    rows, vocab = bill.setting.context * bill.setting.batch, bill.config.vocab
    wide, tables, each = at_least(size), extra.tables, size * (1 + extra.modules)
    if tables is not None:
        return product(f"{tables}·T·V·{wide}", tables=tables, rows=rows, vocab=vocab, wide=wide)
    # the cross-entropy's are logits, whose place their gradient takes, and a few rows twice in float32; narrow ones widened, and not
    row, few = 2 * wide if size == wide else 3 * wide + size, min(ROWS, rows)
    value = rows * vocab * each + few * vocab * row
    return Number(value, f"T·V·{each} + rows·V·{row}", f"{rows:,}·{vocab:,}·{each} + {few}·{vocab:,}·{row}")


def passing(forward: Callable[[], Tensor]) -> int:
    """Return the most bytes that a forward on meta holds at once without gradients, beyond the weights."""
    with LiveBytes() as tracker, torch.no_grad():
        forward()
        most: int = tracker.most
    return most


def of_teacher(tables: int, teacher: Bill, passed: int) -> Extra:
    """Return what a teacher takes. teacher: its bill, for the student's rows.  passed: the bytes of its forward."""
    weights = product(f"N·{wide(teacher)}", every=int(teacher["parameters.total"]), wide=wide(teacher))
    moment = MomentBytes("at_teacher", Number(passed, "forward"))
    return Extra(tables, (("teacher", weights),), (moment,), (("teacher", Number(teacher["flops.prefill"].value, "prefill")),))


def of_reference(tables: int, first: Bill, passed: int) -> Extra:
    """Return what the first weights' log-probabilities take. first: the bill of one forward of theirs.  passed: the bytes of it."""
    rows, vocab = first.setting.context * first.setting.batch, first.config.vocab
    two = product(f"2·T·V·{wide(first)}", two=2, rows=rows, vocab=vocab, wide=wide(first))  # logits and log-probabilities
    return Extra(tables, moments=(MomentBytes("at_reference", Number(passed, "forward") if passed > two.value else two, first=True),))


def of_draws(tables: int, prompts: Bill, written: Bill, new: int, rows: int, texts: int, passed: int) -> Extra:
    """Return what drawing a step's answers takes. prompts: the bill of one forward's prompts.  written: of their answers, half written.

    new: tokens of an answer, whose first one comes of the prompt.  rows: of keys and values of all answers of a step.  texts: these
    answers.  passed: the bytes of the forward that reads prompts.
    """
    row, text = (int(written[path]) if path in written else 0 for path in ("cache.bytes_per_token", "cache.bytes_per_text"))
    cache = rows * row + texts * text
    ids = 2 * written.setting.batch * written.config.vocab * wide(written)  # logits and log-probabilities of each answer's newest row
    moment = MomentBytes("at_draws", Number(cache + max(passed, ids), "cache + forward", f"{cache:,} + {max(passed, ids):,}"))
    reading, writing = int(prompts["flops.prefill"]), int(written["flops.decode"])
    work = Number(reading + (new - 1) * writing, "prefill + (new − 1)·decode", f"{reading:,} + {new - 1}·{writing:,}")
    return Extra(tables, moments=(moment,), flops=(("draws", work),))
