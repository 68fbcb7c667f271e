"""The sample logs, unpacked once per session."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

LOGS = Path(__file__).parent.parent / "data" / "logs"


def unpack(name: str, target: Path) -> Path:
    """Unpack an archive of samples into a folder."""
    data = pa.input_stream(str(LOGS / f"{name}.tar.zst"), compression="zstd").read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        # Python 3.11.4 brought filters; the samples are our own.
        archive.extractall(
            target, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )
    return target


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated samples of every format."""
    return unpack("simulated", tmp_path_factory.mktemp("simulated"))


@pytest.fixture(scope="session")
def h200(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some measured H200 runs."""
    return unpack("h200", tmp_path_factory.mktemp("h200"))


@pytest.fixture(scope="session")
def h200_expected(h200: Path) -> dict[str, Any]:
    """What an independent reader counted in them."""
    counted: dict[str, Any] = json.loads((h200 / "EXPECTED.json").read_text())
    return counted
