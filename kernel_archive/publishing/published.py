"""The tables that the GPU Forecasters paper published: where they are and how they are found in a folder.

Five dataset repositories of one Hub user. They are read from a snapshot, or from a local copy of the same layout
(``DIR/<repository>/...``); which files make a configuration is what the repository's own card says, or, without a card,
its folder or file names.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import yaml

from kernel_archive.errors import ArchiveNotFoundError, DataError, printable
from kernel_archive.problems import family_of, normalise_problem
from kernel_archive.scoring import Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from kernel_archive.bins import Scheme

USER: Final = "codezakh"
#: Our name of a table -> its repository.
REPOSITORIES: Final = {
    "eval-set": "gpu-forecasters-eval-set",
    "predictions": "gpu-forecasters-eval-set-predictions",
    "training-pool": "gpu-forecasters-rl-training-pool",
    "discovery-pairs": "gpu-forecasters-discovery-pairs",
    "events": "gpu-forecasters-puct-search-events",
}
#: How the rows are labelled and a bin is turned into a speedup. ``released`` and ``paper``: labels and centres of that
#: scheme. ``mixed``: the published labels with the paper's centres, as the released code's own risk functions do.
Labels = Literal["released", "paper", "mixed"]
LABELS: Final[tuple[Labels, ...]] = ("released", "paper", "mixed")
_TABLE_ENDINGS: Final = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".csv")


def _card_configs(folder: Path) -> dict[str, Any]:
    """Configuration -> entry of the card's ``configs``."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    parts = text.split("---\n", 2)
    if len(parts) < 3 or parts[0].strip():
        return {}
    try:
        data = yaml.safe_load(parts[1])
    except yaml.YAMLError:
        return {}
    listed = data.get("configs", []) if isinstance(data, dict) else []
    return {c["config_name"]: c for c in listed if isinstance(c, dict) and isinstance(c.get("config_name"), str)}


def _patterns(entry: dict[str, Any]) -> Iterator[str]:
    """The file patterns of a ``configs`` entry, in any of the forms that the Hub takes."""
    files = entry.get("data_files", [])
    for item in files if isinstance(files, list) else [files]:
        path = item.get("path") if isinstance(item, dict) else item
        for pattern in path if isinstance(path, list) else [path]:
            if isinstance(pattern, str) and not pattern.startswith("/") and ".." not in pattern:
                yield pattern
    if not files and isinstance(entry.get("data_dir"), str):
        yield f"{entry['data_dir']}/**/*"


def config_files(folder: Path, config: str) -> list[Path]:
    """The table files of a configuration of a dataset folder, sorted; none where it has no such configuration."""
    entry = _card_configs(folder).get(config)
    if entry is not None:
        found = {p for pattern in _patterns(entry) for p in folder.glob(pattern) if p.is_file()}
    else:
        found = {
            p
            for p in folder.rglob("*")
            if p.is_file()
            and (config in p.relative_to(folder).parts[:-1] or p.name.split(".")[0].split("-")[0] == config)
        }
    return sorted(p for p in found if p.name.endswith(_TABLE_ENDINGS))


def _configs(folder: Path) -> list[str]:
    """Names of the configurations of a dataset folder, for a message."""
    named = _card_configs(folder)
    return sorted(named) if named else sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name[0] != ".")


def _read(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet as pq

    try:
        if path.name.endswith(".parquet"):
            return pq.read_table(path, partitioning=None)
        if path.name.endswith(".csv"):
            return pyarrow.csv.read_csv(path)
        return pyarrow.json.read_json(pa.input_stream(str(path), compression="detect"))
    except (pa.ArrowException, OSError) as error:
        message = f"cannot be read: {printable(str(error), 200)}"
        raise DataError.of(code="unreadable", message=message, file=str(path)) from None


class PublishedTables:
    """The published tables, in one folder per repository.

    Attributes:
        root: the folder.
        commits: repository -> commit, for tables from the Hub.
    """

    def __init__(
        self, root: Path, commits: dict[str, str] | None = None, folders: dict[str, Path] | None = None
    ) -> None:
        self.root = root
        self.commits = dict(commits or {})
        self._folders = folders or {name: root / repository for name, repository in REPOSITORIES.items()}

    def has(self, table: str, config: str) -> bool:
        """Whether a table has such a configuration."""
        folder = self._folders[table]
        return folder.is_dir() and bool(config_files(folder, config))

    def files(self, table: str, config: str) -> list[Path]:
        """Files of a configuration.

        Raises:
            ArchiveNotFoundError: the table is not there.
            DataError: it has no such configuration.
        """
        folder = self._folders[table]
        if not folder.is_dir():
            raise ArchiveNotFoundError(
                f"{self.root} has no folder {REPOSITORIES[table]}: it is not a copy of the published tables"
            )
        found = config_files(folder, config)
        if not found:
            raise DataError(
                f"{folder} has no configuration {config!r}; it has: {', '.join(_configs(folder)) or 'none'}"
            )
        return found

    def read(self, table: str, config: str, columns: tuple[str, ...]) -> list[dict[str, Any]]:
        """Rows of a configuration, in the order of its files.

        Raises:
            ArchiveNotFoundError: the table is not there.
            DataError: the configuration or a column is not there.
        """
        rows: list[dict[str, Any]] = []
        for path in self.files(table, config):
            part = _read(path)
            lacking = [name for name in columns if name not in part.column_names]
            if lacking:
                message = "not the published layout"
                raise DataError.of(code="missing-column", message=message, file=str(path), field=lacking[0])
            rows += part.select(list(columns)).to_pylist()
        return rows

    def eval_target(self, labels: Labels = "released") -> Target:
        """The evaluation set, ready to score against.

        Args:
            labels: how rows are labelled and bins turned into speedups (:data:`LABELS`).
        """
        columns = ("comparison_id", "pack", "aggregated_speedup", "true_bin")
        rows = self.read("eval-set", "combined", columns)
        scheme: Scheme = "released" if labels == "released" else "paper"
        return Target.from_arrays(
            row_ids=[str(row["comparison_id"]) for row in rows],
            tasks=[normalise_problem(str(row["pack"])) for row in rows],
            speedups=[row["aggregated_speedup"] for row in rows],
            bins=None if labels == "paper" else [row["true_bin"] for row in rows],
            scheme=scheme,
        )

    def discovery_pairs(self) -> list[tuple[str, float]]:
        """Problem family and g of every published discovery pair."""
        rows = self.read("discovery-pairs", "combined", ("benchmark_family", "problem_id", "g_speedup"))
        return [(_family(row), float(row["g_speedup"])) for row in rows]


def _family(row: dict[str, Any]) -> str:
    said = str(row["benchmark_family"] or "").lower()
    for name in ("kernelbench", "gpu_mode"):
        if said.startswith(name):
            return name
    return family_of(str(row["problem_id"]))


def open_published(source: str | Path | None = None, tables: tuple[str, ...] = tuple(REPOSITORIES)) -> PublishedTables:
    """The published tables from a local copy, or from the Hub.

    Args:
        source: folder with one folder per repository; the Hub (through its cache) when not given.
        tables: which of :data:`REPOSITORIES` are needed.

    Raises:
        ArchiveNotFoundError: the folder is not there.
        HubError: the Hub can't be reached.
    """
    if source is not None:
        root = Path(source).expanduser()
        if not root.is_dir():
            raise ArchiveNotFoundError(f"there is no folder {root} with a copy of the published tables")
        return PublishedTables(root)
    from kernel_archive.connections import endpoint
    from kernel_archive.publishing.hub import connect, hub_errors

    folders, commits = {}, {}
    for table in tables:
        repo = f"{USER}/{REPOSITORIES[table]}"
        with hub_errors(repo, f"fetching {repo}", state="Without a network, name a local copy of the tables"):
            api = connect()
            commit = str(api.dataset_info(repo).sha)
            folders[table] = Path(api.snapshot_download(repo, repo_type="dataset", revision=commit, max_workers=4))
            commits[repo] = commit
    return PublishedTables(Path(endpoint()), commits, folders)
