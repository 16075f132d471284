"""Text to tokens to shards to batches: everything between raw documents and the arrays that a model is fed.

Knows nothing of the rest of megaxf and needs no torch, so that data can be prepared on any machine.
"""
