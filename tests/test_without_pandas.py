"""A process of ours that starts without pandas."""

import importlib
import sys

import pyarrow as pa
import pytest

from kernel_archive.without_pandas import without_pandas


def test_pandas_alone_is_not_there(monkeypatch):
    """Nobody can import it, everything else is found, and Arrow converts lists all the same."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    without_pandas()
    with pytest.raises(ModuleNotFoundError, match="pandas is not needed"):
        importlib.import_module("pandas")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert importlib.import_module("colorsys").__name__ == "colorsys"
    assert pa.array([1, None]).to_pylist() == [1, None]
