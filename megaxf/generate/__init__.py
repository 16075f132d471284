"""A trained model goes on with a text.

    model = loading.load(config, weights, dtype, device)
    results = generate(model, [[5, 9, 2], [7]], max_new_tokens=20, sampling=Sampling(), stop=Stop(eos_ids=[1]))

generate.py  the loop        batch.py, rows.py   who is computed together, and how far each is
caches/      keys, values    sampling.py         logits to tokens        streaming.py   tokens to text
"""

from megaxf.generate.errors import GenerateError
from megaxf.generate.generate import generate
from megaxf.generate.rows import Result, Stop
from megaxf.generate.sampling import Sampling

__all__ = ["GenerateError", "Result", "Sampling", "Stop", "generate"]
