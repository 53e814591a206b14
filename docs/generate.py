"""The pages of the site that follow from the code, made whenever the site is built: a hook of mkdocs.

`python/<name>.md` from docstrings, `cli.md` from --help, `http.md` and `json.md` from the schemas, `types.md` from the families and the
tests' tables, and `contributing/index.md` from CONTRIBUTING.md.
"""

import contextlib
import importlib
import inspect
import io
import json
import re
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pellucid
from pellucid import families
from pellucid.commands import app, main
from pellucid.server.app import build

TYPES = """A folder of one of these loads, runs, is counted and is saved. Every case in the last column is a random model of transformers,
whose logits ours has in float64 at 1e-9. Of every type what was saved is read back, and one weight that differs is found; padded and cached
texts, and counts, are judged too, of all types in the long form of the tests. How to add another: [How a family works](families.md)."""
ROOT = Path(__file__).parents[1]
SCHEMAS = ROOT / "src" / "pellucid" / "schemas"
COMMAND_SCHEMAS = sorted(p.stem for p in SCHEMAS.glob("*.json") if p.stem != "api")


def pages() -> dict[str, str]:
    """Return every generated page by its address in the site."""
    made = {f"python/{name}.md": noun(name) for name in pellucid.__all__}
    made |= {"types.md": types(), "cli.md": commands(), "http.md": endpoints(), "json.md": printed()}
    made["contributing/index.md"] = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("(docs/contributing/", "(")
    return {place: re.sub(r"\(docs/", "(../", text) for place, text in made.items()}


def on_config(config: Any) -> Any:
    """Add the page of every public name to the navigation, after the examples."""
    section = next(entry["Python"] for entry in config["nav"] if "Python" in entry)
    section += [{name: f"python/{name}.md"} for name in pellucid.__all__]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to the site."""
    from mkdocs.structure.files import File

    for place, text in pages().items():
        files.append(File.generated(config, place, content=text))
    return files


def types() -> str:
    """Every model type: what it is, by its file's docstring, and the cases that the tests set beside transformers."""
    sys.path.append(str(ROOT / "tests" / "support"))
    kinds = importlib.import_module("kinds").KINDS
    out = [f"# {len(families.known())} model types", TYPES, "| `model_type` | what it is | judged as |\n|---|---|---|"]
    for name in families.known():
        doc = inspect.getdoc(importlib.import_module(f"pellucid.families.{name.replace('-', '_')}")) or ""
        cases = "; ".join(kinds[name].quirks) if name in kinds else "a test of its own"
        out[-1] += f"\n| `{name}` | {' '.join(doc.split(chr(10) * 2)[0].split())} | {cases} |"
    return "\n\n".join(out) + "\n"


def noun(name: str) -> str:
    """A public name: its signature and docstring, then its public methods and properties."""
    found = getattr(pellucid, name)
    out = [f"# {name}", fenced("python", signature(f"pellucid.{name}", found)), paragraphs(found)]
    out.append(f"Examples that run: [{name}](../python.md#{anchor(name)}).")
    if inspect.isclass(found):
        for method, value in members(found):
            out.append(f"## {method}")
            if not isinstance(value, property):
                out.append(fenced("python", signature(method, value)))
            out.append(paragraphs(value))
    return "\n\n".join(part for part in out if part) + "\n"


def members(found: type) -> list[tuple[str, Any]]:
    """The methods and properties of a class that have a docstring, its own and those of the package's classes below it."""
    named: dict[str, Any] = {}
    for owner in reversed(found.__mro__):
        if owner.__module__.startswith("pellucid"):
            named |= {name: value for name, value in vars(owner).items() if name[0] != "_"}
    return [(name, v) for name, v in named.items() if (inspect.isfunction(v) or isinstance(v, property)) and inspect.getdoc(v)]


def signature(name: str, found: Any) -> str:
    """A signature without the modules of its types, a parameter a line where it is long."""
    shown = inspect.signature(found)
    kept = [p for p in shown.parameters.values() if p.name != "self"]
    words = [re.sub(r"<(?:[^<>]|<\w+>)*>", "...", without_modules(str(p))) for p in kept]
    given = shown.return_annotation
    gives = "" if given in (inspect.Signature.empty, None) else f" -> {without_modules(inspect.formatannotation(given))}"
    line = f"{name}({', '.join(words)}){gives}"
    return line if len(line) < 100 else f"{name}(\n    " + ",\n    ".join(words) + f",\n){gives}"


def without_modules(text: str) -> str:
    """A type as it is written: collections.abc.Iterable[str] is Iterable[str], ~T is T."""
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text).replace("~", "")


def paragraphs(found: Any) -> str:
    """A docstring as Markdown: `name: text.  name: text.` becomes a list of parameters."""
    text = inspect.getdoc(found) or ""
    head, _, rest = text.partition("\n\n")
    lines = [head.replace("\n", " ")]
    for part in filter(None, rest.split("\n\n")):
        lines.append(re.sub(r"(?:^|  |(?<=\.) )(\w+(?:, \w+)*): ", r"\n- `\1`: ", part.replace("\n", " ")).strip())
    return re.sub(r" +$", "", "\n\n".join(lines), flags=re.M).strip()


def anchor(heading: str) -> str:
    """The anchor of a heading of python.md; Trace follows trace, and has a number."""
    return heading.lower() + ("_1" if heading == "Trace" else "")


def commands() -> str:
    """Every command with what its --help prints."""
    out = ["# Commands", fenced("text", printed_by("--help"))]
    for name in app.COMMANDS:
        out += [f"## {name}", fenced("text", printed_by(name, "--help").split("\n\nwith every command", maxsplit=1)[0])]
    return "\n\n".join(out) + "\n"


def printed_by(*words: str) -> str:
    """What a command line prints, in English."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*words, "--lang", "en"]) == 0
    return out.getvalue().rstrip()


def endpoints() -> str:
    """The routes of the page's server, and the documents they answer with."""
    _, api = build(Future(), "t" * 43, 0, page={})
    rows = ["| method | path |", "|---|---|"]
    for route in api.routes():
        methods = sorted((route.methods or set()) - {"HEAD"})
        rows.append(f"| {', '.join(methods)} | `{route.path}` |")
    schema = json.loads((SCHEMAS / "api.json").read_text(encoding="utf-8"))
    out = ["# HTTP API", HTTP, "\n".join(rows)]
    for name, shape in sorted(schema["$defs"].items()):
        out += [f"## {name}", fields(shape)]
    return "\n\n".join(out) + "\n"


HTTP = """The server of `pellucid open` answers on 127.0.0.1 alone.
Every call carries the token of the printed address, as `Authorization: Bearer TOKEN`.
A call that fails gives an [error](#error) document and its status; `Accept-Language: zh` asks for its sentence in Chinese.
Tensors come as a safetensors file with one tensor. Every other answer is one of the JSON documents below."""


PRINTED = """With `--json` a command prints one document, with the field `schema: 1`.
The schemas ship with the package, in `pellucid/schemas`."""


def printed() -> str:
    """The documents that commands print with --json."""
    out = ["# JSON", PRINTED]
    for stem in COMMAND_SCHEMAS:
        schema = json.loads((SCHEMAS / f"{stem}.json").read_text(encoding="utf-8"))
        out += [f"## {stem}", fields(schema)]
        for name, shape in sorted(schema.get("$defs", {}).items()):
            out += [f"### {stem} {name}", fields(shape)]
    return "\n\n".join(out) + "\n"


def fields(shape: dict[str, Any]) -> str:
    """A table of an object's fields; of anything else its kind."""
    if "properties" not in shape:
        return f"{kind(shape)}."
    required = set(shape.get("required", ()))
    rows = ["| field | value |", "|---|---|"]
    for name, value in shape["properties"].items():
        rows.append(f"| `{name}`{'' if name in required else ' (optional)'} | {kind(value)} |")
    return "\n".join(rows)


def kind(shape: dict[str, Any]) -> str:
    """A value's kind in a few words."""
    if "$ref" in shape:
        return shape["$ref"].rpartition("/")[2]
    if "const" in shape:
        return f"`{json.dumps(shape['const'])}`"
    if "enum" in shape:
        return " or ".join(f"`{json.dumps(value, ensure_ascii=False)}`" for value in shape["enum"])
    if either := shape.get("anyOf") or shape.get("oneOf"):
        return " or ".join(kind(one) for one in either)
    if "prefixItems" in shape:
        return f"[{', '.join(kind(one) for one in shape['prefixItems'])}]"
    if shape.get("type") == "array":
        return f"list of {kind(shape.get('items', {}))}"
    if shape.get("type") == "object":
        inner = ", ".join(f"`{name}`" for name in shape.get("properties", {}))
        return f"object with {inner}" if inner else "object"
    given = shape.get("type", "anything")
    return given if isinstance(given, str) else " or ".join(given)


def fenced(language: str, text: str) -> str:
    """A fenced block."""
    return f"```{language}\n{text}\n```"
