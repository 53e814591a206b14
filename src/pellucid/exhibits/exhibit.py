"""An exhibit: prompts, switches and claims about what follows from them, run on any model that fits.

    EXHIBIT = Exhibit("norms", show, controls=(Control("prompt", PROMPT),))

    def show(e: Experiment) -> Iterator[Panel | Claim]:
        plain, bare = e.quality(), e.quality(e.variant({"norm": "none"}))
        yield e.claim("needed", bare.right == 0, right=bare.right, plain=plain.right)

Its file holds no arithmetic, which is in `analysis/`. Its texts are messages: `exhibit.norms.title`, `.said` (what is often said), `.true`
(what is so), `.claim.needed` (a claim with its numbers), `.control.prompt`. With `enabled` False every switch is ignored: at least one
claim must fail then.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from pellucid.analysis.needs import GENERATOR, Need, unmet
from pellucid.analysis.quality import Quality, quality
from pellucid.analysis.rerun import Rerun
from pellucid.api.change_values import changes as changes_of
from pellucid.api.model import Model, load
from pellucid.api.switching import written
from pellucid.api.trace import trace
from pellucid.api.variant import variant
from pellucid.arguments import checked
from pellucid.bench.machine_limits import threaded
from pellucid.config import Config
from pellucid.errors import UseError
from pellucid.exhibits import find
from pellucid.exhibits.panel import AnswerPanel, Panel
from pellucid.messages import say
from pellucid.runs.answers import best_candidates, tokenizer_of
from pellucid.tracing import Trace, watch

T = TypeVar("T")
BEST = 5  # candidates of an answer
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}  # of numbers that are equal in exact arithmetic
COARSE = 0.05  # in narrower dtypes
CLEAR = 10  # times the tolerance: a difference that is no rounding


@dataclass(frozen=True)
class Control:
    """What a visitor may set. value: until then.  options: all that it may be; any text or number of its type where there are none.

    tokens: the fewest of a text, 2 where its claims compare one token with another.
    """

    name: str
    value: str | float
    options: Sequence[str | float] = ()
    tokens: int = 1

    def read(self, given: Any) -> str | float:
        """Return a given value in the control's type. A UseError if it is not allowed."""
        kind = type(self.value)
        try:
            value = kind(given)
        except (TypeError, ValueError):
            value = None
        if value is None or (self.options and value not in self.options):
            raise UseError("exhibit.value", name=self.name, found=given, allowed=" | ".join(map(str, self.options)) or kind.__name__)
        return value


@dataclass(frozen=True)
class Claim:
    """A sentence about the runs, with its numbers, and whether it holds."""

    key: str
    holds: bool
    numbers: Mapping[str, float | str]


Show = Callable[["Experiment"], Iterator[Panel | Claim]]


@dataclass(frozen=True)
class Exhibit:
    """One exhibit. model: the specimen that it runs on if no other is given.  needs: of a model that can show it.

    own: it counts published models, or trains small ones of its own, so none can be given.
    """

    name: str
    show: Show
    model: str = "pellucid/capitals"
    controls: Sequence[Control] = ()
    needs: Sequence[Need] = GENERATOR
    own: bool = False

    def fits(self, cfg: Config) -> bool:
        """Return whether a model of this Config can show it."""
        return unmet(self.needs, cfg) is None


class Experiment:
    """The runs of one exhibit. settings: of its controls.  enabled: False ignores every switch and change.

    open_model(name): opens a specimen to set beside the model.  check(): raises to end the exhibit, before a run and between its tensors.
    """

    def __init__(
        self,
        exhibit: Exhibit,
        model: Model,
        settings: Mapping[str, Any],
        open_model: Callable[[str], Model],
        enabled: bool = True,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        known = {c.name: c for c in exhibit.controls}
        for name in settings.keys() - known.keys():
            raise UseError("exhibit.control", exhibit=exhibit.name, found=name, allowed=", ".join(known) or "-")
        self.exhibit, self.model, self.open_model, self.enabled, self.check = exhibit, model, open_model, enabled, check
        self.settings = {name: c.read(settings.get(name, c.value)) for name, c in known.items()}
        self.runs: list[Rerun] = []
        for c in exhibit.controls:
            if c.tokens > 1 and (count := len(model.ids(self.text(c.name)))) < c.tokens:
                raise UseError("exhibit.tokens", name=c.name, found=self.text(c.name), tokens=count, allowed=c.tokens)

    def text(self, name: str) -> str:
        """Return the setting of a control that holds a text."""
        return str(self.settings[name])

    def number(self, name: str) -> float:
        """Return the setting of a control that holds a number."""
        return float(self.settings[name])

    @property
    def tolerance(self) -> float:
        """Return how far apart numbers may be that are equal in exact arithmetic."""
        return TOLERANCE.get(self.model.dtype, COARSE)

    @property
    def exact(self) -> bool:
        """True if the model multiplies what it reads, and not rounded rows: of plain weights, in float32 or wider."""
        return self.model.quant is None and self.model.dtype in TOLERANCE

    def same(self, gap: float) -> bool:
        """True if numbers this far apart are equal in exact arithmetic."""
        return gap <= self.tolerance

    def differ(self, gap: float) -> bool:
        """True if numbers this far apart differ by more than rounding."""
        return gap > CLEAR * self.tolerance

    def on(self, value: T, off: T) -> T:
        """Return `value`, or `off` if switches are ignored. For what is neither a switch of the Config nor a change."""
        return value if self.enabled else off

    def variant(self, switches: Mapping[str, Any], model: Model | None = None) -> Model:
        """Return the model with switches."""
        own = model or self.model
        return variant(own, switches) if self.enabled and switches else own

    def trace(self, prompt: str, model: Model | None = None, changes: Sequence[str] = (), steps: int = 1) -> Trace:
        """Record a run of a prompt, and note it in `runs`. changes: as texts."""
        own, texts = model or self.model, tuple(changes) if self.enabled else ()
        switches = tuple(f"{name}={written(value)}" for name, value in own.switches.items())
        self.runs.append(Rerun(named(own), prompt, switches, texts, steps, dtype_of(own)))
        return trace(own, prompt, steps, keep=self.keep, edit=changes_of(own, texts, steps))

    def keep(self, x: Tensor) -> Tensor:
        """Return a recorded tensor detached, unless the exhibit ends; a watch's `keep`."""
        self.check()
        return x.detach()

    def quality(self, model: Model | None = None, changes: Sequence[str] = (), **question: str) -> Quality:
        """Ask about every country, for its capital by default. changes: as texts.  question: relation, language, form (see `quality`)."""
        own = model or self.model
        with watch(own, only="embed", keep=lambda x: self.check(), edit=changes_of(own, changes if self.enabled else ())):
            return quality(own, **question)

    def answers(self, title: str, runs: Mapping[str, Trace]) -> AnswerPanel:
        """Return the next tokens of several runs side by side. runs: {what each is: its trace}."""
        sides = [(about, best_candidates(tokenizer_of(run.runner), run.last_logits(0), BEST)) for about, run in runs.items()]
        return AnswerPanel(title, sides)

    def claim(self, key: str, holds: bool, **numbers: float | str) -> Claim:
        """Return a claim. key: of its sentence, `exhibit.NAME.claim.KEY`, which `numbers` fill."""
        return Claim(key, bool(holds), numbers)


@dataclass(frozen=True)
class ExhibitResult:
    """An exhibit as it was run: its panels in order, its claims, and the runs behind them.

    model, dtype: of the model that it ran on, "" if it takes none.
    """

    exhibit: Exhibit
    model: str
    dtype: str
    settings: Mapping[str, str | float]
    panels: Sequence[Panel]
    claims: Sequence[Claim]
    runs: Sequence[Rerun]

    @property
    def holds(self) -> bool:
        """True if every claim holds."""
        return all(c.holds for c in self.claims)

    def __repr__(self) -> str:
        on = f" on {self.model} in {self.dtype}" if self.model else ""
        return f"ExhibitResult({self.exhibit.name!r}{on}: {sum(c.holds for c in self.claims)} of {len(self.claims)} claims hold)"


@dataclass
class Opened:
    """Specimens that are opened once, at their first use. dtype: theirs."""

    dtype: str = "float32"
    models: dict[str, Model] = field(default_factory=dict)

    def __call__(self, name: str) -> Model:
        if name not in self.models:
            self.models[name] = load(name, dtype=self.dtype)
        return self.models[name]


SMALL = 10_000_000
"""Parameters of a model whose products two threads do not make faster. On a busy machine each waits for the other, at 120 s for 37."""


def run_exhibit(
    shown: Exhibit,
    model: Model | None = None,
    settings: Mapping[str, Any] | None = None,
    open_model: Callable[[str], Model] | None = None,
    enabled: bool = True,
    check: Callable[[], None] = lambda: None,
) -> ExhibitResult:
    """Run an exhibit. model: its own specimen where None. A UseError if the model cannot show it, or a setting is not allowed.

    check(): called often; what it raises ends the exhibit.
    """
    if shown.own and model is not None:
        raise UseError("exhibit.own", exhibit=shown.name, found=model.name)
    open_model = open_model or Opened()
    own = model or open_model(shown.model)
    if missed := unmet(shown.needs, own.config):
        need, has = missed
        wanted = say(f"need.{need.what}", **dict(need.numbers))
        raise UseError("exhibit.model", exhibit=shown.name, wanted=wanted, model=own.name, has=has, other=shown.model)
    experiment, parts = Experiment(shown, own, settings or {}, open_model, enabled, check), list[Panel | Claim]()
    with torch.no_grad(), threaded(1 if own.num_parameters() < SMALL else torch.get_num_threads()):
        for part in shown.show(experiment):
            check()
            parts.append(part)
    claims = [p for p in parts if isinstance(p, Claim)]
    panels = [p for p in parts if not isinstance(p, Claim)]
    name, dtype = ("", "") if shown.own else (own.name, dtype_of(own))
    return ExhibitResult(shown, name, dtype, experiment.settings, panels, claims, experiment.runs)


@checked
def exhibit(name: str, model: Model | None = None, settings: Mapping[str, Any] | None = None) -> ExhibitResult:
    """Run an exhibit on its own specimen, or on `model`, and return its panels and claims.

    settings: {control: value}, such as {"prompt": "The capital of Japan is"}. A UseError names an exhibit or a control that does not
    exist, a value that is not allowed, and a model that cannot show it.
    """
    return run_exhibit(find(name), model, settings)


def dtype_of(model: Model) -> str:
    """Return the dtype that a model computes in: "float32"."""
    return str(model.dtype).removeprefix("torch.")


def named(model: Model) -> str:
    """Return a model's name without its switches."""
    return model.name.partition(" with ")[0] if model.switches else model.name
