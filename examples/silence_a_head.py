"""Silence each head of the specimen in turn, and see how much of Paris is left.

python examples/silence_a_head.py
"""

import torch

import pellucid

model = pellucid.load("pellucid/capitals", dtype="float32")
ids = torch.tensor([model.tokenizer.encode("The capital of France is")])
paris = model.tokenizer.encode(" Paris")[0]


def probability() -> float:
    return float(model(ids)[0, -1].softmax(-1)[paris])


print(f"all heads: {probability():.3f}")
for layer in range(len(model.config.layers)):
    for head in range(model.config.layers[layer].attn.heads):

        def silence(z: torch.Tensor, head: int = head) -> torch.Tensor:
            z[:, :, head] = 0
            return z

        z = f"layers.{layer}.attn.z"
        with torch.no_grad(), pellucid.watch(model, only=z, edit={z: silence}):
            print(f"without layer {layer}, head {head}: {probability():.3f}")
