"""From the engine's outputs to an answer: one document, or a stream of server-sent events.

    data: {"choices": [{"delta": {"content": "Par"}, ...}], ...}
    data: [DONE]

Both feed the same choices, so that the join of a stream is the answer that is not streamed.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool

from pellucid.api.trace import require_numbers
from pellucid.engine.requests import Output
from pellucid.engine.requests import Request as EngineRequest
from pellucid.errors import RequestError, UseError
from pellucid.runs.worker import left
from pellucid.server.openai.chat_reply import ReplyForm
from pellucid.server.openai.choice import Choice, Delta, TokenEntry
from pellucid.server.openai.error_shape import error_body
from pellucid.server.openai.jobs import Job
from pellucid.server.openai.served_model import Submitted
from pellucid.server.openai.shapes import ChatShape, head, prompt_starts, usage_of
from pellucid.tokenizer.pieces import Stream
from pellucid.tracing import Trace

if TYPE_CHECKING:
    from starlette.requests import Request

    from pellucid.server.openai.response_items import ResponseAnswer


class GeneratedAnswer:
    """The choices of a job, and the count of its tokens. The first `n` choices are the first prompt's.

    finished: why each choice ended.  first: seconds from the start to the first token.  facts: of the log's line, set at the end.
    last: when each choice's last token came.
    """

    end = b"data: [DONE]\n\n"  # what a stream sends behind its last chunk

    def __init__(self, job: Job, submitted: Submitted, facts: dict[str, Any]) -> None:
        self.job, self.submitted, self.facts = job, submitted, facts
        form = job.shape.form if isinstance(job.shape, ChatShape) else ReplyForm()
        echoed = [len(text) for text in job.echoes] or [0] * len(job.requests)
        self.choices = [
            Choice(self.stream(r, form), job.stops, r.least, before)
            for r, before in zip(job.requests, echoed, strict=True)
            for _ in range(r.n)
        ]
        self.form, self.reasoning = form, 0  # tokens of reasoning
        self.ids: list[list[int]] = [[] for _ in self.choices]
        self.cached, self.finished = 0, dict[int, str]()
        self.started = time.monotonic()
        self.first: float | None = None
        self.last: dict[int, float] = {}

    def stream(self, request: EngineRequest, form: ReplyForm) -> Stream:
        """Return a stream of a request's text, which goes on from its prompt's if the job says so, but not from a source."""
        prompt = request.prompt if self.job.continues and request.source is None else ()
        return self.job.served.tokenizer.after(prompt, self.job.skip_special, form.kept)

    def close(self) -> None:
        """Cancel what has not ended, and write the facts for the log."""
        self.submitted.close()
        usage = self.usage()
        self.facts |= {name: usage[name] for name in ("prompt_tokens", "completion_tokens")} | {"cached_tokens": self.cached}
        if (counters := self.job.served.counters) is not None:
            counters.count(self)
        self.facts |= {"first": None if self.first is None else round(self.first, 6), "finish": sorted(set(self.finished.values()))}

    def note_token(self, at: int) -> None:
        """Note the time of a choice's token."""
        now = time.monotonic()
        self.first = now - self.started if self.first is None else self.first
        if (counters := self.job.served.counters) is not None and at in self.last:
            counters.between.observe(now - self.last[at])
        self.last[at] = now

    def prompt_of(self, position: int) -> tuple[int, ...]:
        """Return a prompt's tokens; an encoder-decoder's are its source."""
        request = self.job.requests[position]
        return request.prompt if request.source is None else request.source

    def usage(self) -> dict[str, Any]:
        """Return the count of tokens so far."""
        prompts = sum(len(self.prompt_of(i)) for i in range(len(self.job.requests)))
        return usage_of(prompts, sum(c.tokens for c in self.choices), self.cached, self.reasoning)

    async def outputs(self) -> AsyncGenerator[tuple[int, Output], None]:
        """Yield the engine's outputs. The error of a text whose changes left it no number is theirs, with the first NaN."""
        async with aclosing(self.submitted.outputs()) as outputs:
            try:
                async for position, output in outputs:
                    yield position, output
            except UseError as fault:
                if fault.key == "generate.finite":
                    await run_in_threadpool(self.judge_changes)
                raise

    def judge_changes(self) -> None:
        """Raise a UseError if the changes of the job's request left its text no number. Runs the text once more."""
        if (watched := self.job.requests[0].watched) is not None and watched.changes:
            model = self.job.served.model
            written = [*self.ids[0], 0]  # and one of the step that gave no number
            ended = Trace(model.name, None, [*self.prompt_of(0)], written, [], starts=model.config.starts, runner=model)
            require_numbers(model, ended, watched.changes)

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta, list[int]], None]:
        """Yield the number of a choice, what it gains, and its new ids."""
        async with aclosing(self.outputs()) as outputs:
            async for position, output in outputs:
                at = position * self.job.n + output.index
                if self.choices[at].ended:
                    continue
                if output.ended == "cancelled":
                    raise RequestError("serve.draining", 503)
                fresh = not self.choices[at].tokens and not self.ids[at]
                self.cached += output.cached if fresh and not output.index else 0
                delta = self.choices[at].feed(output)
                if fresh:
                    self.add_prompt(position, output, delta)
                new = [] if output.token is None else [output.token.id]
                if new:
                    self.note_token(at)
                    self.reasoning += self.form.reasons(self.choices[at].text.shown)
                self.ids[at] += new
                if delta.finish is not None:
                    self.finished[at] = delta.finish
                    if delta.finish == "stop" and output.ended is None:
                        self.submitted.stop(position, output.index, self.choices[at].tokens)
                yield at, delta, new

    def add_prompt(self, position: int, output: Output, delta: Delta) -> None:
        """Put a prompt before a text's first delta, if the job echoes it."""
        if self.job.echoes:
            delta.text = self.job.echoes[position] + delta.text
        if self.job.requests[position].scored:
            prompt = self.job.requests[position].prompt
            starts = prompt_starts(self.job.served.tokenizer, prompt, self.job.echoes[position])
            rows = zip(prompt[1:], output.scores, output.tops, starts[1:], strict=True)
            delta.entries[:0] = [TokenEntry(prompt[0], None), *(TokenEntry(*row) for row in rows)]

    async def document(self) -> dict[str, Any]:
        """Return the answer as one document."""
        shape, texts = self.job.shape, [""] * len(self.choices)
        entries: list[list[TokenEntry]] = [[] for _ in self.choices]
        reasons: list[Any] = [None] * len(self.choices)
        more: dict[str, Any] = {}
        async with aclosing(self.deltas()) as deltas:
            async for at, delta, _ in deltas:
                texts[at] += delta.text
                entries[at] += delta.entries
                reasons[at] = delta.reason if delta.finish is not None else reasons[at]
        choices = [
            shape.full(at, texts[at], entries[at], self.finished[at]) | {"stop_reason": reasons[at]} for at in range(len(self.choices))
        ]
        if self.job.return_ids:
            prompts = [list(self.prompt_of(at // self.job.n)) for at in range(len(choices))]
            choices = [
                c | {"token_ids": ids, "prompt_token_ids": prompt} for c, ids, prompt in zip(choices, self.ids, prompts, strict=True)
            ]
            more |= {"prompt_token_ids": prompts[0]} if len(self.job.requests) == 1 else {}
        if self.job.trace and self.job.inspector is not None:
            more["pellucid"] = await run_in_threadpool(self.job.inspector.noted, self.job.trace)
        served = self.job.served
        return head(shape, served.name, served.fingerprint, False) | {"choices": choices, "usage": self.usage()} | more

    def failure(self, fault: Exception, language: str | None) -> dict[str, Any]:
        """Return the chunk that ends a stream which failed."""
        return error_body(fault, language)[1]

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks of a stream."""
        job, shape = self.job, self.job.shape
        own = head(shape, job.served.name, job.served.fingerprint, True)
        tail: dict[str, Any] = {"usage": None} if job.include_usage else {}
        if isinstance(shape, ChatShape):
            for at in range(len(self.choices)):
                role = {"index": at, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
                yield own | {"choices": [role]} | tail
        prompts_sent = set[int]()
        async with aclosing(self.deltas()) as deltas:
            async for at, delta, new in deltas:
                for choice in shape.pieces(at, delta, shape.count is not None or job.return_ids):
                    if job.return_ids:
                        choice |= {"token_ids": new}
                        new = []
                        if at not in prompts_sent:
                            choice |= {"prompt_token_ids": list(self.prompt_of(at // job.n))}
                            prompts_sent.add(at)
                    noted = {"pellucid": {"trace": job.trace}} if job.trace and choice["finish_reason"] is not None else {}
                    yield own | {"choices": [choice]} | tail | noted
        if job.include_usage:
            yield own | {"choices": [], "usage": self.usage()}


async def unless_left(request: "Request", answer: "GeneratedAnswer | ResponseAnswer") -> dict[str, Any]:
    """Return the document of an answer. A RequestError if the client disconnects first, and then nothing of it runs on."""
    working, gone = asyncio.ensure_future(answer.document()), asyncio.ensure_future(left(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RequestError("server.stopped", 503)
        return working.result()
    finally:
        answer.close()
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)
