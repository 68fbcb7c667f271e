"""A small slice of the campaign against builds; ``make fuzz`` runs the whole."""

from __future__ import annotations

from fuzz.builds import run


def test_disturbed_builds_make_the_same_archive():
    """Flipped bits in staged files, cut files and kills: the next build is as if nothing had
    been.
    """
    assert sum(run(3, 3).values()) == 3
