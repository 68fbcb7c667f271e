"""Programs that look fast without doing the work: ``cheats.toml``."""

from __future__ import annotations

import re
from typing import NamedTuple

from kernel_archive.toml_files import toml_beside
from kernel_measure.measurer import Measurer
from kernel_measure.verdict import Measurement

__all__ = ["CUDA", "HONEST", "NO_MAXIMUM", "NUMPY", "NUMPY_HONEST", "TORCH", "Cheat", "refused"]

_FILE = toml_beside(__file__, "cheats.toml")
#: Right on every input of the rehearsal but those beyond the timed ones.
NO_MAXIMUM = _FILE["no_maximum"]
#: Task -> the program that its cheats start from.
HONEST = _FILE["honest"]
NUMPY_HONEST = HONEST["rehearsal"]


class Cheat(NamedTuple):
    """A program, and a pattern that the reason it is refused for must match."""

    task: str
    code: str
    reason: str


def refused(measurer: Measurer, cheat: Cheat) -> Measurement:
    """Measure a cheat, which must be refused for its reason."""
    measured = measurer.measure(cheat.task, cheat.code)
    if "patched" in cheat.reason or "stream" in cheat.reason:
        measurer.end()  # not to be trusted with the next program
    assert measured.outcome == "incorrect", measured
    assert re.search(cheat.reason, measured.error), measured.error
    return measured


def _cheats(task: str, *tables: str) -> dict[str, Cheat]:
    """Name -> cheat of a task, of some tables of the file."""
    return {
        name: Cheat(task, HONEST[task] + cheat["code"], cheat["refused"])
        for table in tables
        for name, cheat in _FILE[table].items()
    }


#: On the stand-in device.
NUMPY = _cheats("rehearsal", "either", "rehearsal")
#: On torch's CPU, and on a GPU.
TORCH = _cheats("cross_entropy", "either", "cross_entropy") | _cheats("fp8_quant", "fp8_quant")
#: Only a GPU has streams.
CUDA = _cheats("cross_entropy", "gpu")
