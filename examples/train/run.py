"""Everything in one go: the base model forecasts while the supervised run learns.

Then GRPO with every reward side by side, then all of them forecast. Started again, it goes on where
it was stopped.

The rewards have the same time, and forecast from the last step that all of them have reached: the
same budget.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import threading
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).parent


class Runs:
    """Processes beside each other, spread over the GPUs that there are."""

    def __init__(self, gpus: int) -> None:
        self.gpus, self.started = gpus, 0

    def start(self, name: str, *command: str) -> threading.Thread:
        """Run a script in the background, its output in ``NAME.txt``.

        One that fails is run once more.
        """
        gpu = str(self.started % self.gpus)
        self.started += 1

        def run() -> None:
            own = {"CUDA_VISIBLE_DEVICES": gpu} if self.gpus > 1 else {}
            for _ in range(2):
                with Path(f"{name}.txt").open("a", encoding="utf-8") as log:
                    done = subprocess.run(
                        [sys.executable, str(HERE / command[0]), *command[1:]],
                        stdout=log,
                        stderr=log,
                        check=False,
                        env={**os.environ, "PYTHONUNBUFFERED": "1", **own},
                    )
                if done.returncode == 0:
                    return
            print(f"{name} failed twice; see {name}.txt", flush=True)

        thread = threading.Thread(target=run)
        thread.start()
        return thread


def keep(results: Path) -> None:
    """What can be seen of the runs so far, in one file."""
    part = results / "logs.part"
    with tarfile.open(part, "w:gz") as out:
        for path in sorted(
            [*Path().glob("*.txt"), *Path().glob("*/log.jsonl"), *Path().glob("*/training.json")]
        ):
            out.add(path)
    part.rename(results / "logs.tar.gz")


def common_step(folders: list[Path]) -> int:
    """The last step of which every folder has a checkpoint; 0 for none."""
    steps = [
        {int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*")} for folder in folders
    ]
    return max(set.intersection(*steps) if steps else set(), default=0)


def main() -> None:
    """Go through the stages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="Folder for answers and logs."
    )
    parser.add_argument("--supervised-seconds", type=float, default=1e9)
    parser.add_argument(
        "--grpo-seconds", type=float, default=1e9, help="Of every reward; they run side by side."
    )
    parser.add_argument("--limit", help="Forecast so many rows of each split.")
    parser.add_argument("--gpus", type=int, default=1)
    given = parser.parse_args()
    config = tomllib.loads(given.config.read_text())
    given.results.mkdir(parents=True, exist_ok=True)
    base, toml = Path(config["model"]["folder"]), str(given.config)
    runs, started = Runs(given.gpus), time.perf_counter()

    def forecast(name: str, folder: Path, *more: str) -> threading.Thread:
        answers = given.results / f"answers-{name}.jsonl.gz"
        limit = ["--limit", given.limit] if given.limit else []
        return runs.start(
            f"forecast-{name}",
            "forecast.py",
            toml,
            "--model",
            str(folder),
            "--output",
            str(answers),
            *more,
            *limit,
        )

    def wait(what: str, threads: list[threading.Thread]) -> None:
        for thread in threads:
            while thread.is_alive():
                thread.join(5)
                keep(given.results)
        print(f"{what}: {time.perf_counter() - started:.0f} s", flush=True)

    forecasts = [forecast("base", base)]
    start = Path("supervised/model")
    if not Path("supervised/done").exists():
        seconds = ["--seconds", str(given.supervised_seconds)]
        wait(
            "supervised",
            [
                runs.start(
                    "supervised", "train.py", toml, "supervised", "--output", "supervised", *seconds
                )
            ],
        )
    if not start.exists():
        sys.exit("there is no supervised model to start from; see supervised.txt")
    rewards = config["grpo"]["rewards"]
    folders = [Path(f"grpo-{reward}") for reward in rewards]
    seconds = ["--seconds", str(given.grpo_seconds)]
    trained = [
        runs.start(
            folder.name,
            "train.py",
            toml,
            "grpo",
            "--reward",
            reward,
            "--model",
            str(start),
            "--output",
            str(folder),
            *seconds,
        )
        for reward, folder in zip(rewards, folders, strict=True)
        if not (folder / "done").exists()
    ]
    forecasts.append(forecast("supervised", start))
    wait("grpo", trained)
    step = common_step(folders)
    Path("step.txt").write_text(f"{step}\n", encoding="utf-8")
    if step:
        for reward, folder in zip(rewards, folders, strict=True):
            forecasts.append(
                forecast(reward, start, "--adapter", str(folder / f"checkpoint-{step}"))
            )
    wait(f"forecasts, of step {step}", forecasts)


if __name__ == "__main__":
    main()
