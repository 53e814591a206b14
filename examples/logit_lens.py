"""Read the residual stream with the model's own head after every block: when does the answer appear?

python examples/logit_lens.py
"""

import torch

import pellucid

model = pellucid.load("pellucid/capitals", dtype="float32")
life = pellucid.trace(model, "The capital of France is")
module = model.module
for layer in range(len(model.config.layers)):
    residual = life[f"layers.{layer}.out"].value[:, -1]
    with torch.no_grad():
        probabilities = module.head(module.norm(residual))[0].softmax(-1)
    best = probabilities.topk(3)
    print(layer, [(model.tokenizer.decode([int(i)]), round(float(p), 3)) for p, i in zip(best.values, best.indices, strict=True)])
