"""The experiment of chapter 14: its sums over all prefixes, its losses, and its stored result."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.language_models import dialects, distil, stack

FOLDER = Path(__file__).parents[2] / "experiments" / "language_models"


@pytest.fixture(scope="module")
def drawn() -> Any:
    """Sequences of the truth: tokens, rows of their prefixes, lengths."""
    uniform = torch.tensor(np.random.default_rng(0).random((1, 60_000, 8)))
    tokens, rows = stack.draw(torch.tensor(dialects.source()).cumsum(-1)[None], uniform)
    return tokens[0], rows[0], distil.lengths_of(tokens)[0]


def within(seen: np.ndarray, expected: float) -> bool:
    return bool(abs(seen.mean() - expected) < 4 * seen.std() / np.sqrt(len(seen)))


def test_the_source_is_a_mixture_of_whole_sequences():
    """A dialect is chosen once; a mixture of the rows would be another language."""
    up, down, both = dialects.dialect("up"), dialects.dialect("down"), dialects.source()
    for tree in (up, down, both):
        np.testing.assert_allclose(tree.sum(axis=1), 1)
    halves = 0.5 * dialects.begins(up) + 0.5 * dialects.begins(down)
    np.testing.assert_allclose(dialects.begins(both), halves, rtol=1e-12)
    assert dialects.sequence_kl(both, 0.5 * up + 0.5 * down) > 0.1


def test_the_sums_agree_with_drawn_sequences(drawn):
    tokens, rows, lengths = (x.numpy() for x in drawn)
    truth, n = dialects.source(), np.arange(1, dialects.LIMIT + 2)
    law = dialects.length_probs(truth)
    assert np.isclose(law.sum(), 1)
    assert within(lengths, law @ n)
    assert within(1 / lengths, law @ (1 / n))
    weight = dialects.inverse_length(truth)
    assert np.isclose(truth[0] @ weight[0], law @ (1 / n))
    own = (rows[:, 2] == rows[0, 2]) & (tokens[:, 2] == tokens[0, 2])
    assert within(1 / lengths[own], weight[rows[0, 2], tokens[0, 2]])
    live, at = tokens >= 0, np.maximum(tokens, 0)
    up = dialects.dialect("up")
    with np.errstate(divide="ignore"):
        ratio = np.where(live, np.log(truth[rows, at]) - np.log(up[rows, at]), 0).sum(axis=1)
    assert within(ratio, dialects.sequence_kl(truth, up))
    tilted = truth * weight / (truth * weight).sum(axis=1, keepdims=True)
    assert np.isclose(dialects.length_probs(tilted) @ n, 1 / (law @ (1 / n)))


def test_a_stacked_model_writes_what_its_table_says():
    """The whole forward pass, the table of all prefixes and what the model writes are one distribution."""
    model = stack.Stack([3, 4], **distil.SETTINGS["small"])
    with torch.no_grad():
        model.flat += 0.3 * torch.randn(model.flat.shape, generator=torch.Generator().manual_seed(0))
    trees = model.trees()
    np.testing.assert_allclose(trees.sum(axis=2), 1)
    tokens, rows = model.write(torch.rand(2, 8000, 8, generator=torch.Generator().manual_seed(1)))
    with torch.no_grad():
        p = model.logits(tokens[:, :50, :-1].clamp(0, 3)).softmax(-1)
    n = np.arange(1, dialects.LIMIT + 2)
    for i in range(2):
        lengths = distil.lengths_of(tokens)[i].numpy()
        assert within(lengths, dialects.length_probs(trees[i]) @ n)
        live = tokens[i, :50] >= 0
        np.testing.assert_allclose(p[i][live], trees[i][rows[i, :50][live]], atol=1e-5)
    assert np.abs(trees[0] - trees[1]).max() > 0.1


def test_a_model_does_not_depend_on_its_neighbours():
    """Trained alone or beside another: the same but for rounding, which some steps have not yet blown up."""
    teacher = dialects.source()
    arm = distil.ARMS["small, reverse, both terms"]
    alone = distil.train(arm, [5], teacher[None], [1e-2], [0.1], 5)[1][0]
    pair = distil.train(arm, [5, 6], np.stack([teacher, teacher]), [1e-2, 3e-2], [0.1, 0.0], 5)[1]
    np.testing.assert_allclose(pair[0], alone, atol=1e-4)
    assert np.abs(pair[1] - alone).max() > 1e-2


def test_both_terms_are_the_gradient_of_the_sequence_divergence():
    """For a bigram student: the mean of the sampled gradient, against finite differences of the exact sum."""
    last = dialects.last_letter() + 1
    teacher = 0.9 * dialects.source() + 0.02
    generator = torch.Generator().manual_seed(1)
    theta = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    direction = torch.randn(5, 5, generator=generator, dtype=torch.float64)

    def exact(z: torch.Tensor) -> float:
        return float(dialects.sequence_kl(z.softmax(-1).numpy()[last], teacher))

    slope = (exact(theta + 1e-4 * direction) - exact(theta - 1e-4 * direction)) / 2e-4
    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    table = (theta + step * direction)[torch.tensor(last)]
    log_teacher = torch.tensor(np.log(teacher))
    arms = [distil.ARMS[f"small, reverse, {x}"] for x in ("both terms", "token gradient")]
    both, first = [], []
    for _ in range(40):
        uniform = torch.rand(1, 1500, 8, generator=generator, dtype=torch.float64)
        cumulative = theta.softmax(-1)[torch.tensor(last)].cumsum(-1)[None]
        tokens, rows = stack.draw(cumulative, uniform)
        logits = table[rows]
        each = distil.token_loss(arms[0], logits, log_teacher[rows], tokens, None)
        for found, loss in ((first, each), (both, distil.steer(arms[0], each, logits, tokens))):
            value = loss.sum(dim=2).mean()
            found.append(torch.autograd.grad(value, step, retain_graph=True)[0].item())
    assert within(np.array(both), slope)
    assert not within(np.array(first), slope)


def test_the_stored_result_belongs_to_the_script():
    stored = json.loads((FOLDER / "result.json").read_text())
    assert stored["settings"] == distil.SETTINGS
    assert set(stored["arms"]) <= set(distil.ARMS)
    for name, run in stored["arms"].items():
        assert run["arm"] == asdict(distil.ARMS[name])
        seeds = distil.SETTINGS["seeds with a cache" if run["arm"]["cache"] else "seeds"]
        assert len(run["forward"]) == seeds and min(len(g["objective"]) for g in run["grid"]) > 1
        means = [np.mean(g["objective"]) for g in run["grid"]]
        best = run["grid"][int(np.argmin(means))]
        assert (best["rate"], best["decay"]) == (run["rate"], run["decay"])
    for size, count in stored["parameters"].items():
        assert count == stack.Stack([0], **distil.SETTINGS[size]).flat.shape[1]


def test_the_losses_of_tokens():
    """The script spells its losses out; PyTorch's divergence on probabilities gives the same gradients."""
    generator = torch.Generator().manual_seed(4)
    z, v = torch.randn(2, 1, 3, 8, 5, generator=generator, dtype=torch.float64)
    z.requires_grad_()
    tokens = torch.randint(5, (1, 3, 8), generator=generator)
    tokens[0, 0, 3:] = -100
    live = tokens != -100
    p, y = v.softmax(-1)[live], tokens[live]
    order = p.argsort(-1, descending=True)
    top, rest = order[:, : distil.SETTINGS["top_k"]], order[:, distil.SETTINGS["top_k"] :]
    counts = torch.randint(4, (1, 3, 8, 5), generator=generator).double()

    def expected(kind: str) -> torch.Tensor:
        q = z.softmax(-1)[live]
        if kind == "labels":
            return torch.nn.functional.cross_entropy(z[live], y, reduction="sum")
        if kind == "draws":
            return -(counts[live] * q.log()).sum() / 4
        if kind == "forward":
            return torch.nn.functional.kl_div(q.log(), p, reduction="sum")
        if kind == "reverse":
            return torch.nn.functional.kl_div(p.log(), q, reduction="sum")
        both = [[x.gather(1, top), x.gather(1, rest).sum(1, keepdim=True)] for x in (p, q)]
        (kept_p, tail_p), (kept_q, tail_q) = both
        loss = torch.nn.functional.kl_div(kept_q.log(), kept_p, reduction="sum")
        if kind == "tail":
            loss = loss + torch.nn.functional.kl_div(tail_q.log(), tail_p, reduction="sum")
        return loss

    for kind in ("labels", "draws", "forward", "reverse", "truncated", "tail"):
        arm = distil.Arm("small", "teacher", kind, draws=4)
        truth = torch.autograd.grad(expected(kind), z)[0]
        loss = distil.token_loss(arm, z, v.log_softmax(-1), tokens, counts).sum()
        torch.testing.assert_close(torch.autograd.grad(loss, z)[0], truth, rtol=1e-9, atol=1e-12)


def test_a_cache_holds_out_a_tenth_and_counts_its_draws():
    arm = distil.ARMS["cache 1000, four draws"]
    cumulative = torch.tensor(dialects.source()).cumsum(-1)[None]
    cache = distil.Cache(arm, cumulative, [np.random.default_rng(0)])
    assert cache.held == 100 and cache.tokens.shape == (1, 1000, 8)
    live = cache.tokens >= 0
    assert (cache.counts[live].sum(-1) == 4).all()
    p = torch.tensor(dialects.source())[cache.rows[live]]
    gap = (cache.counts[live] / 4 - p).mean(0)
    assert gap.abs().max() < 0.02
