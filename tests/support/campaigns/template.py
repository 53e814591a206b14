"""Mutants of chat templates and of what they are given: cut, joined, and with hostile pieces put in.

Every message holds a control token that no template writes: it may come out as text only.
"""

import random
import re
import warnings
from pathlib import Path
from typing import Any

from campaigns import Attempt, named
from campaigns.mutate import EVIL, bent
from chats import CALLED, CONVERSATIONS, NAMED, TEMPLATES, TOOL, chat_spec
from pellucid.tokenizer import limited_process
from pellucid.tokenizer.chat_template import Template
from pellucid.tokenizer.tokenizer import Tokenizer
from test_template_limits import HOSTILE

CANARY = "<|canary|>"
PIECES = [
    *(source for source, _ in HOSTILE if len(source) < 200),
    *("{{ messages[0].content }}", "{{ messages | tojson }}", "{{ (messages[0].content ~ eos_token) | trim | upper }}", "{% break %}"),
    *("{{ messages[0].content | replace('a', '<|') }}", "{{ '<|can' ~ messages[0].content }}"),
    *("{{ '%s<|' | format(messages[0].content) }}", "{{ messages[0].content.split('|') | join('|') }}"),
    *("{{ ('<|' ~ messages[0].content)[2:] }}", "{% set x %}<|{{ messages[0].content }}{% endset %}{{ x }}"),
    *("{{ messages[0].content * 3 }}", "{{ messages[0].content | list | join }}", "{{ bos_token | replace('s', messages[0].content) }}"),
    *("{% if", "{{", "}}", "{%- endif %}", "{#", "{% raw %}", "{% filter upper %}", "{% endfilter %}"),
    *("\ud800", "{{ '\\ud800' }}", "\x00", "{{ loop }}", "{{ self }}"),
]


def prepare(folder: Path) -> Attempt:
    limited_process.SECONDS, limited_process.PATIENCE = 0.5, 5.0
    spec = chat_spec()
    id = max(token["id"] for token in spec["added_tokens"]) + 1
    spec["added_tokens"].append({**spec["added_tokens"][0], "id": id, "content": CANARY})
    tokenizer = Tokenizer(spec, "tokenizer.json", NAMED)
    conversations = [*CONVERSATIONS.values(), CALLED]
    file = str(folder / "chat_template.jinja")

    def source(draw: random.Random) -> str:
        parts = re.split(r"({[{%].*?[}%]})", draw.choice(sorted(TEMPLATES.values())), flags=re.DOTALL)
        for _ in range(draw.choice((0, 1, 1, 2, 4))):
            at = draw.randrange(len(parts))
            match draw.randrange(6):
                case 0:
                    del parts[at]
                case 1:
                    other = draw.randrange(len(parts))
                    parts[at], parts[other] = parts[other], parts[at]
                case 2:
                    parts[at:at] = parts[at : at + 3]
                case 3:
                    word = parts[at]
                    cut = draw.randrange(len(word) + 1)
                    parts[at] = (
                        word[:cut]
                        + draw.choice(("", "|", "(", "'", "~", "+", "[", ".", "__class__", "loop"))
                        + word[cut + draw.randrange(3) :]
                    )
                case _:
                    parts.insert(at, draw.choice(PIECES))
            parts = parts or [""]
        return "".join(parts)

    def attempt(draw: random.Random) -> str:
        tokenizer.templates = {"default": Template(source(draw), file)}
        tokenizer._chats.clear()
        messages: Any = [
            {**m, "content": draw.choice((CANARY, f"a{CANARY}b", "canary|>", "ary|>")) + m["content"]} for m in draw.choice(conversations)
        ]
        tools: Any = draw.choice((None, None, [TOOL], [{"name": CANARY}]))
        odd = draw.random() < 0.2
        if odd:
            messages, tools = bent(messages, draw), draw.choice((tools, tools, bent([TOOL], draw), draw.choice(EVIL)))
        seen: list[int] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fault = named(lambda: seen.extend(tokenizer.chat(messages, tools)), "" if odd else file)
        return fault or (f"a message wrote {CANARY}" if id in seen else "")

    return attempt
