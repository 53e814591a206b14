"""Errors as one shape of JSON: {"error": {"message", "type", "param", "code"}}, the message in the page's language.

What a user can cause is a PellucidError and tells its line; anything else tells a reference, under which the log has the place, and no text
of the user's.
"""

import json
import secrets
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from pellucid.errors import PellucidError, RequestError
from pellucid.messages import speaking


def answer(table: Mapping[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON document; no text in it can be taken for markup."""
    text = json.dumps(table, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Response(text, status, {"cache-control": "no-store", **(headers or {})}, "application/json")


def error_response(fault: Exception, language: str | None) -> Response:
    """The answer to a request that failed."""
    if not isinstance(fault, PellucidError):
        fault = unforeseen(fault)
    status, param = (fault.status, fault.param) if isinstance(fault, RequestError) else (400, None)
    with speaking(language):
        error = {"message": fault.line(), "type": type(fault).__name__, "param": param, "code": fault.key}
    return answer({"error": error}, status, {"retry-after": "1"} if status == 429 else None)


def unforeseen(fault: Exception) -> RequestError:
    """A failure of ours: logged by kind and place under a reference, without its message, which may hold what a user wrote."""
    reference = secrets.token_hex(4)
    places = " < ".join(f"{f.filename}:{f.lineno}" for f in reversed(traceback.extract_tb(fault.__traceback__)[-6:]))
    print(f"pellucid: {reference} {type(fault).__name__} {places}", file=sys.stderr, flush=True)
    return RequestError("server.unforeseen", 500, reference=reference)
