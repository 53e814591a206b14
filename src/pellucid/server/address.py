"""The parameters of an address, read strictly: each has a kind and a range, and an unknown one is refused by name."""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pellucid.errors import RequestError
from pellucid.runs.request import LARGEST, wrong

if TYPE_CHECKING:
    from starlette.requests import Request

    from pellucid.runs.kept_run import Run
    from pellucid.server.session import Session


def query(request: "Request", *names: str) -> dict[str, str]:
    """Return the parameters of an address. A RequestError for one that is unknown or repeated; every route takes `lang`."""
    pairs = request.query_params.multi_items()
    for name, _ in pairs:
        if name not in (*names, "lang"):
            raise RequestError("server.unknown", 400, name, name=name, known=", ".join((*names, "lang")))
        if sum(name == other for other, _ in pairs) > 1:
            raise RequestError("server.twice", 400, name, name=name)
    return dict(pairs)


def integer(given: str, name: str, most: int = LARGEST, least: int = 0) -> int:
    """Parse a whole number. A RequestError if it is not within `least` and `most`."""
    if not re.fullmatch(r"[0-9]{1,16}", given) or not least <= int(given) <= most:
        raise wrong(name, given, f"{least}..{most}")
    return int(given)


def real(given: str, name: str) -> float:
    """Parse a number of at least 0. A RequestError for anything else."""
    if not re.fullmatch(r"[0-9]{1,16}(\.[0-9]{1,16})?", given):
        raise wrong(name, given, "0, 0.5, 12 ..")
    return float(given)


def truth(given: str, name: str) -> bool:
    """Parse true or false. A RequestError for anything else."""
    if given not in ("true", "false"):
        raise wrong(name, given, "true | false")
    return given == "true"


def plain(given: str, name: str) -> str:
    """Return a text as it is."""
    return given


def taken(given: Mapping[str, str], names: Mapping[str, Callable[[str, str], Any]]) -> dict[str, Any]:
    """Parse those parameters of `given` that `names` lists."""
    return {name: parsed(given[name], name) for name, parsed in names.items() if name in given}


def named(given: Mapping[str, str]) -> str:
    """Return the model that an address names. A RequestError if it names none."""
    if not (name := given.get("model")):
        raise RequestError("server.field", 400, "model", name="model", found="-", allowed='"..."')
    return name


def optional(given: Mapping[str, str], name: str, absent: Any) -> Any:
    """Parse a whole number in an address, or return `absent`."""
    return absent if name not in given else integer(given[name], name)


def run_at(session: "Session", request: "Request") -> "Run":
    """Return the run that the path names. A RequestError if it is not kept."""
    return session.runs[request.path_params["run"]]


def step_at(request: "Request", run: "Run") -> int:
    """Return the number of the step that the path names. A RequestError if `run` has none."""
    return integer(request.path_params["step"], "step", run.trace.steps - 1)


def tensor_at(request: "Request") -> int:
    """Return the number of the tensor that the path names."""
    return integer(request.path_params["n"], "n")


def waiter_of(request: "Request") -> str:
    """Return the name that a request for a run gave itself, by which one tab's run is told from another's; "" without one."""
    return request.headers.get("x-pellucid-waiter", "")
