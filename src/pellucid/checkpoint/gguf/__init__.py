"""GGUF, llama.cpp's format: a model's settings, tokenizer and weights in one file, read like a Hugging Face folder, and written."""
