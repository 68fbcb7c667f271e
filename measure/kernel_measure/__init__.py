"""Measuring: tasks, sandboxed workers, timing protocol, guards and searches on a real GPU."""
