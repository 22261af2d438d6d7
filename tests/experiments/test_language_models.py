"""The first experiment of chapter 14: its sums over all prefixes, its losses, and its stored result."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from experiments.language_models import dialects, distil, stack

Array = np.ndarray
Tensor = torch.Tensor
TRUTH, N = dialects.source(), np.arange(1, dialects.LIMIT + 2)


def within(seen: Array, expected: Any) -> bool:
    return bool(abs(seen.mean() - expected) < 4 * seen.std() / np.sqrt(len(seen)))


def test_the_source_is_a_mixture_of_whole_sequences() -> None:
    """A dialect is chosen once; a mixture of the rows would be another language."""
    up, down = dialects.dialect("up"), dialects.dialect("down")
    for tree in (up, down, TRUTH):
        np.testing.assert_allclose(tree.sum(axis=1), 1)
    halves = 0.5 * dialects.begins(up) + 0.5 * dialects.begins(down)
    np.testing.assert_allclose(dialects.begins(TRUTH), halves, rtol=1e-12)
    assert dialects.sequence_kl(TRUTH, 0.5 * up + 0.5 * down) > 0.1


def test_the_sums_agree_with_drawn_sequences() -> None:
    uniform = torch.tensor(np.random.default_rng(0).random((1, 60_000, 8)))
    drawn, of_prefix = stack.draw(torch.tensor(TRUTH).cumsum(-1)[None], uniform)
    tokens, rows, lengths = drawn[0].numpy(), of_prefix[0].numpy(), distil.lengths_of(drawn)[0].numpy()
    law, weight, up = dialects.length_probs(TRUTH), dialects.inverse_length(TRUTH), dialects.dialect("up")
    own = (rows[:, 2] == rows[0, 2]) & (tokens[:, 2] == tokens[0, 2])
    at = np.maximum(tokens, 0)
    with np.errstate(divide="ignore"):
        ratio = np.where(tokens >= 0, np.log(TRUTH[rows, at]) - np.log(up[rows, at]), 0).sum(axis=1)
    assert within(lengths, law @ N) and within(1 / lengths, law @ (1 / N))
    assert within(1 / lengths[own], weight[rows[0, 2], tokens[0, 2]])
    assert within(ratio, dialects.sequence_kl(TRUTH, up))
    tilted = TRUTH * weight / (TRUTH * weight).sum(axis=1, keepdims=True)
    inverse = float(law @ (1 / N))
    sums = [law.sum(), TRUTH[0] @ weight[0], dialects.length_probs(tilted) @ N]
    np.testing.assert_allclose(sums, [1.0, inverse, 1 / inverse])


def test_a_stacked_model_writes_what_its_table_says() -> None:
    """The whole forward pass, the table of all prefixes and what the model writes are one distribution."""
    model = stack.Stack([3, 4], **distil.SETTINGS["small"])
    with torch.no_grad():
        model.flat += 0.3 * torch.randn(model.flat.shape, generator=torch.Generator().manual_seed(0))
    trees = model.trees()
    tokens, rows = model.write(torch.rand(2, 8000, 8, generator=torch.Generator().manual_seed(1)))
    with torch.no_grad():
        p = model.logits(tokens[:, :50, :-1].clamp(0, 3)).softmax(-1)
    np.testing.assert_allclose(trees.sum(axis=2), 1)
    for i in range(2):
        assert within(distil.lengths_of(tokens)[i].numpy(), dialects.length_probs(trees[i]) @ N)
        live = tokens[i, :50] >= 0
        np.testing.assert_allclose(p[i][live], trees[i][rows[i, :50][live]], atol=1e-5)
    assert np.abs(trees[0] - trees[1]).max() > 0.1


def test_a_model_does_not_depend_on_its_neighbours() -> None:
    """Trained alone or beside another: the same but for rounding, which some steps have not yet blown up."""
    arm = distil.ARMS["small, reverse, both terms"]
    alone = distil.train(arm, [5], TRUTH[None], [1e-2], [0.1], 5)[1][0]
    pair = distil.train(arm, [5, 6], np.stack([TRUTH, TRUTH]), [1e-2, 3e-2], [0.1, 0.0], 5)[1]
    np.testing.assert_allclose(pair[0], alone, atol=1e-4)
    assert np.abs(pair[1] - alone).max() > 1e-2


def test_both_terms_are_the_gradient_of_the_sequence_divergence() -> None:
    """For a bigram student: the mean of the sampled gradient, against finite differences of the exact sum."""
    generator, last = torch.Generator().manual_seed(1), dialects.last_letter() + 1
    teacher = 0.9 * TRUTH + 0.02
    theta, direction = torch.randn(2, 5, 5, generator=generator, dtype=torch.float64)
    ends = [
        dialects.sequence_kl((theta + h * direction).softmax(-1).numpy()[last], teacher)
        for h in (-1e-4, 1e-4)
    ]
    slope = (ends[1] - ends[0]) / 2e-4
    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    table, log_teacher = (theta + step * direction)[torch.tensor(last)], torch.tensor(np.log(teacher))
    arms = [distil.ARMS[f"small, reverse, {x}"] for x in ("both terms", "token gradient")]
    found: list[list[float]] = [[], []]
    for _ in range(40):
        uniform = torch.rand(1, 1500, 8, generator=generator, dtype=torch.float64)
        tokens, rows = stack.draw(theta.softmax(-1)[torch.tensor(last)].cumsum(-1)[None], uniform)
        each = distil.token_loss(arms[0], table[rows], log_teacher[rows], tokens, None)
        for arm, seen in zip(arms, found, strict=True):
            value = distil.steer(arm, each, table[rows], tokens) if arm is arms[0] else each
            seen.append(torch.autograd.grad(value.sum(2).mean(), step, retain_graph=True)[0].item())
    assert within(np.array(found[0]), slope) and not within(np.array(found[1]), slope)


def test_the_stored_result_belongs_to_the_script() -> None:
    """Settings, arms, seeds and sizes; each arm has the rate and decay that its own objective likes best."""
    stored = json.loads(Path(distil.__file__).with_name("result.json").read_text())
    assert stored["settings"] == distil.SETTINGS and set(stored["arms"]) <= set(distil.ARMS)
    for name, run in stored["arms"].items():
        assert run["arm"] == asdict(distil.ARMS[name])
        seeds = distil.SETTINGS["seeds with a cache" if run["arm"]["cache"] else "seeds"]
        assert len(run["forward"]) == seeds and min(len(g["objective"]) for g in run["grid"]) > 1
        best = min(run["grid"], key=lambda g: float(np.mean(g["objective"])))
        assert (best["rate"], best["decay"]) == (run["rate"], run["decay"])
    for size, count in stored["parameters"].items():
        assert count == stack.Stack([0], **distil.SETTINGS[size]).flat.shape[1]


@pytest.mark.parametrize("kind", ["labels", "draws", "forward", "reverse", "truncated", "tail"])
def test_the_losses_of_tokens(kind: str) -> None:
    """The script spells its losses out; PyTorch's divergence on probabilities gives the same gradients."""
    generator = torch.Generator().manual_seed(4)
    z, v = torch.randn(2, 1, 3, 8, 5, generator=generator, dtype=torch.float64)
    tokens = torch.randint(5, (1, 3, 8), generator=generator)
    tokens[0, 0, 3:] = -100
    live = tokens != -100
    p, q = v.softmax(-1)[live], z.requires_grad_().softmax(-1)[live]
    counts = torch.randint(4, (1, 3, 8, 5), generator=generator).double()
    order, k = p.argsort(-1, descending=True), distil.SETTINGS["top_k"]

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return F.kl_div(b.log(), a, reduction="sum")

    kept = kl(p.gather(1, order[:, :k]), q.gather(1, order[:, :k]))
    expected = {
        "labels": F.cross_entropy(z[live], tokens[live], reduction="sum"),
        "draws": -(counts[live] * q.log()).sum() / 4,
        "forward": kl(p, q),
        "reverse": kl(q, p),
        "truncated": kept,
        "tail": kept + kl(p.gather(1, order[:, k:]).sum(1), q.gather(1, order[:, k:]).sum(1)),
    }[kind]
    truth = torch.autograd.grad(expected, z)[0]
    loss = distil.token_loss(
        distil.Arm("small", "teacher", kind, draws=4), z, v.log_softmax(-1), tokens, counts
    )
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), z)[0], truth, rtol=1e-9, atol=1e-12)


def test_a_cache_holds_out_a_tenth_and_counts_its_draws() -> None:
    arm, cumulative = distil.ARMS["cache 1000, four draws"], torch.tensor(TRUTH).cumsum(-1)[None]
    cache = distil.Cache(arm, cumulative, [np.random.default_rng(0)])
    assert cache.held == 100 and cache.tokens.shape == (1, 1000, 8)
    live = cache.tokens >= 0
    assert cache.counts is not None
    assert (cache.counts[live].sum(-1) == 4).all()
    assert (cache.counts[live] / 4 - torch.tensor(TRUTH)[cache.rows[live]]).mean(0).abs().max() < 0.02
