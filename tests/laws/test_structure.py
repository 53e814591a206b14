"""The shape of the project: floors, lengths and names of files, and the calls, casts and imports that no file may contain.

Each check is a function of a project's folder that yields complaints. This project gives none; a small folder that breaks the rule shows
that the check would see it.
"""

import ast
import graphlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pellucid
from source_tree import nodes, parsed, shared, write

ROOT = Path(__file__).parents[2]
PACKAGE = "src/pellucid"

# A module imports from lower floors, and from its own where that makes no circle; imports for types alone may close one, not climb.
FLOORS = (
    {"errors", "axes", "config", "rope_config", "attention_spec", "state_config", "messages", "catalog", "arguments", "notebook"}
    | {"launched", "default_device"},
    {"watching", "batch", "distributed", "signs_of_life", "huge_pages"},
    {"ops"},
    {"nn"},
    {"families", "checkpoint", "tokenizer"},
    {"tracing", "counting", "sharding", "data_shards"},
    {"engine", "training", "bench"},
    {"api", "analysis", "runs", "exhibits"},
    {"documents"},
    {"terminal", "server", "html"},
    {"commands", "specimens", "__init__", "__main__"},
)
FACES = {"terminal", "server", "html"}  # each shows documents, and none imports another
DATA = {"web"}  # folders of the package that hold no Python
LONGEST = 400
VAGUE = {"util", "utils", "helper", "helpers", "base", "manager", "managers", "common", "misc"}
FLOAT32 = {
    ("ops/precision.py", "torch.float32"): "the definition of wide, the one rule of precision",
    ("ops/native/library.py", "torch.float32"): "names the dtypes that the kernels take; casts nothing",
}
UNSAFE_MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "__import__", "torch.load", "torch.hub.load", "torch.jit.load", "os.system", "os.popen"}
UNSAFE_CALLS |= {"yaml.load", "yaml.unsafe_load", "yaml.full_load", "runpy.run_path"}
UNSAFE_CALLS |= {"importlib.util.spec_from_file_location"}
OWN_CODE = {("own_check.py", "importlib.util.spec_from_file_location")}  # a function of the user's that the recipe names
UNSAFE_SETTINGS = {"allow_pickle", "trust_remote_code", "shell"}
JUDGES = {"transformers", "peft", "llama_cpp", "gguf"}  # tests compare with them; the package runs without
# But two commands, which compare on the spot.
JUDGED = {("verify.py", "transformers"), ("peers.py", "transformers"), ("peers.py", "llama_cpp")}

Check = Callable[[Path], Iterator[str]]


def files(root: Path, *suffixes: str) -> Iterator[Path]:
    """Yield the hand-written files of a project: no hidden folders, installed modules, or built page."""
    for folder, inner, names in os.walk(root):
        at = Path(folder)
        inner[:] = sorted(d for d in inner if d[0] != "." and d not in {"node_modules", "dist", "build", "__pycache__"})
        inner[:] = [d for d in inner if at / d != root / PACKAGE / "web"]
        yield from (at / n for n in sorted(names) if not suffixes or Path(n).suffix in suffixes)


def sources(root: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Yield every Python file of the package, by its path within it, and its tree."""
    for file in files(root / PACKAGE, ".py"):
        yield file.relative_to(root / PACKAGE), parsed(file.read_text(encoding="utf-8"))


def unit(path: Path) -> str:
    """Return the folder or module of a file on its floor: ops/attend.py -> ops, tap.py -> tap."""
    return path.parts[0].removesuffix(".py")


def imported(path: Path, tree: ast.AST, typing: bool = False) -> Iterator[tuple[int, str, bool]]:
    """Yield line and dotted name of every import, and True if it is for types alone; `from a import b` gives a.b."""
    for node in ast.iter_child_nodes(tree):
        types_too = typing
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            types_too = True
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name, typing) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ("pellucid", *path.parts[:-1])[: len(path.parts) + 1 - node.level] if node.level else ()
            module = ".".join((*above, *([node.module] if node.module else [])))
            yield from ((node.lineno, f"{module}.{a.name}", typing) for a in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and isinstance(node.args[0], ast.Constant):
            yield node.lineno, str(node.args[0].value), typing
        yield from imported(path, node, types_too)


@shared
def imports(path: Path, tree: ast.Module) -> tuple[tuple[int, str, bool], ...]:
    """Return what `imported` yields of a file."""
    return tuple(imported(path, tree))


def climbs(root: Path) -> Iterator[str]:
    """Yield imports from a higher floor or between faces, circles of modules, modules without a floor, torch on the ground floor."""
    floor_of = {name: i for i, floor in enumerate(FLOORS) for name in floor}
    modules = {".".join(("pellucid", *path.with_suffix("").parts)).removesuffix(".__init__") for path, _ in sources(root)}
    needs: dict[str, set[str]] = {}
    for path, tree in sources(root):
        here = unit(path)
        module = ".".join(("pellucid", *path.with_suffix("").parts)).removesuffix(".__init__")
        if here not in floor_of:
            yield f"{path}: {here} has no floor"
            continue
        for line, name, typing in imports(path, tree):
            words = name.split(".")
            if words[0] == "torch" and floor_of[here] == 0:
                yield f"{path}:{line}: the ground floor imports no torch"
            if words[0] != "pellucid":
                continue
            there = words[1] if len(words) > 1 and words[1] in floor_of else "__init__"
            if floor_of[there] > floor_of[here]:
                yield f"{path}:{line}: {here} is on floor {floor_of[here]} and imports {name} of floor {floor_of[there]}"
            if here in FACES and there in FACES - {here}:
                yield f"{path}:{line}: {here} imports {name}, and both are faces"
            wanted = name if name in modules else name.rpartition(".")[0]
            if not typing and wanted != module and "__init__" not in (here, there):
                needs.setdefault(module, set()).add(wanted)
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as e:
        yield f"a circle of modules: {' <- '.join(e.args[1])}"


def misplaced(root: Path) -> Iterator[str]:
    """Yield names whose floor in a README's tree, or in the table of docs/architecture.md, is another than in FLOORS."""
    floors = {f"F{i}": {name for name in floor if not name.startswith("_")} - {"specimens"} for i, floor in enumerate(FLOORS)}
    for name in ("README.md", "README.zh.md", "docs/architecture.md"):
        text = (root / name).read_text(encoding="utf-8") if (root / name).is_file() else ""
        drawn: dict[str, set[str]] = {}
        for floor, rest in re.findall(r"^(?:\| )?(F\d+) +(?:\| )?(.*)$", text, re.M):
            named = re.findall(r"`(\w+)[/`]", rest) if name.endswith("architecture.md") else [re.split(r"[/. ]", rest)[0]]
            drawn.setdefault(floor, set()).update(named)
        for floor in floors.keys() | drawn.keys():
            for one in floors.get(floor, set()) ^ drawn.get(floor, set()):
                yield f"{name}: {one} and {floor}"


def too_long(root: Path) -> Iterator[str]:
    """Yield source files of more than LONGEST lines."""
    for file in files(root, ".py", ".cpp", ".h", ".ts", ".svelte"):
        if (lines := len(file.read_text(encoding="utf-8").splitlines())) > LONGEST:
            yield f"{file.relative_to(root)}: {lines} lines"


def vague(root: Path) -> Iterator[str]:
    """Yield names that say nothing: utils, helpers, base, manager, common."""
    for file in files(root):
        path = file.relative_to(root)
        if words := VAGUE & {word for part in path.parts for word in re.split(r"[^a-z]+", part.lower())}:
            yield f"{path}: {words.pop()}"


def narrow(root: Path) -> Iterator[str]:
    """Yield float32 by name in ops/ and nn/, where float64 must stay float64: wide(dtype) is the rule."""
    for path, tree in sources(root):
        if unit(path) not in {"ops", "nn"}:
            continue
        compared = {id(n) for c in nodes(tree) if isinstance(c, ast.Compare) for n in ast.walk(c)}  # asks, and casts nothing
        for node in nodes(tree):
            text = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Constant) and id(node) not in compared else ""
            cast = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "float"
            if (cast or text in {"torch.float32", "torch.float", "'float32'"}) and (str(path), text) not in FLOAT32:
                yield f"{path}:{getattr(node, 'lineno', 0)}: {text or '.float()'}"


def unsafe(root: Path) -> Iterator[str]:
    """Yield ways to run code that came with data, and judges of the tests in the package."""
    for path, tree in sources(root):
        known: dict[str, str] = {}
        for node in nodes(tree):
            if isinstance(node, ast.Import):
                known |= {a.asname: a.name for a in node.names if a.asname}
            elif isinstance(node, ast.ImportFrom):
                known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        for line, name, _ in imports(path, tree):
            if (top := name.split(".")[0]) in UNSAFE_MODULES | JUDGES and (path.name, top) not in JUDGED:
                yield f"{path}:{line}: imports {top}"
        for node in nodes(tree):
            if not isinstance(node, ast.Call):
                continue
            first, dot, rest = ast.unparse(node.func).partition(".")
            called = known.get(first, first) + dot + rest
            settings = {k.arg for k in node.keywords if not (isinstance(k.value, ast.Constant) and not k.value.value)}
            if called in UNSAFE_CALLS and (path.name, called) not in OWN_CODE:
                yield f"{path}:{node.lineno}: calls {called}"
            if switches := settings & UNSAFE_SETTINGS:
                yield f"{path}:{node.lineno}: {called} with {switches.pop()}"


def exports(root: Path) -> Iterator[str]:
    """Yield names in an `__all__` that do not exist, and public names without a docstring of their own."""
    for path, tree in sources(root):
        if not any(isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__" for n in tree.body):
            continue
        name = ".".join(("pellucid", *path.with_suffix("").parts)).removesuffix(".__init__")
        module = importlib.import_module(name)
        for public in module.__all__:
            if not hasattr(module, public):
                yield f"{path}: __all__ names {public}, which does not exist"
            elif name == "pellucid" and callable(value := getattr(module, public)):
                text = value.__doc__ or ""
                if not text or text.startswith(f"{public}("):  # a dataclass's own text
                    yield f"{path}: {public} has no docstring"


def tree_of(readme: Path) -> dict[str, int]:
    """Return the paths of a README's tree, its fenced block that begins with src/pellucid/, and their lines. Indented names are nested."""
    block = next((b for b in re.findall(r"```\w*\n(.*?)```", readme.read_text(encoding="utf-8"), re.S) if b.startswith(f"{PACKAGE}/")), "")
    open_folders: list[tuple[int, str]] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(block.splitlines(), 1):
        bare = re.sub(r"^F\d+\b", lambda label: " " * len(label[0]), re.sub(r"[│├└─]", " ", line))
        if not bare.strip():
            continue
        column, name = len(bare) - len(bare.lstrip()), bare.split()[0]
        while open_folders and open_folders[-1][0] >= column:
            open_folders.pop()
        path = (open_folders[-1][1] if open_folders else "") + name
        lines[path] = number
        if name.endswith("/"):
            open_folders.append((column, path))
    return lines


def misdrawn(root: Path) -> Iterator[str]:
    """Yield differences of the READMEs' trees and the package: names that do not exist, modules and folders without a line."""
    package = root / PACKAGE
    there = {f"{PACKAGE}/{p.name}/" for p in package.iterdir() if p.is_dir() and p.name != "__pycache__"}
    there |= {f"{PACKAGE}/{p.name}" for p in package.glob("*.py") if not p.name.startswith("__")}
    for name in ("README.md", "README.zh.md"):
        if not (root / name).is_file():
            yield f"{name} is missing"
            continue
        drawn = tree_of(root / name)
        for path, line in drawn.items():
            if not ((root / path).is_dir() if path.endswith("/") else (root / path).is_file()):
                yield f"{name}: line {line} of the tree names {path}, which does not exist"
        yield from (f"{name}: the tree lacks {path}" for path in sorted(there - set(drawn)))


def machines(root: Path) -> Iterator[str]:
    """Yield absolute paths of one machine."""
    for file in files(root, ".md", ".py", ".toml", ".txt", ".sh", ".ts", ".svelte", ".cpp", ".h"):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if path := re.search(r"(?<![\w.\-/])/(?:tmp|work|root|farm|home|Users|mnt)/[\w.]+", line):
                yield f"{file.relative_to(root)}:{number}: {path[0]}"


def untested(root: Path) -> Iterator[str]:
    """Yield the test command that a README gives and CI does not run."""
    ran = (root / ".ci/run").read_text(encoding="utf-8")
    for name in ("README.md", "README.zh.md"):
        text = (root / name).read_text(encoding="utf-8") if (root / name).is_file() else ""
        given = re.findall(r"&& (pytest[^\n`]*)", text)
        if not given:
            yield f"{name} gives no test command"
        lacking = (command for command in given if not re.search(rf"^(run|check|beside) {re.escape(command)}$", ran, re.M))
        yield from (f"{name}: .ci/run does not run {command!r}" for command in lacking)


FENCE = "```\nsrc/pellucid/\nF0  errors.py   one base class\n    ops/        operations\n      native/   C++\n```\n"
IN = f"{PACKAGE}/"
MUTANTS: list[tuple[Check, dict[str, str]]] = [
    (climbs, {IN + "ops/linear.py": "from pellucid.nn.transformer import Decoder\n"}),
    (climbs, {IN + "watching/tap.py": "import pellucid\n"}),
    (climbs, {IN + "nn/mlp.py": "def f():\n    from pellucid import api\n"}),
    (climbs, {IN + "nn/mlp.py": "from ..engine import pages\n"}),
    (climbs, {IN + "ops/native/__init__.py": "from ... import api\n"}),
    (climbs, {IN + "nn/mlp.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pellucid.tracing import Trace\n"}),
    (climbs, {IN + "tracing.py": "import importlib\nimportlib.import_module('pellucid.engine')\n"}),
    (climbs, {IN + "counting/a.py": "from pellucid.counting import b\n", IN + "counting/b.py": "from pellucid.counting.a import x\n"}),
    (climbs, {IN + "html/file.py": "from pellucid.server.faults import answer\n"}),
    (climbs, {IN + "server/bench.py": "def f():\n    from pellucid.terminal import bench\n"}),
    (climbs, {IN + "terminal/bill.py": "from ..html import frame\n"}),
    (climbs, {IN + "config.py": "import torch\n"}),
    (climbs, {IN + "stray.py": ""}),
    (too_long, {"web/src/Tile.svelte": "\n" * 401}),
    (vague, {"tests/cache_helpers.py": ""}),
    (vague, {"web/src/common/tile.ts": ""}),
    (narrow, {IN + "ops/norm.py": "def f(x): return x.float()\n"}),
    (narrow, {IN + "nn/norm.py": "import torch\ndef f(x): return x.to(torch.float32)\n"}),
    (narrow, {IN + "nn/norm.py": "def f(x): return g(x, dtype='float32')\n"}),
    (unsafe, {IN + "training/data.py": "import pickle\n"}),
    (unsafe, {IN + "training/data.py": "from joblib import dump\n"}),
    (unsafe, {IN + "training/data.py": "from torch import load as read\nread('x')\n"}),
    (unsafe, {IN + "training/data.py": "import numpy as np\nnp.load('x', allow_pickle=True)\n"}),
    (unsafe, {IN + "training/data.py": "import torch as t\nt.load('x')\n"}),
    (unsafe, {IN + "training/data.py": "eval('1')\n"}),
    (unsafe, {IN + "api/model.py": "def f():\n    import transformers\n"}),
    (misdrawn, {"README.md": FENCE, "README.zh.md": FENCE, IN + "ops/native/k.cpp": ""}),
    (misdrawn, {"README.md": FENCE, "README.zh.md": FENCE, IN + "ops/norm.py": "", IN + "errors.py": ""}),
    (misdrawn, {"README.md": FENCE, "README.zh.md": FENCE, IN + "ops/native/k.cpp": "", IN + "errors.py": "", IN + "terminal/svg.py": ""}),
    (misdrawn, {"README.md": FENCE, IN + "ops/native/k.cpp": "", IN + "errors.py": ""}),
    (misplaced, {"README.md": "F1  ops/  x\n", "README.zh.md": "", "docs/architecture.md": "| F2 | `ops` |\n"}),
    (machines, {"docs/speed.md": "run in " + "/work" + "/main\n"}),
    (untested, {".ci/run": "run pytest -n 3\n", "README.md": "pip install . && pytest -n 4\n", "README.zh.md": "&& pytest -n 3\n"}),
]
SOUND: list[tuple[Check, dict[str, str]]] = [
    (
        climbs,
        {
            IN + "batch/step.py": "from pellucid.batch.kv_cache import KVCache\n",
            IN + "batch/kv_cache.py": "",
            IN + "ops/norm.py": "from pellucid.watching import tap\n",
            IN + "server/app.py": "from pellucid.server.faults import answer\nfrom pellucid.documents import run\n",
            IN + "server/faults.py": "",
            IN + "documents/run.py": "",
        },
    ),
    (too_long, {"web/src/Tile.svelte": "\n" * 400, "web/node_modules/x.ts": "\n" * 900, IN + "web/page.ts": "\n" * 900}),
    (narrow, {IN + "ops/norm.py": "def fits(x):\n    return x.dtype in (torch.float32, torch.bfloat16)\n"}),
    (narrow, {IN + "ops/precision.py": "import torch\ndef wide(d): return torch.promote_types(d, torch.float32)\n"}),
    (unsafe, {IN + "training/loop.py": "import numpy as np\nmodel.eval()\nnp.load('x', allow_pickle=False)\n"}),
    (misdrawn, {"README.md": FENCE, "README.zh.md": FENCE, IN + "ops/native/k.cpp": "", IN + "errors.py": ""}),
]


@pytest.mark.parametrize("check", [climbs, too_long, vague, narrow, unsafe, exports, misdrawn, misplaced, machines, untested])
def test_project(check: Check) -> None:
    complaints = list(check(ROOT))
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize(("check", "texts"), MUTANTS)
def test_mutant_is_seen(check: Check, texts: dict[str, str], tmp_path: Path) -> None:
    assert list(check(write(tmp_path, texts)))


@pytest.mark.parametrize(("check", "texts"), SOUND)
def test_sound_project_passes(check: Check, texts: dict[str, str], tmp_path: Path) -> None:
    assert list(check(write(tmp_path, texts))) == []


@pytest.mark.parametrize("public", ["absent", "bare"])
def test_exports_mutant_is_seen(public: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path, {IN + "__init__.py": "__all__ = []\n"})
    monkeypatch.setattr(pellucid, "__all__", [public], raising=False)
    monkeypatch.setattr(pellucid, "bare", lambda: None, raising=False)
    assert list(exports(root))


def run(code: str, folder: Path) -> tuple[str, set[str]]:
    """Run `code` in a fresh Python in `folder`. Returns its output and the modules that it has loaded."""
    script = f"import atexit, sys\natexit.register(lambda: print('\\n\\f', *sys.modules))\n{code}"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    text, _, modules = done.stdout.rpartition("\f")
    return text, set(modules.split())


def command(*words: str) -> str:
    """Return code that runs a command of the terminal."""
    return f"sys.argv = ['pellucid', *{words!r}]\nfrom pellucid.commands import main\nmain()"


def test_import_loads_no_judge(tmp_path: Path) -> None:
    public = "import pellucid\nfor name in pellucid.__all__: getattr(pellucid, name)\n"
    write(tmp_path, {"transformers.py": "", "stray.py": "import transformers\n"})
    before, after = run(public + "print(*sys.modules)\nimport stray", tmp_path)
    assert "pellucid.api.model" in before.split() and not set(before.split()) & JUDGES
    assert after & JUDGES


def test_help_loads_no_torch(tmp_path: Path) -> None:
    """No command's help loads torch; a file of commands/ that `--help` does not list is no command."""
    text, modules = run(command("--help"), tmp_path)
    assert "torch" not in modules
    stems = sorted(p.stem for p in (ROOT / PACKAGE / "commands").glob("[a-z]*.py"))
    names = [name for name in stems if re.search(rf"^\W*{name}\b", text, re.M)]
    assert "explain" in names
    helps = "".join(f"{command(name, '--help')}\nprint('\\nloaded', {name!r}, 'torch' in sys.modules)\n" for name in names)
    loaded = re.findall(r"^loaded (\w+) (\w+)$", run(helps, tmp_path)[0], re.M)
    assert loaded == [(name, "False") for name in names]  # all in one process: what one loads, the next ones have
    write(tmp_path, {"torch.py": "", "stray.py": "import torch\n"})
    assert "torch" in run("import stray", tmp_path)[1]


def test_no_module_has_a_public_name() -> None:
    """`import pellucid.trace` would put a module where the function `pellucid.trace` is."""
    assert not [name for name in pellucid.__all__ if importlib.util.find_spec(f"pellucid.{name}")]
    assert importlib.util.find_spec("pellucid.tracing")  # so that a module would be seen


def test_exceptions_are_needed() -> None:
    """An exception to the rule of float32 that no line uses any more is taken off the list."""
    for path, text in FLOAT32:
        assert text in (ROOT / PACKAGE / path).read_text(encoding="utf-8")
    assert all(not (ROOT / PACKAGE / name).exists() or not list((ROOT / PACKAGE / name).rglob("*.py")) for name in DATA)
