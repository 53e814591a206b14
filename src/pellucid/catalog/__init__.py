"""Published models and devices, as data with their sources.

models.json   each with its config.json as on the hub; or, if none exists, with our Config as its paper discloses it (`literal`); or, if
              its makers disclosed nothing, with their statements alone
              its `notes` and statements are keys of messages/, which have them in both languages
devices.json  memory in bytes as the driver reports it (`memory_source`), bandwidth in bytes a second, dense peak in FLOP a second by dtype
              the sources of memory and link are keys of messages/ with their numbers and the names of documents
situations.json   a model with a context, on a number of devices: the commonest questions
"""

import difflib
import json
from collections.abc import Iterable
from functools import cache, reduce
from pathlib import Path
from typing import Any

from pellucid.messages import say

HERE = Path(__file__).parent
Entry = dict[str, Any]
WITHOUT_NAME = {"torch_properties", "torch_messages", "llama_cpp", "logs", "same", "nvidia_page", "resellers"}  # references


@cache
def read(file: str) -> dict[str, Entry]:
    """Return a file's entries by id."""
    return {e["id"]: e for e in json.loads((HERE / file).read_text(encoding="utf-8"))}


def models() -> dict[str, Entry]:
    """Return every model by id."""
    return read("models.json")


def notes(entry: Entry) -> list[str]:
    """Return the sentences on a model, in the user's language."""
    return [say(f"catalog.note.{key}") for key in entry.get("notes", ())]


def statements(entry: Entry) -> list[dict[str, str]]:
    """Return what is said of a model whose makers disclosed nothing, each with its status, in the user's language."""
    of = entry.get("statements", ())
    return [{"claim": say(f"catalog.claim.{one['claim']}"), "status": say(f"catalog.status.{one['status']}")} for one in of]


def source(entry: Entry) -> str:
    """Return where a model's configuration is from; of one that has none, that its statements tell."""
    return say("catalog.source.statements") if "statements" in entry else str(entry["source"])


def devices() -> dict[str, Entry]:
    """Return every device by id, with the sources of its memory and link in the user's language."""
    return {name: {**entry, **sources(entry)} for name, entry in read("devices.json").items()}


def sources(device: Entry) -> dict[str, str]:
    """Return what tells a device's memory: how much a program can have, and what keeps the rest; and what its link is, if it has one."""
    parts = (say(f"catalog.memory.{key}", **named(fields)) for key, fields in device["memory_source"])
    out = {"memory_source": reduce(lambda first, rest: say("catalog.and", first=first, rest=rest), parts)}
    if "link_source" in device:
        key, fields = device["link_source"]
        out["link_source"] = say(f"catalog.link.{key}", **named(fields))
    return out


def named(fields: Entry) -> Entry:
    """Return fields with their references as one text: the name of a document, or what has none in the user's language."""
    refs = fields.get("refs", ())
    return {**fields, "refs": "; ".join(say(f"catalog.ref.{name}") if name in WITHOUT_NAME else name for name in refs)}


def situations() -> dict[str, Entry]:
    """Return every situation by id: settings of `count`, and how the model is split over devices."""
    return read("situations.json")


def spelled(name: str) -> str:
    """Return a name without differences of spelling: "Llama-3.1 8B" and "llama-3.1-8b" become one."""
    return "".join(c for c in name.lower() if c.isalnum() or c == ".")


def find(table: dict[str, Entry], name: str) -> Entry | None:
    """Return the entry of an id, a name or an alias ("gpt2" is the small one); None if there is none."""
    wanted = spelled(name)
    return next((e for e in table.values() if wanted in map(spelled, (e["id"], e["name"], *e.get("also", ())))), None)


def nearest(known: Iterable[str], name: str) -> list[str]:
    """Return up to five known names that resemble `name`."""
    return difflib.get_close_matches(name.lower(), list(known), 5, 0.4)
