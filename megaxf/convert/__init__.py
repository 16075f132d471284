"""Models from and to other programs' files, one format a file.

huggingface.py    a folder that `transformers`, vLLM and others open: safetensors, config.json, tokenizer
gguf.py           a file of llama.cpp's
deepspeed.py      checkpoints of ZeRO 1 to 3 and universal ones
megatron.py       Megatron-LM's checkpoints, layouts torch and torch_dist
"""
