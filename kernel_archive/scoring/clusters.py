"""Find what the rows of a split come from: authors, chains or problems.

Programs of one author resemble each other, as programs for one problem do. So intervals draw
authors, or problems where a split asks how well forecasts carry over to new ones.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.scoring.split import Clusters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernel_archive.archive.open import Archive
    from kernel_archive.splits import SplitSpec

#: Splits about new problems: their clusters are the problems.
_BY_PROBLEM: Final = frozenset({"eval_problems"})


def read_clusters(
    archive: Archive, spec: SplitSpec, rows: Mapping[str, Sequence[Any]]
) -> Clusters | None:
    """Name the cluster of every row; ``None`` where the data name fewer than two.

    An author stands in the settings of a search. A natural search without one is a chain, and a
    cluster of its own; a row of any other search is its own cluster.
    """
    if spec.name in _BY_PROBLEM:
        unit, names = "problems", list(rows[spec.task])
    else:
        chains, authors = search_authors(archive)
        searches = rows["search_id"]
        unit = "authors" if any(search in authors for search in searches) else "chains"
        if not any(search in chains for search in searches):
            return None
        own = [s if s in chains else row for s, row in zip(searches, rows["row_id"], strict=True)]
        names = [authors.get(s, o) for s, o in zip(searches, own, strict=True)]
    return Clusters(unit=unit, names=tuple(names)) if len(set(names)) > 1 else None


def search_authors(archive: Archive) -> tuple[set[str], dict[str, str]]:
    """List the searches of natural programs, and the authors of those that name one."""
    if "searches" not in archive.manifest.tables:
        return set(), {}
    natural = {str(b["name"]) for b in archive.manifest.builders if b.get("natural") is True}
    columns = ("search_id", "builder", "hyperparameters")
    table = archive.arrow("searches", columns=list(columns))
    rows = zip(*(table[name].to_pylist() for name in columns), strict=True)
    chains = {search: (builder, text) for search, builder, text in rows if builder in natural}
    authors = {}
    for search, (builder, text) in chains.items():
        author = json.loads(text or "{}").get("author")
        if isinstance(author, str) and author:
            authors[search] = f"{builder} {author}"
    return set(chains), authors
