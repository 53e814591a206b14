"""The commands for contributors agree in .ci/run, the public workflow, the Makefile and CONTRIBUTING.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import pellucid
from covering import FULL
from pellucid import exhibits
from pellucid.commands import main

SPECIMENS = Path(pellucid.__file__).parent / "specimens"
ROOT = Path(__file__).parents[2]
TASKS = ["setup", "test", "check", "page", "bench", "docs"]
YAML = [".github/workflows/ci.yml", ".github/workflows/site.yml", ".github/workflows/wheels.yml", ".pre-commit-config.yaml", "mkdocs.yml"]
YAML += sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
OWN = "sudo apt-get"  # what a runner lacks


def read(name: str) -> str:
    """Return the text of a file of the project."""
    return (ROOT / name).read_text(encoding="utf-8")


def steps_of_script(text: str) -> list[str]:
    """Return the commands of .ci/run after the environment is made, without those that only print."""
    commands = re.findall(r"^ *(?:run|check|beside) +([^\n#]*[^\n# ])", text, re.M)
    return [c for c in commands if not c.startswith(('"$python"', "apt-get", "python -c"))]


def steps_of_workflow(text: str) -> list[str]:
    """Return the commands of a workflow's first job."""
    steps = next(iter(yaml.safe_load(text)["jobs"].values()))["steps"]
    return [step["run"] for step in steps if "run" in step and not step["run"].startswith(OWN)]


def recipes(text: str) -> dict[str, list[str]]:
    """Return the commands of each target of a Makefile."""
    by_target: dict[str, list[str]] = {}
    for name, block in re.findall(r"^([a-z]+):.*\n((?:\t.*\n)+)", text, re.M):
        by_target[name] = [line.strip() for line in block.splitlines()]
    return by_target


def astray(makefile: str, guide: str, script: str) -> Iterator[str]:
    """Return targets that are missing or unexplained, and commands of checks that CI does not run. A test builds the site."""
    made = recipes(makefile)
    yield from (f"no target {name}" for name in TASKS if name not in made)
    named = re.findall(r"^\| `make ([a-z]+)` \|", guide, re.M)
    if named != list(made):
        yield f"CONTRIBUTING.md names {named}"
    ran = steps_of_script(script)
    yield from (f"{name}: CI does not run {c}" for name in ("test", "check") for c in made.get(name, ()) if c not in ran)


def test_the_workflow_runs_what_the_script_runs() -> None:
    script = steps_of_script(read(".ci/run"))
    assert "pytest -n 3" in script and len(script) > 8
    assert steps_of_workflow(read(".github/workflows/ci.yml")) == script


def test_another_workflow_is_seen() -> None:
    text = read(".github/workflows/ci.yml")
    script = steps_of_script(read(".ci/run"))
    assert steps_of_workflow(text.replace("      - run: mypy\n", "")) != script
    assert steps_of_workflow(text.replace("pytest -n 3", "pytest -n 3 -x")) != script
    assert steps_of_workflow(text) != steps_of_script(read(".ci/run").replace("check ruff check\n", ""))


def test_the_workflow_knows_three_systems() -> None:
    rows = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]["check"]["strategy"]["matrix"]["include"]
    assert {row["system"].partition("-")[0] for row in rows} == {"ubuntu", "macos", "windows"}


def test_the_site_is_made_by_commands_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page and exhibit that the site has is written by its own command. In the quick form some are, and all name what there is."""
    monkeypatch.chdir(tmp_path)
    commands = [c.split() for c in steps_of_workflow(read(".github/workflows/site.yml")) if c.startswith("pellucid ")]
    assert {c[1] for c in commands} == {"page", "exhibit"}
    assert {c[2] for c in commands} <= {*exhibits.names(), *(f"pellucid/{path.name}" for path in SPECIMENS.iterdir())}
    for command in commands if FULL else commands[::4]:
        (tmp_path / command[-1]).parent.mkdir(parents=True, exist_ok=True)
        assert main(command[1:]) == 0 and (tmp_path / command[-1]).stat().st_size > 10_000, command


def test_tasks_are_named_and_run() -> None:
    assert list(astray(read("Makefile"), read("CONTRIBUTING.md"), read(".ci/run"))) == []


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [("docs: ", "site: ", 3), ("\tmypy\n", "\tmypy --strict\n", 1), ("\tpytest -n 3\n", "\tpytest\n", 1)],
)
def test_a_task_astray_is_seen(old: str, new: str, wrong: int) -> None:
    text = read("Makefile")
    assert (changed := text.replace(old, new)) != text
    assert 1 <= len(list(astray(changed, read("CONTRIBUTING.md"), read(".ci/run")))) <= wrong
    assert list(astray(text, read("CONTRIBUTING.md").replace("| `make page` |", "| `make site` |"), read(".ci/run")))


@pytest.mark.parametrize("name", YAML)
def test_yaml_parses(name: str) -> None:
    assert isinstance(yaml.safe_load(read(name)), dict)


def test_hooks_are_the_checks() -> None:
    """Hooks run the installed linters, so that they are CI's versions."""
    hooks = [hook for repo in yaml.safe_load(read(".pre-commit-config.yaml"))["repos"] for hook in repo["hooks"]]
    assert all(hook["language"] == "system" for hook in hooks)
    assert {hook["entry"].split()[0] for hook in hooks} == {line.split()[0] for line in recipes(read("Makefile"))["check"]}


def imported(path: Path) -> set[str]:
    """Return what a module imports when it is imported: the full names of modules."""
    out = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            out |= {name.name for name in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            out |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return out


def reaching(module: str, files: dict[str, Path]) -> set[str]:
    """Return the names of the files that import a module, and of those that import such a file, and so on."""
    known = {name: imported(path) for name, path in files.items()}
    reached, new = set[str](), {module}
    while new:
        new = {name for name, of in known.items() if any(one.partition(".")[0] in new or one in new for one in of)} - reached
        reached |= new
    return reached


def test_only_the_page_needs_a_browser() -> None:
    """No test but the page's imports playwright, or a module that does."""
    tests = ROOT / "tests"
    files = {path.relative_to(tests).as_posix(): path for path in tests.rglob("*.py")}
    modules = {path.stem if path.parent.name != "kinds" else f"kinds.{path.stem}": path for path in files.values()}
    reached = reaching("playwright", modules)
    assert {"browser", "walks", "test_page_tour"} <= reached
    assert [name for name, path in modules.items() if name in reached and path.parent.name not in ("page", "support")] == []
