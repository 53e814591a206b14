"""The words of the code are the field's: a name is used once, old words do not come back, and prose speaks of no persons.

A word that was replaced, and what replaced it, stand in `REPLACED`.
"""

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

from source_tree import write

ROOT = Path(__file__).parents[2]
PACKAGE = "src/pellucid"

# The old word: the field's.
REPLACED = {
    **dict.fromkeys(("sight", "Sight"), "mask"), "both_ways": "bidirectional", "Slope": "AlibiBias", "Learned": "RelativeBias",
    **dict.fromkeys(("past", "Past"), "kv_cache"), "Pages": "PagedCache", "Group": "PagePool, TensorGroup", "Abreast": "PagedRows",
    "Apart": "ScatteredRows", **dict.fromkeys(("crowd", "Crowd"), "batch"), "echo": "replay_trace", "Scribe": "TapRecorder", "tell": "emit",
    "put_off": "preempt", "room": "can_grow, capacity", "owed": "pending", "Line": "Queue", "news": "outputs",
    **dict.fromkeys(("ghost", "Ghost"), "meta_run"), "life": "trace", "live": "trace", "Moment": "StepView", "lives": "simulate",
    "visits": "browser", "look": "embedding", "pick": "gather",
    **dict.fromkeys(("evened", "tempered", "sunk", "sloped", "waved", "smoothed", "placed", "turned"), "lines of the forward; transposed"),
    "look_back": "project_kv", "heard": "has_memory", "listen": "cross_attend", "listener": "cross_attend", "listens": "crosses",
    "beside": "recomputing", "listed": "deferred", "instead": "as_reference", "within": "in_segment", "aside": "unwatched",
    "deeper": "visit_segments", "desk": "", "shelf": "model_registry", "Held": "LoadedModel", "apprentice": "pipeline", "Sheet": "Batch",
    "sheet": "batch", "said": "target", **dict.fromkeys(("found", "whole", "told", "held", "asked"), "what the value is"),
}  # fmt: skip
# Old words that are the field's in another sense, so that they are not in the table.
KEPT = {
    "Piece": "a token's piece, SentencePiece's own word, is the one class of this name",
    "seen": "what a watch recorded, as in README's `with pellucid.watch(...) as seen`",
    "reach": "the largest distance of T5's table, a field of config.py that the catalogue's files write",
    "matrix": "a weight of two axes, in linear algebra's sense",
    "words": "texts; the package that was called so is messages/",
    "draw": "to draw a picture or a random number; the package that was called so is terminal/",
    "saved": "written to disk; the package that was called so is html/",
}
PACKAGES = {"apprentice", "draw", "echo", "ghost", "life", "measuring", "past", "saved", "showing", "sight", "words"}  # names of modules

# A class that has the name of another: the reason.
SAME_CLASS = {
    "Attention": "a config and its part", "Latent": "a config and its part", "ShortConv": "a config and its part",
    "GatedDelta": "a config and its part", "Mamba1": "a config and its part", "Mamba2": "a config and its part",
    "Mlp": "a config and its part", "Moe": "a config and its part",
    "LayerInput": "a config and its part",
    "Run": "a public name, a run of training; the other is a run of a model that a server keeps",
}  # fmt: skip
FACES = ("commands", "documents", "exhibits", "terminal")  # a face has the name of what it shows
OF_AN_OP = ("nn", "ops", "ops/native")  # a part, the op that it calls and the op's kernel have one name

PERSONS = re.compile(
    r"\b(somebody|someone|nobody|whoever|whomever|anybody|anyone|everybody|everyone|he|she|him|his|her|who|whom)\b|\bso many\b",
    re.IGNORECASE,
)
SUFFIXES = (".py", ".ts", ".svelte", ".h", ".cpp")


def files(root: Path, *suffixes: str) -> Iterator[Path]:
    """Yield the hand-written files of src, tests and web/src with these endings; the built page is none."""
    for folder in (root / PACKAGE, root / "tests", root / "web/src"):
        for file in sorted(folder.rglob("*")):
            if file.suffix in suffixes and not file.is_relative_to(root / PACKAGE / "web"):
                yield file


def is_document(node: ast.AST) -> TypeGuard[ast.ClassDef]:
    """True for a class that derives from TypedDict."""
    return isinstance(node, ast.ClassDef) and any(isinstance(base, ast.Name) and base.id == "TypedDict" for base in node.bases)


def bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and name of every function, class, parameter, variable, attribute and import that a module names.

    The fields of a TypedDict are left out: JSON on disk has their names.
    """
    nodes = [*ast.walk(tree)]
    fields = {id(statement.target) for c in nodes if is_document(c) for statement in c.body if isinstance(statement, ast.AnnAssign)}
    for node in nodes:
        if id(node) in fields:
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield getattr(node, "lineno", 0), node.asname
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs) and node.name:
            yield node.lineno, node.name


DECLARED = re.compile(r"\b(?:const|let|var|function|class|interface|type|enum)\s+(\w+)")
PARAMETERS = re.compile(r"\bfunction\s+\w*\s*\(([^()]*)\)|\(([^()]*)\)\s*(?::\s*[\w<>\[\]| ]+)?\s*=>|\b(\w+)\s*=>")


def declared(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and name of every declaration and parameter of TypeScript or Svelte."""
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r"//.*$", "", line)
        yield from ((number, name) for name in DECLARED.findall(code))
        for groups in PARAMETERS.findall(code):
            yield from ((number, m[1]) for part in ",".join(groups).split(",") if (m := re.match(r"\s*\.{0,3}(\w+)", part)))


def old_names(root: Path) -> Iterator[str]:
    """Yield every place that binds a replaced word as a name, and every module that is called by one."""
    for file in files(root, ".py", ".ts", ".svelte"):
        text = file.read_text(encoding="utf-8")
        names = bound(ast.parse(text)) if file.suffix == ".py" else declared(text)
        where = file.relative_to(root)
        yield from (f"{where}:{line}: {name}" for line, name in names if name.lstrip("_") in REPLACED)
        if file.suffix == ".py" and file.stem in PACKAGES:
            yield f"{where}: {file.stem}"


def prose(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and comments of a file, each with its line; a page of documentation is prose but for its code."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        bare = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)
        yield from enumerate((re.sub(r"`[^`]*`", "", line) for line in bare.splitlines()), 1)
    elif file.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (doc := ast.get_docstring(node)):
                yield getattr(node, "lineno", 1), doc
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    else:
        for comment in re.finditer(r"(?<!:)//[^\n]*|/\*.*?\*/|<!--.*?-->", text, re.DOTALL):
            yield text.count("\n", 0, comment.start()) + 1, comment[0]


def persons(root: Path) -> Iterator[str]:
    """Yield every place in a docstring, a comment or the documentation that PERSONS matches."""
    for file in [*files(root, *SUFFIXES), *sorted((root / "docs").glob("*.md"))]:
        if PERSONS.search(" ".join(file.read_text(encoding="utf-8").split())) is None:
            continue  # before the slow reading of its comments
        for line, text in prose(file):
            yield from (f"{file.relative_to(root)}:{line}: {word[0]}" for word in PERSONS.finditer(text))


def twice(root: Path) -> tuple[set[str], set[str]]:
    """Return the class names and the stems of modules that the package uses for different things."""
    classes: dict[str, int] = Counter()
    stems: dict[str, set[str]] = defaultdict(set)
    for file in (root / PACKAGE).rglob("*.py"):
        folder = file.parent.relative_to(root / PACKAGE).as_posix()
        classes.update({n.name for n in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(n, ast.ClassDef)})
        if not file.stem.startswith("__") and folder not in FACES:
            stems[file.stem].add("an op" if folder in OF_AN_OP else folder)
    return {n for n, count in classes.items() if count > 1 and n not in SAME_CLASS}, {s for s, where in stems.items() if len(where) > 1}


@pytest.mark.parametrize("check", [old_names, persons])
def test_no_old_word_is_left(check: Callable[[Path], Iterator[str]]) -> None:
    assert [*check(ROOT)] == []


def test_a_name_is_used_once() -> None:
    assert twice(ROOT) == (set(), set())


def test_exceptions_have_a_use() -> None:
    """A word is replaced or kept, not both, and each class that may have another's name has it."""
    assert not KEPT.keys() & REPLACED.keys()
    text = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / PACKAGE).rglob("*.py"))
    assert all(len(re.findall(rf"^class {name}\b", text, re.M)) == 2 for name in SAME_CLASS)


MUTANTS: list[tuple[Callable[[Path], Iterator[str]], str, str]] = [
    (old_names, "src/pellucid/nn/mlp.py", "def f(x):\n    told = x\n"),
    (old_names, "src/pellucid/nn/mlp.py", "def whole(x): ...\n"),
    (old_names, "src/pellucid/nn/mlp.py", "def f(asked): ...\n"),
    (old_names, "src/pellucid/nn/mlp.py", "class Line: ...\n"),
    (old_names, "src/pellucid/nn/mlp.py", "class A:\n    held: int\n"),
    (old_names, "src/pellucid/nn/mlp.py", "class A(TypedDict):\n    def told(self): ...\n"),
    (old_names, "src/pellucid/nn/mlp.py", "def f(self):\n    self.found = 1\n"),
    (old_names, "src/pellucid/nn/mlp.py", "from a import b as crowd\n"),
    (old_names, "src/pellucid/nn/mlp.py", "x = [y for told in z]\n"),
    (old_names, "tests/nn/test_mlp.py", "life = 1\n"),
    (old_names, "src/pellucid/ghost.py", ""),
    (old_names, "web/src/view.ts", "const told = 1;\n"),
    (old_names, "web/src/view.ts", "function show(first: string, held: number) {}\n"),
    (old_names, "web/src/View.svelte", "let f = (asked: number) => 1;\n"),
    (persons, "src/pellucid/nn/mlp.py", '"""What nobody else holds."""\n'),
    (persons, "src/pellucid/nn/mlp.py", "x = 1  # for the caller who waits\n"),
    (persons, "src/pellucid/nn/mlp.py", 'def f():\n    """True if there is room for\n    so many tokens."""\n'),
    (persons, "src/pellucid/ops/native/linear.h", "// somebody reads it\n"),
    (persons, "web/src/View.svelte", "<!-- whoever reads -->\n"),
    (persons, "docs/python.md", "A user and his model.\n"),
]
SOUND: list[tuple[Callable[[Path], Iterator[str]], str, str]] = [
    (old_names, "src/pellucid/nn/mlp.py", "held_out = say('x', found=1)\nfirst_found = row.told\n"),
    (old_names, "src/pellucid/documents/run.py", "class A(TypedDict):\n    past: int\n"),
    (old_names, "web/src/view.ts", "const row = { told: 1, held: answer.held };\n"),
    (persons, "src/pellucid/nn/mlp.py", 'x = "nobody"  # the head, whose weight is tied\n'),
    (persons, "docs/python.md", "```\nwho\n```\nThe other head `he`.\n"),
]


@pytest.mark.parametrize(("check", "name", "text"), MUTANTS)
def test_an_old_word_is_seen(check: Callable[[Path], Iterator[str]], name: str, text: str, tmp_path: Path) -> None:
    (complaint,) = check(write(tmp_path, {name: text}))
    assert complaint.startswith(name)


@pytest.mark.parametrize(("check", "name", "text"), SOUND)
def test_other_words_pass(check: Callable[[Path], Iterator[str]], name: str, text: str, tmp_path: Path) -> None:
    assert not [*check(write(tmp_path, {name: text}))]


def test_a_name_that_comes_twice_is_seen(tmp_path: Path) -> None:
    names = ("engine/queue.py", "server/queue.py", "terminal/queue.py", "nn/norm.py", "ops/norm.py", "ops/native/norm.py")
    write(tmp_path, {f"{PACKAGE}/{name}": "class Attention: ...\n" for name in names})
    assert twice(tmp_path) == (set(), {"queue"})
    rows = {"engine/queue.py": "class Row: ...\n", "nn/norm.py": "def f():\n    class Row: ...\n"}
    write(tmp_path, {f"{PACKAGE}/{name}": text for name, text in rows.items()})
    assert twice(tmp_path) == ({"Row"}, {"queue"})
