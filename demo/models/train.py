# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Train the demo's three tiny models, which all share one tokenizer.

usage: train.py [DIRECTORY]     (default: beside this file; run it with an environment that has torch and transformers)

- ``target``: the model that is served. Three layers, 0.7 million parameters, trained on Python source.
- ``draft``: trained on the same text; one layer, 0.1 million parameters. Most of its guesses hold.
- ``untrained``: a draft of the same shape with random weights, for the case "the draft does nothing".
  Random guesses are right now and then, and the acceptance length must be exactly 1. So its output head knows only
  byte tokens that never occur in UTF-8 text, and these the target never emits.

Everything is float32: rounding in bfloat16 makes greedy texts differ with and without speculation. The text is the standard
library of the Python that runs this; seed and numbers of steps are fixed, so one machine gives the same result twice.
It takes about four minutes on one core.
"""

from __future__ import annotations

import pathlib
import sys
import sysconfig
import time

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 1024
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
#: The bytes that no UTF-8 text contains (RFC 3629). In the byte-level alphabet each is the token of the same code point.
NEVER_IN_UTF8 = bytes([0xC0, 0xC1, *range(0xF5, 0x100)])
CONTEXT = 2048
BATCH, WINDOW, PEAK_RATE = 12, 192, 3e-3


def corpus() -> list[str]:
    """Return the text: modules a to h of the standard library (about 3 MB)."""
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    return [path.read_text(encoding="utf-8", errors="ignore") for path in sorted(library.glob("[a-h]*.py"))]


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=SPECIAL[0], pad_token=SPECIAL[0])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(layers: int, hidden: int, tied: bool = True) -> Qwen3ForCausalLM:
    """Return a model with random weights; ``tied``: input and output embedding are one."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=CONTEXT,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
            tie_word_embeddings=tied,
        )
    )


def train(model: Qwen3ForCausalLM, tokens: torch.Tensor, steps: int) -> float:
    """Train on random windows of ``tokens`` [count] with a warm-up and a linear decay; return the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.95))
    loss = torch.tensor(0.0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * min(1.0, step / 50) * (1 - 0.9 * step / steps)
        starts = torch.randint(0, len(tokens) - WINDOW, (BATCH,)).tolist()
        batch = torch.stack([tokens[start : start + WINDOW] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return loss.item()


@torch.no_grad()
def propose_only(model: Qwen3ForCausalLM, token_ids: list[int]) -> None:
    """Let an untied output head propose nothing but ``token_ids``, whatever the hidden state.

    All other rows are zero. The given ones come in pairs of opposite rows, so that one of each pair always scores
    above zero: with 2 n tokens the n most probable ones are among them.
    """
    head = model.get_output_embeddings().weight
    half = len(token_ids) // 2
    rows = torch.randn(half, head.shape[1])
    head.zero_()
    head[token_ids[:half]] = rows
    head[token_ids[half : 2 * half]] = -rows


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: pathlib.Path) -> None:
    """Write model and tokenizer; readable by everybody, as the service runs under its own user."""
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    for path in directory.iterdir():
        path.chmod(0o644)


def main(arguments: list[str]) -> None:
    target = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).resolve().parent
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small a model gains little from more, and sums do not depend on the number of cores
    texts = corpus()
    tokenizer = make_tokenizer(texts)
    tokens = torch.tensor(tokenizer("\n".join(texts))["input_ids"])
    print(f"{len(tokens)} tokens", flush=True)
    for name, layers, hidden, steps in (("target", 3, 128, 550), ("draft", 1, 64, 1000)):
        started = time.monotonic()
        model = make_model(layers, hidden)
        loss = train(model, tokens, steps)
        save(model, tokenizer, target / name)
        size = sum(parameter.numel() for parameter in model.parameters())
        print(f"{name}: {size} parameters, {steps} steps, loss {loss:.2f}, {time.monotonic() - started:.0f} s", flush=True)
    model = make_model(1, 64, tied=False)
    propose_only(model, tokenizer.convert_tokens_to_ids([chr(byte) for byte in NEVER_IN_UTF8]))
    save(model, tokenizer, target / "untrained")


if __name__ == "__main__":
    main(sys.argv[1:])
