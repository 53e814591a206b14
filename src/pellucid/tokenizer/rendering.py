"""The rendering of a chat template in a worker: Jinja's sandbox, transformers' functions, and text marked with its origin.

Every literal of the template is marked as its own (`written`). There is no loader: include, import and extends are refused by name.
"""

import json
import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from random import Random
from types import TracebackType
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_join
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from pellucid.tokenizer.marked_text import ANSWER, Written, answered, joined, spans, wrote

NAME = "template"
LONGEST = 1000  # characters of a fault
_FROM_ELSEWHERE = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
Reply = dict[str, Any]


class RefusalError(TemplateError):
    """A template's own error, raised through raise_exception."""


class LengthError(Exception):
    """A text that exceeds its limit."""


FAULTS: tuple[tuple[type[BaseException], str], ...] = (
    (TemplateSyntaxError, "syntax"), (RecursionError, "deep"), (MemoryError, "memory"), (LengthError, "output"),
    (RefusalError, "refused"), (SecurityError, "unsafe"),
)  # fmt: skip


class Generation(Extension):
    """`{% generation %}`, which marks an assistant's text for training: it writes its body, as an answer."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

    def marked(self, caller: Callable[[], str]) -> str:
        """Return what is inside, marked."""
        return answered(caller())


class Tables:
    """`dict` without its attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class Names(Namespace):
    """`namespace` without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that a name may be "self"
        self, *given = args
        table = dict(*given, **kwargs)
        for name in table:
            Names._allow(name)
        Namespace.__init__(self, table)

    def __setitem__(self, name: str, value: Any) -> None:
        Names._allow(name)
        super().__setitem__(name, value)

    @staticmethod
    def _allow(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(name)


class Marking(NodeTransformer):
    """A transformer of the template's tree: every literal becomes a marked text, and `~` a join that keeps marks.

    Numbers too become names, so that nothing is computed before the template runs: `{{ 10 ** 10000000 }}` would be, by the compiler.
    """

    def __init__(self, env: "Environment") -> None:
        self.env = env
        self.literals: list[str] = []

    def visit(self, node: nodes.Node, *rest: Any, **how: Any) -> Any:
        if isinstance(node, nodes.TemplateData):
            return self._own(node.data, node.lineno)
        if isinstance(node, nodes.Const):
            return self._own(node.value, node.lineno)
        node = self.generic_visit(node)
        if isinstance(node, nodes.Concat):
            return nodes.Call(nodes.EnvironmentAttribute("tilde"), node.nodes, [], None, None, lineno=node.lineno)
        return node

    def _own(self, value: Any, line: int) -> nodes.Node:
        name = f"literal_{len(self.literals)}"
        setattr(self.env, name, wrote(value) if isinstance(value, str) else value)
        self.literals.append(value if isinstance(value, str) else "")
        return nodes.EnvironmentAttribute(name, lineno=line)


class Environment(ImmutableSandboxedEnvironment):
    """The sandbox of one template."""

    most = 0  # characters of a text
    now = datetime.min
    rng = Random()

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": refuse, "strftime_now": self.strftime, "dict": Tables(), "namespace": Names}
        self.filters |= {"tojson": to_json, "join": join, "random": self.chosen}

    def concat(self, parts: Iterable[str]) -> str:
        return joined(self._bounded(parts))

    def tilde(self, *parts: Any) -> str:
        return self.concat(map(str, parts))

    def _bounded(self, parts: Iterable[str]) -> Iterable[str]:
        left = self.most
        for part in parts:
            left -= len(part)
            if left < 0:
                raise LengthError
            yield part

    def chosen(self, among: Sequence[Any]) -> Any:
        """Return one of these by the request's seed, so that the choice can be repeated."""
        return self.rng.choice(among) if among else self.undefined()

    def strftime(self, form: str) -> str:
        return self.now.strftime(form)


def refuse(message: str) -> None:
    raise RefusalError(message)


def to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    """Return JSON as transformers writes it: nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_eval_context
def join(context: EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    return do_join(context, value, d if isinstance(d, Written) else Written(d), attribute)  # type: ignore[no-any-return]


class Rendering:
    """One template; calling it renders. setup_reply: its literals."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.env = Environment()
        tree = self.env.parse(setup["source"], NAME, NAME)
        for node in tree.find_all(_FROM_ELSEWHERE):
            raise SecurityError(type(node).__name__.lower())
        marking = Marking(self.env)
        self.template = self.env.from_string(marking.visit(tree))
        self.setup_reply: Reply = {"literals": "\0".join(marking.literals)}

    def __call__(self, request: dict[str, Any]) -> Reply:
        self.env.most, self.env.now, self.env.rng = request["most"], datetime.fromisoformat(request["now"]), Random(request["seed"])
        named = {name: wrote(token) for name, token in request["tokens"].items()}
        messages = [{**message, "role": wrote(message["role"])} for message in request["messages"]]
        text = self.template.render({**named, **request["variables"], "messages": messages})
        text.encode()  # half of a surrogate pair is no text
        return {"text": text, "own": spans(text), "answers": spans(text, ANSWER)}

    @staticmethod
    def fault(broken: BaseException) -> Reply:
        """Return the fault as a reply: its kind, the template's line, and the message."""
        line = broken.lineno if isinstance(broken, TemplateSyntaxError) else _line(broken.__traceback__)
        message = str(broken.message) if isinstance(broken, TemplateError) else f"{type(broken).__name__}: {broken}"
        kind = next((kind for sort, kind in FAULTS if isinstance(broken, sort)), "failed")
        return {"fault": kind, "line": line, "found": message[:LONGEST]}


def _line(trace: TracebackType | None) -> int:
    """Return the line of the template that failed; 0 if unknown."""
    lines = [line for frame, line in traceback.walk_tb(trace) if frame.f_code.co_filename in (NAME, "<template>")]
    return lines[-1] if lines else 0
