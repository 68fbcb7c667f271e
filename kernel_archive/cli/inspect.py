"""Looking at an archive: ``info``, ``show``, ``sql``, ``validate``, ``audit`` and ``diff``."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from kernel_archive.cli import common
from kernel_archive.errors import Finding, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_archive.selection.diff import Difference


def _number(value: Any, form: str, unknown: str = "-") -> str:
    return unknown if value is None else format(value, form)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.items())


def _place(row: dict[str, Any]) -> str:
    """The log line of a row."""
    return str(row["source_file"]) + (f":{row['source_line']}" if row["source_line"] is not None else "")


@click.command()
@common.archive_argument
@common.json_option
def info(archive_path: str | None) -> None:
    """Show what an archive holds: counts by problem, GPU, language, method, outcome and bin; tokens, GPU hours, inputs.

    DIR is an archive directory; gpu-forecasters/kernels, else the only one here, when not given.
    """
    from kernel_archive.archive.info import archive_info
    from kernel_archive.archive.open import open_archive

    facts = archive_info(open_archive(archive_path))
    common.emit(facts, lambda: _show_info(facts))


def _show_info(facts: dict[str, Any]) -> None:
    common.tell(f"{facts['name']} {facts['version']}  ({facts['path']})")
    common.tell(f"{facts['logical_digest']}, bins: {facts['bin_scheme']}")
    for b in facts["builders"]:
        common.tell(f"builder {b['name']} {b['version']} ({b['licence']}): {b['description']}")
    bins = range(1, 9)
    rows = [
        (p["problem"], p["kernels"], *(p[f"bin{b}"] for b in bins), f"{p['median']:.2f}x", f"{p['best']:.2f}x")
        for p in facts["problems"]
    ]
    columns = ["problem", "kernels", *(f"bin {b}" for b in bins), "median", "best"]
    common.print_table(columns, rows, title="Kernels by problem and speedup bin")
    names = ("method", "role", "searches", "evaluations", "successes")
    rows = [(*(m[n] for n in names), _number(m["gpu_hours"], ".3f", "not logged")) for m in facts["methods"]]
    common.print_table([*names, "GPU hours"], rows, title="Searches", left=2)
    counted = facts["searches_with_gpu_seconds"]
    tokens = ", ".join(f"{_number(facts[f'{way}put_tokens'], ',.0f', 'not logged')} {way}" for way in ("in", "out"))
    remeasured = facts["reports"].get("remeasured_kernels", 0)
    lines = [
        *((name, _counts(facts["counts"][name])) for name in ("gpu", "language", "outcome", "split")),
        ("programs", f"{facts['programs']:,} distinct programs that passed, {remeasured:,} kernels measured more than once"),
        ("GPU time", f"{_number(facts['gpu_hours'], '.3f', 'not logged')} hours in {counted} of {facts['searches']} searches"),
        ("tokens", "not logged" if facts["input_tokens"] is None else tokens),
        ("flags", _counts(facts["flags"])),
        ("inputs", f"{facts['inputs']['runs']} runs, {facts['inputs']['bytes'] / 1e6:.1f} MB, {facts['findings']['total']} findings"),
        ("excluded", f"{facts['excluded']} evaluations, kept with their reasons in the table evaluations (superseded and contested ones among them)"),
    ]  # fmt: skip
    common.print_table(["", ""], lines, left=2)


@click.command()
@click.argument("wanted", metavar="ID")
@click.option("--code/--no-code", default=True, help="Print the program.")
@common.option(
    "--logs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the builder with the logs: says why its search measured the program.",
)
@common.archive_option
@common.json_option
def show(wanted: str, code: bool, logs: Path | None, archive_path: str | None) -> None:
    """Show a kernel: code, measurements, and its lineage to the root, each with file and line of its log.

    ID is a kernel, program or evaluation id, or the first digits of one.
    """
    from kernel_archive.archive.info import reasons, trace
    from kernel_archive.archive.open import open_archive

    found = trace(open_archive(archive_path), wanted)
    if logs is not None:
        said = [(m["node_id"], reasons(logs, m["source_file"], m["node_id"])) for m in found["measurements"]]
        found["why"] = [{"node_id": node, **why} for node, why in said if why is not None]
    common.emit(found, lambda: _show_kernel(found, code=code))


def _show_kernel(found: dict[str, Any], *, code: bool) -> None:
    kernel = found["kernel"]
    name = kernel["kernel_id"]
    if kernel["table"] == "evaluations":
        common.tell(f"kernel {name} is in evaluations only (excluded, contested or withheld)")
    else:
        what = "kernel" if kernel["table"] == "kernels" else "failed program"
        common.tell(f"{what} {name}: {kernel['problem']} on {kernel['gpu']}, {kernel['language']}")
    if kernel["table"] == "kernels":
        flags = f", flags: {', '.join(kernel['flags'])}" if kernel["flags"] else ""
        common.tell(
            f"{kernel['speedup']:.4g}x, bin {kernel['bin']} ({kernel['bin_scheme']}), {kernel['n_measurements']} "
            f"measurements from {kernel['speedup_min']:.4g}x to {kernel['speedup_max']:.4g}x{flags}"
        )
    elif kernel["table"] == "failures":
        common.tell(f"{kernel['outcome']}: {printable(' '.join(str(kernel['error_text'] or '').split()), 300)}")
    if found["splits"]:
        common.tell(f"in splits: {', '.join(found['splits'])}")
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "measured by": lambda m: f"{m['search_id']} node {m['node_id']}" + (" (root)" if m["is_root"] else ""),
        "outcome": lambda m: m["outcome"] + (f" [{m['excluded']}]" if m["excluded"] else ""),
        "speedup": lambda m: _number(m["speedup"], ".4g"),
        "time": lambda m: f"{_number(m['runtime_us'], '.1f')} us",
        "reference": lambda m: f"{_number(m['reference_runtime_us'], '.1f')} us",
        "log line": _place,
    }
    common.print_items(found["measurements"], columns, title="Measurements")
    if "why" in found:
        _show_why(found["why"])
    columns = {
        "ancestor": lambda a: (
            a["kernel_id"][:12] + (" (root)" if a["is_root"] else f", {a['distance']} up" if a["distance"] > 1 else "")
        ),
        "outcome": lambda a: a["outcome"],
        "speedup": lambda a: _number(a["speedup"], ".4g"),
        "step": lambda a: _number(a["step"], "d"),
        "log line": _place,
    }
    nearest = "Lineage, nearest first"
    title = nearest if found["lineage"] else "Lineage: none, this is a root or its parent is not logged"
    common.print_items(found["lineage"], columns, title=title)
    if code and "code" in kernel:
        common.tell()
        common.tell(kernel["code"].replace("\t", "    "))


def _show_why(said: list[dict[str, Any]]) -> None:
    """By which figures of its own a search came to measure the program."""
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "node": lambda w: printable(w["node_id"], 60),
        "step": lambda w: _number(w["step"], "d"),
        "parent's score": lambda w: _number(w.get("parent_score"), ".4g"),
        "its visits": lambda w: _number(w.get("parent_visits"), ".4g"),
        "selection score": lambda w: _number(w.get("selection_score"), ".4g"),
        "forecast": lambda w: printable(json.dumps(w["forecast"]), 120) if "forecast" in w else "-",
    }
    title = "Why it was measured" if said else "Why it was measured: these logs don't say"
    common.print_items(said, columns, title=title)


@click.command()
@click.argument("query")
@common.option("--limit", type=common.FROM_1, default=50, help="Rows to print.")
@common.archive_option
@common.json_option
def sql(query: str, limit: int, archive_path: str | None) -> None:
    """Query the tables with SQL: kernels, failures, evaluations, searches, references, gpus, eval, ...

    Each table is a DuckDB view with the column "split". Example: kernel-archive sql "SELECT problem, max(speedup) FROM
    kernels GROUP BY 1". With --json all rows are printed.
    """
    from kernel_archive.archive.open import open_archive

    result = open_archive(archive_path).query(query)
    # Two columns of one name are two columns.
    before = [result.column_names[:i].count(name) for i, name in enumerate(result.column_names)]
    names = [f"{name}_{n}" if n else name for name, n in zip(result.column_names, before, strict=True)]
    result = result.rename_columns(names)

    def text() -> None:
        columns = (c.to_pylist() for c in result.slice(0, limit).columns)
        common.print_table(names, [["" if v is None else v for v in row] for row in zip(*columns, strict=True)])
        if result.num_rows > limit:
            common.tell(f"{limit} of {result.num_rows} rows; more with --limit, all with --json")

    common.emit(result.to_pylist, text)


@click.command()
@common.archive_argument
@common.json_option
@click.pass_context
def validate(ctx: click.Context, archive_path: str | None) -> None:
    """Check an archive in layers: layout, schema, digests, ids, labels recomputed, cross-references, canary, splits, card.

    DIR is an archive directory; gpu-forecasters/kernels, else the only one here, when not given. The exit status is 1 when there is an error.
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
@common.option("--examples", type=click.IntRange(0, 1000), default=3, help="Worst examples per flag.")
@common.json_option
def audit(archive_path: str | None, examples: int) -> None:
    """Show the audit flags with their rules and worst examples, what was excluded, and what of the sources was left out.

    A flag never drops a row; a split definition may.
    """
    from kernel_archive.archive.info import audit_archive
    from kernel_archive.archive.open import open_archive

    result = audit_archive(open_archive(archive_path), examples=examples)
    common.emit(result, lambda: _show_audit(result, examples))


def _show_audit(result: dict[str, Any], examples: int) -> None:
    kernels = result["kernels"]
    columns: dict[str, Callable[[dict[str, Any]], object]] = {
        "kernel": lambda w: w["kernel_id"][:12],
        "problem": lambda w: w["problem"],
        "GPU": lambda w: w["gpu"],
        "speedup": lambda w: f"{w['speedup']:.3g}x",
        "bin": lambda w: w["bin"],
        "n": lambda w: w["n_measurements"],
        "range": lambda w: f"{w['speedup_min']:.3g}-{w['speedup_max']:.3g}",
        "log line": _place,
    }
    for flag in result["flags"]:
        common.tell(f"{flag['flag']}: {flag['kernels']} of {kernels} kernels. Rule: {flag['rule']}.")
        if flag["worst"]:
            common.print_items(flag["worst"], columns, left=3)
    differ = result["labels_that_differ_between_schemes"]
    common.tell(f"labels that differ between the bin schemes: {differ} of {kernels}")
    by_reason: dict[str, list[dict[str, Any]]] = {}
    for row in result["excluded"]:
        by_reason.setdefault(row["reason"], []).append(row)
    if by_reason:
        excluded = [
            (reason, f"{len(of):,}", f"{of[0]['search_id']} node {of[0]['node_id']}")
            for reason, of in sorted(by_reason.items())
        ]
        common.print_table(["excluded: reason", "evaluations", "for example"], excluded)
    found = result["findings"]
    if result["rows_left_out"]:
        common.tell(
            f"rows of tables that became no evaluation: {result['rows_left_out']:,}; the findings say which and why"
        )
    if found["total"]:
        common.tell(f"findings in the sources: {found['total']:,} ({_counts(found['by_code'])})")
    shown: Counter[str] = Counter()
    for finding in msgspec.convert(found["first"], list[Finding]):
        shown[finding.code] += 1
        if shown[finding.code] <= examples:
            common.tell(f"  {finding.severity}: {finding.render()}")


@click.command()
@click.argument("old", type=click.Path(exists=True))
@click.argument("new", type=click.Path(exists=True))
@common.option("--changelog", "as_changelog", is_flag=True, help="Print a changelog entry of the data, as Markdown.")
@common.option("--examples", type=common.FROM_0, default=5, help="Rows named per kind of change.")
@common.json_option
def diff(old: str, new: str, as_changelog: bool, examples: int) -> None:
    """Show what changed from OLD to NEW, table by table: rows added, removed, relabelled, measured again.

    OLD and NEW are archive directories, folders of frozen splits (splits/frozen/VERSION), or single frozen splits.
    """
    from kernel_archive.selection import diff as module

    if as_changelog and common.as_json():
        raise click.UsageError("--changelog and --json exclude each other")
    found = module.diff(old, new)
    text = module.changelog(found).rstrip() if as_changelog else lambda: _show_diff(found, examples)
    common.emit(found, text)


def _show_diff(found: Difference, examples: int) -> None:
    from kernel_archive.selection.diff import KINDS

    rows = [
        (t.table, t.rows_old, t.rows_new, *("-" if getattr(t, k) is None else len(getattr(t, k)) for k in KINDS))
        for t in found.tables
    ]
    common.print_table(["table", "old rows", "new rows", *KINDS], rows, title=f"{found.old} -> {found.new}")
    for names, version in ((found.only_old, found.old), (found.only_new, found.new)):
        for name in names:
            common.tell(f"{name}: only in {version}")
    for table in found.tables:
        for name, (before, now) in table.facts_changed.items():
            common.tell(f"{table.table}: {name} was {before}, is {now}")
        for kind in KINDS:
            items = getattr(table, kind) or []
            for item in items[:examples]:
                detail = item if isinstance(item, str) else f"{item.id}: {item.old} -> {item.new}"
                common.tell(f"{table.table} {kind} {detail}")
            if examples and len(items) > examples:
                common.tell(f"{table.table} {kind} ... and {len(items) - examples:,} more (all with --json)")
    common.tell("Nothing changed." if found.same else "The two differ.")
