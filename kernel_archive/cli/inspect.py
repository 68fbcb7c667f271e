"""Look at an archive: ``info``, ``show``, ``sql``, ``validate``, ``audit`` and ``diff``."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import click
import msgspec

import kernel_archive
from kernel_archive.cli import common
from kernel_archive.errors import Finding, counted
from kernel_archive.toml_files import toml_beside

#: Show this many examples per flag and kind of finding.
_SHOWN_EXAMPLES: Final = 3
#: Count of ``info`` -> what people read in its place; empty where another line says it.
_WORDS: Final = toml_beside(__file__, "info.toml")
Row = dict[str, Any]


def _picked(rows: list[Row], names: str) -> list[Row]:
    """Take the named values of records alone, in this order."""
    return [{name: row.get(name) for name in names.split()} for row in rows]


@click.command()
@common.archive_argument
def info(archive_path: str | None) -> None:
    """Show what an archive holds: problems, GPUs, methods, outcomes, bins, tokens, inputs.

    DIR is an archive directory; gpu-forecasters/kernels, else the only one here, when not given.
    """
    from kernel_archive.archive.info import archive_info

    facts = archive_info(kernel_archive.open_archive(archive_path))
    methods = "method role searches evaluations successes gpu_hours"
    shown = facts | facts["counts"] | dict.fromkeys(("counts", "reports", "findings"))
    shown["tables"] = [
        f"{name}: {common.in_words({part: n for part, n in rows.items() if n})}"
        for name, rows in facts["tables"].items()
        if any(rows.values())
    ]
    shown["problems"] = [
        {name.removeprefix("bin"): value for name, value in row.items()}
        for row in facts["problems"]
    ]
    shown["methods"] = _picked(facts["methods"], methods)
    shown["builders"] = _picked(facts["builders"], "name version licence description")
    shown["findings_in_the_logs"] = facts["findings"]["total"]
    words = {name: _WORDS.get(name, name) for name in shown}
    common.emit(facts, {word: shown[name] for name, word in words.items() if word})


@click.command()
@click.argument("wanted", metavar="ID")
@common.archive_options
def show(wanted: str, archive_path: str | None) -> None:
    """Show a kernel: code, the log line of its label, measurements, and ancestors with theirs.

    ID is a kernel, program or evaluation id, or the first digits of one.
    """
    from kernel_archive.archive.info import trace

    facts = trace(kernel_archive.open_archive(archive_path), wanted)

    def line(row: Row) -> str:
        figures = [f"{row['speedup']:.4g}x"] if row["speedup"] is not None else [row["outcome"]]
        figures += [f"{row['runtime_us']:.4g} us"] if row["runtime_us"] is not None else []
        figures += ["first program"] if row["is_root"] else []
        left_out = f"; left out: {row['excluded']}" if row["excluded"] else ""
        return f"{', '.join(figures)}: {row['place']}{left_out}"

    def print_result() -> None:
        shown = {**facts["kernel"], "code": None}
        shown |= {name: facts[name] for name in ("label_from", "splits")}
        shown["measurements"] = list(map(line, facts["measurements"]))
        shown["ancestors, nearest first"] = [
            f"{line(row)} ({row['kernel_id']}, {row['distance']} up)" for row in facts["lineage"]
        ]
        common.print_facts(shown)
        common.print_text("\n" + facts["kernel"].get("code", "").replace("\t", "    "))

    common.emit(facts, print_result)


@click.command()
@click.argument("query")
@common.option("--limit", type=common.FROM_1, default=50, help="Rows to print.")
@common.archive_options
def sql(query: str, limit: int, archive_path: str | None) -> None:
    """Query the tables with SQL: kernels, failures, evaluations, searches, references, eval, ...

    Each table is a DuckDB view with the column "split". With --json all rows are printed.

    Example: kernel-archive sql "SELECT problem, max(speedup) FROM kernels GROUP BY 1".
    """
    result = kernel_archive.open_archive(archive_path).query(query)
    seen: Counter[str] = Counter()
    names = []
    for name in result.column_names:  # a second column of one name gets a number
        names.append(f"{name}_{seen[name]}" if seen[name] else name)
        seen[name] += 1
    result = result.rename_columns(names)

    def print_result() -> None:
        rows = [list(row.values()) for row in result.slice(0, limit).to_pylist()]
        common.print_rows(names, rows)
        if result.num_rows > limit:
            common.print_text(
                f"{limit} of {result.num_rows} rows; more with --limit, all with --json"
            )

    common.emit(result.to_pylist, print_result)


@click.command()
@common.archive_argument
def validate(archive_path: str | None) -> None:
    """Check an archive in layers: files, schema, digests, ids, labels, references, splits, card.

    DIR is an archive directory; gpu-forecasters/kernels, else the only one here, when not given.
    The exit status is 1 when there is an error.
    """
    report = kernel_archive.validate(archive_path)
    layers = [
        {"layer": layer.name, "result": layer.status, "findings": len(layer.findings)}
        for layer in report.layers
    ]
    verdict = f"{report.path} {report.version}: {'valid' if report.ok else 'NOT valid'}"
    facts = {"layers": layers, "findings": report.findings, "archive": verdict}
    common.emit(report, facts, ok=report.ok)


@click.command()
@common.archive_argument
def audit(archive_path: str | None) -> None:
    """Show the audit flags with rules and worst examples, and what of the sources was left out.

    A flag never drops a row; a split definition may.
    """
    from kernel_archive.archive.info import audit_archive

    result = audit_archive(kernel_archive.open_archive(archive_path), examples=_SHOWN_EXAMPLES)
    common.emit(result, lambda: _show_audit(result))


def _show_audit(result: Row) -> None:
    """Print the flags with examples, what was left out and why, and the first findings."""
    shown = "kernel_id problem gpu source_file source_line bin speedup n_measurements"
    for flag in result["flags"]:
        common.print_text(
            f"{flag['flag']}: {counted(flag['kernels'], 'kernel')}. Rule: {flag['rule']}."
        )
        if flag["worst"]:
            common.print_records(_picked(flag["worst"], shown))
    (facts,) = _picked([result], "kernels rows_left_out")
    facts["excluded_evaluations"] = dict(Counter(row["reason"] for row in result["excluded"]))
    facts["findings_in_the_sources"] = result["findings"]["by_code"]
    common.print_facts(facts)
    seen: Counter[str] = Counter()
    for finding in msgspec.convert(result["findings"]["first"], list[Finding]):
        seen[finding.code] += 1
        if seen[finding.code] <= _SHOWN_EXAMPLES:
            common.print_text(f"  {finding.severity}: {finding.render()}")


@click.command()
@click.argument("old", type=click.Path(exists=True))
@click.argument("new", type=click.Path(exists=True))
@common.json_option
def diff(old: str, new: str) -> None:
    """Show what changed from OLD to NEW, table by table: rows added, removed, relabelled.

    OLD and NEW are archive directories.
    """
    from kernel_archive.selection.diff import diff as compare

    changes = compare(old, new)
    only_one = {f"only_in_{side}": changes[f"only_{side}"] for side in ("old", "new")}
    same = not any([*only_one.values(), *(table["changed"] for table in changes["tables"])])

    def print_result() -> None:
        def shown(table: Row) -> Row:
            return {n: len(ids) if isinstance(ids, list) else ids for n, ids in table.items()}

        title = f"{changes['old']} -> {changes['new']}"
        common.print_records([*map(shown, changes["tables"])], title=title)
        common.print_facts(only_one)
        common.print_text("Nothing changed." if same else "The two differ; --json names the rows.")

    common.emit(changes, print_result)
