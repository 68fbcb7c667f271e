"""Builds of the measured tables alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernel_archive.archive.build import Build, BuildOptions, BuildResult
from kernel_archive.archive.manifest import write_manifest
from kernel_archive.archive.swap import locked_work_folder, replaced_directory


def build_archive(builders: Sequence[str], **options: Any) -> BuildResult:
    """Build an archive without splits and card; ``options`` as in :class:`BuildOptions`."""
    build = Build(BuildOptions(builders=builders, **options))
    with locked_work_folder(build.work_folder):
        build.stage_runs()
        if result := build.unchanged_result():
            return result
        with replaced_directory(build.target) as new:
            return build.result(write_manifest(new, build.write_tables(new)))
