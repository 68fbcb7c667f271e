"""Baselines: from constants to models that learn from the archive's training pairs."""
