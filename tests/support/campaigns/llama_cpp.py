"""llama.cpp beside Pellucid: files of its converter and of ours, run by its server and by us, of random models of several families.

    PYTHONPATH=tests/support python -m campaigns.llama_cpp SOURCES TOKENIZER [FAMILY ...]

SOURCES: llama.cpp's folder, with convert_hf_to_gguf.py and build/bin/llama-server.  TOKENIZER: vocab.json and merges.txt of GPT-2.
Greedy texts must be the same, but for a token that is within `TIE` of the best, or in q8_0, whose products round activations too, within
twice of what that changes in our own int8 products, since a choice is off by two errors. Ids, stops and the template must be the
folder's.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2TokenizerFast

import judge
from kinds import KINDS
from pellucid.api.convert import convert
from pellucid.api.model import load

FAMILIES = ("llama", "qwen3", "granite", "qwen3_moe", "starcoder2", "gpt2", "falcon_h1", "mamba")
END = 50256  # GPT-2's <|endoftext|>
WIDTHS: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": END + 1}
WIDTHS |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), END)
FIELDS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_inner": None, "vocab_size": END + 1, "n_ctx": 64, "bos_token_id": END, "eos_token_id": END},
    "falcon_h1": {"head_dim": 16},
    "granite": {"head_dim": 16},  # its converter has no key for another one
    "qwen3_moe": {"norm_topk_prob": True},
    "mamba": {"vocab_size": 50264, "intermediate_size": 128},  # its converter rounds the vocabulary up to a multiple of 8
}  # what a family has otherwise
TIE = 0.02  # of the spread of logits
NEW, PROMPTS = 12, ("The capital of France is", "def add(a, b):\n    return", " naïve 東京 1234567")
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def made(family: str, tokenizer: Path, folder: Path) -> Path:
    """Write the folder of a random model with GPT-2's tokenizer and a chat template. Returns the folder."""
    fields = (WIDTHS if "n_embd" not in KINDS[family].tiny else {}) | FIELDS.get(family, {})
    shutil.copytree(judge.make(family, "plain", **fields).folder, folder)
    words = GPT2TokenizerFast(vocab=str(tokenizer / "vocab.json"), merges=str(tokenizer / "merges.txt"))
    words.chat_template = TEMPLATE
    words.save_pretrained(folder)
    return folder


@contextmanager
def serving(program: Path, model: Path) -> Iterator[str]:
    """Start llama.cpp's server of a file. Yields its address."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    words = ["-m", model, "--port", str(port), "-t", "1", "-tb", "1", "-np", "1", "-c", "64", "-fa", "off", "--no-warmup", "--no-repack"]
    environment, quiet = os.environ | {"LD_LIBRARY_PATH": str(program.parent)}, subprocess.DEVNULL
    process = subprocess.Popen([program, *words], stdin=quiet, stdout=quiet, stderr=subprocess.PIPE, env=environment, text=True)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1200):
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).read()
                break
            except OSError:
                if process.poll() is not None:
                    raise RuntimeError("".join(process.stderr or [])[-600:]) from None
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=60)


def written(address: str, ids: list[int]) -> list[int]:
    """Return the server's likeliest tokens after these."""
    fields = {"prompt": ids, "n_predict": NEW, "temperature": 0, "ignore_eos": False, "return_tokens": True, "cache_prompt": False}
    request = urllib.request.Request(f"{address}/completion", json.dumps(fields).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return list(json.loads(reply.read())["tokens"])


def behind(exact: Any, rounded: Any, ids: list[int], text: list[int]) -> tuple[float, float]:
    """Return how far below the best of `exact` the worst token of a text is, and what may be, both in spreads of logits."""
    with torch.no_grad():
        logits, other = (m(torch.tensor([ids + text]))[0, len(ids) - 1 : -1].double() for m in (exact, rounded))
    short = logits.amax(-1) - logits.gather(-1, torch.tensor(text)[:, None])[:, 0]
    spread = logits.std(-1)
    return float((short / spread).max()), TIE + 2 * float(((other - logits).abs().amax(-1) / spread).max())


def tried(family: str, sources: Path, tokenizer: Path, work: Path) -> list[str]:
    """Try one family, and print a line. Returns what does not agree."""
    folder, faults = made(family, tokenizer, work / family), []
    ours = load(folder, dtype="float64")
    prompts = [ours.tokenizer.encode(p) for p in PROMPTS]
    for quant in ("f32", "q8_0"):
        theirs, own = work / f"{family}-theirs-{quant}.gguf", work / f"{family}-ours-{quant}.gguf"
        command = [sys.executable, sources / "convert_hf_to_gguf.py", folder, "--outfile", theirs, "--outtype", quant]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return [f"{family}: the converter: {done.stderr.strip().splitlines()[-1]}"]
        convert(folder, own, quant=quant)
        models = {path: (load(path, dtype="float64"), load(path, dtype="float32")) for path in (theirs, own)}
        model = models[theirs][0]
        if quant == "f32":
            gap = max(float((model(torch.tensor([p])) - ours(torch.tensor([p]))).abs().max().detach()) for p in prompts)
            faults += [f"{family}: logits of its file are {gap:.1e} off"] if gap > 1e-5 else []
        if [model.tokenizer.encode(p) for p in PROMPTS] != prompts or model.stops != ours.stops:
            faults.append(f"{family}: ids or stops of its file are not the folder's")
        if {n: t.source for n, t in model.tokenizer.templates.items()} != {n: t.source for n, t in ours.tokenizer.templates.items()}:
            faults.append(f"{family}: the template of its file is not the folder's")
        worst, texts = (0.0, inf), set()
        for path, both in models.items():
            with serving(sources / "build" / "bin" / "llama-server", path) as address:
                for ids in prompts:
                    texts.add(tuple(text := written(address, ids)))
                    worst = max(worst, behind(*both, ids, text) if text else (1.0, 0.0), key=lambda pair: pair[0] - pair[1])
        faults += [f"{family} {quant}: a token of its server is further below ours"] if worst[0] > worst[1] else []
        print(
            f"{family:12} {quant:5} {len(texts)} texts, worst token {worst[0]:.4f} spreads below the best, {worst[1]:.4f} allowed",
            flush=True,
        )
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("families", nargs="*", default=FAMILIES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        faults = []
        for family in options.families:
            for fault in tried(family, options.sources, options.tokenizer, Path(work)):
                print(fault, flush=True)
                faults.append(fault)
    print(f"{len(options.families)} families, {len(faults)} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
