"""The files generated from the documents' definitions: JSON Schemas, and the page's TypeScript types.

`python -m pellucid.documents.generated` writes them into a checkout; a test compares them.
"""

import json
from pathlib import Path
from typing import Any

from pellucid.documents.cell_parts import CellPartsDocument
from pellucid.documents.chat_answer import ChatEventDocument
from pellucid.documents.code import CodeDocument
from pellucid.documents.comparison import ComparisonDocument
from pellucid.documents.definition import definitions, interfaces
from pellucid.documents.exhibit import ExhibitDocument, ExhibitListDocument
from pellucid.documents.lens import AttributionDocument, LensDocument, ReadDocument
from pellucid.documents.prefix_reuse import ReuseDocument
from pellucid.documents.prompt_batch import PromptBatchDocument
from pellucid.documents.rotary import TurnsDocument
from pellucid.documents.run import CandidateDocument, RunDocument, StepDocument
from pellucid.documents.run_difference import DifferencesDocument
from pellucid.documents.run_map import MapDocument
from pellucid.documents.run_progress import ProgressDocument
from pellucid.documents.sweep import HeadsDocument, SweepDocument
from pellucid.documents.switch_list import SwitchesDocument
from pellucid.documents.tensor import StatsDocument, TensorDocument
from pellucid.documents.tokens import TokensDocument
from pellucid.documents.training import TrainingDocument
from pellucid.documents.why import WeightTileDocument, WhyDocument

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NAMED = {  # documents by the names that schemas/api.json has for them
    "run": RunDocument,
    "step": StepDocument,
    "tensor": TensorDocument,
    "candidate": CandidateDocument,
    "measures": StatsDocument,
    "lens": LensDocument,
    "attribution": AttributionDocument,
    "parts": CellPartsDocument,
    "code": CodeDocument,
    "turns": TurnsDocument,
    "reuse": ReuseDocument,
    "sweep": SweepDocument,
    "switches": SwitchesDocument,
    "progress": ProgressDocument,
    "moved": WhyDocument,
    "tile": WeightTileDocument,
}
OF_DIFFERENCES = {"differences": DifferencesDocument}
OF_MAP = {"map": MapDocument}
OF_TEXT = {"tokens": TokensDocument}
OF_CHAT = {"chat": ChatEventDocument}
OF_EXHIBITS = {"exhibits": ExhibitListDocument, "exhibit": ExhibitDocument, "training": TrainingDocument}
EVERY = NAMED | OF_DIFFERENCES | OF_MAP | OF_TEXT | OF_CHAT | OF_EXHIBITS
IMPORTED_BY_CHAT = 'import type { AnswerDocument } from "../run/documents";'
IMPORTED_BY_MAP = 'import type { LensLayerDocument } from "./documents";'
IMPORTED = 'import type { CandidateDocument } from "../run/documents";'
HEAD = "// Generated: python -m pellucid.documents.generated\n"


def files(root: Path) -> dict[Path, str]:
    """Return the text of each file by its path in the checkout at `root`."""
    schemas = root / "src" / "pellucid" / "schemas"
    api = schemas / "api.json"
    return {
        schemas / "explain.json": written(command_schema("explain", RunDocument, WhyDocument, PromptBatchDocument)),
        schemas / "exhibit.json": written(command_schema("exhibit", ExhibitDocument)),
        schemas / "heads.json": written(command_schema("heads", HeadsDocument)),
        schemas / "lens.json": written(command_schema("lens", ReadDocument)),
        schemas / "patch.json": written(command_schema("patch", SweepDocument)),
        schemas / "tokenize.json": written(command_schema("tokenize", TokensDocument)),
        schemas / "try.json": written(command_schema("try", ComparisonDocument)),
        api: written(api_schema(json.loads(api.read_text(encoding="utf-8")))),
        root / "web" / "src" / "run" / "documents.ts": f"{HEAD}\n{interfaces(*NAMED.values())}\n",
        root
        / "web"
        / "src"
        / "run"
        / "map_documents.ts": f"{HEAD}\n{IMPORTED_BY_MAP}\n\n{interfaces(*OF_MAP.values(), known=NAMED.values())}\n",
        root / "web" / "src" / "run" / "difference_documents.ts": f"{HEAD}\n{interfaces(*OF_DIFFERENCES.values())}\n",
        root / "web" / "src" / "run" / "token_documents.ts": f"{HEAD}\n{interfaces(*OF_TEXT.values())}\n",
        root
        / "web"
        / "src"
        / "chat"
        / "chat_documents.ts": f"{HEAD}\n{IMPORTED_BY_CHAT}\n\n{interfaces(*OF_CHAT.values(), known=NAMED.values())}\n",
        root
        / "web"
        / "src"
        / "exhibits"
        / "documents.ts": f"{HEAD}\n{IMPORTED}\n\n{interfaces(*OF_EXHIBITS.values(), known=NAMED.values())}\n",
    }


def command_schema(command: str, *documents: type) -> dict[str, Any]:
    """Return the schema of what a command prints with --json: one of these documents."""
    references = [{"$ref": f"#/$defs/{document.__name__}"} for document in documents]
    either: dict[str, Any] = references[0] if len(references) == 1 else {"anyOf": references}
    return {"$schema": DIALECT, "title": f"pellucid {command} --json", **either, "$defs": definitions(*documents)}


def api_schema(api: dict[str, Any]) -> dict[str, Any]:
    """Return the API's schema with the generated definitions put in place; those written by hand stay."""
    own = definitions(*EVERY.values())
    by_hand = {name: schema for name, schema in api["$defs"].items() if name not in EVERY and not name.endswith("Document")}
    references = {name: {"$ref": f"#/$defs/{document.__name__}"} for name, document in EVERY.items()}
    return api | {"$defs": references | own | by_hand}


def written(schema: dict[str, Any]) -> str:
    """Return a schema as the text of its file."""
    return json.dumps(schema, ensure_ascii=False, indent=2) + "\n"


if __name__ == "__main__":
    checkout = Path(__file__).parents[3]
    for path, text in files(checkout).items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(checkout))
