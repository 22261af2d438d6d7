"""What chapter 14 says of the pair on Tiny Shakespeare, against its stored runs; and the script's own sums."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

FOLDER = Path(__file__).parents[2] / "experiments" / "language_models"


@pytest.fixture(scope="module")
def pair() -> Iterator[ModuleType]:
    """The script, imported from its folder; it imports `run` of the speeches' experiment."""
    path, others = list(sys.path), sys.modules.pop("run", None)
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("pair")
    finally:
        sys.path[:] = path
        sys.modules.pop("run", None)
        if others is not None:
            sys.modules["run"] = others


@pytest.fixture(scope="module")
def models(pair: ModuleType) -> tuple[Any, Any]:
    """Two untrained models of four letters, in double precision; <eos> is likely enough to be drawn."""
    torch.manual_seed(0)
    settings = pair.shakespeare.Settings(width=8, heads=1, buckets=16)
    return tuple(pair.Transformer(4, settings).double().eval() for _ in range(2))


def test_what_a_model_writes_is_its_own(pair: ModuleType, models: tuple[Any, Any]) -> None:
    """Along a model's own draws, a token's loss has its entropy as mean; those of another model do not.

    The differences of loss and entropy are uncorrelated, hence the standard error. Were cache, position or rows
    mixed up as speeches end, the tokens would come from other distributions than those they are scored by.
    """
    writer, other = models
    written = pair.write(writer, 600, torch.Generator().manual_seed(0), 60)
    assert all((s[:-1] != 0).all() for s in written)  # <eos> ends a speech
    assert all(len(s) == 60 for s in written if s[-1] != 0)  # and what has none was cut
    for model, own in ((writer, True), (other, False)):
        surplus = []
        for speech, log_q in zip(written, pair.predictions(model, written), strict=True):
            nll = -log_q.gather(1, speech[:, None])[:, 0]
            surplus += (nll + (log_q.exp() * log_q).sum(1)).tolist()
        z = np.mean(surplus) / stats.sem(surplus)
        assert (abs(z) < 4) == own, z


@pytest.mark.parametrize("kind", ["labels", "forward", "reverse", "jsd"])
def test_a_mean_over_tokens(pair: ModuleType, models: tuple[Any, Any], kind: str) -> None:
    """The loss in parts is the sum over all tokens, written out, by their number; so is its gradient."""
    student, teacher = models
    speeches = pair.write(teacher, 40, torch.Generator().manual_seed(1), 30)
    said = pair.predictions(teacher, speeches)
    student.zero_grad()
    found = pair.mean_loss(kind, student, speeches, said, 0.3, backward=True)
    gradient = student.head.weight.grad.clone()
    student.zero_grad()
    total = torch.zeros(())
    for speech, log_p in zip(speeches, said, strict=True):
        log_q = pair.shakespeare.log_probabilities(student, [speech])[0][0]
        p, q = log_p.exp(), log_q.exp()
        m = (0.3 * p + 0.7 * q).log()
        each = {
            "labels": -log_q.gather(1, speech[:, None]),
            "forward": p * (log_p - log_q),
            "reverse": q * (log_q - log_p),
            "jsd": 0.3 * p * (log_p - m) + 0.7 * q * (log_q - m),
        }
        total = total + each[kind].sum()
    total = total / sum(map(len, speeches))
    total.backward()
    assert found == pytest.approx(float(total.detach()), rel=1e-9)
    torch.testing.assert_close(gradient, student.head.weight.grad, rtol=1e-8, atol=1e-12)


@cache
def stored() -> dict[str, Any]:
    return json.loads((FOLDER / "pair.json").read_text())


def measure(arm: str, key: str) -> np.ndarray:
    """One number for each seed, in the order of the seeds."""
    return np.array([run[key] for run in stored()["runs"] if run["arm"] == arm])


def paired(a: str, b: str, key: str) -> tuple[float, float]:
    """Ends of the 95 % t interval of the mean difference of two arms."""
    x = measure(a, key) - measure(b, key)
    half = stats.t.ppf(0.975, len(x) - 1) * stats.sem(x)
    return float(x.mean() - half), float(x.mean() + half)
