"""Plain single-device PyTorch models: a family a file, with its Config, its Model and its TENSOR_PLAN."""
