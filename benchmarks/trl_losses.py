"""The losses of preference, reward and distillation beside TRL's own code, on the same log-probabilities; in an environment of its own.

    python benchmarks/trl_losses.py --env FOLDER     # makes the environment there once, and runs in it
    python benchmarks/trl_losses.py                  # where trl is installed

TRL's trainers compute a loss in a method that a whole run surrounds. Here the method runs on a stand-in of its trainer, with a model that
gives log-probabilities. Writes benchmarks/results/trl_losses.json. Exit code 1 if one differs by more than 1e-6, relative to its size.
"""

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
import venv
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "trl_losses.json"
PACKAGES = ["trl==1.16.0", "torch", "transformers", "safetensors", "tokenizers", "numpy", "jinja2", "typer", "tomli"]
MOST = 1e-6
PAIRS, PROMPT, ANSWER, IDS, BETA = 3, 2, 5, 11, 0.3


class Accelerator:
    """accelerate's part of a trainer in one process."""

    device = "cpu"
    num_processes = 1

    def gather(self, x: Any) -> Any:
        return x

    def reduce(self, x: Any, reduction: str = "sum") -> Any:
        return x

    gather_for_metrics = gather


class Trainer(SimpleNamespace):
    """A trainer's attributes. What its method reads beside them is None."""

    def __getattr__(self, name: str) -> Any:
        return None


def trainer(**settings: Any) -> Any:
    model = SimpleNamespace(training=True)
    metrics: Any = {"train": defaultdict(list), "eval": defaultdict(list)}
    own = {"accelerator": Accelerator(), "model": model, "_metrics": metrics, "_total_train_tokens": 0, "_tp_size": 1}
    return Trainer(**own, aux_loss_enabled=False, use_weighting=False, beta=BETA, label_smoothing=0.0, **settings)


def preferences() -> dict[str, float]:
    """Return the relative difference of each preference loss."""
    import torch
    from trl.trainer.dpo_trainer import DPOTrainer

    from pellucid.training.preference import preference_loss

    draw = torch.Generator().manual_seed(1)
    length = PROMPT + ANSWER
    mask = torch.zeros(2 * PAIRS, length, dtype=torch.long)
    for i in range(2 * PAIRS):
        mask[i, PROMPT : length - i % 3] = 1
    logprobs = -torch.rand(2 * PAIRS, length - 1, generator=draw, dtype=torch.float64) * mask[:, 1:]
    reference = -torch.rand(2 * PAIRS, generator=draw, dtype=torch.float64) * 3
    zeros = torch.zeros_like(logprobs)
    given = SimpleNamespace(log_probs=logprobs, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())
    ids = torch.zeros(2 * PAIRS, length, dtype=torch.long)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": mask}
    inputs |= {"ref_chosen_logps": reference[:PAIRS], "ref_rejected_logps": reference[PAIRS:]}
    out = {}
    counts = mask.sum(1).double()
    for name, own in (("sigmoid", "dpo"), ("ipo", "ipo"), ("hinge", "hinge")):
        settings = {"loss_types": [name], "loss_weights": [1.0], "precompute_ref_logps": True, "f_divergence_type": "reverse_kl"}
        theirs = DPOTrainer._compute_loss(trainer(**settings), lambda **how: given, inputs, False)
        gains = logprobs.sum(1) - reference
        gains = gains / counts if own == "ipo" else gains
        out[own] = far(preference_loss(gains[:PAIRS] - gains[PAIRS:], BETA, own).mean(), theirs)
    return out


def rewards() -> dict[str, float]:
    """Return the relative difference of the policy's loss and of its gradient, with the tokens of all answers as the divisor."""
    import torch
    from trl.trainer.grpo_trainer import GRPOTrainer

    from pellucid.training.objectives import Document
    from pellucid.training.reward import advantages, policy_loss
    from pellucid.training.text_objective import packed_batch

    draw = torch.Generator().manual_seed(2)
    lengths = [ANSWER - i % 3 for i in range(2 * PAIRS)]
    mask = torch.tensor([[1] * n + [0] * (ANSWER - n) for n in lengths])
    values = -torch.rand(2 * PAIRS, ANSWER, generator=draw, dtype=torch.float64)
    given = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], dtype=torch.float64)
    out = {}
    for scaled in (False, True):
        a = advantages(given, scaled).flatten()
        x = values.clone().requires_grad_(True)
        own = trainer(
            loss_type="bnpo", importance_sampling_level="token", top_entropy_quantile=1.0, epsilon_low=0.2, epsilon_high=0.2,
            args=SimpleNamespace(delta=None), current_gradient_accumulation_steps=1,
            _get_per_token_logps_and_entropies=lambda *_, **how: (x, torch.zeros_like(x), None),
        )  # fmt: skip
        own.beta = 0.0
        ids = torch.zeros(2 * PAIRS, ANSWER, dtype=torch.long)
        prompt = torch.zeros(2 * PAIRS, PROMPT, dtype=torch.long)
        inputs = {"prompt_ids": prompt, "prompt_mask": prompt + 1, "completion_ids": ids, "completion_mask": mask, "advantages": a}
        theirs = GRPOTrainer._compute_loss(own, None, inputs)
        theirs.backward()
        batch = packed_batch([Document([], [0] * (n + 1), [False] + [True] * n) for n in lengths])
        y = torch.cat([row[:n] for row, n in zip(values, lengths, strict=True)]).requires_grad_(True)
        ours = policy_loss(y, a, batch).sum() / sum(lengths)
        ours.backward()
        name = "grpo scaled" if scaled else "grpo"
        assert x.grad is not None and y.grad is not None
        gradient = torch.cat([row[:n] for row, n in zip(x.grad, lengths, strict=True)])
        out |= {name: far(ours, theirs), f"{name} gradient": far(y.grad, gradient)}
    return out


def distillation() -> dict[str, float]:
    """Return the relative difference of the mean divergence: the logits are hidden states before a head that changes nothing."""
    import torch
    from trl.trainer.distillation_trainer import _chunked_divergence_loss

    from pellucid.training.distillation import divergence

    draw = torch.Generator().manual_seed(3)
    teacher, student = (torch.randn(1, ANSWER, IDS, generator=draw) * 2 for _ in range(2))
    eye, mask, out = torch.eye(IDS), torch.ones(1, ANSWER, dtype=torch.long), {}
    for temperature in (1.0, 2.0):
        theirs, *_ = _chunked_divergence_loss(student, teacher, eye, eye, mask, 0.0, temperature=temperature)
        ours = divergence(teacher[0], student[0], temperature).mean() / temperature**2  # TRL leaves the factor out
        out[f"kl at {temperature:g}"] = far(ours, theirs)
    return out


def far(own: Any, other: Any) -> float:
    """Return how far two tensors are apart at most, relative to the larger one's size."""
    return float((own.detach() - other.detach()).abs().max() / other.detach().abs().max().clamp(min=1e-12))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", type=Path)
    a = parser.parse_args()
    if a.env is not None:
        python = a.env / "bin" / "python"
        if not python.exists():
            venv.create(a.env, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
        return subprocess.run([python, __file__], check=False).returncode
    sys.path.insert(0, str(ROOT / "src"))
    found = preferences() | rewards() | distillation()
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    versions = {name: importlib.metadata.version(name) for name in ("trl", "torch", "transformers")}
    document = {
        "schema": 1, "benchmark": "trl_losses", "at": datetime.now(UTC).isoformat(timespec="seconds"), "commit": git.stdout.strip(),
        "versions": versions | {"python": platform.python_version()}, "allowed": MOST, "differences": found,
    }  # fmt: skip
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    return int(max(found.values()) > MOST)


if __name__ == "__main__":
    sys.exit(main())
