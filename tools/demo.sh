#!/usr/bin/env bash
# The main job on the embedded data, step by step, each command as a user would type it.
set -euo pipefail

step() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }

step kernel-archive build
step kernel-archive info

printf '\n\033[1m>>> load_dataset("gpu-forecasters/kernels")\033[0m\n'
HF_HUB_OFFLINE=1 HF_DATASETS_CACHE="$PWD/.hf-cache" python - <<'PYTHON'
from datasets import load_dataset
from datasets.utils.logging import disable_progress_bar

disable_progress_bar()
kernels = load_dataset("gpu-forecasters/kernels")
print({split: f"{rows.num_rows} kernels" for split, rows in kernels.items()})
unflagged = (row for row in kernels["test"] if not row["flags"])
best = max(unflagged, key=lambda row: row["speedup"])
print(f"fastest in test without an audit flag: {best['problem']} on {best['gpu']}, {best['speedup']:.2f}x, found by {best['generation_method']}")
builder = best["search_id"].split("/")[0]
print("logged at", f"builders/{builder}/{best['source_file']}:{best['source_line']}")
PYTHON

# A board of an older archive is not mixed with this one; it begins with the entries that ship.
rm -rf leaderboard forecasts
mkdir -p leaderboard forecasts
cp -R ../leaderboard/submissions leaderboard/

# The forecasts of a language model ship; two baselines forecast the same rows and join the board.
cp leaderboard/submissions/claude-read-blind/forecasts.jsonl.zst forecasts/language-model.jsonl.zst
step kernel-archive score forecasts/language-model.jsonl.zst
printf '\nThese baselines read no program: a skill below zero is expected of them.\n'
for baseline in uniform prior; do
  step kernel-archive baseline "$baseline" -o "forecasts/$baseline.jsonl"
done
step kernel-archive compare forecasts/language-model.jsonl.zst forecasts/prior.jsonl --draws 1000
for baseline in uniform prior; do
  step kernel-archive leaderboard add "forecasts/$baseline.jsonl" --name "Baseline $baseline"
done
step kernel-archive leaderboard build --draws 1000

printf '\nThe board: file://%s\n' "$PWD/leaderboard/index.html"
if [ -n "${DISPLAY:-}${WAYLAND_DISPLAY:-}" ] && command -v xdg-open >/dev/null 2>&1; then
  xdg-open "$PWD/leaderboard/index.html" >/dev/null 2>&1 || true
fi
