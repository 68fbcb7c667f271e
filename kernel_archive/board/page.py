"""Write the page, one HTML file complete without its script, and the page of one entry."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup

from kernel_archive._version import __version__
from kernel_archive.archive.open import Archive
from kernel_archive.bins import BIN_NAMES, SCHEMES
from kernel_archive.board import ranks
from kernel_archive.board.entries import Entry
from kernel_archive.board.payload import make_payload, packed
from kernel_archive.board.standings import LeftOut, Standings
from kernel_archive.board.texts import page_file, render_html
from kernel_archive.errors import counted
from kernel_archive.scoring import METRICS, Metric
from kernel_archive.scoring.metrics import shown_first
from kernel_archive.scoring.scorer import control_figures

#: Bundled libraries under ``page/vendor/``, in loading order. Versions and digests: its README.
LIBRARIES: Final = ("d3.min.js", "plot.umd.min.js", "highlight.min.js", "diff.min.js")
#: The page's own script, in loading order, as one closed function.
SCRIPTS: Final = (
    "core.js", "standings.js", "plots.js", "compare.js", "tasks.js", "code.js", "kernels.js",
    "start.js",
)  # fmt: skip
#: Kind of split -> column beside the headline metrics; the script can put another in its place.
_FURTHER: Final = {"eval": "pair_accuracy", "discovery": "lift_1.5"}


def number(value: float | None, metric: str) -> str:
    """Write a figure as it stands on the page."""
    return METRICS[metric].format(value).replace(" %", "\u2009%").replace(" nats", "")


def span(figure: Metric, metric: str) -> str:
    """Write an interval, without its unit; empty for a figure without one."""
    if figure.low is None or figure.high is None:
        return ""
    decimals = METRICS[metric].decimals
    between = "\u2013" if figure.low >= 0 else " to "
    return f"{figure.low:z.{decimals}f}{between}{figure.high:z.{decimals}f}"


def _script_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _common(**values: Any) -> dict[str, Any]:
    """Return what both pages need: style, formats and names."""
    style = Markup(page_file("style.css"))  # noqa: S704 - our own file
    formats = {"number": number, "span": span, "info": METRICS}
    return {"package": __version__, "style": style, **formats, **values}


def _columns(standings: Standings) -> list[str]:
    """List the metrics of a table of standings, each once: what ranks first, a further one last."""
    spec = standings.split.spec
    first = dict.fromkeys([standings.lead, *shown_first(spec)])
    further = (_FURTHER.get(spec.kind, "crps"), "crps_skill", "brier")
    return [*first, next(name for name in further if name not in first)]


def render_page(
    archive: Archive, all_standings: Sequence[Standings], *, left_out: Sequence[LeftOut] = ()
) -> str:
    """Write the page. It fetches nothing, and its policy lets nothing but its own scripts run.

    Programs come from the archive; ``left_out`` are submissions that are at fault.
    """
    own = "(() => {\n'use strict';\n" + "\n".join(page_file(name) for name in SCRIPTS) + "\n})();\n"
    scripts = [page_file(f"vendor/{library}") for library in LIBRARIES] + [own]
    split, terms, manifest = all_standings[0].split, all_standings[0].terms, archive.manifest
    rule = SCHEMES[split.scheme]
    sizes = [f"{len(s.split):,} {s.split.spec.rows} ({s.split.spec.name})" for s in all_standings]
    problems = len({task for standings in all_standings for task in standings.split.tasks})
    version, digest = manifest.version, manifest.logical_digest
    bins = [f"{name.replace('_', ' ')} {rule.describe(b)}" for b, name in enumerate(BIN_NAMES, 1)]
    values = _common(
        title=f"Kernel forecast board: {manifest.name} {version}",
        script_hashes=Markup(" ".join(map(_script_hash, scripts))),  # noqa: S704 - our digests
        facts=f"{', '.join(sizes)}, {counted(problems, 'problem')} in all, measured on "
        f"{', '.join(split.identity.gpus)} · archive {version} · {digest[7:19]}",
        boards=[{"standings": s, "metrics": _columns(s)} for s in all_standings],
        compared=ranks.MAX_COMPARED,
        left_out=left_out,
        scheme=split.scheme,
        bins="; ".join(bins),
        draws=f"{terms.draws:,}",
        seed=terms.seed,
        drawn=[(s.split.spec.name, s.terms.drawn.text) for s in all_standings if s.terms.drawn],
        licences=[
            (name, page_file(f"vendor/LICENSE-{name.partition('.')[0]}.txt")) for name in LIBRARIES
        ],
        footer=f"{manifest.name} {version}, {digest}. Scored by kernel-archive {__version__}.",
        payload=packed(make_payload(archive, all_standings)),
        scripts=[Markup(text) for text in scripts],  # noqa: S704 - our own files
    )
    return render_html("page.html", **values)


def render_entry(standings: Standings, entry: Entry) -> str:
    """Write the page of an entry in its standings; it has no script."""
    split, score, identity = standings.split, entry.score, standings.split.identity
    names = dict.fromkeys([*shown_first(split.spec), "pair_accuracy", "crps"])
    groups = list(score.groups.values())
    values = _common(
        board=standings,
        entry=entry,
        split=split.spec,
        back="" if split.spec.name == "eval" else f"#split={quote(split.spec.name)}",
        facts=f"{len(split):,} {split.spec.rows} on {', '.join(identity.gpus)} · archive "
        f"{identity.archive_version} · bins {split.scheme}",
        names=sorted(score.metrics, key=lambda name: name != standings.lead),
        bounds=[c for c in split.cached(control_figures) if c.name.startswith("oracle_")],
        group_metrics=[name for name in names if all(name in group for group in groups)],
        footer=f"{identity.archive_name} {identity.archive_version}, {identity.archive_digest}. "
        f"Scored by kernel-archive {__version__}.",
    )
    return render_html("entry.html", **values)
