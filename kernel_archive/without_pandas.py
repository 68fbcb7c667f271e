"""Start a process of ours without pandas."""

from __future__ import annotations

import sys
from types import SimpleNamespace


def without_pandas() -> None:
    """Make every import of pandas fail in this process.

    Arrow imports pandas before it converts its first list. Nothing here needs it, and of a small
    build it takes a tenth. ``None`` in ``sys.modules`` would mislead libraries that look there.
    """
    sys.meta_path.insert(0, SimpleNamespace(find_spec=_refuse_pandas))


def _refuse_pandas(name: str, *_: object) -> None:
    if name == "pandas":
        raise ModuleNotFoundError(f"{name} is not needed here", name=name)
