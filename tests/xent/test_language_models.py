"""The experiment of chapter 14: its sums over all prefixes, its losses, and its stored result."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "experiments" / "language_models"


@pytest.fixture(scope="module")
def modules() -> Any:
    """The two scripts, imported from their folder."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("dialects"), importlib.import_module("distil")
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def drawn(modules: Any) -> Any:
    """Sequences of the truth: tokens, rows of their prefixes, lengths."""
    dialects, distil = modules
    return distil.draw(dialects.source(), 60_000, np.random.default_rng(0))


def within(seen: np.ndarray, expected: float) -> bool:
    return bool(abs(seen.mean() - expected) < 4 * seen.std() / np.sqrt(len(seen)))


def test_the_source_is_a_mixture_of_whole_sequences(modules):
    """A dialect is chosen once; a mixture of the rows would be another language."""
    dialects, _ = modules
    up, down, both = dialects.dialect("up"), dialects.dialect("down"), dialects.source()
    for tree in (up, down, both):
        np.testing.assert_allclose(tree.sum(axis=1), 1)
    halves = 0.5 * dialects.begins(up) + 0.5 * dialects.begins(down)
    np.testing.assert_allclose(dialects.begins(both), halves, rtol=1e-12)
    assert dialects.sequence_kl(both, 0.5 * up + 0.5 * down) > 0.1


def test_the_sums_agree_with_drawn_sequences(modules, drawn):
    dialects, _ = modules
    tokens, rows, lengths = (x.numpy() for x in drawn)
    truth, n = dialects.source(), np.arange(1, dialects.LIMIT + 2)
    law = dialects.length_law(truth)
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
    assert np.isclose(dialects.length_law(tilted) @ n, 1 / (law @ (1 / n)))


def test_a_model_writes_what_its_tree_says(modules):
    dialects, distil = modules
    torch.manual_seed(3)
    model = distil.make("small")
    tree = distil.tree_of(model)
    np.testing.assert_allclose(tree.sum(axis=1), 1)
    tokens, rows, lengths = distil.write(model, 20_000, torch.Generator().manual_seed(0))
    assert within(lengths.numpy(), dialects.length_law(tree) @ np.arange(1, dialects.LIMIT + 2))
    with torch.no_grad():
        p = model(tokens[:50, :-1].clamp(0, 3)).softmax(-1)
    live = tokens[:50] >= 0
    np.testing.assert_allclose(p[live], tree[rows[:50][live]], atol=1e-5)


def test_both_lines_are_the_gradient_of_the_sequence_divergence(modules):
    """For a bigram student: the mean of the sampled gradient, against finite differences of the exact sum."""
    dialects, distil = modules
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
    rng = np.random.default_rng(2)
    both, first = [], []
    for _ in range(40):
        tokens, rows, _ = distil.draw(theta.softmax(-1).numpy()[last], 1500, rng)
        logits = table[rows]
        each = distil.token_losses("reverse", logits, log_teacher[rows], tokens)
        for found, loss in ((first, each), (both, distil.steered(each, logits, tokens))):
            value = loss.sum(dim=1).mean()
            found.append(torch.autograd.grad(value, step, retain_graph=True)[0].item())
    assert within(np.array(both), slope)
    assert not within(np.array(first), slope)


def test_the_stored_result_belongs_to_the_script(modules):
    _, distil = modules
    stored = json.loads((FOLDER / "result.json").read_text())
    assert stored["settings"] == distil.SETTINGS
    assert stored["arms"] == {name: list(arm) for name, arm in distil.ARMS.items()}
    assert set(stored["runs"]) == {"teacher", *distil.ARMS}
    for name, runs in stored["runs"].items():
        assert list(runs) == [str(seed) for seed in distil.seeds_of(name)]
    for size, count in stored["parameters"].items():
        assert count == sum(p.numel() for p in distil.make(size).parameters())


def test_the_losses_of_tokens(modules):
    """The script spells its losses out; PyTorch's divergence on probabilities gives the same gradients."""
    _, distil = modules
    generator = torch.Generator().manual_seed(4)
    z, v = torch.randn(2, 3, 8, 5, generator=generator, dtype=torch.float64)
    z.requires_grad_()
    tokens = torch.randint(5, (3, 8), generator=generator)
    tokens[0, 3:] = -100
    live = tokens != -100
    p, y = v.softmax(-1)[live], tokens[live]
    order = p.argsort(-1, descending=True)
    top, rest = order[:, : distil.SETTINGS["top_k"]], order[:, distil.SETTINGS["top_k"] :]

    def expected(kind: str) -> torch.Tensor:
        q = z.softmax(-1)[live]
        if kind == "labels":
            return torch.nn.functional.cross_entropy(z[live], y, reduction="sum")
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

    for kind in ("labels", "forward", "reverse", "truncated", "tail"):
        truth = torch.autograd.grad(expected(kind), z)[0]
        seen = torch.autograd.grad(distil.token_losses(kind, z, v, tokens).sum(), z)[0]
        torch.testing.assert_close(seen, truth, rtol=1e-9, atol=1e-12)
