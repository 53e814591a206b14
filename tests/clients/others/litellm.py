"""litellm: its three ways to such a server, streams, tools, embeddings, errors."""

import contextlib
import io
import os
import sys

sys.path.pop(0)  # this folder, whose file has the library's name
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

BASE = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
PROMPT = "The capital of France is"
ASK = [{"role": "user", "content": PROMPT}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris"]}}}}}

text = litellm.text_completion(model="text-completion-openai/capitals", prompt=PROMPT, max_tokens=2, temperature=0, **BASE)
assert text.choices[0].text == " Paris.", text
for way in ("openai", "hosted_vllm"):
    plain = litellm.completion(model=f"{way}/qwen", messages=ASK, max_tokens=12, temperature=0, **BASE)
    stream = litellm.completion(model=f"{way}/qwen", messages=ASK, max_tokens=12, temperature=0, stream=True, **BASE)
    joined = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert joined == plain.choices[0].message.content and plain.usage.completion_tokens == 12, (way, joined, plain)
called = litellm.completion(model="openai/qwen", messages=ASK, tools=[TOOL], tool_choice="required", max_tokens=200, temperature=0, **BASE)
assert called.choices[0].message.tool_calls[0].function.name == "weather", called
vectors = litellm.embedding(model="openai/encoder", input=[PROMPT, "Tokyo"], encoding_format="float", **BASE)
assert len(vectors.data) == 2 and len(vectors.data[0]["embedding"]) > 8
try:
    litellm.completion(model="openai/missing", messages=ASK, num_retries=0, **BASE)
    raise SystemExit("a missing model was answered")
except litellm.NotFoundError:
    pass
page = io.StringIO()
with contextlib.redirect_stdout(page):
    exec(os.environ["LITELLM_LINES"], {})  # those of docs/serve.md
assert page.getvalue().strip() == "Paris", page.getvalue()
print("litellm: texts, streams, tools, embeddings, errors")
