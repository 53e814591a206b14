"""langchain-openai: chats, streams, tools, structured output, completions, embeddings."""

import os
import sys

sys.path.pop(0)  # this folder, whose file has the library's name

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict, Field

PROMPT = "The capital of France is"


class City(BaseModel):
    model_config = ConfigDict(extra="forbid")  # a random model would add properties without end
    city: str = Field(pattern="^(Paris|Tokyo)$")
    days: int = Field(ge=1, le=9)


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"sunny in {city}"


assert OpenAI(model="capitals", max_tokens=2, temperature=0).invoke(PROMPT) == " Paris."
chat = ChatOpenAI(model="qwen", max_tokens=16, temperature=0)
plain = chat.invoke(PROMPT)
assert "".join(str(chunk.content) for chunk in chat.stream(PROMPT)) == plain.content
assert plain.usage_metadata["output_tokens"] == 16
called = ChatOpenAI(model="qwen", max_tokens=400, temperature=0).bind_tools([weather], tool_choice="weather").invoke(PROMPT)
if called.response_metadata["finish_reason"] != "length":
    assert called.tool_calls[0]["name"] == "weather" and isinstance(called.tool_calls[0]["args"]["city"], str), called
for method in ("json_schema", "function_calling"):
    made = ChatOpenAI(model="qwen", max_tokens=400, temperature=0).with_structured_output(City, method=method).invoke(PROMPT)
    assert made.city in ("Paris", "Tokyo") and 1 <= made.days <= 9, made
assert len(OpenAIEmbeddings(model="encoder", check_embedding_ctx_length=False).embed_documents([PROMPT, "Tokyo"])) == 2
print("langchain: texts, chats, streams, tools, structured output, embeddings;", os.environ["OPENAI_BASE_URL"])
