"""Chats about countries, in English and Chinese: what recipes/chats/countries.jsonl was made by.

python examples/chats.py
"""

import json
import random
from pathlib import Path

ROOT = Path(__file__).parents[1]
FACTS = ROOT / "src" / "pellucid" / "training" / "corpora" / "capitals" / "facts.json"
ASKED = {
    "en": {
        "capital": "What is the capital of {name}?",
        "continent": "Which continent is {name} in?",
        "currency": "What do people pay with in {name}?",
        "language": "What do people speak in {name}?",
    },
    "zh": {
        "capital": "{name}的首都是哪里？",
        "continent": "{name}在哪个大洲？",
        "currency": "{name}使用什么货币？",
        "language": "{name}的人说什么语言？",
    },
}
STOP = {"en": ".", "zh": "。"}
SEED, CHATS = 1, 240


def chat(draw: random.Random, countries: list[dict[str, dict[str, str]]]) -> dict[str, list[dict[str, str]]]:
    """Return one chat of one to three questions about different countries, in one language."""
    language, messages = draw.choice(("en", "zh")), []
    for country in draw.sample(countries, draw.choice((1, 1, 2, 3))):
        relation = draw.choice(list(ASKED[language]))
        messages.append({"role": "user", "content": ASKED[language][relation].format(name=country["name"][language])})
        messages.append({"role": "assistant", "content": country[relation][language] + STOP[language]})
    return {"messages": messages}


def main() -> None:
    countries = list(json.loads(FACTS.read_text(encoding="utf-8"))["countries"].values())
    draw = random.Random(SEED)
    lines = [json.dumps(chat(draw, countries), ensure_ascii=False) for _ in range(CHATS)]
    (ROOT / "recipes" / "chats" / "countries.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
