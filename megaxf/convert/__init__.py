"""Models from and to other programs' files, one target a file.

huggingface.py    a folder that `transformers`, vLLM and others open: safetensors, config.json, tokenizer
"""
