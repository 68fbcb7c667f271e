"""What every key of a recipe means: a text for each, from the types that read it."""

from __future__ import annotations

from kernel_archive.archive.recipe_text import attributes, explained_keys
from kernel_archive.gpus import Gpu


def test_every_key_has_a_text() -> None:
    """None is left out or empty, and each stands with its table."""
    keys = explained_keys()
    assert {"name", "archive.name", "eval.roles", "source.path", "source.join.on", "exclude.reason"} <= keys.keys()
    assert all(keys.values())


def test_attributes_of_base_classes() -> None:
    """A type says what its base says, too."""
    assert {"aliases", "l2_cache_mb"} <= attributes(Gpu).keys()
