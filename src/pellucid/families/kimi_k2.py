"""Kimi K2 (arXiv 2507.20534): DeepSeek-V3 by another name, with half the heads and half as many experts more."""

from pellucid.families.deepseek_v3 import ARCHITECTURE, RULES, config, ignored

__all__ = ["ARCHITECTURE", "RULES", "config", "ignored"]
