"""Examples in docstrings are looked for where there are some: no module is imported for none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from _pytest.doctest import DoctestModule

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Leave out the examples of a file without any."""
    found = yield
    return (
        found
        if b">>>" in file_path.read_bytes()
        else [c for c in found if not isinstance(c, DoctestModule)]
    )
