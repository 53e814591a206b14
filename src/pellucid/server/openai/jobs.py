"""From a body to the engine's requests: prompts, settings, stops, and what of it the answer needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pellucid.engine.grammar import GrammarConstraint
from pellucid.engine.requests import Request
from pellucid.errors import RequestError
from pellucid.runs.request import described, wrong
from pellucid.server.openai.body_fields import BIG, COMMON, BodyFields
from pellucid.server.openai.chat_reply import given_tools, reply_form
from pellucid.server.openai.prompts import chat_prompt, prompts_of
from pellucid.server.openai.served_model import ServedModel
from pellucid.server.openai.shapes import ChatShape, CompletionShape
from pellucid.server.openai.structured import constraint_of

if TYPE_CHECKING:
    from pellucid.server.openai.inspection import Inspector

NEW = 16  # new tokens of a completion that names no number, as OpenAI's
MOST_LOGPROBS = 20
MOST_TEXTS = 64  # `n`
COMPLETION = COMMON | {"prompt", "echo", "logprobs", "add_special_tokens", "suffix"}
CHAT = COMMON | {
    "messages", "max_completion_tokens", "logprobs", "top_logprobs", "add_generation_prompt", "continue_final_message",
    "chat_template_kwargs", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort",
}  # fmt: skip
TOKENIZE = {
    "model", "prompt", "messages", "add_special_tokens", "return_token_strs", "add_generation_prompt", "continue_final_message",
    "chat_template_kwargs", "tools", "reasoning_effort",
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A body that was read. echoes: the prompts' texts, where they are part of the answer.  continues: a text goes on from its prompt's,
    and is no reply of its own.  trace: the id of the trace to come.

    inspector: keeps the trace; None if the request is neither watched nor changed.
    """

    served: ServedModel
    shape: CompletionShape | ChatShape
    requests: list[Request]
    stops: list[str]
    skip_special: bool
    stream: bool
    include_usage: bool
    return_ids: bool
    echoes: list[str] = field(default_factory=list)
    continues: bool = False
    trace: str = ""
    inspector: "Inspector | None" = None

    @property
    def n(self) -> int:
        return self.requests[0].n


def completion_job(served: ServedModel, body: Mapping[str, Any], inspector: "Inspector | None" = None) -> Job:
    """Read a body of /v1/completions. inspector: for the field `pellucid`.  A RequestError for a wrong field."""
    fields = BodyFields(body, COMPLETION)
    if fields.text("suffix"):
        raise RequestError("serve.refused", 400, "suffix", name="suffix")
    echoed, logprobs = fields.truth("echo"), fields.integer("logprobs", 0, MOST_LOGPROBS)
    if echoed and served.model.config.starts is not None:
        raise RequestError("serve.echo", 400, "echo", name=served.name)
    prompts = prompts_of(served, fields)
    scored = echoed and logprobs is not None
    most, form = fields.integer("max_tokens", 0, BIG), constraint_of(served, fields)
    requests = requests_of(served, fields, [ids for ids, _ in prompts], most, NEW, logprobs, scored, form, "prompt")
    echoes = [text if text is not None else served.tokenizer.decode(ids) for ids, text in prompts] if echoed else []
    job = job_of(served, fields, CompletionShape(served.tokenizer, logprobs), requests, echoes)
    return inspected(job, fields, inspector, prompts[0][1])


def chat_job(served: ServedModel, body: Mapping[str, Any], inspector: "Inspector | None" = None) -> Job:
    """Read a body of /v1/chat/completions. inspector: for the field `pellucid`.  A RequestError for a wrong field."""
    fields = BodyFields(body, CHAT)
    logprobs = fields.integer("top_logprobs", 0, MOST_LOGPROBS, 0)
    asks = fields.truth("logprobs")
    if logprobs and not asks:
        raise wrong("top_logprobs", logprobs, "logprobs=true")
    most = fields.integer("max_completion_tokens", 0, BIG, fields.integer("max_tokens", 0, BIG))
    prompt = chat_prompt(served, fields, given_tools(fields))
    form, constraint = reply_form(served, fields, served.tokenizer.decode(prompt[-8:]))
    requests = requests_of(served, fields, [prompt], most, BIG, logprobs if asks else None, False, constraint, "messages")
    return inspected(job_of(served, fields, ChatShape(served.tokenizer, logprobs if asks else None, form), requests, []), fields, inspector)


def inspected(job: Job, fields: BodyFields, inspector: "Inspector | None", prompt: str | None = None) -> Job:
    """Return the job with the watch that its field `pellucid` asks for. prompt: its text, if it was one.

    A RequestError if it has several texts, or nothing here is watched.
    """
    if "pellucid" not in fields.given:
        return job
    if inspector is None:
        raise RequestError("serve.refused", 400, "pellucid", name="pellucid")
    from pellucid.server.openai.inspection import inspection_of

    wish = inspection_of(fields.given["pellucid"], inspector.limits)
    if len(job.requests) > 1 or job.n > 1:
        raise RequestError("serve.one", 400, "pellucid", found=len(job.requests) * job.n)
    id, watched = inspector.watched(job.served.name, wish, job.requests[0], prompt)
    return replace(job, requests=[replace(job.requests[0], watched=watched)], trace=id if wish.only else "", inspector=inspector)


def job_of(served: ServedModel, fields: BodyFields, shape: CompletionShape | ChatShape, requests: list[Request], echoes: list[str]) -> Job:
    """Return the job of these requests, with the fields of its stream."""
    options = fields.table("stream_options")
    stream, usage = fields.truth("stream"), options.get("include_usage", False)
    if options and not stream:
        raise wrong("stream_options", described(options), "stream=true")
    if type(usage) is not bool:
        raise wrong("stream_options.include_usage", described(usage), "true | false")
    return Job(
        served,
        shape,
        requests,
        fields.stops(),
        fields.truth("skip_special_tokens", True),
        stream,
        usage,
        fields.truth("return_token_ids"),
        echoes,
        isinstance(shape, CompletionShape) or fields.truth("continue_final_message"),
    )


def requests_of(
    served: ServedModel,
    fields: BodyFields,
    prompts: Sequence[list[int]],
    most: int | None,
    default: int,
    logprobs: int | None,
    scored: bool,
    constraint: GrammarConstraint | None,
    name: str,
) -> list[Request]:
    """Return the engine's requests, one for each prompt, all with the same seed. most: new tokens, None for at most `default`.

    constraint: of each text.  name: of the field with the prompts.
    """
    settings = served.settings(fields.sampling(), fields.biases(served.vocab))
    stops = frozenset(fields.ids("stop_token_ids", served.vocab)) | (frozenset() if fields.truth("ignore_eos") else served.stops)
    n, priority = fields.integer("n", 1, MOST_TEXTS, 1), fields.integer("priority", -BIG, BIG, 0)
    starts, out = served.model.config.starts, []
    stops |= frozenset() if constraint is None else served.stops
    for prompt in prompts:
        text, source = (tuple(prompt), None) if starts is None else ((starts,), tuple(prompt))
        left = served.longest - len(text)
        if (left < 1 if most is None else most > left) or (source is not None and len(source) > served.longest):
            raise RequestError("serve.context", 400, name, tokens=len(prompt), new=most or 1, most=served.longest)
        new = min(default, left) if most is None else most
        least = fields.integer("min_tokens", 0, new, 0)
        request = Request(
            text,
            new,
            settings,
            stops,
            n or 1,
            logprobs,
            scored,
            source=source,
            least=least or 0,
            priority=priority or 0,
            speculate=served.speculate,
            stepwise=bool(fields.stops()),  # the reader of the text cancels it when it meets one
            streamed=fields.truth("stream"),
        )
        out.append(request if constraint is None else replace(request, constraint=constraint.copy()))
    return out
