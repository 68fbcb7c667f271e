"""Confirmed forecasts of a compound search: ``<child_ulid>.json``, the measurement of a node that was only forecast."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from kernel_archive.errors import Finding
from kernel_archive.readers.events import Observation  # noqa: TC001 - msgspec resolves it at run time
from kernel_archive.readers.lenient import BAD_JSON

if TYPE_CHECKING:
    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.fold import SearchFold
    from kernel_archive.readers.report import Report

__all__ = ["CONFIRMED_FILES", "confirm_forecasts"]

_ULID: Final = "[0-9A-HJKMNP-TV-Z]" * 26 + ".json"
#: In the run directory or in a folder of it.
CONFIRMED_FILES: Final = (_ULID, f"*/{_ULID}")


class CheckedForecast(msgspec.Struct):
    """One such file."""

    child_ulid: str
    real_observation: Observation | None
    code_sha256: str | None = None


def confirm_forecasts(run: RunFiles, fold: SearchFold, report: Report) -> None:
    """Add the measurements of forecast nodes; a file of another program than the node's is reported and left out."""
    if not fold.forecast_nodes:
        return
    for path in run.files:
        stem = path.name.split(".")[0]
        if stem not in fold.forecast_nodes:
            continue
        name = run.name(path)
        value = run.json(path)
        if isinstance(value, Finding):
            report.warning(value.code, f"{value.message}; its measurement is missing", file=name)
            continue
        try:
            checked = msgspec.json.decode(msgspec.json.encode(value), type=CheckedForecast)
        except BAD_JSON as error:
            report.warning("bad-confirmation", f"no confirmed forecast: {error}", file=name)
            continue
        if checked.real_observation is None:
            continue
        code = fold.forecast_nodes[stem].code
        sha = hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
        if checked.child_ulid != stem or checked.code_sha256 not in (None, sha):
            report.error("wrong-sha256", "the confirmed program is not the one that the log has; left out", file=name)
        elif fold.confirm(stem, checked.real_observation, name):
            fold.count("forecasts_confirmed")
