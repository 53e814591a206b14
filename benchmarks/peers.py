"""Steps of another trainer's model by its own loop, one for each line on stdin; it runs in that trainer's environment, without Pellucid.

    PYTHON benchmarks/peers.py litgpt '{"n_embd": 384, "n_layer": 6, "n_head": 6, "n_positions": 256, "vocab_size": 50304}' --batch 16
    PYTHONPATH=CHECKOUT PYTHON benchmarks/peers.py nanochat ... [--dtype bfloat16] [--compiled] [--threads 2]

It first writes a line of JSON about itself; then a line "ok" after each step.
"""

import argparse
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

Step = Callable[[], None]


def litgpt(shape: dict[str, int], x: torch.Tensor, dtype: str, compiled: bool) -> tuple[Step, dict[str, Any]]:
    """Return a step of litgpt's GPT in GPT-NeoX's form, as `litgpt pretrain` takes it: by Fabric, with its chunked loss and a clip.

    In bfloat16 it computes under autocast, and its weights stay float32, as ours do.
    """
    import lightning
    from litgpt import GPT, Config
    from litgpt.utils import chunked_cross_entropy, num_parameters

    rows = shape["vocab_size"]
    sizes = {name: shape[name] for name in ("n_embd", "n_layer", "n_head")}
    config = Config(block_size=shape["n_positions"], vocab_size=rows, padded_vocab_size=rows, **sizes)
    fabric = lightning.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed" if dtype == "bfloat16" else "32-true")
    fabric.launch()
    plain = GPT(config)
    plain.transformer.wte.weight = plain.lm_head.weight
    about = {"version": importlib.metadata.version("litgpt"), "parameters": num_parameters(plain)}
    model = fabric.setup(torch.compile(plain) if compiled else plain)
    adamw = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    optimizer = fabric.setup_optimizers(adamw)
    inputs, targets = x[:, :-1].contiguous(), x[:, 1:].contiguous()

    def step() -> None:
        fabric.backward(chunked_cross_entropy(model(inputs), targets))
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step, about


def nanochat(shape: dict[str, int], x: torch.Tensor, dtype: str, compiled: bool) -> tuple[Step, dict[str, Any]]:
    """Return a step of nanochat's GPT by its own optimizer, as its base_train.py takes it. It has another model: tables of values too."""
    os.environ["NANOCHAT_DTYPE"] = dtype
    from nanochat.gpt import GPT, GPTConfig

    sizes = {name: shape[name] for name in ("n_embd", "n_layer", "n_head", "vocab_size")}
    with torch.device("meta"):
        plain = GPT(GPTConfig(sequence_len=shape["n_positions"], n_kv_head=shape["n_head"], **sizes))
    plain.to_empty(device="cpu")
    plain.init_weights()
    model = torch.compile(plain, dynamic=False) if compiled else plain
    optimizer, inputs, targets = plain.setup_optimizer(), x[:, :-1].contiguous(), x[:, 1:].contiguous()

    def step() -> None:
        model(inputs, targets).backward()
        optimizer.step()
        plain.zero_grad(set_to_none=True)

    return step, {"parameters": sum(p.numel() for p in plain.parameters())}


PEERS = {"litgpt": litgpt, "nanochat": nanochat}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=sorted(PEERS))
    parser.add_argument("shape", type=json.loads)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr  # what a peer prints is no answer
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    x = torch.randint(a.shape["vocab_size"], (a.batch, a.shape["n_positions"] + 1))
    step, about = PEERS[a.peer](a.shape, x, a.dtype, a.compiled)
    print(json.dumps(about | {"torch": torch.__version__}), file=answers, flush=True)
    for _ in sys.stdin:
        step()
        print("ok", file=answers, flush=True)


if __name__ == "__main__":
    main()
