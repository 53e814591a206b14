"""Save what `pellucid explain` shows as a picture.

python examples/picture.py "The capital of France is" explain.svg
"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

import pellucid
from pellucid.documents.run_view import explain
from pellucid.terminal import run_lines

LIGHT = TerminalTheme(
    (255, 255, 255),
    (31, 35, 40),
    [(31, 35, 40), (207, 34, 46), (17, 99, 41), (130, 80, 0), (9, 105, 218), (130, 80, 223), (27, 124, 131), (110, 119, 129)],
)

prompt, target = sys.argv[1:3]
model = pellucid.load("pellucid/capitals", dtype="float32")
console = Console(record=True, width=112, file=io.StringIO(), force_terminal=True, color_system="truecolor")
for line in run_lines.story(explain(model, prompt, 1, 5), run_lines.Display(112, True, legend=False)):
    console.print(line, no_wrap=True, overflow="crop")
drawn = console.export_svg(title=f'pellucid explain "{prompt}"', theme=LIGHT)
Path(target).write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.S), encoding="utf-8")  # rich would fetch a font from the network
