"""Tokenizers: text to ids and back, and chats to prompts."""
