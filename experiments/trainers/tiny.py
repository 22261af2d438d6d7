"""Tiny models from a configuration, random ragged data, and the gradient that every trainer should reach.

Nothing is downloaded. A micro-batch is a dictionary of padded tensors, as a Hugging Face collator gives it:
``input_ids``, ``attention_mask`` and ``labels`` (-100 where nothing counts), each of shape (rows, length).
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import BertForMaskedLM, GPT2LMHeadModel, LlamaForCausalLM, T5ForConditionalGeneration

Batch = dict[str, Tensor]

VOCABULARY, WIDTH, ROWS, LONGEST, IGNORED = 64, 32, 4, 48, -100
PAD = {"labels": IGNORED}  # everything else is padded with 0


def llama() -> nn.Module:
    config = hf.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return seeded(LlamaForCausalLM, config)


class BareLlamaForCausalLM(LlamaForCausalLM):
    """A forward with named arguments only, as people write their own."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> object:
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


def bare_llama() -> nn.Module:
    return seeded(BareLlamaForCausalLM, llama().config)


def gpt2() -> nn.Module:
    config = hf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=2, n_positions=LONGEST,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return seeded(GPT2LMHeadModel, config)


def t5() -> nn.Module:
    config = hf.T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=16, d_ff=64, num_layers=2, num_heads=2,
        dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    return seeded(T5ForConditionalGeneration, config)


def bert() -> nn.Module:
    config = hf.BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        max_position_embeddings=LONGEST,
    )  # fmt: skip
    return seeded(BertForMaskedLM, config)


def seeded(architecture: Callable[..., nn.Module], config: object) -> nn.Module:
    torch.manual_seed(0)
    return architecture(config).train()


def micro_batches(model: nn.Module, steps: int, seed: int, ragged: bool = True) -> list[Batch]:
    """Return `steps` micro-batches of four sequences: lengths from 4 to 48 tokens, or 24 tokens each.

    Every sequence has frequencies of its own, so that gradients of different sequences differ.
    """
    g = torch.Generator().manual_seed(seed)
    batches = []
    for k in range(steps):
        # Micro-batches differ in length more than the sequences in them do: short answers, then long ones.
        longest = 6 + (LONGEST - 6) * ((3 * k) % steps) // max(steps - 1, 1)
        rows = []
        for _ in range(ROWS):
            length = int(torch.randint(4, longest + 1, (1,), generator=g)) if ragged else 24
            frequencies = torch.randn(VOCABULARY - 4, generator=g).mul(2).softmax(0)
            rows.append(4 + torch.multinomial(frequencies, length, replacement=True, generator=g))
        batches.append(collate(model, rows, g))
    return batches


def collate(model: nn.Module, rows: list[Tensor], g: torch.Generator) -> Batch:
    labels = pad_sequence(rows, batch_first=True, padding_value=IGNORED)
    ids = labels.clamp(min=0)
    batch = {"input_ids": ids, "attention_mask": (labels != IGNORED).long(), "labels": labels}
    if isinstance(model, BertForMaskedLM):  # every third token is hidden, and only these are scored
        hidden = (torch.arange(labels.shape[1]) % 3 == 0).expand_as(labels) & (labels != IGNORED)
        batch["labels"] = labels.masked_fill(~hidden, IGNORED)
        batch["input_ids"] = ids.masked_fill(hidden, 3)
    if isinstance(model, T5ForConditionalGeneration):  # as DataCollatorForSeq2Seq(model=model) does
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
    return batch


def joined(batches: list[Batch]) -> Batch:
    """Return all rows as one batch, padded to the longest of them."""
    return {
        key: pad_sequence([row for b in batches for row in b[key]], True, padding_value=PAD.get(key, 0))
        for key in batches[0]
    }


def targets(model: nn.Module, batch: Batch) -> Tensor:
    """Return the labels that the loss sees: those of a causal model are shifted by one."""
    causal = isinstance(getattr(model, "module", model), (GPT2LMHeadModel, LlamaForCausalLM))
    return batch["labels"][:, 1:] if causal else batch["labels"]


def cross_entropy(model: nn.Module, batch: Batch, reduction: str = "mean") -> Tensor:
    """Return the loss that these models stand for, in nats: by the logits, not by the model's own loss."""
    logits = model(**{key: value for key, value in batch.items() if key != "labels"}).logits
    labels = targets(model, batch)
    logits = logits[:, : labels.shape[1]]  # a causal model's last position has no target
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction=reduction)


def full_batch_gradient(model: nn.Module, batches: list[Batch]) -> Tensor:
    """Return the gradient of sum / N over all rows in one batch, in float64."""
    exact = copy.deepcopy(model).double()
    cross_entropy(exact, joined(batches)).backward()
    return gradient(exact)


def gradient(model: nn.Module) -> Tensor:
    """Return a copy of the gradient as one vector, gathered if it is sharded."""
    grads = (p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters())
    return torch.cat([(g.full_tensor() if hasattr(g, "full_tensor") else g).flatten() for g in grads])
