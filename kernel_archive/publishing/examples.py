"""The programs printed in the card. The tests run each of them exactly as it is printed."""

from __future__ import annotations

_DATASETS = """from datasets import load_dataset

kernels = load_dataset("{name}")
print(kernels["{split}"][0]["problem"], kernels["{split}"][0]["speedup"])
"""
_DATASETS_EVAL = """
rows = load_dataset("{name}", "eval", split="test")
print(rows[0]["task"], rows[0]["speedup"], rows[0]["bin"])
"""
_POLARS = """import polars as pl
from huggingface_hub import snapshot_download

folder = snapshot_download("{name}", repo_type="dataset")
kernels = pl.read_parquet(f"{{folder}}/data/kernels/*.parquet")
speedup = pl.col("speedup")
print(kernels.group_by("problem").agg(pl.len(), speedup.median(), best=speedup.max()))
"""
_DUCKDB = """import duckdb
from huggingface_hub import snapshot_download

folder = snapshot_download("{name}", repo_type="dataset")
print(duckdb.sql(f\"\"\"
    SELECT problem, gpu, count(*) AS kernels, median(speedup) AS middle, max(speedup) AS best
    FROM '{{folder}}/data/kernels/*.parquet'
    GROUP BY problem, gpu ORDER BY problem, gpu
\"\"\"))
"""
_PACKAGE = """import kernel_archive

archive = kernel_archive.load("{name}")
frame = archive.polars("kernels", "{split}")
print(archive.sql("SELECT bin, count(*) AS n FROM kernels GROUP BY bin ORDER BY bin").to_pylist())
"""
_SCORE = """kernel-archive pull {name}
kernel-archive template --split eval -o forecasts.jsonl --force --archive {name}
kernel-archive check forecasts.jsonl --archive {name}
kernel-archive score forecasts.jsonl --archive {name}
"""


def examples(name: str, *, split: str, has_eval: bool) -> dict[str, str]:
    """Example -> program.

    Args:
        name: the dataset's name on the Hub.
        split: a split of ``kernels`` that has rows.
        has_eval: whether there is an evaluation split.
    """
    made = {
        "datasets": _DATASETS + (_DATASETS_EVAL if has_eval else ""),
        "polars": _POLARS,
        "duckdb": _DUCKDB,
        "package": _PACKAGE,
        "score": _SCORE,
    }
    return {key: text.format(name=name, split=split).strip() for key, text in made.items()}
