"""A trained model answers the questions.

``answers.jsonl.gz``, for ``kernel-archive forecast --import`` (see split_answers).

Each prompt is read once and answered as often as there are repeats, many prompts at a time. What is
answered is written batch by batch; started again, it goes on with what has no answer.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
import tomllib
from pathlib import Path
from typing import Any

import torch
from lines import read_lines
from transformers import AutoModelForCausalLM, AutoTokenizer


def load(folder: Path, adapter: Path | None, device: str) -> tuple[Any, Any]:
    """Model and tokenizer; what GRPO learned is added into the weights."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    return model.to(device).eval(), AutoTokenizer.from_pretrained(folder)


@torch.inference_mode()
def answer(
    model: Any, tokenizer: Any, prompts: list[str], *, repeats: int, temperature: float, most: int
) -> list[tuple[str, bool, int]]:
    """Answers to prompts, repeats of one prompt side by side.

    Text, whether it ended by itself, tokens.
    """
    read = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt").to(
        model.device
    )
    mask = read["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    out = model(
        read["input_ids"],
        attention_mask=mask,
        position_ids=positions,
        use_cache=True,
        logits_to_keep=1,
    )
    cache, logits = out.past_key_values, out.logits[:, -1].repeat_interleave(repeats, 0)
    cache.batch_repeat_interleave(repeats)
    mask = mask.repeat_interleave(repeats, 0)
    place = mask.sum(1, keepdim=True)
    ended = torch.zeros(len(mask), dtype=torch.bool, device=mask.device)
    said = []
    for step in range(most):
        if temperature > 0:
            token = torch.multinomial(torch.softmax(logits.float() / temperature, -1), 1)
        else:
            token = logits.argmax(-1, keepdim=True)
        token = token.masked_fill(ended[:, None], tokenizer.pad_token_id)
        said.append(token)
        ended |= token[:, 0] == tokenizer.eos_token_id
        if step + 1 == most or (step % 8 == 7 and bool(ended.all())):
            break
        mask = torch.cat([mask, torch.ones_like(token)], 1)
        logits = model(
            token, attention_mask=mask, position_ids=place, past_key_values=cache, use_cache=True
        ).logits[:, -1]
        place = place + 1
    made = []
    for tokens, done in zip(torch.cat(said, 1).tolist(), ended.tolist(), strict=True):
        whole = tokens[: tokens.index(tokenizer.eos_token_id)] if done else tokens
        made.append((tokenizer.decode(whole, skip_special_tokens=True), done, len(whole) + done))
    return made


def batches(lengths: list[int], most: int) -> list[list[int]]:
    """Positions in batches of at most so many tokens with their padding, the short ones first."""
    made: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if not made or lengths[i] * (len(made[-1]) + 1) > most:
            made.append([])
        made[-1].append(i)
    return made


def main() -> None:
    """Answer the splits one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="Folder of the model.")
    parser.add_argument("--adapter", type=Path, help="Checkpoint of a GRPO run.")
    parser.add_argument("--output", type=Path, required=True, help="File of answers, .jsonl.gz.")
    parser.add_argument("--limit", type=int, help="So many rows of each split.")
    given = parser.parse_args()
    config = tomllib.loads(given.config.read_text())
    settings = config["forecast"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = load(given.model, given.adapter, device)
    asked = read_lines(Path(config["data"]["folder"]) / "questions.jsonl.gz")
    kept = read_lines(given.output)
    known = {line["custom_id"] for line in kept}
    with gzip.open(given.output, "wt", encoding="utf-8", compresslevel=6) as file:
        file.writelines(json.dumps(line) + "\n" for line in kept)
        for split in config["data"]["splits"]:
            rows = [q for q in asked if q["split"] == split][: given.limit]
            rows = [
                q
                for q in rows
                if f"{q['row_id']}-{settings['repeats'] - 1}-{q['digest']}" not in known
            ]
            lengths = (
                [len(ids) for ids in tokenizer([q["prompt"] for q in rows])["input_ids"]]
                if rows
                else []
            )
            for n, batch in enumerate(batches(lengths, settings["tokens_in_batch"])):
                torch.manual_seed(1000 * config["data"]["seed"] + n)
                start = time.perf_counter()
                made = answer(
                    model,
                    tokenizer,
                    [rows[i]["prompt"] for i in batch],
                    repeats=settings["repeats"],
                    temperature=settings["temperature"],
                    most=settings["max_new_tokens"],
                )
                seconds = (time.perf_counter() - start) / len(made)
                for k, (text, ended, tokens) in enumerate(made):
                    row, repeat = rows[batch[k // settings["repeats"]]], k % settings["repeats"]
                    line = {
                        "custom_id": f"{row['row_id']}-{repeat}-{row['digest']}",
                        "split": split,
                        "answer": text,
                        "stop_reason": "stop" if ended else "max_tokens",
                        "input_tokens": lengths[batch[k // settings["repeats"]]],
                        "output_tokens": tokens,
                        "latency_s": round(seconds, 5),
                    }
                    file.write(json.dumps(line) + "\n")
                file.flush()
                print(
                    f"{given.output.name} {split}: {len(made)} answers, {1000 * seconds:.0f} ms "
                    "each",
                    flush=True,
                )


if __name__ == "__main__":
    main()
