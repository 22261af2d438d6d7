"""The denominator experiments on speeches: its arms are what they claim to be, the record whole."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from experiments import shared
from experiments.shakespeare import run

FOLDER = Path(run.__file__).parent
Tensor = torch.Tensor


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return found


@pytest.fixture
def speeches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths = np.random.default_rng(0).geometric(0.1, 256)
    return [
        torch.cat([torch.randint(1, 5, (n - 1,), generator=generator), torch.tensor([0])]) for n in lengths
    ]


def transformer(letters: int = 5, seed: int = 0, **settings: Any) -> Any:
    torch.manual_seed(seed)
    return shared.Transformer(letters, shared.Settings(**{"width": 8, **settings})).eval()  # no dropout


def gradient(model: Any) -> Tensor:
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return found


def looped(arm: str, batch: list[Any], micro: list[Any], mean: float, loss: Any) -> None:
    """A loop as people write it: the mean over a micro-batch's targets, averaged; or a sum over a constant."""
    for part in micro:
        logits, targets = loss(part)
        how = "sum" if arm == "constant" else "mean"
        one = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction=how)
        torch.autograd.backward(one / (len(batch) * mean if arm == "constant" else len(micro)))


@pytest.mark.parametrize("arm", [arm for arm in run.ARMS if arm != "blocks"])
def test_the_weights_are_a_loop_over_micro_batches(speeches: list[Tensor], arm: str) -> None:
    model, batch = transformer().double(), speeches[:128]
    weight = run.weights(np.array([len(s) for s in batch]), arm, 7.5)
    run.backward(model, batch, weight)
    emulated = gradient(model)
    size = 16 if arm == "bucketed" else 1 if arm == "constant" else int(arm[2:])
    ordered = sorted(batch, key=len) if arm == "bucketed" else batch

    def loss(part: list[Tensor]) -> tuple[Tensor, Tensor]:
        targets = torch.nn.utils.rnn.pad_sequence(part, batch_first=True, padding_value=-100)
        inputs = torch.cat([torch.zeros(len(part), 1, dtype=torch.long), targets[:, :-1].clamp(min=0)], 1)
        return model(inputs)[0], targets

    looped(arm, batch, [ordered[i : i + size] for i in range(0, 128, size)], 7.5, loss)
    # The same sums in another order: a few hundred roundings of float64.
    torch.testing.assert_close(emulated, gradient(model), rtol=1e-10, atol=1e-14)


def test_the_blocks_are_a_stream(speeches: list[Tensor]) -> None:
    """Every token of whole blocks is a target once, behind the token that precedes it in the stream."""
    stream, text, model = run.stream_of(speeches), torch.cat(speeches), transformer().double()
    assert len(stream) == len(text) // run.BLOCK * run.BLOCK + 1
    assert torch.equal(stream[1:], text[: len(stream) - 1])
    with torch.no_grad():
        losses, (whole, _) = run.block_losses(model, stream), model(stream[None, : run.BLOCK])
    first = F.cross_entropy(whole[0], text[: run.BLOCK], reduction="sum")
    torch.testing.assert_close(losses[0], first, rtol=1e-10, atol=0)


def test_the_model_does_not_look_ahead(speeches: list[Tensor]) -> None:
    """A later character changes no earlier prediction, through attention or through the n-grams."""
    model, tokens = transformer(seed=2).double(), torch.cat(speeches)[None, :40]
    again = tokens.clone()
    again[0, 20] = (again[0, 20] + 1) % 5
    whole, changed = model(tokens)[0], model(again)[0]
    assert torch.equal(whole[0, :20], changed[0, :20])
    assert not torch.allclose(whole[0, 20:25], changed[0, 20:25])
    # The n-grams that a character belongs to are those that end at it and at the four that follow.
    before = tokens.new_zeros(1, 4)
    moved = (model.spelling(tokens, before) - model.spelling(again, before)).abs().sum(2)[0] > 0
    assert moved.nonzero()[:, 0].tolist() == [20, 21, 22, 23, 24]


def test_the_cache_draws_from_the_same_distribution(speeches: list[Tensor]) -> None:
    model, tokens = transformer(seed=1, layers=2).double(), torch.cat(speeches)[None, :12]
    whole, before, past = model(tokens)[0], tokens.new_zeros(1, max(shared.Settings().orders) - 1), None
    for i in range(12):
        if past is not None and past[0].shape[3] <= i:
            past = [F.pad(cache, (0, 0, 0, cache.shape[3])) for cache in past]
        step, past = model(tokens[:, i : i + 1], before, past, i)
        before = torch.cat([before[:, 1:], tokens[:, i : i + 1]], dim=1)
        torch.testing.assert_close(step[:, 0], whole[:, i], rtol=1e-12, atol=1e-13)


def test_samples_have_the_lengths_that_the_model_gives_them() -> None:
    """A model that ends with probability 1/4 at each step: lengths are geometric, also across dropped rows."""
    model = transformer(2)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([0.0, math.log(3)]))
    drawn = run.sample_lengths(model, 0, shared.Settings(width=8, samples=4000))
    # Four standard errors: sd is sqrt(12).
    assert len(drawn) == 4000 and abs(drawn.mean() - 4) < 4 * math.sqrt(12 / 4000)
    assert abs((drawn == 1).mean() - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 4000)


def test_the_parts_of_a_report_add_up(speeches: list[Tensor]) -> None:
    model = transformer(seed=3)
    row = run.evaluate(model, speeches, 0, shared.Settings(width=8, samples=50))
    with torch.no_grad():
        expected = float(run.speech_losses(model, speeches).double().mean())
    sums = [row["nll_per_speech"], row["end_nll"] + row["character_nll"]]
    assert sums == pytest.approx([expected] * 2, rel=1e-6) and row["end_nll"] > 0 < row["character_nll"]


def test_another_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "input.txt"
    path.write_text("First Citizen:\nSpeak, speak.\n")
    with pytest.raises(ValueError, match="another text: its SHA-256 is"):
        shared.load(path)


def test_a_stopped_experiment_goes_on(tmp_path: Path) -> None:
    """Runs that are there are not made again; each arm takes the rate that its own validation loss prefers."""
    made: list[tuple[Any, ...]] = []
    settings = shared.Settings()

    def one(arm: str, seed: int, rate: float) -> dict[str, Any]:
        made.append((arm, seed, rate))
        return {"curve": [{"own": 9.0}, {"own": abs(rate - (0.016 if arm == "B=4" else 0.008))}]}

    shared.work(tmp_path, run.JOBS, settings.rates, 1, one)
    arms, grid = len(run.ARMS), len(settings.rates)
    assert len(made) == len(set(made)) == arms * (grid + 1)
    assert ("B=4", 0, 0.016) in made and ("constant", 0, 0.008) in made
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    (tmp_path / "runs.jsonl").write_text("\n".join(lines[:-3]) + "\n")
    made.clear()
    shared.work(tmp_path, run.JOBS, settings.rates, 1, one)
    record = run.assemble(tmp_path, settings)
    assert len(made) == 3 and [r["arm"] for r in record["runs"]] == list(run.ARMS)
    assert len(record["tuning"]) == arms * grid


def test_the_predictions_follow_from_the_lengths() -> None:
    """The committed ones anew, and one speech a step by hand."""
    committed = read("prediction.json")
    again = run.predict(np.repeat(committed["lengths"], committed["counts"]))
    for arm, values in again["arms"].items():
        for key, value in values.items():
            assert committed["arms"][arm][key] == pytest.approx(value, rel=1e-9, abs=0)
    harmonic = sum(committed["counts"]) / np.sum(np.divide(committed["counts"], committed["lengths"]))
    means = [committed["arms"][arm]["mean_length"] for arm in ("constant", "B=1")]
    assert means == pytest.approx([committed["mean_length"], harmonic])


def test_the_record_is_whole(tmp_path: Path) -> None:
    """Six seeds of every arm, at the rate with the lowest own loss: assembled anew, it is what is stored."""
    record, settings = read("result.json"), shared.Settings()
    for row in record["tuning"] + record["runs"]:
        shared.store(tmp_path, row)
    again = json.loads(json.dumps(run.assemble(tmp_path, settings)))
    assert {key: again[key] for key in again if key not in ("date", "versions")}.items() <= record.items()
    assert [(r["seed"], r["arm"]) for r in record["runs"]] == [*itertools.product(range(6), run.ARMS)]
    tried = [(r["arm"], r["rate"]) for r in record["tuning"]]
    assert sorted(tried) == sorted(itertools.product(run.ARMS, settings.rates)) and record["date"]
    for row in record["runs"]:
        assert row["nll_per_speech"] == pytest.approx(row["end_nll"] + row["character_nll"], rel=1e-6)


def test_n_grams_sum_to_one() -> None:
    """Of every order, after every context, and no letter has probability zero."""
    model = shared.NGrams([np.random.default_rng(6).integers(6, size=400).tolist()], 6, 2)
    for context in ((0, 1), (5, 5), (2, 4)):
        for p in model.orders(context):
            assert p.sum() == pytest.approx(1) and (p > 0).all()
