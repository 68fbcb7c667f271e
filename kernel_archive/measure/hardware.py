"""What ``nvidia-smi`` says of the GPU: driver, clocks, temperature, power; sampled beside the measurements."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from typing import Any, Final

_FIELDS: Final = (
    "name", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.memory", "clocks.sm", "clocks.mem",
    "temperature.gpu", "power.draw", "power.limit", "pstate", "clocks_event_reasons.active",
)  # fmt: skip


def query() -> dict[str, str]:
    """The figures of the first visible GPU as text; empty where there is no ``nvidia-smi``."""
    which = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader"]
    if which:
        command.append(f"--id={which}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    line = done.stdout.strip().splitlines()[:1]
    if done.returncode != 0 or not line:
        return {}
    return dict(zip(_FIELDS, (part.strip() for part in line[0].split(",")), strict=False))


class Watch:
    """Samples the GPU every few seconds in a thread; a device that is no GPU gives nothing."""

    def __init__(self, *, enabled: bool, period_s: float = 10.0) -> None:
        self.first: dict[str, str] = query() if enabled else {}
        self._latest = dict(self.first)
        self._stop = threading.Event()
        self._period = period_s
        self._at = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if self.first:
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            self._latest, self._at = query() or self._latest, time.monotonic()

    def latest(self) -> dict[str, Any]:
        """Clocks, temperature and power as last seen, with the age of the sample."""
        names = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_event_reasons.active")
        found: dict[str, Any] = {n: self._latest[n] for n in names if n in self._latest}
        return {**found, "age_s": round(time.monotonic() - self._at, 1)} if found else {}

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
