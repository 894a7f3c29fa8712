"""Plugins that engines find by themselves; each imports its engine only when that loads it."""
