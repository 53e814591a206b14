"""lm-evaluation-harness: its `local-completions` and `local-chat-completions`, beside its own `hf` model on the same folder.

Tasks of all three kinds, from files: multiple choice, log-likelihood, generation. Every score must be equal to 1e-6, and every greedy text.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.pop(0)  # this folder, whose file has the library's name
os.environ |= {"HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HOME": os.environ["HOME"]}

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

SERVED, KEY = Path(os.environ["SERVED"]), os.environ["OPENAI_API_KEY"]
CITIES = {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Spain": "Madrid", "Egypt": "Cairo", "Peru": "Lima", "Greece": "Athens",
          "China": "Beijing", "Norway": "Oslo", "Cuba": "Havana", "Kenya": "Nairobi", "Canada": "Ottawa"}  # fmt: skip
COMMON = "dataset_path: json\ndataset_kwargs:\n  data_files: {file}\ntest_split: train\n"
TASKS = {
    "choice": """output_type: multiple_choice
doc_to_text: "The capital of {{country}} is"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "likelihood": """output_type: loglikelihood
doc_to_text: "The capital of {{country}} is"
doc_to_target: " {{city}}."
metric_list: [{metric: perplexity}, {metric: acc}]
""",
    "writes": """output_type: generate_until
doc_to_text: "The capital of {{country}} is"
doc_to_target: " {{city}}"
generation_kwargs: {until: ["."], max_gen_toks: 6, do_sample: false, temperature: 0}
metric_list: [{metric: exact_match}]
""",
    "chats": """output_type: generate_until
doc_to_text: "{{country}}"
doc_to_target: "{{city}}"
generation_kwargs: {until: ["~~~~"], max_gen_toks: 12, do_sample: false, temperature: 0}
metric_list: [{metric: exact_match}]
""",
}


def written(folder: Path) -> None:
    """Write the tasks and their questions."""
    cities = list(CITIES.values())
    rows = []
    for i, (country, city) in enumerate(CITIES.items()):
        choices = [city, *(cities[(i + k) % len(cities)] for k in (1, 4, 7))]
        rows.append({"country": country, "city": city, "choices": [f" {c}" for c in choices], "answer": 0})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n" + COMMON.format(file=folder / "rows.jsonl") + text, encoding="utf-8")


def scores(tasks: TaskManager, names: list[str], kind: str, chat: bool = False, **how: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the scores of tasks, and what the model answered to each question."""
    given = ",".join(f"{name}={value}" for name, value in how.items())
    result = simple_evaluate(model=kind, model_args=given, tasks=names, task_manager=tasks, apply_chat_template=chat, bootstrap_iters=0)
    metrics = {(task, name): value for task, row in result["results"].items() for name, value in row.items() if isinstance(value, float)}
    return metrics, {(task, s["doc_id"]): s["filtered_resps"] for task, rows in result["samples"].items() for s in rows}


def numbers(answer: Any) -> list[float]:
    """Return the log-likelihoods in an answer."""
    if isinstance(answer, float):
        return [answer]
    return [x for part in answer for x in numbers(part)] if isinstance(answer, list | tuple) else []


def texts(answer: Any) -> list[Any]:
    """Return the texts and verdicts in an answer."""
    if isinstance(answer, list | tuple):
        return [x for part in answer for x in texts(part)]
    return [] if isinstance(answer, float) else [answer]


with tempfile.TemporaryDirectory() as scratch:
    written(Path(scratch))
    tasks, worst, compared = TaskManager(include_path=scratch, include_defaults=False), 0.0, 0
    remote = {"tokenizer_backend": "remote", "auth_token": KEY, "tokenized_requests": True}
    runs: list[tuple[str, str, list[str], dict[str, Any]]] = [
        ("capitals", "local-completions", ["choice", "likelihood", "writes"], {"max_length": 64, **remote}),
        ("qwen", "local-chat-completions", ["chats"], {"max_length": 2048}),
    ]
    for name, kind, names, how in runs:
        chat, hf = "chat" in kind, {"dtype": "float32", "device": "cpu", "max_length": how["max_length"]}
        base = os.environ["OPENAI_BASE_URL"] + "/chat" if chat else os.environ["ONE_MODEL_URL"]
        how |= {"num_concurrent": 1, "max_retries": 1}
        ours, answers = scores(tasks, names, kind, chat, model=name, base_url=f"{base}/completions", **how)
        theirs, right = scores(tasks, names, "hf", chat, pretrained=SERVED / name, **hf)
        assert ours.keys() == theirs.keys() and ours
        for key in ours:
            assert abs(ours[key] - theirs[key]) <= 1e-6, (key, ours[key], theirs[key])
        for key in answers:
            assert texts(answers[key]) == texts(right[key]), (key, answers[key], right[key])
            apart = [abs(a - b) for a, b in zip(numbers(answers[key]), numbers(right[key]), strict=True)]
            worst, compared = max([worst, *apart]), compared + len(apart)
        print({" ".join(key): value for key, value in ours.items()})
    print(f"lm-eval: equal scores and texts; {compared} log-likelihoods differ by at most {worst:.1e}")
