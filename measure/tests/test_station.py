"""Tests of the station."""

from __future__ import annotations

import os

import pytest

from kernel_measure.station import gpu_state, timing_processors


def test_processors_for_timing_are_not_the_first(monkeypatch):
    """Of those that this process may use; where there are few, all."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16, 32)), raising=False)
    assert timing_processors() == [17, 18]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert timing_processors() == [0, 1]


SAID = "NVIDIA H200, 570.1, 143771 MiB, 1980 MHz, 3201 MHz, 1755 MHz, 3201 MHz, 41, 120.5 W, 700.0 W, P0, 0x0"  # noqa: E501


@pytest.fixture
def says(tmp_path, monkeypatch):
    """Put an ``nvidia-smi`` on the path that runs the given shell line."""

    def put(line):
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return put


def test_fields_of_the_first_gpu(says, monkeypatch):
    """One line of figures, by their names."""
    says(f"echo '{SAID}'; echo second; echo \"$@\" >&2")
    expected = {"name": "NVIDIA H200", "clocks.sm": "1755 MHz", "power.limit": "700.0 W"}
    assert expected.items() <= gpu_state().items()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    says('case "$*" in *--id=3*) echo "third";; esac')
    assert gpu_state() == {"name": "third"}


@pytest.mark.parametrize("line", ["exit 9", "true", "echo no; exit 1", None])
def test_without_figures_there_are_none(says, monkeypatch, line):
    """A tool that fails or says nothing is like none, on a machine without a GPU."""
    if line is None:
        monkeypatch.setenv("PATH", "")
    else:
        says(line)
    assert gpu_state() == {}
