"""Look at an archive: ``info``, ``show``, ``sql``, ``validate``, ``audit`` and ``diff``."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click
import msgspec

from kernel_archive.cli import common
from kernel_archive.errors import Finding, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_archive.selection.diff import Difference

#: Print this many examples per flag or change; ``--json`` has them all.
_EXAMPLES: Final = 3
Row: TypeAlias = dict[str, Any]
#: Heading of a column -> what it shows of a row.
Columns: TypeAlias = "dict[str, Callable[[Row], object]]"


def _number(value: Any, form: str, unknown: str = "-") -> str:
    return unknown if value is None else format(value, form)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.items())


def _log_line(row: Row) -> str:
    line = row["source_line"]
    return row["source_file"] if line is None else f"{row['source_file']}:{line}"


@click.command()
@common.archive_argument
@common.json_option
def info(archive_path: str | None) -> None:
    """Show what an archive holds: problems, GPUs, methods, outcomes, bins, tokens, inputs.

    DIR is an archive directory; gpu-forecasters/kernels, else the only one here, when not given.
    """
    from kernel_archive.archive.info import archive_info
    from kernel_archive.archive.open import open_archive

    facts = archive_info(open_archive(archive_path))
    common.emit(facts, lambda: _show_info(facts))


def _show_info(facts: Row) -> None:
    common.tell(f"{facts['name']} {facts['version']}  ({facts['path']})")
    common.tell(f"{facts['logical_digest']}, bins: {facts['bin_scheme']}")
    for b in facts["builders"]:
        common.tell(f"builder {b['name']} {b['version']} ({b['licence']}): {b['description']}")
    columns: Columns = {name: itemgetter(name) for name in ("problem", "kernels")}
    columns |= {f"bin {b}": itemgetter(f"bin{b}") for b in range(1, 9)}
    columns |= {"median": lambda p: f"{p['median']:.2f}x", "best": lambda p: f"{p['best']:.2f}x"}
    common.print_items(facts["problems"], columns, title="Kernels by problem and speedup bin")
    names = ("method", "role", "searches", "evaluations", "successes")
    columns = {name: itemgetter(name) for name in names}
    columns["GPU hours"] = lambda m: _number(m["gpu_hours"], ".3f", "not logged")
    common.print_items(facts["methods"], columns, title="Searches", left=2)
    for name in ("gpu", "language", "outcome", "split"):
        common.tell(f"{name}: {_counts(facts['counts'][name])}")
    tokens = (_number(facts[f"{way}put_tokens"], ",.0f", "not logged") for way in ("in", "out"))
    hours = _number(facts["gpu_hours"], ".3f", "not logged")
    inputs = facts["inputs"]
    common.tell(
        f"programs: {facts['programs']:,} distinct ones that passed, "
        f"{facts['reports'].get('remeasured_kernels', 0):,} kernels measured more than once"
    )
    common.tell(
        f"GPU time: {hours} hours in {facts['searches_with_gpu_seconds']} of {facts['searches']} "
        f"searches; tokens in and out: {', '.join(tokens)}"
    )
    common.tell(f"flags: {_counts(facts['flags'])}")
    common.tell(
        f"inputs: {inputs['runs']} runs, {inputs['bytes'] / 1e6:.1f} MB, "
        f"{facts['findings']['total']} findings; {facts['excluded']} evaluations are excluded, "
        "with their reasons in the table evaluations"
    )


@click.command()
@click.argument("wanted", metavar="ID")
@common.archive_option
@common.json_option
def show(wanted: str, archive_path: str | None) -> None:
    """Show a kernel: code, measurements, and its ancestors, each with file and line of its log.

    ID is a kernel, program or evaluation id, or the first digits of one.
    """
    from kernel_archive.archive.info import trace
    from kernel_archive.archive.open import open_archive

    facts = trace(open_archive(archive_path), wanted)
    common.emit(facts, lambda: _show_kernel(facts))


_MEASUREMENT: Columns = {
    "measured by": lambda m: f"{m['search_id']} node {m['node_id']}",
    "outcome": lambda m: f"{m['outcome']} [{m['excluded']}]" if m["excluded"] else m["outcome"],
    "speedup": lambda m: _number(m["speedup"], ".4g"),
    "time, us": lambda m: _number(m["runtime_us"], ".1f"),
    "reference, us": lambda m: _number(m["reference_runtime_us"], ".1f"),
    "log line": _log_line,
}
_ANCESTOR: Columns = {
    "ancestor": lambda a: f"{a['kernel_id'][:12]}{' (root)' if a['is_root'] else ''}",
    "steps up": itemgetter("distance"),
    "outcome": itemgetter("outcome"),
    "speedup": lambda a: _number(a["speedup"], ".4g"),
    "log line": _log_line,
}


def _show_kernel(facts: Row) -> None:
    common.tell(_kernel_text(facts["kernel"]))
    if facts["splits"]:
        common.tell(f"in splits: {', '.join(facts['splits'])}")
    common.print_items(facts["measurements"], _MEASUREMENT, title="Measurements")
    title = "Lineage, nearest first" if facts["lineage"] else "Lineage: none, or it is not logged"
    common.print_items(facts["lineage"], _ANCESTOR, title=title)
    if "code" in facts["kernel"]:
        common.tell("\n" + facts["kernel"]["code"].replace("\t", "    "))


def _kernel_text(kernel: Row) -> str:
    """Put a row of kernels, failures or evaluations into words."""
    name = kernel["kernel_id"]
    if kernel["table"] == "evaluations":
        return f"kernel {name} is in evaluations only (excluded, contested or withheld)"
    place = f"{name}: {kernel['problem']} on {kernel['gpu']}, {kernel['language']}"
    if kernel["table"] == "failures":
        error = printable(" ".join(str(kernel["error_text"] or "").split()), 300)
        return f"failed program {place}\n{kernel['outcome']}: {error}"
    return (
        f"kernel {place}\n{kernel['speedup']:.4g}x, bin {kernel['bin']} ({kernel['bin_scheme']}), "
        f"{kernel['n_measurements']} measurements from {kernel['speedup_min']:.4g}x to "
        f"{kernel['speedup_max']:.4g}x, flags: {', '.join(kernel['flags']) or 'none'}"
    )


@click.command()
@click.argument("query")
@common.option("--limit", type=common.FROM_1, default=50, help="Rows to print.")
@common.archive_option
@common.json_option
def sql(query: str, limit: int, archive_path: str | None) -> None:
    """Query the tables with SQL: kernels, failures, evaluations, searches, references, eval, ...

    Each table is a DuckDB view with the column "split". With --json all rows are printed.

    Example: kernel-archive sql "SELECT problem, max(speedup) FROM kernels GROUP BY 1".
    """
    from kernel_archive.archive.open import open_archive

    result = open_archive(archive_path).query(query)
    seen: Counter[str] = Counter()
    names = []
    for name in result.column_names:  # a second column of one name gets a number
        names.append(f"{name}_{seen[name]}" if seen[name] else name)
        seen[name] += 1
    result = result.rename_columns(names)

    def text() -> None:
        shown = [column.to_pylist() for column in result.slice(0, limit).columns]
        rows = [["" if cell is None else cell for cell in row] for row in zip(*shown, strict=True)]
        common.print_table(names, rows)
        if result.num_rows > limit:
            common.tell(f"{limit} of {result.num_rows} rows; more with --limit, all with --json")

    common.emit(result.to_pylist, text)


@click.command()
@common.archive_argument
@common.json_option
@click.pass_context
def validate(ctx: click.Context, archive_path: str | None) -> None:
    """Check an archive in layers: files, schema, digests, ids, labels, references, splits, card.

    DIR is an archive directory; gpu-forecasters/kernels, else the only one here, when not given.
    The exit status is 1 when there is an error.
    """
    from kernel_archive.pipeline import validate as run

    report = run(archive_path)

    def text() -> None:
        rows = [(layer.name, layer.status, len(layer.findings)) for layer in report.layers]
        common.print_table(["layer", "result", "findings"], rows, left=2)
        common.print_findings(report.findings)
        common.tell(f"{report.path} {report.version}: {'valid' if report.ok else 'NOT valid'}")

    common.emit(report, text)
    ctx.exit(0 if report.ok else 1)


@click.command()
@common.archive_argument
@common.json_option
def audit(archive_path: str | None) -> None:
    """Show the audit flags with rules and worst examples, and what of the sources was left out.

    A flag never drops a row; a split definition may.
    """
    from kernel_archive.archive.info import audit_archive
    from kernel_archive.archive.open import open_archive

    result = audit_archive(open_archive(archive_path), examples=_EXAMPLES)
    common.emit(result, lambda: _show_audit(result))


_FLAGGED: Columns = {
    "kernel": lambda w: w["kernel_id"][:12],
    **{name: itemgetter(name) for name in ("problem", "gpu", "bin", "n_measurements")},
    "speedup": lambda w: f"{w['speedup']:.3g}x",
    "range": lambda w: f"{w['speedup_min']:.3g}-{w['speedup_max']:.3g}",
    "log line": _log_line,
}


def _show_audit(result: Row) -> None:
    kernels = result["kernels"]
    for flag in result["flags"]:
        common.tell(
            f"{flag['flag']}: {flag['kernels']} of {kernels} kernels. Rule: {flag['rule']}."
        )
        if flag["worst"]:
            common.print_items(flag["worst"], _FLAGGED, left=3)
    differ = result["labels_that_differ_between_schemes"]
    common.tell(f"labels that differ between the bin schemes: {differ} of {kernels}")
    reasons = Counter(row["reason"] for row in result["excluded"])
    if reasons:
        common.print_table(["excluded: reason", "evaluations"], sorted(reasons.items()))
    if n := result["rows_left_out"]:
        common.tell(f"rows that became no evaluation: {n:,}; the findings say which and why")
    findings = result["findings"]
    if findings["total"]:
        by_code = _counts(findings["by_code"])
        common.tell(f"findings in the sources: {findings['total']:,} ({by_code})")
    shown: Counter[str] = Counter()
    for finding in msgspec.convert(findings["first"], list[Finding]):
        shown[finding.code] += 1
        if shown[finding.code] <= _EXAMPLES:
            common.tell(f"  {finding.severity}: {finding.render()}")


@click.command()
@click.argument("old", type=click.Path(exists=True))
@click.argument("new", type=click.Path(exists=True))
@common.json_option
def diff(old: str, new: str) -> None:
    """Show what changed from OLD to NEW, table by table: rows added, removed, relabelled.

    OLD and NEW are archive directories.
    """
    from kernel_archive.selection import diff as differences

    changes = differences.diff(old, new)
    common.emit(changes, lambda: _show_diff(changes))


def _show_diff(changes: Difference) -> None:
    """Print counts per table, what else changed, and examples of each kind of change."""
    from kernel_archive.selection.diff import KINDS

    rows = []
    for table in changes.tables:
        lists = [getattr(table, kind) for kind in KINDS]
        rows.append((table.table, table.rows_old, table.rows_new, *map(len, lists)))
    title = f"{changes.old} -> {changes.new}"
    common.print_table(["table", "old rows", "new rows", *KINDS], rows, title=title)
    for names, version in ((changes.only_old, changes.old), (changes.only_new, changes.new)):
        for name in names:
            common.tell(f"{name}: only in {version}")
    for table in changes.tables:
        if table.content and not any(getattr(table, kind) for kind in KINDS):
            common.tell(f"{table.table}: other columns changed")
        for kind in KINDS:
            for item in getattr(table, kind)[:_EXAMPLES]:
                detail = item if isinstance(item, str) else f"{item.id}: {item.old} -> {item.new}"
                common.tell(f"{table.table} {kind} {detail}")
    common.tell("Nothing changed." if changes.same else "The two differ.")
