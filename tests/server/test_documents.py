"""A run has one document for all faces, defined once: JSON, schema and the page's types follow from the definition."""

import html
import json
import re
from pathlib import Path
from typing import Annotated, Any, get_args

import jsonschema
import pytest

import pellucid
from documented import Refused
from pellucid.api.model import Model
from pellucid.commands import main
from pellucid.documents import run as run_documents
from pellucid.documents import tensor as tensor_documents
from pellucid.documents.definition import Count, definitions, interfaces
from pellucid.documents.generated import NAMED, files
from pellucid.documents.part_settings import MaskDocument
from pellucid.documents.run import RunDocument
from pellucid.documents.tensor import TensorDocument
from pellucid.ops.kinds import KINDS, Result
from served import SCHEMA, Served
from tiny import swapped

NAME, PROMPT = "pellucid/capitals", "The capital of France is"
ROOT = Path(__file__).parents[2]
# A face's own fields, and why.
OWN = {
    "run": "the id under which a face keeps it",
    "sampling": "a trace does not say how its tokens were drawn",
}


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    with pytest.raises(jsonschema.SchemaError):
        jsonschema.Draft202012Validator.check_schema({**SCHEMA, "$defs": {"run": {"type": "record"}}})


def by_explain(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    """Return the document that `explain --json` prints."""
    assert main(["explain", NAME, PROMPT, "--json", "--top", "20", *more]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def in_page(text: str) -> dict[str, Any]:
    """Return the run document that a saved page carries."""
    recorded = text.partition('id="recorded">')[2].partition("</script>")[0]
    answers = json.loads(recorded)["answers"]
    return answers[f"runs/{answers['models']['run']}"]  # type: ignore[no-any-return]


def by_faces(api: Served, specimen: Model, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    """Return the run document of one prompt by every face."""
    trace = pellucid.trace(specimen, PROMPT, terms=True)
    trace.save_html(folder / "run.html", cells=100)
    (cell,) = re.findall(r"srcdoc='(.*?)'", trace._repr_html_(), re.S)
    return {
        "explain": by_explain(capsys),
        "server": api.get(f"/api/runs/{api.run(NAME, PROMPT)['run']}", "run"),
        "file": in_page((folder / "run.html").read_text(encoding="utf-8")),
        "notebook": in_page(html.unescape(cell)),
    }


def unlike(documents: dict[str, dict[str, Any]]) -> set[str]:
    """Return the fields in which faces differ from `explain --json`, except their own."""
    first = documents["explain"]
    return {
        f"{face}.{name}"
        for face, document in documents.items()
        for name in first.keys() | document.keys()
        if name not in OWN and first.get(name) != document.get(name)
    }


def test_one_document_of_a_run(api: Served, specimen: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = by_faces(api, specimen, tmp_path, capsys)
    assert unlike(documents) == set()
    assert documents["explain"]["sampling"] == documents["server"]["sampling"] != {} == documents["file"]["sampling"]
    documents["notebook"]["tensors"][3]["mean"] += 1e-9
    assert unlike(documents) == {"notebook.tensors"}


def test_a_face_of_its_own_is_seen(api: Served, specimen: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The mutant is a server whose tokens have other pieces than the file's."""
    from pellucid.server import session

    def own(run: Any) -> RunDocument:
        document = run_documents.run_document(run)
        return {**document, "pieces": [piece.strip("·") for piece in document["pieces"]]}  # type: ignore[typeddict-item]

    with swapped(session, "run_document", own):
        run = api.run(NAME, PROMPT)
    document = by_explain(capsys)
    assert unlike({"explain": document, "server": run}) == {"server.pieces"}


def test_further_steps_are_in_step_documents(api: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """`explain --json` holds the tensors of all steps, the server those of one step at a time; nothing else differs."""
    document, run = by_explain(capsys, "--steps", "3"), api.run(NAME, PROMPT, new=3)
    steps = [api.get(f"/api/runs/{run['run']}/steps/{k}", "step")["tensors"] for k in range(3)]
    assert unlike({"explain": document, "server": run | {"tensors": [t for step in steps for t in step]}}) == set()
    assert run["tensors"] == steps[0] != document["tensors"]


def test_generated_files_are_committed() -> None:
    """`python -m pellucid.documents.generated` writes the committed files."""
    stale = [path.name for path, text in files(ROOT).items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    assert stale == []


@pytest.mark.parametrize("document", [RunDocument, TensorDocument, MaskDocument])
def test_a_field_of_the_definition_alone_is_seen(document: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant adds a field to a definition, which makes all three files stale and its document invalid."""
    committed = files(ROOT)
    monkeypatch.setitem(document.__annotations__, "colour", Annotated[Count, "of its own"])
    assert [path.name for path, text in files(ROOT).items() if text != committed[path]] == ["explain.json", "api.json", "documents.ts"]
    assert "  colour: number; // of its own\n" in interfaces(*NAMED.values())
    assert "colour" in definitions(RunDocument)[document.__name__]["required"]


def test_a_field_of_the_document_alone_is_seen(api: Served) -> None:
    """The mutant is a builder that writes an undefined field, or omits a defined one."""
    tensor = tensor_documents.tensor

    def more(*of: Any) -> Any:
        return {**tensor(*of), "colour": 1}

    def fewer(*of: Any) -> Any:
        return {name: value for name, value in tensor(*of).items() if name != "put"}

    for wrong in (more, fewer):
        with swapped(tensor_documents, "tensor", wrong), pytest.raises(Refused):
            api.run(NAME, PROMPT)


# What scripts read of `explain --json`; fields may be added, and none goes.
STABLE = {
    "RunDocument": "schema model family parameters dtype prompt tokens blocks tensors next candidates new steps cell blanks",
    "TokenDocument": "id text bytes",
    "BlockDocument": "path parameters",
    "CandidateDocument": "id text logit probability",
    "RunStepDocument": "fed past next candidates",
    "BlankDocument": "row next candidates",
    "TensorDocument": "path dims shape dtype min mean max step made op inputs weights parameters settings source error",
    "CellDocument": "path dims index made settings factors added numbers summands total value",
}


def test_fields_that_scripts_read_stay() -> None:
    own = definitions(RunDocument)
    gone = {f"{name}.{field}" for name, fields in STABLE.items() for field in fields.split() if field not in own[name]["properties"]}
    assert gone == set()
    assert own["RunDocument"]["properties"]["schema"] == {"const": 1}


def ops_asked(source: str) -> list[str]:
    """The places where a page's source asks for a tensor's op by name; what the op's output is, the document's `result` says.

    web/src/live is the engine of a page without a server, which computes what ops make, and no view.
    """
    return re.findall(r"\w+\.op\b|\bop\s*[!=]==?", source)


def test_the_page_knows_no_op() -> None:
    own = [p for p in (ROOT / "web" / "src").rglob("*") if p.suffix in (".ts", ".svelte") and ".test." not in p.name]
    sources = [p for p in own if p.parent.name != "live" and p.name != "recorded_terms.ts"]  # which compute without a server
    assert len(sources) > 50 and {p.name: asking for p in sources if (asking := ops_asked(p.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize("line", ['t.op === "softmax"', 't.op?.startsWith("attend")', "ROUTING.has(t.op)", '({ op }) => op !== "add"'])
def test_a_page_that_asks_for_an_op_is_seen_mutant(line: str) -> None:
    assert ops_asked(line)


def test_what_an_output_is_stands_beside_its_op(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "pellucid/capitals-deepseek", PROMPT, "--json"]) == 0
    results = {t["path"]: t["result"] for t in json.loads(capsys.readouterr().out)["tensors"]}
    names = "q_rot", "latent", "scores", "pattern", "z"
    assert [results[f"layers.1.attn.{name}"] for name in names] == ["rotation", "norm", "scores", "shares", "attention"]
    assert {kind.result for kind in KINDS.values()} == {None, *get_args(Result)}  # each is some op's
