"""Every sentence that is shown stands in messages/, in both languages, and every key is used.

Each check is a function of a project's folder that yields complaints, as in test_structure.py.
"""

import ast
import json
import os
import re
import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from pellucid import messages
from pellucid.errors import PellucidError
from source_tree import nodes, parsed, write

ROOT = Path(__file__).parents[2]
PACKAGE = "src/pellucid"
LANGUAGES = ("en", "zh")
CHINESE = re.compile(r"[\u3400-\u9fff]")

# Keys put together at run time: an f-string that begins with one of these, and what it goes on with.
FAMILIES = {
    "catalog.": "a sentence of the catalogue, whose keys a test compares with models.json and devices.json",
    "axis.": "a letter of the legend",
    "need.": "what an exhibit needs of a model",
    "precision.": "why a model is held in a dtype",
    "formula.": "a sign of a formula",
    "exhibit.": "a text of an exhibit, whose keys tests/exhibits/test_exhibits.py compares with its file",
}
# Field-standard words that Chinese texts leave as they are; names and code need no entry, for they have capitals, digits or signs.
KEPT = {"logits", "softmax", "token", "tokens", "safetensors", "transformers", "pellucid", "torch"}
# Texts that look like sentences for people and are not, or stay English on purpose.
GENERATED = (
    "// Written by `python -m pellucid.documents.generated` from the documents' definitions in src/pellucid/documents; not by hand.\n"
)
ALLOWED: dict[str, str] = {
    GENERATED: "the head of a generated source",
    "The capital of France is": "the prompt of the first example",
    "中华人民共和国": "a Chinese text whose bytes an exhibit counts",
    "我可以拥有一杯咖啡吗？": "another",
    "小沈阳": "another",
    "大家共同努力": "a Chinese text of which models of four kinds see different parts",
    "The capital of Singapore is": "a text with a word that another has too",
    "The city of Singapore is the capital of": "the other",
    "The name of the capital city of Japan is": "the longest of three prompts",
    "{name} is the capital of": "the first step of a chain of two questions",
    "The continent of {name} is": "its second step",
    "The continent of the country whose capital is {name} is": "both steps at once",
    "The capital of France is Paris.": "the text of an exhibit about losses",
    "The capital of France is ___.": "the prompt of a masked model",
    "The key of Alda is red. The key of Borin is blue. The key of Alda is": "the prompt of the specimen that reads",
}
# Calls whose texts are shown, and arguments of any call that are shown.
SHOWN = {"print", "echo", "secho", "rule", "add_column", "add_row", "Panel", "Table", "Text", "Tree", "Markdown", "status", "write"}
SHOWN |= {"warn", "exit", "fail", "prompt", "confirm", "PlainTextResponse", "JSONResponse", "HTTPException"}
SHOWN_AS = {"help", "short_help", "epilog", "title", "caption", "subtitle", "description", "detail", "label", "prompt"}

Check = Callable[[Path], Iterator[str]]
Tree = tuple[Path, ast.Module]


def sources(root: Path) -> list[Tree]:
    """Return every Python file of the package, and its tree, but for those that make sentences out of keys."""
    files = sorted((root / PACKAGE).rglob("*.py"))
    return [
        (p.relative_to(root / PACKAGE), parsed(p.read_text(encoding="utf-8")))
        for p in files
        if "messages" not in p.parts and p.name != "errors.py"
    ]


def phrases(root: Path, language: str) -> dict[str, str]:
    """Return the entries of one language as the file has them."""
    text = (root / PACKAGE / "messages" / f"{language}.json").read_text(encoding="utf-8")
    entries: dict[str, str] = json.loads(text)
    return entries


def fields(sentence: str) -> set[str]:
    """Return the placeholders of a sentence. One that is neither a bare name nor has two forms keeps its braces, to be refused."""
    bare = re.sub(r"\{(\w+):[^{}|]*\|[^{}|]*\}", r"{\1}", sentence)
    parts = [(name, spec, how) for _, name, spec, how in string.Formatter().parse(bare) if name is not None]
    return {name if name.isidentifier() and not spec and not how else f"{{{name}!{how}:{spec}}}" for name, spec, how in parts}


def unequal(root: Path) -> Iterator[str]:
    """Yield keys that one language lacks, placeholders that differ, values of several lines, files that are not sorted."""
    en, zh = (phrases(root, x) for x in LANGUAGES)
    yield from (f"{key}: in one language only" for key in sorted(en.keys() ^ zh.keys()))
    for key in sorted(en.keys() & zh.keys()):
        if fields(en[key]) != fields(zh[key]):
            yield f"{key}: en has {sorted(fields(en[key]))}, zh {sorted(fields(zh[key]))}"
        if odd := [f for f in fields(en[key]) if not f.isidentifier()]:
            yield f"{key}: a placeholder is a bare name, not {odd[0]}"
    for language, entries in zip(LANGUAGES, (en, zh), strict=True):
        yield from (f"{language} {key}: more than one line" for key in entries if "\n" in entries[key] and not key.endswith(".lines"))
        yield from (
            f"{language} {key}: empty or with space around" for key in entries if entries[key] != entries[key].strip() or not entries[key]
        )
        if (root / PACKAGE / "messages" / f"{language}.json").read_text(encoding="utf-8") != written(entries):
            yield f"{language}.json: not sorted, or not laid out as json.dumps does with indent 2"


def written(entries: dict[str, str]) -> str:
    """Return the text of a file of messages, laid out so that two changes meet in few lines."""
    return json.dumps(dict(sorted(entries.items())), ensure_ascii=False, indent=2) + "\n"


def untranslated(root: Path) -> Iterator[str]:
    """Yield English sentences with Chinese in them, and Chinese entries without any that are more than symbols, names and code."""
    for key, sentence in phrases(root, "en").items():
        if CHINESE.search(sentence):
            yield f"en {key}: {sentence}"
    for key, sentence in phrases(root, "zh").items():
        bare = re.sub(r"\{\w*\}|`[^`]*`", " ", sentence)
        plain = [w for w in bare.split() if re.fullmatch(r"[^\w]*[A-Za-z]?[a-z]+[^\w]*", w) and w.strip(".,:;()?!") not in KEPT]
        if not CHINESE.search(bare) and any(len(w) > 2 for w in plain):
            yield f"zh {key}: {sentence}"


def called(node: ast.Call) -> str:
    """Return the last name of a call's function."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""


def calls(tree: ast.AST, inside: tuple[ast.FunctionDef, ...] = ()) -> Iterator[tuple[ast.Call, tuple[ast.FunctionDef, ...]]]:
    """Yield every call, with the functions around it, the innermost last."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield node, inside
        yield from calls(node, (*inside, node) if isinstance(node, ast.FunctionDef) else inside)


def parameters(function: ast.FunctionDef) -> list[str]:
    """Return the names of a function's parameters, without self."""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    return names[names[:1] in (["self"], ["cls"]) :] + [a.arg for a in function.args.kwonlyargs]


def key_of(call: ast.Call, at: int, name: str) -> ast.expr | None:
    """Return the argument of a call that is a key: by its place or its name."""
    named = next((k.value for k in call.keywords if k.arg == name), None)
    return call.args[at] if len(call.args) > at else named


def values(node: ast.expr | None, scopes: tuple[ast.AST, ...]) -> set[str] | None:
    """Return the keys that an expression may be: literals, a choice of literals, a name or table of these; None if that is not plain."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    several: list[ast.expr] = []
    if isinstance(node, ast.IfExp):
        several = [node.body, node.orelse]
    elif isinstance(node, ast.Subscript):
        return values(node.value, scopes)
    elif isinstance(node, ast.Dict):
        several = list(node.values)
    elif isinstance(node, ast.Name):
        for scope in reversed(scopes):
            several = several or [
                n.value
                for n in nodes(scope)
                if isinstance(n, ast.Assign | ast.AnnAssign)
                and n.value
                and node.id in map(ast.unparse, getattr(n, "targets", [getattr(n, "target", n)]))
            ]
    choices = [values(n, scopes) for n in several]
    return set().union(*(f for f in choices if f)) if choices and all(f is not None for f in choices) else None


def spoken(trees: list[Tree]) -> Iterator[tuple[Path, ast.Call, str, set[str] | None]]:
    """Yield every call with a key: its file, the call, the speaker, and the keys it may have (None: not plain).

    A function that hands one of its parameters on as a key is a speaker too, and its own calls are judged instead.
    """
    speakers: dict[str, tuple[int, str, Path | None]] = dict.fromkeys(("say", *errors()), (0, "key", None))
    grown = True
    while grown:
        grown, calls_found = False, []
        for path, tree in trees:
            near = {n.name for n in nodes(tree) if isinstance(n, ast.FunctionDef)}
            near |= {a.asname or a.name for n in nodes(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
            for call, inside in calls(tree):
                at, name, home = speakers.get(called(call), (0, "", Path()))
                owner = call.func.value.id if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) else ""
                if not name or (home is not None and called(call) not in near and owner != home.stem):
                    continue
                key = key_of(call, at, name)
                giver = next((f for f in reversed(inside) if isinstance(key, ast.Name) and key.id in parameters(f)), None)
                if giver is None or not isinstance(key, ast.Name):
                    calls_found.append((path, call, called(call), prefixed(key) or values(key, (tree, *inside))))
                elif giver.name not in speakers:
                    speakers[giver.name], grown = (parameters(giver).index(key.id), key.id, path), True
    yield from calls_found


def prefixed(node: ast.expr | None) -> set[str]:
    """Return the family of keys that an f-string begins with, as "axis.*"; empty if it is no such f-string."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else None
    start = first.value if isinstance(first, ast.Constant) else ""
    return {f"{family}*" for family in FAMILIES if str(start).startswith(family)}


@cache
def errors(kind: type[PellucidError] = PellucidError) -> set[str]:
    """Return the names of the classes of errors.py."""
    return {kind.__name__}.union(*(errors(k) for k in kind.__subclasses__()))


def unspoken(root: Path) -> Iterator[str]:
    """Yield keys that are not plain in the code or in no file of messages, and values that a sentence needs and a call lacks."""
    trees, known = sources(root), phrases(root, "en")
    for path, call, speaker, keys in spoken(trees):
        where = f"{path}:{call.lineno}"
        if keys is None:
            yield f"{where}: the key of {speaker} is no literal, and no f-string that begins with one of {sorted(FAMILIES)}"
        for key in sorted(keys or ()):
            given = {k.arg for k in call.keywords}
            if key not in known and not key.endswith("*"):
                yield f"{where}: {key} is in no file of messages"
            elif speaker in {"say", *errors()} and None not in given and (missing := fields(known.get(key, "")) - given):
                yield f"{where}: {key} needs {sorted(missing)}"


def unused(root: Path) -> Iterator[str]:
    """Yield keys that neither the package nor the page's sources name."""
    named = {n.value for _, tree in sources(root) for n in nodes(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    for file in (root / "web" / "src").rglob("*"):
        if file.suffix in {".ts", ".svelte"}:
            named |= set(re.findall(r"""["'`]([\w.]+)["'`]""", file.read_text(encoding="utf-8")))
    for key in phrases(root, "en"):
        if key not in named and not key.startswith(tuple(FAMILIES)):
            yield f"{key}: used nowhere"


def run_of_words(text: str) -> int:
    """Return the number of words of two letters or more that stand side by side; a Chinese character counts as three."""
    longest = run = 3 if CHINESE.search(text) else 0
    for word in text.split():
        run = run + 1 if re.fullmatch(r"[(\"'“]*[A-Za-z][a-z’'-]+[.,;:!?)\"'”]*", word) else 0
        longest, run = max(longest, run), 0 if word.endswith(",") else run  # "true, false" is a list of values
    return longest


def outspoken(root: Path) -> Iterator[str]:
    """Yield sentences outside messages/: two words side by side in a text that is shown or raised, three in any that is no docstring.

    A comment on a field of a TypedDict goes into the page's types, and is a docstring.
    """
    speakers = SHOWN | errors()
    for path, tree in sources(root):
        shown: set[int] = set()
        quiet = {id(n.value) for n in nodes(tree) if isinstance(n, ast.Expr)}
        for document in (n for n in nodes(tree) if isinstance(n, ast.ClassDef) and "TypedDict" in map(ast.unparse, n.bases)):
            quiet |= {id(n) for field in document.body if isinstance(field, ast.AnnAssign) for n in ast.walk(field.annotation)}
        for node in nodes(tree):
            roots: list[ast.AST] = []
            if isinstance(node, ast.Raise) and node.exc:
                roots = [node.exc]
            elif isinstance(node, ast.Call):
                roots = [k.value for k in node.keywords if k.arg in SHOWN_AS]
                roots += [*node.args, *node.keywords] if called(node) in speakers else []
            shown |= {id(n) for r in roots for n in ast.walk(r)}
        for node in nodes(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in quiet or node.value in ALLOWED:
                continue
            if run_of_words(node.value) >= (2 if id(node) in shown else 3):
                yield f"{path}:{node.lineno}: {node.value!r}"


EN, ZH, IN = f"{PACKAGE}/messages/en.json", f"{PACKAGE}/messages/zh.json", f"{PACKAGE}/"


def both(en: dict[str, str], zh: dict[str, str], code: str = "", name: str = "model.py") -> dict[str, str]:
    """Return a project with these entries and one module."""
    return {EN: written(en), ZH: written(zh), IN + name: code}


ONE = {"a.b": "no {x}"}, {"a.b": "没有 {x}"}
MUTANTS: list[tuple[Check, dict[str, str]]] = [
    (unequal, both({"a": "one"}, {})),
    (unequal, both({}, {"a": "一"})),
    (unequal, both({"a": "one {x}"}, {"a": "一 {y}"})),
    (unequal, both({"a": "one {x:.2f}"}, {"a": "一 {x:.2f}"})),
    (unequal, both({"a": "one {}"}, {"a": "一 {}"})),
    (unequal, both({"a": "one\ntwo"}, {"a": "一"})),
    (unequal, both({"a": " one"}, {"a": "一"})),
    (unequal, {EN: '{"b": "two", "a": "one"}', ZH: '{"b": "二", "a": "一"}'}),
    (unequal, both({"a": "one {x:a|b|c}"}, {"a": "一 {x}"})),
    (untranslated, both({"a": "the model"}, {"a": "the model"})),
    (untranslated, both({"a": "Parameters"}, {"a": "Parameters"})),
    (untranslated, both({"a": "模型"}, {"a": "模型"})),
    (unspoken, both(*ONE, "raise UseError('a.c', x=1)\n")),
    (unspoken, both(*ONE, "say('a.b')\n")),
    (unspoken, both(*ONE, "def f(k):\n    say(f'a.{k}', x=1)\n")),
    (unspoken, both(*ONE, "say(compute(), x=1)\n")),
    (unspoken, both(*ONE, "key = 'a.b' if t else 'a.c'\nraise UseError(key, x=1)\n")),
    (unspoken, both(*ONE, "def fail(key, at):\n    raise UseError(key, x=at)\nfail('a.c', 1)\n")),
    (
        unspoken,
        both(
            *ONE,
            "class A:\n    def fail(self, at, key):\n        raise UseError(key, x=at)\n    def f(self):\n        self.fail(1, 'a.c')\n",
        ),
    ),
    (unused, both(*ONE, "x = 'a.c'\n")),
    (outspoken, both(*ONE, "print('not found')\n")),
    (outspoken, both(*ONE, "raise ValueError(f'not found: {x}')\n")),
    (outspoken, both(*ONE, "Option(help='the model')\n")),
    (outspoken, both(*ONE, "raise UseError('a.b', x='a positive number')\n")),
    (outspoken, both(*ONE, "lines.append('nothing was found')\n")),
    (outspoken, both(*ONE, "lines.append('没有')\n")),
    (outspoken, both(*ONE, "class A:\n    x: Annotated[str, 'of the last token']\n")),
]
SOUND: list[tuple[Check, dict[str, str]]] = [
    (outspoken, both(*ONE, "class A(TypedDict):\n    x: Annotated[str, 'of the last token']\n")),
    (untranslated, both({"a": "FLOPs", "b": "logits {x}"}, {"a": "FLOPs", "b": "logits {x}"})),
    (unspoken, both(*ONE, "say('a.b', x=1)\nsay(f'axis.{letter}')\nkey = 'a.b'\nraise UseError(key, x=1)\n")),
    (unspoken, both(*ONE, "K = {'u': 'a.b'}\ndef fail(key, at):\n    raise UseError(key, x=at)\nfail('a.b', 1)\nfail(K['u'], 2)\n")),
    (unused, both(*ONE, "x = 'a.b'\n")),
    (outspoken, both(*ONE, '"""No key may be here."""\nprint(say("a.b", x=1), "B T D", "layers.*.attn")\nnote(x, "layer norm")\n')),
]


@pytest.mark.parametrize("check", [unequal, untranslated, unspoken, unused, outspoken])
def test_project(check: Check) -> None:
    complaints = list(check(ROOT))
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize(("check", "texts"), MUTANTS)
def test_mutant_is_seen(check: Check, texts: dict[str, str], tmp_path: Path) -> None:
    assert list(check(write(tmp_path, texts)))


@pytest.mark.parametrize(("check", "texts"), SOUND)
def test_sound_project_passes(check: Check, texts: dict[str, str], tmp_path: Path) -> None:
    assert list(check(write(tmp_path, texts))) == []


def test_language_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting goes before PELLUCID_LANG, and that before LANG; both languages speak."""
    monkeypatch.setattr(messages, "_chosen", None)
    monkeypatch.delenv("PELLUCID_LANG", raising=False)
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert messages.language() == "zh"
    monkeypatch.setenv("PELLUCID_LANG", "en")
    assert messages.language() == "en"
    messages.use("zh")
    assert messages.language() == "zh"
    assert messages.say("axis.V") == phrases(ROOT, "zh")["axis.V"]
    messages.use("en")
    assert messages.say("axis.V") == phrases(ROOT, "en")["axis.V"]


def test_values_cannot_reach_the_terminal() -> None:
    """A control character of a file's field is escaped, and a long value is cut."""
    messages.use("en")
    sentence = str(PellucidError("trace.unknown", path="\x1b[31mred\n", near="x" * 500))
    messages.use(None)
    assert "\x1b" not in sentence
    assert "\n" not in sentence
    assert len(sentence) < 300


@pytest.mark.parametrize("language", LANGUAGES)
def test_help_speaks_the_language(language: str) -> None:
    """`--help` of every command is in Chinese or in English alone, and no line of a library's own English remains in Chinese."""
    commands = sorted(p.stem for p in (ROOT / PACKAGE / "commands").glob("[a-z]*.py"))
    (own,) = shown(language, [])
    public = [name for name in commands if re.search(rf"^\W*{name}\b", own, re.M)]
    for text in shown(language, [], *([name] for name in public)):
        if language == "en":
            assert not CHINESE.search(text.replace("中文", ""))
        else:
            assert CHINESE.search(text)
            assert [line for line in text.splitlines() if not CHINESE.search(line) and run_of_words(line) >= 3] == []


def shown(language: str, *commands: list[str]) -> list[str]:
    """Return the output of each command's `--help`, from one process of this language."""
    code = f"from pellucid.commands import main\nfor words in {commands!r}:\n    main([*words, '--help'])\n    print(end='\\0', flush=True)"
    env = {**os.environ, "PELLUCID_LANG": language, "COLUMNS": "200", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split("\0")[:-1]
