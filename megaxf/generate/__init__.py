"""A trained model goes on with a text.

model = loading.from_weights(config, weights, dtype, device)
results = generate(model, [[5, 9, 2], [7]], max_new_tokens=20, sampling=Sampling(), eos_ids=[1])
"""

from megaxf.generate.errors import GenerateError
from megaxf.generate.generate import Result, generate
from megaxf.generate.sampling import Sampling

__all__ = ["GenerateError", "Result", "Sampling", "generate"]
