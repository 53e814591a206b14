"""OpenAI's API on the engine: the routes of `pellucid serve`. Each file has its conventions in its head; docs/serve.md has the fields."""
