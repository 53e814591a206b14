"""schemathesis on the server's own OpenAPI document: EXAMPLES requests a route, that fit it and that do not.

No answer may be a fault of the server, or of another kind than the document says.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

server = os.environ["ONE_MODEL_URL"].removesuffix("/v1")
checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
command = [str(Path(sys.executable).parent / "schemathesis"), "run", f"{server}/openapi.json", "--checks", checks]
command += ["--header", f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}", "--max-examples", os.environ.get("EXAMPLES", "100")]
command += ["--phases", "examples,coverage,fuzzing", "--mode", "all", "--seed", "1", "--request-timeout", "60", "--no-color"]
done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=os.environ["HOME"])
text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
start = max(
    text.find("= FAILURES"), text.find("= ERRORS"), len(text) - 4000 if "= FAILURES" not in text and "= ERRORS" not in text else 0, 0
)
print(text[start:][:6000] if done.returncode else "schemathesis: " + " ".join(text.split("SUMMARY")[-1].split())[-600:])
sys.exit(done.returncode)
