"""Programs as modules, inside workers: the one way in which code under test is imported."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def import_code(code: str, folder: Path, name: str) -> Any:
    """A program's text as a module of that name, by way of a file in ``folder``: compilers read what they compile.

    It is in ``sys.modules`` while it runs and afterwards. Whatever the program raises is passed on.
    """
    path = folder / f"{name}.py"
    path.write_text(code, encoding="utf-8", errors="surrogatepass")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # noqa: S101 - a path that ends in .py always has one
    assert spec.loader is not None  # noqa: S101 - likewise
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def import_torch() -> None:
    """Load what programs load, so that none pays for it and none sees an unpatched module appear later."""
    import torch
    import torch.utils.cpp_extension

    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):
        import triton
        import triton.language  # noqa: F401 - loaded for the programs
