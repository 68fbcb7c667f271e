"""``info``, ``show`` and ``sql``."""

from __future__ import annotations

import textwrap
from typing import Any

import click

from kernel_archive.cli.common import archive_argument, archive_option, emit, json_option, print_table, tell

__all__ = ["info", "show", "sql"]


def _number(value: Any, form: str = ",.0f", unknown: str = "not logged") -> str:
    return unknown if value is None else format(value, form)


@click.command(short_help="Show what an archive holds.")
@archive_argument
@json_option
def info(archive_path: str | None, as_json: bool) -> None:
    """Show what an archive holds: counts by problem, GPU, language, method, outcome and bin; tokens, GPU hours, inputs.

    DIR is an archive directory; gpu-forecasters/kernels when not given.
    """
    from kernel_archive.archive.info import archive_info
    from kernel_archive.archive.open import open_archive

    facts = archive_info(open_archive(archive_path))

    def text() -> None:
        tell(f"{facts['name']} {facts['version']}  ({facts['path']})")
        tell(f"{facts['logical_digest']}, bins: {facts['bin_scheme']}")
        for builder in facts["builders"]:
            line = f"builder {builder['name']} {builder['version']} ({builder['licence']}): {builder['description']}"
            tell(line)
        print_table(
            ["problem", "kernels", *(f"bin {b}" for b in range(1, 9)), "median", "best"],
            [
                (
                    p["problem"],
                    p["kernels"],
                    *(p[f"bin{b}"] for b in range(1, 9)),
                    f"{p['median']:.2f}x",
                    f"{p['best']:.2f}x",
                )
                for p in facts["problems"]
            ],
            title="Kernels by problem and speedup bin",
        )
        print_table(
            ["method", "role", "searches", "evaluations", "successes", "GPU hours"],
            [
                (
                    m["method"],
                    m["role"],
                    m["searches"],
                    m["evaluations"],
                    m["successes"],
                    _number(m["gpu_hours"], ".3f"),
                )
                for m in facts["methods"]
            ],
            title="Searches",
            left=2,
        )
        lines = [
            (name, ", ".join(f"{k} {v:,}" for k, v in facts["counts"][name].items()))
            for name in ("gpu", "language", "outcome", "split")
        ]
        lines += [
            ("programs", f"{facts['programs']:,} distinct programs that passed, {facts['reports'].get('remeasured_kernels', 0):,} kernels measured more than once"),
            ("GPU time", f"{_number(facts['gpu_hours'], '.3f')} hours in {facts['searches_with_gpu_seconds']} of {facts['searches']} searches"),
            ("tokens", "not logged" if facts["input_tokens"] is None else f"{facts['input_tokens']:,} in, {_number(facts['output_tokens'])} out"),
            ("flags", ", ".join(f"{k} {v:,}" for k, v in facts["flags"].items())),
            ("inputs", f"{facts['inputs']['runs']} runs, {facts['inputs']['bytes'] / 1e6:.1f} MB, {facts['findings']['total']} findings"),
            ("excluded", f"{facts['excluded']} evaluations, kept with their reasons in the table evaluations (superseded and contested ones among them)"),
        ]  # fmt: skip
        print_table(["", ""], lines, left=2)

    emit(facts, as_json=as_json, text=text)


def _place(row: dict[str, Any]) -> str:
    return str(row["source_file"]) + (f":{row['source_line']}" if row["source_line"] is not None else "")


@click.command(short_help="Show a kernel with its lineage back to the log line.")
@click.argument("wanted", metavar="ID")
@click.option("--code/--no-code", default=True, help="Print the program.")
@archive_option
@json_option
def show(wanted: str, code: bool, archive_path: str | None, as_json: bool) -> None:
    """Show a kernel: code, measurements, and its lineage to the root, each with file and line of its log.

    ID is a kernel, program or evaluation id, or the first digits of one.
    """
    from kernel_archive.archive.lineage import trace
    from kernel_archive.archive.open import open_archive

    found = trace(open_archive(archive_path), wanted)
    kernel = found["kernel"]

    def text() -> None:
        if kernel["table"] == "kernels":
            what = f"kernel {kernel['kernel_id']}: {kernel['problem']} on {kernel['gpu']}, {kernel['language']}"
            tell(what)
            tell(
                f"{kernel['speedup']:.4g}x, bin {kernel['bin']} ({kernel['bin_scheme']}), {kernel['n_measurements']} "
                f"measurements from {kernel['speedup_min']:.4g}x to {kernel['speedup_max']:.4g}x"
                + (f", flags: {', '.join(kernel['flags'])}" if kernel["flags"] else "")
            )
        elif kernel["table"] == "failures":
            tell(f"failed program {kernel['kernel_id']}: {kernel['problem']} on {kernel['gpu']}, {kernel['language']}")
            tell(f"{kernel['outcome']}: {textwrap.shorten(str(kernel['error_text'] or ''), 300)!r}")
        else:
            tell(f"kernel {kernel['kernel_id']} is in evaluations only (excluded, contested or withheld)")
        if found["splits"]:
            tell(f"in splits: {', '.join(found['splits'])}")
        print_table(
            ["measured by", "outcome", "speedup", "time", "reference", "log line"],
            [
                (
                    f"{m['search_id']} node {m['node_id']}" + (" (root)" if m["is_root"] else ""),
                    m["outcome"] + (f" [{m['excluded']}]" if m["excluded"] else ""),
                    _number(m["speedup"], ".4g", "-"),
                    _number(m["runtime_us"], ".1f", "-") + " us",
                    _number(m["reference_runtime_us"], ".1f", "-") + " us",
                    _place(m),
                )
                for m in found["measurements"]
            ],
            title="Measurements",
        )
        print_table(
            ["ancestor", "outcome", "speedup", "step", "log line"],
            [
                (
                    a["kernel_id"][:12]
                    + (" (root)" if a["is_root"] else "")
                    + (f", {a['distance']} up" if a["distance"] > 1 else ""),
                    a["outcome"],
                    _number(a["speedup"], ".4g", "-"),
                    _number(a["step"], "d", "-"),
                    _place(a),
                )
                for a in found["lineage"]
            ],
            title="Lineage, nearest first"
            if found["lineage"]
            else "Lineage: none, this is a root or its parent is not logged",
        )
        if code and "code" in kernel:
            tell()
            tell(kernel["code"].replace("\t", "    "))

    emit(found, as_json=as_json, text=text)


@click.command(short_help="Query the tables with SQL (DuckDB).")
@click.argument("query")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Rows to print.")
@archive_option
@json_option
def sql(query: str, limit: int, archive_path: str | None, as_json: bool) -> None:
    """Query the tables with SQL: kernels, failures, evaluations, searches, references, gpus, eval, ...

    Each table is a DuckDB view with the column "split". Example: kernel-archive sql "SELECT problem, max(speedup) FROM
    kernels GROUP BY 1". With --json all rows are printed.
    """
    from kernel_archive.archive.open import open_archive

    result = open_archive(archive_path).query(query)

    # Two columns of one name are two columns.
    names: list[str] = []
    for name in result.column_names:
        again = sum(other == name for other in result.column_names[: len(names)])
        names.append(f"{name}_{again}" if again else name)
    result = result.rename_columns(names)

    def text() -> None:
        shown = result.slice(0, limit)
        print_table(
            names,
            [
                ["" if v is None else v for v in row]
                for row in zip(*(c.to_pylist() for c in shown.columns), strict=True)
            ],
            left=1,
        )
        if result.num_rows > limit:
            tell(f"{limit} of {result.num_rows} rows; more with --limit, all with --json")

    emit(result.to_pylist() if as_json else None, as_json=as_json, text=text)
