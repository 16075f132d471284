"""What a layer's forward pass really keeps for its backward pass, counted on the tensors that autograd saves."""

import torch

from megaxf.plan.memory.job import Job
from megaxf.plan.stages import Part


def saved_bytes(layer, x, shared, known):
    """Bytes of the storages that `layer(x, shared)` saves, each once.

    known: tensors that are there anyway: parameters, rotary tables, masks.
    """
    apart = {tensor.untyped_storage().data_ptr() for tensor in known if tensor is not None}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in apart:
            kept[storage.data_ptr()] = storage  # holds it, so that its address is not used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x, shared)
    return sum(storage.nbytes() for storage in kept.values())


def saved_by_layer(model, tokens, dtype, **inputs):
    """Bytes that the first layer of a model keeps of the rows `tokens` [batch, seq]."""
    shared = model.shared(tokens, samples=torch.arange(len(tokens)), **inputs)
    x = model.embed(tokens, shared).to(dtype).detach().requires_grad_()
    known = [*model.parameters(), *shared.rotation, shared.positions, shared.keys]
    if isinstance(shared.mask, torch.Tensor):
        known.append(shared.mask)
    return saved_bytes(model.layers[0], x, shared, known)


def job(config, batch, seq, **settings):
    """The job of a whole model on CPU ranks."""
    whole = Part(range(config.num_hidden_layers), True, True)
    return Job(config, seq, batch, (whole,), device="cpu", **settings)
