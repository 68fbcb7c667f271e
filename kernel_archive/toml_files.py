"""Tables of data as TOML, each in a file beside the module that uses it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def toml_beside(module: str, name: str = "") -> dict[str, Any]:
    """Read the TOML file beside a module, given as ``__file__``: by default that of its name."""
    path = Path(module)
    path = path.with_name(name) if name else path.with_suffix(".toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))
