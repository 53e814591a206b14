"""Errors as one shape of JSON: {"error": {"message", "type", "param", "code"}}, the message in the page's language.

An error that a user can cause is a PellucidError, and its line is the message. Any other is answered with a reference, under which the log
has its place and no text of the user's.
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

HEADERS = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}, 503: {"retry-after": "5"}}  # of errors, by status


def answer(table: Mapping[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response in which no text can be taken for markup."""
    text = json.dumps(table, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Response(text, status, {"cache-control": "no-store", **(headers or {})}, "application/json")


def error_table(fault: Exception, language: str | None) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON of a failed request."""
    if not isinstance(fault, PellucidError):
        fault = unforeseen(fault)
    status, param = (fault.status, fault.param) if isinstance(fault, RequestError) else (400, None)
    with speaking(language):
        return status, {"error": {"message": fault.line(), "type": type(fault).__name__, "param": param, "code": fault.key}}


def error_response(fault: Exception, language: str | None) -> Response:
    """Return the response to a failed request."""
    status, table = error_table(fault, language)
    return answer(table, status, HEADERS.get(status))


def unforeseen(fault: Exception) -> RequestError:
    """Log an unexpected failure and return the error to answer. The log has its type and place, not its message: that may quote a user."""
    reference = secrets.token_hex(4)
    places = " < ".join(f"{f.filename}:{f.lineno}" for f in reversed(traceback.extract_tb(fault.__traceback__)[-6:]))
    print(f"pellucid: {reference} {type(fault).__name__} {places}", file=sys.stderr, flush=True)
    return RequestError("server.unforeseen", 500, reference=reference)
