"""DeepSeek-V3 without its memory: how long building it and watching one prompt of 4,096 tokens take on the meta device.

python benchmarks/meta.py [RESULT.json]      # by default benchmarks/results/meta.json
"""

import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from pellucid import __version__
from pellucid.bench.machine import cpu
from pellucid.families import understand
from pellucid.nn.transformer import build, cast
from pellucid.training.meter import resident
from pellucid.watching.watch import watch

HERE = Path(__file__).parent
TOKENS = 4096
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
    "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "qk_nope_head_dim": 128, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "norm_topk_prob": True,
    "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_bias": False,
    "rope_interleave": True, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip


def commit() -> str:
    """The commit that is checked out, or nothing outside a checkout."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def measure() -> dict[str, object]:
    """Build, cast and watch; seconds of wall and of processor, bytes at most."""
    imported, wall, busy = resident(), time.perf_counter(), time.process_time()
    _, cfg = understand(DEEPSEEK_V3)
    with torch.device("meta"):
        model = cast(build(cfg), torch.bfloat16)
    built = time.perf_counter()
    with torch.no_grad(), watch(model, keep=lambda x: None) as seen:
        logits = model(torch.zeros(1, TOKENS, dtype=torch.long, device="meta"))
    return {
        "build_seconds": round(built - wall, 3),
        "trace_seconds": round(time.perf_counter() - built, 3),
        "processor_seconds": round(time.process_time() - busy, 3),
        "peak_bytes": resident(),
        "peak_bytes_after_import": imported,
        "parameters": sum(p.numel() for p in model.parameters()),
        "records": len(seen),
        "paths": len(seen.paths()),
        "pattern": list(seen["layers.60.attn.pattern"].shape),
        "routed": list(seen["layers.60.ffn.routed"].shape),
        "logits": list(logits.shape),
    }


def main(result: Path) -> None:
    """Measure, and write what was measured, on what and with what."""
    torch.set_num_threads(1)
    found = {
        "schema": 1,
        "benchmark": "meta",
        "model": "deepseek-v3",
        "tokens": TOKENS,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "hardware": {"processor": cpu(), "cores": os.cpu_count(), "load": os.getloadavg()[0]},
        "versions": {"pellucid": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "measured": measure(),
    }
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results" / "meta.json")
