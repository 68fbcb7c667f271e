#!/usr/bin/env bash
# The main job on the embedded data, step by step, each command as a user would type it. What the
# commands print is in demo.log; a summary ends the demo.
set -euo pipefail

: > demo.log
# %q: what is shown can be pasted.
show() { printf '$%s\n' "$(printf ' %q' "$@")"; }
step() {
  show "$@" | tee -a demo.log
  "$@" >> demo.log 2>&1 || { status=$?; tail -n 20 demo.log >&2; exit "$status"; }
}

show cd "$PWD"
step kernel-archive build
step kernel-archive info

# A board of an older archive is not mixed with this one; it begins with the entries that ship.
rm -rf leaderboard forecasts
mkdir -p leaderboard forecasts
cp -R ../leaderboard/submissions leaderboard/

# The forecasts of a language model ship; two baselines forecast the same rows and join the board.
cp leaderboard/submissions/claude-read-blind/forecasts.jsonl.zst forecasts/claude-read-blind.jsonl.zst
for baseline in uniform prior; do
  step kernel-archive baseline "$baseline" -o "forecasts/$baseline.jsonl"
done
scored=(kernel-archive score forecasts/claude-read-blind.jsonl.zst forecasts/uniform.jsonl forecasts/prior.jsonl)
show "${scored[@]}"
"${scored[@]}"
step kernel-archive compare forecasts/claude-read-blind.jsonl.zst forecasts/prior.jsonl --draws 1000
for baseline in uniform prior; do
  step kernel-archive leaderboard add "forecasts/$baseline.jsonl" --name "Baseline $baseline"
done
step kernel-archive leaderboard build --draws 1000

HF_HUB_OFFLINE=1 HF_DATASETS_CACHE="$PWD/.hf-cache" python - <<'PYTHON'
import json
import sys
from pathlib import Path

from datasets import load_dataset
from datasets.utils.logging import disable_progress_bar

disable_progress_bar()
kernels = load_dataset("gpu-forecasters/kernels")
best = max((row for row in kernels["test"] if not row["flags"]), key=lambda row: row["speedup"])
board, *others = json.loads(Path("leaderboard/standings.json").read_text())["boards"]
skills = {e["name"]: e["metrics"]["crps_skill"]["mean"] for e in board["entries"] if e["ranked"]}
builder = best["search_id"].split("/")[0]
print(f"\nBuilt:   {sum(map(len, kernels.values())):,} kernels, loaded with load_dataset")
print(f"Fastest: {best['problem']}, {best['speedup']:.2f}x its reference (of held-out programs without an audit flag), from builders/{builder}/{best['source_file']}:{best['source_line']}")
print(f"Scored:  on {board['split']}, CRPS skill: 1 knows every range, 0 is the best cheap forecast, below it are baselines that see no program")
print("Ranks:   " + "; ".join(f"{i}. {name} {skill:.2f}" for i, (name, skill) in enumerate(skills.items(), 1)))
print(f"Next:    cd {Path.cwd()} && {sys.prefix}/bin/kernel-archive template -o mine.jsonl")
print(f"Output:  of every step in {Path('demo.log').resolve()}")
print(f"Board:   file://{Path('leaderboard/index.html').resolve()} ({1 + len(others)} splits)")
PYTHON

if [ -n "${DISPLAY:-}${WAYLAND_DISPLAY:-}" ] && command -v xdg-open >/dev/null 2>&1; then
  xdg-open "$PWD/leaderboard/index.html" >/dev/null 2>&1 || true
fi
