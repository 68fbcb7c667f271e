"""``validate`` and ``audit``."""

from __future__ import annotations

from typing import Any

import click

from kernel_archive.cli.common import archive_argument, emit, json_option, print_findings, print_table, tell

__all__ = ["audit", "validate"]


@click.command(short_help="Check an archive: layout, schema, digests, ids, labels, splits.")
@archive_argument
@json_option
@click.pass_context
def validate(ctx: click.Context, archive_path: str | None, as_json: bool) -> None:
    """Check an archive in layers: layout, schema, digests, ids, labels recomputed, cross-references, canary, splits, card.

    DIR is an archive directory; gpu-forecasters/kernels when not given. The exit status is 1 when there is an error.
    """
    from kernel_archive.pipeline import validate as run

    report = run(archive_path)

    def text() -> None:
        print_table(
            ["layer", "result", "findings"], [(x.name, x.status, len(x.findings)) for x in report.layers], left=2
        )
        print_findings(report.findings)
        tell(f"{report.path} {report.version}: {'valid' if report.ok else 'NOT valid'}")

    emit(report, as_json=as_json, text=text)
    ctx.exit(0 if report.ok else 1)


@click.command(short_help="Show the audit flags with their worst examples.")
@archive_argument
@click.option("--examples", type=click.IntRange(0, 1000), default=3, show_default=True, help="Worst examples per flag.")
@json_option
def audit(archive_path: str | None, examples: int, as_json: bool) -> None:
    """Show the audit flags with their rules and worst examples, and what was excluded.

    A flag never drops a row; a split definition may.
    """
    from kernel_archive.archive.audit import audit_archive
    from kernel_archive.archive.open import open_archive

    result = audit_archive(open_archive(archive_path), examples=examples)

    def text() -> None:
        for flag in result["flags"]:
            tell(f"{flag['flag']}: {flag['kernels']} of {result['kernels']} kernels. Rule: {flag['rule']}.")
            if flag["worst"]:
                print_table(
                    ["kernel", "problem", "GPU", "speedup", "bin", "n", "range", "log line"],
                    [
                        (
                            w["kernel_id"][:12],
                            w["problem"],
                            w["gpu"],
                            f"{w['speedup']:.3g}x",
                            w["bin"],
                            w["n_measurements"],
                            f"{w['speedup_min']:.3g}-{w['speedup_max']:.3g}",
                            w["source_file"] + (f":{w['source_line']}" if w["source_line"] is not None else ""),
                        )
                        for w in flag["worst"]
                    ],
                    left=3,
                )
        tell(
            f"labels that differ between the bin schemes: {result['labels_that_differ_between_schemes']} of {result['kernels']}"
        )
        if result["excluded"]:
            by_reason: dict[str, list[dict[str, Any]]] = {}
            for row in result["excluded"]:
                by_reason.setdefault(row["reason"], []).append(row)
            print_table(
                ["excluded: reason", "evaluations", "for example"],
                [
                    (reason, f"{len(rows):,}", f"{rows[0]['search_id']} node {rows[0]['node_id']}")
                    for reason, rows in sorted(by_reason.items())
                ],
                left=1,
            )

    emit(result, as_json=as_json, text=text)
