"""Training with TRL: ``supervised``, then ``grpo`` with one of the rewards from where that ended.

Every step's figures go to ``log.jsonl`` in the output folder as they come, checkpoints beside it; a
run that was stopped goes on from the last one. ``training.json`` says what was learnt from.
"""

from __future__ import annotations

import argparse
import json
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from lines import read_lines
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from kernel_archive.scoring.completions import read_completion
from kernel_archive.scoring.rewards import crps, of_completions

CUDA = torch.cuda.is_available()


class Log(TrainerCallback):
    """Writes what is logged, and ends the run when its time is up."""

    def __init__(self, path: Path, seconds: float, *, save: bool) -> None:
        self.path, self.start, self.seconds, self.save = path, time.perf_counter(), seconds, save

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """One line for each step."""
        line = {
            "step": state.global_step,
            "seconds": round(time.perf_counter() - self.start, 2),
            **(logs or {}),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop where the time is up."""
        if time.perf_counter() - self.start > self.seconds:
            control.should_training_stop, control.should_save = (
                True,
                control.should_save or self.save,
            )


class Groups(GRPOTrainer):
    """GRPO without the groups in which every answer earned the same.

    They teach nothing and count for nothing.
    """

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        made = super()._generate_and_score_completions(inputs)
        made["completion_mask"] = made["completion_mask"] * (made["advantages"] != 0)[:, None]
        made["num_items_in_batch"] = self.accelerator.gather(made["completion_mask"].sum()).sum()
        return made


def watched(kind: str) -> Any:
    """The reward, which also logs what it is not.

    Accuracy, confidence, CRPS and how many answers could be read.
    """

    def reward(
        *,
        completions: list[str],
        bin: list[int],  # noqa: A002 - the column's name
        log_metric: Any = None,
        **_: Any,
    ) -> list[float]:
        read = [
            (read_completion(text).probabilities, label)
            for text, label in zip(completions, bin, strict=True)
        ]
        p = np.array([masses for masses, _ in read if masses is not None])
        y = np.array([label for masses, label in read if masses is not None])
        if log_metric is not None:
            log_metric("forecast/parsed", len(p) / len(read))
            if len(p):
                hit = p.argmax(1) + 1 == y
                log_metric("forecast/accuracy", float(hit.mean()))
                log_metric("forecast/confidence", float((p.max(1) / p.sum(1)).mean()))
                log_metric("forecast/crps", float((1 + hit - crps(probabilities=p, bins=y)).mean()))
        return of_completions(completions, bins=bin, kind=kind)

    reward.__name__ = f"{kind}_reward"
    return reward


def rows(config: dict[str, Any], tokenizer: Any, most: int, n: int) -> list[dict[str, Any]]:
    """The first n training pairs whose prompt has at most so many tokens."""
    found: list[dict[str, Any]] = []
    for row in read_lines(Path(config["data"]["folder"]) / "train.jsonl.gz"):
        if len(tokenizer(row["prompt"])["input_ids"]) <= most:
            found.append(row)
        if len(found) == n:
            break
    return found


def common(stage: dict[str, Any], out: Path, seed: int, micro: int, batch: int) -> dict[str, Any]:
    """Settings that both trainers share."""
    return {
        "output_dir": str(out),
        "seed": seed,
        "max_steps": stage["steps"],
        "learning_rate": stage["learning_rate"],
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": min(10, stage["steps"] // 10),
        "logging_steps": 1,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": batch // micro,
        "bf16": CUDA,
        "use_cpu": not CUDA,
        "save_steps": stage["checkpoint_every"],
        "save_total_limit": None,
        "report_to": "none",
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": CUDA,
    }


def lora(rank: int) -> LoraConfig | None:
    """Adapters on every linear layer; none for rank 0."""
    return (
        LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
        if rank
        else None
    )


def supervised(config: dict[str, Any], model: Any, tokenizer: Any, out: Path) -> Any:
    """Imitate answers that name the true bin."""
    stage = config["supervised"]
    n = stage["steps"] * stage["batch"]
    taken = rows(config, tokenizer, stage["max_prompt_tokens"], n)
    data = Dataset.from_list([{key: row[key] for key in ("prompt", "completion")} for row in taken])
    args = SFTConfig(
        **common(stage, out, config["data"]["seed"], stage["micro_batch"], stage["batch"]),
        max_length=None,
        completion_only_loss=True,
        train_sampling_strategy="group_by_length",
        save_only_model=False,
    )
    return SFTTrainer(
        model=model,
        args=args,
        train_dataset=data,
        processing_class=tokenizer,
        peft_config=lora(stage["lora_rank"]),
    ), taken


def grpo(config: dict[str, Any], model: Any, tokenizer: Any, out: Path, reward: str) -> Any:
    """Answer, be rewarded, and do more of what earned more than other answers to the prompt."""
    stage = config["grpo"]
    taken = rows(config, tokenizer, stage["max_prompt_tokens"], stage["steps"] * stage["groups"])
    data = Dataset.from_list([{key: row[key] for key in ("prompt", "bin")} for row in taken])
    batch = stage["groups"] * stage["group"]
    args = GRPOConfig(
        **common(stage, out, config["data"]["seed"], stage["micro_batch"], batch),
        num_generations=stage["group"],
        max_completion_length=stage["max_new_tokens"],
        temperature=stage["temperature"],
        beta=0.0,
        shuffle_dataset=False,
        loss_type="dapo",
        scale_rewards="group",
    )
    return Groups(
        model=model,
        args=args,
        train_dataset=data,
        processing_class=tokenizer,
        reward_funcs=[watched(reward)],
        peft_config=lora(stage["lora_rank"]),
    ), taken


def main() -> None:
    """Run one stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("stage", choices=["supervised", "grpo"])
    parser.add_argument(
        "--reward", default="crps", help="Of grpo: correctness, brier, crps or log."
    )
    parser.add_argument(
        "--model", type=Path, help="Folder to start from.  [default: that of the configuration]"
    )
    parser.add_argument("--output", type=Path, required=True, help="Folder of the run.")
    parser.add_argument("--seconds", type=float, default=1e9, help="End after this long.")
    given = parser.parse_args()
    config = tomllib.loads(given.config.read_text())
    out: Path = given.output
    out.mkdir(parents=True, exist_ok=True)
    start = given.model or Path(config["model"]["folder"])
    full = given.stage == "supervised" and not config["supervised"]["lora_rank"]
    model = AutoModelForCausalLM.from_pretrained(
        start, dtype=torch.float32 if full or not CUDA else torch.bfloat16
    )
    tokenizer = AutoTokenizer.from_pretrained(start)
    if given.stage == "supervised":
        trainer, taken = supervised(config, model, tokenizer, out)
    else:
        trainer, taken = grpo(config, model, tokenizer, out, given.reward)
    trainer.add_callback(Log(out / "log.jsonl", given.seconds, save=given.stage == "grpo"))
    record = json.loads((Path(config["data"]["folder"]) / "record.json").read_text())
    chosen = given.reward if given.stage == "grpo" else None
    told = {
        "stage": given.stage,
        "reward": chosen,
        "settings": config[given.stage],
        "rows_taken": len(taken),
    }
    (out / "training.json").write_text(json.dumps(record | told, indent=1) + "\n")
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(out)))
    if given.stage == "supervised":
        made = (
            trainer.model.merge_and_unload() if config["supervised"]["lora_rank"] else trainer.model
        )
        made.to(torch.bfloat16).save_pretrained(out / "model")
        tokenizer.save_pretrained(out / "model")
    (out / "done").touch()


if __name__ == "__main__":
    main()
