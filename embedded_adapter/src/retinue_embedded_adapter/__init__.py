"""A LoRA adapter for retinue's embedded model: `adapter.gguf`, described by `adapter.json`."""
