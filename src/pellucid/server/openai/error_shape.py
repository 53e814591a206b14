"""Errors in OpenAI's shape, {"error": {"message", "type", "param", "code"}}, which its clients map to their exceptions by status."""

from typing import Any

from starlette.responses import Response

from pellucid.errors import PellucidError, RequestError
from pellucid.messages import speaking
from pellucid.server.faults import HEADERS, answer, unforeseen

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
CODES = {
    "serve.model": "model_not_found", "serve.context": "context_length_exceeded", "engine.tokens": "context_length_exceeded",
    "generate.context": "context_length_exceeded", "serve.key": "invalid_api_key", "engine.waiting": "queue_full",
    "serve.earlier": "response_not_found",
}  # fmt: skip
STATUS = {"engine.waiting": 429, "engine.closed": 503, "engine.step": 500, "generate.finite": 500}


def status_of(fault: PellucidError) -> int:
    """Return the status of an error."""
    return fault.status if isinstance(fault, RequestError) else STATUS.get(fault.key, 400)


def error_body(fault: Exception, language: str | None = None) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of an error. One that is not a user's is logged under a reference."""
    known = fault if isinstance(fault, PellucidError) else unforeseen(fault)
    status, place = status_of(known), known.values.get("place") if known.key.startswith("chat.") else None
    param = known.param if isinstance(known, RequestError) else place if isinstance(place, str) else None
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    with speaking(language):
        return status, {"error": {"message": known.line(), "type": kind, "param": param, "code": CODES.get(known.key, known.key)}}


def refused(fault: Exception, language: str | None = None) -> Response:
    """Return the response to a request that failed."""
    status, body = error_body(fault, language)
    return answer(body, status, HEADERS.get(status))
