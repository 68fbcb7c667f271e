"""Programs made by hand, and compared."""

import hashlib

from kernel_archive.selection.similarity import near_copies, token_grams


def program(name: object, *, comment: str = "", size: int = 6) -> str:
    """A program text of its own for every name; a comment makes a near duplicate of it."""
    seed = int.from_bytes(hashlib.sha256(str(name).encode()).digest()[:6], "big")
    body = "\n".join(
        f"    v{i} = tl.load(x + {(seed >> i) % 9973} * pid + {i})" for i in range(size)
    )
    note = f"  # {comment}" if comment else ""
    return (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        f"def kernel_{seed}(x, pid):{note}\n{body}\n    tl.store(x, v0)"
    )


def jaccard(a, b):
    """Similarity of two programs, 0 to 1, as an archive's are compared."""
    first, second = token_grams([a, b])
    _, similarity = near_copies({"a": first}, {"b": second}, 0.0).get("a", ("b", 0.0))
    return similarity
