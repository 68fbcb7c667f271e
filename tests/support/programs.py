"""Programs compared."""

from kernel_archive.selection.similarity import near_copies, token_grams


def jaccard(a, b):
    """Similarity of two programs, 0 to 1, as an archive's are compared."""
    first, second = token_grams([a, b])
    _, similarity = near_copies({"a": first}, {"b": second}, 0.0).get("a", ("b", 0.0))
    return similarity
