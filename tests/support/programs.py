"""Programs compared."""

from kernel_archive.selection.similarity import overlap, token_grams


def jaccard(a, b):
    """Similarity of two programs, 0 to 1, as an archive's are compared."""
    return overlap(*token_grams([a, b]))
