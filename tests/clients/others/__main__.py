"""Clients of OpenAI's API that tests do not install, each in an environment of its own, against `pellucid serve` on this machine.

    PYTHONPATH=tests/support python tests/clients/others [NAME ...] [--environments DIR]

A client is a script beside this file: it reads OPENAI_BASE_URL, OPENAI_API_KEY, SERVED, a folder that holds what is served, and
ONE_MODEL_URL, a server of the specimen alone, and exits with 0 if all that it asked for came. Its environment is made where there is
none; --environments keeps it for the next time.
Prints one line of JSON for each client, and exits with 1 if one failed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openai_served import long_folder
from pellucid.api.model import load
from tool_templates import tool_model

HERE = Path(__file__).parent
KEY = "sk-others"
NEEDS = {
    "litellm": ["litellm"],
    "langchain": ["langchain-openai"],
    "llama_index": ["llama-index-core", "llama-index-llms-openai-like"],
    "llm": ["llm", "setuptools"],
    "aider": ["aider-chat"],
    "lm_eval": ["lm-eval[api,hf]", "torch", "transformers"],
    "node": ["openai"],
    "schemathesis": ["schemathesis"],
}
PATIENCE = 900  # seconds of a client
PAGE = HERE.parents[2] / "docs" / "serve.md"


def lines_of(first: str, address: str) -> str:
    """Return the block of docs/serve.md that begins with a line, for the specimen at an address."""
    block = PAGE.read_text(encoding="utf-8").partition(f"\n{first}\n")[2].partition("```")[0]
    assert block, first
    for there, here in (("http://127.0.0.1:8000/v1", address), ('"none"', f'"{KEY}"'), ("folder", "capitals")):
        assert there in block
        block = block.replace(there, here)
    return f"{first}\n{block}"


def folders(at: Path) -> dict[str, Path]:
    """Write what is served: a specimen, a random Qwen with tools, a long random Llama, and an encoder. Returns their folders by name."""
    names = {"capitals": "pellucid/capitals-llama", "encoder": "pellucid/capitals-bert"}
    for name, specimen in names.items():
        load(specimen).save(at / name)
    tool_model(at / "qwen", "hermes", model_type="qwen2", max_position_embeddings=32768)
    long_folder(at / "long")
    return {name: at / name for name in (*names, "qwen", "long")}


@contextmanager
def serving(models: dict[str, Path]) -> Iterator[str]:
    """Yield the address of `pellucid serve` of these folders."""
    own = {**os.environ, "PELLUCID_API_KEY": KEY, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "pellucid", "serve", *(f"{name}={folder}" for name, folder in models.items()), "--port", "0", "--json"]
    server = subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["address"]
    finally:
        server.terminate()
        server.wait(60)


def environment(name: str, at: Path) -> list[str]:
    """Return the command that runs a client's script, in an environment that has what it needs."""
    home = at / name
    if name == "node":
        if not (home / "node_modules").exists():
            home.mkdir(parents=True, exist_ok=True)
            subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", *NEEDS[name]], cwd=home, check=True)
        shutil.copy(HERE / "node.mjs", home / "node.mjs")
        return ["node", str(home / "node.mjs")]
    if not (home / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(home / "bin" / "python"), "-m", "pip", "install", "-q", *NEEDS[name]], check=True)
    return [str(home / "bin" / "python"), str(HERE / f"{name}.py")]


def outcome_of(name: str, environments: Path, env: dict[str, str]) -> dict[str, object]:
    """Run a client. Returns its name, whether all came, and its last lines."""
    try:
        command = environment(name, environments)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as fault:
        return {"client": name, "ok": False, "said": f"{type(fault).__name__}: {fault}"[-2000:]}
    lines = (done.stdout if done.returncode == 0 else done.stdout + done.stderr).splitlines()
    return {"client": name, "ok": done.returncode == 0, "said": "\n".join(lines[-3 if done.returncode == 0 else -25 :])}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*NEEDS, []])
    parser.add_argument("--environments", type=Path)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        served = Path(scratch)
        names = folders(served)
        with serving(names) as address, serving({"capitals": names["capitals"]}) as alone:
            env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "OPENAI"))}
            env |= {
                "OPENAI_BASE_URL": f"{address}/v1",
                "ONE_MODEL_URL": f"{alone}/v1",
                "OPENAI_API_KEY": KEY,
                "SERVED": scratch,
                "HOME": scratch,
                "HF_HUB_OFFLINE": "1",
                "LITELLM_LINES": lines_of("import litellm", f"{address}/v1"),
            }
            (served / "page.mjs").write_text(lines_of('import OpenAI from "openai";', f"{address}/v1"), encoding="utf-8")
            environments = a.environments.resolve() if a.environments else served / "environments"
            failed = 0
            for name in a.names or NEEDS:
                outcome = outcome_of(name, environments, env)
                failed += not outcome["ok"]
                print(json.dumps(outcome, ensure_ascii=False), flush=True)
            return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
