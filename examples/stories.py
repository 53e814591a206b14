"""The texts of recipes/stories.toml: short stories of our own, in English and Chinese, written from a few lists of words.

    python examples/stories.py

Each story has a character, a thing that is lost, a place where it lies, a helper and an end that follows from them, so that a small model
can learn to keep track of them. The files are recipes/stories/en.txt and zh.txt, a line <|endoftext|> between two stories.
"""

import random
from pathlib import Path

CHARACTERS = [
    ("Anna", "安娜", "a girl", "女孩"),
    ("Ben", "小本", "a boy", "男孩"),
    ("Mia", "米娅", "a girl", "女孩"),
    ("Tom", "汤姆", "a boy", "男孩"),
    ("Lily", "莉莉", "a girl", "女孩"),
    ("Max", "马克", "a boy", "男孩"),
    ("Nora", "诺拉", "a girl", "女孩"),
    ("Leo", "里奥", "a boy", "男孩"),
]
PRONOUNS = {"a girl": ("she", "her"), "a boy": ("he", "him")}
THINGS = [
    ("red ball", "红球"),
    ("blue kite", "蓝风筝"),
    ("little drum", "小鼓"),
    ("green hat", "绿帽子"),
    ("wooden boat", "木船"),
    ("silver key", "银钥匙"),
]
PLACES = [
    ("under the old tree", "老树下"), ("behind the house", "房子后面"), ("near the river", "河边"), ("in the tall grass", "高高的草丛里"),
    ("on the hill", "山坡上"), ("beside the well", "井旁"),
]  # fmt: skip
HELPERS = [
    ("dog", "小狗", "barked", "汪汪叫"),
    ("bird", "小鸟", "sang", "唱起歌"),
    ("cat", "小猫", "meowed", "喵喵叫"),
    ("frog", "青蛙", "jumped", "跳来跳去"),
]
WEATHER = [("sunny", "晴朗"), ("windy", "有风"), ("rainy", "下雨"), ("cold", "寒冷")]
GIFTS = [("an apple", "一个苹果"), ("some bread", "一点面包"), ("a cookie", "一块饼干")]

OPENINGS = [
    ("One {weather} day, {name} went out to play with a {thing}.", "在一个{weather}的日子，{name}带着{thing}出去玩。"),
    ("{name} was {kind} and had a {thing}. It was a {weather} day.", "{name}是一个{kind}，有一个心爱的东西：{thing}。那天天气{weather}。"),
]
LOSSES = [
    ("Soon the {thing} was gone. {name} looked for it, but {she} did not see it.", "不久，{thing}不见了。{name}到处找，可是没有找到。"),
    (
        "{name} put the {thing} down and fell asleep. When {she} woke up, the {thing} was not there.",
        "{name}放下{thing}睡着了。醒来的时候，{thing}不在了。",
    ),
]
MEETINGS = [
    ('Then a {helper} came and {did}. "Come with me," said the {helper}.', "这时来了一只{helper}，它{did}。{helper}说：“跟我来。”"),
    (
        '{name} was sad. A {helper} saw {her} and {did}. "I know where it is," said the {helper}.',
        "{name}很难过。{helper}看见了，{did}。{helper}说：“我知道它在哪里。”",
    ),
]
ENDINGS = [
    (
        "They walked together, and there, {place}, lay the {thing}. {name} gave the {helper} {gift}, and they were friends.",
        "他们一起走，{thing}就在{place}。{name}给了{helper}{gift}，他们成了朋友。",
    ),
    (
        'The {thing} was {place}. "Thank you!" said {name}. {She} took the {thing} home and gave the {helper} {gift}.',
        "{thing}在{place}。{name}说：“谢谢你！”{name}把{thing}带回家，还给了{helper}{gift}。",
    ),
]
COUNT = 120


def stories(seed: int = 0) -> tuple[list[str], list[str]]:
    """Return the English and the Chinese stories; those of one place in the two lists tell the same."""
    rng, english, chinese = random.Random(seed), list[str](), list[str]()
    for _ in range(COUNT):
        who, thing, place, helper = (rng.choice(words) for words in (CHARACTERS, THINGS, PLACES, HELPERS))
        weather, gift = rng.choice(WEATHER), rng.choice(GIFTS)
        forms = [rng.choice(part) for part in (OPENINGS, LOSSES, MEETINGS, ENDINGS)]
        she, her = PRONOUNS[who[2]]
        for language, texts in ((0, english), (1, chinese)):
            words = {
                "name": who[language], "kind": who[2 + language], "thing": thing[language], "place": place[language],
                "helper": helper[language], "did": helper[2 + language], "weather": weather[language], "gift": gift[language],
                "she": she, "She": she.capitalize(), "her": her,
            }  # fmt: skip
            texts.append((" " if language == 0 else "").join(form[language].format(**words) for form in forms))
    return english, chinese


if __name__ == "__main__":
    folder = Path(__file__).parents[1] / "recipes" / "stories"
    for name, texts in zip(("en", "zh"), stories(), strict=True):
        (folder / f"{name}.txt").write_text("\n<|endoftext|>\n".join(texts) + "\n", encoding="utf-8")
