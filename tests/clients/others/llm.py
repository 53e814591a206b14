"""The `llm` command with its models of OpenAI's kind, as its documentation has it: extra-openai-models.yaml."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

home = Path(os.environ["HOME"]) / "llm"
home.mkdir(parents=True, exist_ok=True)
lines = []
for name, more in (("capitals", "  completion: true\n"), ("qwen", "  supports_schema: true\n  supports_tools: true\n")):
    lines.append(f"- model_id: {name}\n  model_name: {name}\n  api_base: {os.environ['OPENAI_BASE_URL']}\n  api_key_name: own\n{more}")
(home / "extra-openai-models.yaml").write_text("".join(lines), encoding="utf-8")
(home / "keys.json").write_text(json.dumps({"own": os.environ["OPENAI_API_KEY"]}), encoding="utf-8")


def llm(*words: str) -> str:
    """Return what the command prints."""
    env = {**os.environ, "LLM_USER_PATH": str(home)}
    done = subprocess.run([str(Path(sys.executable).parent / "llm"), *words], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


assert "qwen" in llm("models")
assert llm("-m", "capitals", "The capital of France is", "-o", "max_tokens", "2", "-o", "temperature", "0").strip() == "Paris."
for words in ((), ("--no-stream",)):
    assert llm("-m", "qwen", "Hi", "-o", "max_tokens", "12", "-o", "temperature", "0", *words)
made = llm("-m", "qwen", "Hi", "-o", "max_tokens", "300", "-o", "temperature", "0", "--schema", "days int", "--no-stream")
assert made.strip().startswith("{"), made
assert urllib.request.urlopen(os.environ["OPENAI_BASE_URL"].removesuffix("/v1") + "/health", timeout=30).status == 200
print("llm: a text, chats, a stream, a schema")
