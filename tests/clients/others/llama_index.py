"""llama-index: completions, chats, streams and calls of tools by its class for servers like OpenAI's."""

import os
import sys

sys.path.pop(0)  # this folder, whose file has the library's name

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

BASE = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"], "temperature": 0}
PROMPT = "The capital of France is"


def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"sunny in {city}"


text = OpenAILike(model="capitals", is_chat_model=False, max_tokens=2, **BASE)
assert text.complete(PROMPT).text == " Paris."
assert "".join(part.delta or "" for part in text.stream_complete(PROMPT)) == " Paris."
chat = OpenAILike(model="qwen", is_chat_model=True, is_function_calling_model=True, max_tokens=16, context_window=32768, **BASE)
messages = [ChatMessage(role="user", content=PROMPT)]
plain = chat.chat(messages).message.content
assert "".join(part.delta or "" for part in chat.stream_chat(messages)) == plain
chat.max_tokens = 400
called = chat.chat_with_tools([FunctionTool.from_defaults(weather)], user_msg=PROMPT, tool_required=True)
calls = chat.get_tool_calls_from_response(called, error_on_no_tool_call=False)
assert not calls or calls[0].tool_name == "weather", called
print("llama-index: texts, chats, streams, tools")
