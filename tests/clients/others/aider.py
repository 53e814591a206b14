"""aider, an agent that edits files: one message, whose answer it reads and reports. A random model's answer edits nothing."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "a.py").write_text("x = 1\n", encoding="utf-8")
    env = {**os.environ, "OPENAI_API_BASE": os.environ["OPENAI_BASE_URL"], "LITELLM_LOCAL_MODEL_COST_MAP": "True", "COLUMNS": "200"}
    (Path(folder) / "settings.yml").write_text("- name: openai/long\n  extra_params:\n    max_tokens: 60\n", encoding="utf-8")
    words = ["--model", "openai/long", "--message", "Add a line.", "--model-settings-file", "settings.yml", "--edit-format", "whole"]
    words += ["--yes-always", "--no-git", "--no-check-update", "--no-show-model-warnings", "--no-analytics", "--no-fancy-input"]
    words += ["--no-pretty", "--map-tokens", "0", "--no-suggest-shell-commands", "--no-show-release-notes", "--no-gui", "a.py"]
    command = [str(Path(sys.executable).parent / "aider"), *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
    # A random model writes to the end of its tokens, which aider reads from finish_reason.
    counts = next((line for line in done.stdout.splitlines() if "Output tokens: " in line or "Tokens: " in line), None)
    assert done.returncode == 0 and counts is not None, done.stdout + done.stderr
    print("aider:", counts)
