"""The denominator experiment on speeches: its arms are what they claim to be, its record is whole."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import shared
from experiments.shakespeare import answers, run

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).parents[2] / "experiments" / "shakespeare"


@pytest.fixture
def speeches() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    lengths = np.random.default_rng(0).geometric(0.1, 256)
    return [
        torch.cat([torch.randint(1, 5, (n - 1,), generator=generator), torch.tensor([0])]) for n in lengths
    ]


def gradient(model: Any) -> Any:
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return found


@pytest.mark.parametrize("arm", ["constant", "B=1", "B=4", "B=16", "B=64", "B=128", "bucketed"])
def test_the_weights_are_a_loop_over_micro_batches(speeches: list[Any], arm: str) -> None:
    torch.manual_seed(0)
    model = run.Transformer(5, run.Settings(width=8)).double().eval()  # no dropout, which would differ
    batch = speeches[:128]
    lengths = np.array([len(s) for s in batch])
    weight = run.weights(lengths, arm, 7.5)
    run.backward(lambda chunk: run.speech_losses(model, [batch[i] for i in chunk]), batch, weight)
    emulated = gradient(model)

    proper = arm == "constant"
    if proper:
        micro_batches = [[speech] for speech in batch]
    elif arm == "bucketed":
        by_length = sorted(batch, key=len)
        micro_batches = [by_length[i : i + 16] for i in range(0, 128, 16)]
    else:
        size = int(arm[2:])
        micro_batches = [batch[i : i + size] for i in range(0, 128, size)]
    for micro_batch in micro_batches:
        targets = torch.nn.utils.rnn.pad_sequence(micro_batch, batch_first=True, padding_value=-100)
        inputs = torch.cat([torch.zeros(len(targets), 1, dtype=torch.long), targets[:, :-1].clamp(min=0)], 1)
        logits = model(inputs)[0].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(
            logits, targets.flatten(), reduction="sum" if proper else "mean"
        )
        (loss / (128 * 7.5 if proper else len(micro_batches))).backward()
    # The same sums in another order: a few hundred roundings of float64.
    torch.testing.assert_close(emulated, gradient(model), rtol=1e-10, atol=1e-14)


def test_the_blocks_are_a_stream(speeches: list[Any]) -> None:
    """Every token of whole blocks is a target once, behind the token that precedes it in the stream."""
    stream = run.stream_of(speeches)
    text = torch.cat(speeches)
    assert len(stream) == len(text) // run.BLOCK * run.BLOCK + 1
    assert torch.equal(stream[1:], text[: len(stream) - 1])
    torch.manual_seed(0)
    model = run.Transformer(5, run.Settings(width=8)).double().eval()
    with torch.no_grad():
        losses = run.block_losses(model, stream)
        whole, _ = model(stream[None, : run.BLOCK])
    first = torch.nn.functional.cross_entropy(whole[0], text[: run.BLOCK], reduction="sum")
    torch.testing.assert_close(losses[0], first, rtol=1e-10, atol=0)


def test_the_model_does_not_look_ahead(speeches: list[Any]) -> None:
    """A later character changes no earlier prediction, through attention or through the n-grams."""
    torch.manual_seed(2)
    model = run.Transformer(5, run.Settings(width=8)).double().eval()
    tokens = torch.cat(speeches)[None, :40].clone()
    whole, _ = model(tokens)
    tokens[0, 20] = (tokens[0, 20] + 1) % 5
    changed, _ = model(tokens)
    assert torch.equal(whole[0, :20], changed[0, :20])
    assert not torch.allclose(whole[0, 20:25], changed[0, 20:25])
    # The n-grams that a character belongs to are those that end at it and at the four that follow.
    again = tokens.clone()
    again[0, 20] = (again[0, 20] + 1) % 5
    before = tokens.new_zeros(1, 4)
    moved = (model.spelling(tokens, before) - model.spelling(again, before)).abs().sum(2)[0] > 0
    assert moved.nonzero()[:, 0].tolist() == [20, 21, 22, 23, 24]


def test_the_cache_draws_from_the_same_distribution(speeches: list[Any]) -> None:
    torch.manual_seed(1)
    settings = run.Settings(layers=2, width=8)
    model = run.Transformer(5, settings).double().eval()
    tokens = torch.cat(speeches)[None, :12]
    whole, _ = model(tokens)
    before, past = tokens.new_zeros(1, max(settings.orders) - 1), None
    for i in range(12):
        if past is not None and past[0].shape[3] <= i:
            past = [torch.nn.functional.pad(cache, (0, 0, 0, cache.shape[3])) for cache in past]
        step, past = model(tokens[:, i : i + 1], before, past, i)
        before = torch.cat([before[:, 1:], tokens[:, i : i + 1]], dim=1)
        torch.testing.assert_close(step[:, 0], whole[:, i], rtol=1e-12, atol=1e-13)


def test_samples_have_the_lengths_that_the_model_gives_them() -> None:
    """A model that ends with probability 1/4 at each step: lengths are geometric, also across dropped rows."""
    settings = run.Settings(width=8)
    model = run.Transformer(2, settings).eval()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([0.0, math.log(3)]))
    drawn = run.sample_lengths(model, torch.zeros(4000, 1, dtype=torch.long), 0, settings)
    assert len(drawn) == 4000
    # Four standard errors: sd is sqrt(12).
    assert abs(drawn.mean() - 4) < 4 * math.sqrt(12 / 4000)
    assert abs((drawn == 1).mean() - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 4000)


def test_the_parts_of_a_report_add_up(speeches: list[Any]) -> None:
    settings = run.Settings(width=8, samples=50)
    torch.manual_seed(3)
    model = run.Transformer(5, settings).eval()
    row = run.evaluate(model, speeches, 0, settings)
    with torch.no_grad():
        expected = float(run.speech_losses(model, speeches).double().mean())
    assert row["nll_per_speech"] == pytest.approx(expected, rel=1e-6)
    assert row["end_nll"] + row["character_nll"] == pytest.approx(expected, rel=1e-6)
    assert row["end_nll"] > 0 < row["character_nll"]


def test_another_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "input.txt"
    path.write_text("First Citizen:\nSpeak, speak.\n")
    with pytest.raises(ValueError, match="another text: its SHA-256 is"):
        shared.load(path)


def test_a_stopped_experiment_goes_on(tmp_path: Path) -> None:
    """Runs that are there are not made again; each arm takes the rate that its own validation loss prefers."""
    made: list[tuple[Any, ...]] = []

    def one(arm: str, seed: int, rate: float) -> dict[str, Any]:
        made.append((arm, seed, rate))
        return {"curve": [{"own": 9.0}, {"own": abs(rate - (0.016 if arm == "B=4" else 0.008))}]}

    settings = run.Settings()
    run.work(run.ARMS, 1, tmp_path, settings, one)
    arms, grid = len(run.ARMS), len(settings.rates)
    assert len(made) == len(set(made)) == arms * (grid + 1)
    assert ("B=4", 0, 0.016) in made and ("constant", 0, 0.008) in made
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    (tmp_path / "runs.jsonl").write_text("\n".join(lines[:-3]) + "\n")
    made.clear()
    run.work(run.ARMS, 1, tmp_path, settings, one)
    assert len(made) == 3
    record = run.assemble(run.ARMS, tmp_path, settings, ngrams=[1.0])
    assert [r["arm"] for r in record["runs"]] == list(run.ARMS)
    assert len(record["tuning"]) == arms * grid and record["ngrams"] == [1.0]


def test_the_prediction_follows_from_the_lengths() -> None:
    committed = json.loads((FOLDER / "prediction.json").read_text())
    again = run.predict(np.repeat(committed["lengths"], committed["counts"]))
    for arm, values in again["arms"].items():
        for key, value in values.items():
            assert committed["arms"][arm][key] == pytest.approx(value, rel=1e-9, abs=0)
    assert committed["arms"]["constant"]["mean_length"] == pytest.approx(committed["mean_length"])
    # B = 1 by hand: the harmonic mean.
    harmonic = sum(committed["counts"]) / np.sum(np.divide(committed["counts"], committed["lengths"]))
    assert committed["arms"]["B=1"]["mean_length"] == pytest.approx(harmonic)


def test_the_record_is_whole() -> None:
    result = json.loads((FOLDER / "result.json").read_text())
    assert result["settings"] == json.loads(json.dumps(asdict(run.Settings())))
    seeds = {r["seed"] for r in result["runs"]}
    assert len(seeds) >= 6
    assert {(r["arm"], r["seed"]) for r in result["runs"]} == {(a, s) for a in run.ARMS for s in seeds}
    assert len(result["runs"]) == len(seeds) * len(run.ARMS)
    for arm in run.ARMS:
        grid = {
            r["rate"]: min(look["own"] for look in r["curve"]) for r in result["tuning"] if r["arm"] == arm
        }
        assert set(grid) == set(run.Settings().rates) and result["rates"][arm] == min(
            grid, key=grid.__getitem__
        )
    for row in result["runs"]:
        assert row["rate"] == result["rates"][row["arm"]]
        assert row["nll_per_speech"] == pytest.approx(row["end_nll"] + row["character_nll"], rel=1e-6)


def loop_over(model: Any, batch: list[answers.Pair], micro: list[list[int]]) -> None:
    """A loop as people write it: the mean over a micro-batch's reply tokens, averaged over the micro-batches."""
    for part in micro:
        log_q, targets = answers.log_probabilities(model, [batch[i] for i in part])
        loss = torch.nn.functional.cross_entropy(log_q.flatten(0, 1), targets.flatten(), ignore_index=-100)
        (loss / len(micro)).backward()


@pytest.mark.parametrize("arm", answers.ARMS)
def test_an_arm_of_answers_takes_the_step_of_a_loop_over_its_micro_batches(arm: str) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 90, answers.BATCH)
    letters = 11
    batch = [
        answers.Pair(
            torch.from_numpy(rng.integers(0, letters, answers.PROMPT + n)), int(n), int(rng.integers(3))
        )
        for n in lengths
    ]
    torch.manual_seed(0)
    model = answers.Answerer(letters).double().eval()
    run.backward(
        lambda chunk: answers.losses(model, [batch[i] for i in chunk]),
        answers.tokens(batch),
        answers.weights(lengths, arm, 40.0),
    )
    found = model.head.weight.grad
    assert found is not None
    found = found.clone()
    model.zero_grad()
    if arm == "constant":
        (answers.losses(model, batch).sum() / (answers.BATCH * 40.0)).backward()
    else:
        loop_over(model, batch, answers.groups(lengths, arm))
    torch.testing.assert_close(found, model.head.weight.grad, rtol=1e-5, atol=1e-8)


def test_micro_batches_of_answers() -> None:
    """Every pair is in one; blocks are full; buckets hold neighbours in length."""
    lengths = np.random.default_rng(0).integers(1, answers.LONGEST + 2, answers.BATCH)
    for arm in answers.ARMS[1:]:
        parts = answers.groups(lengths, arm)
        assert sorted(i for part in parts for i in part) == list(range(answers.BATCH))
    blocks = [lengths[part] + answers.PROMPT for part in answers.groups(lengths, "packed")]
    assert all(block.sum() <= answers.BLOCK for block in blocks)
    assert all(a.sum() + b[0] > answers.BLOCK for a, b in itertools.pairwise(blocks))
    buckets = [lengths[part] for part in answers.groups(lengths, "bucketed")]
    assert all(a.max() <= b.min() for a, b in itertools.pairwise(buckets))


def test_what_a_tilt_makes_of_lengths() -> None:
    """By hand: lengths 1 and 3, as likely; weights 1/n teach the shorter three times of four."""
    found = answers.learnt(np.array([1, 3]), np.array([1.0, 1 / 3]))
    assert found["ratio"] == pytest.approx(1.5 / 2)
    assert found["calibration"] == pytest.approx(
        0.75 + 0.5
    )  # 3/4 at the first position, 1 at the third, half reach it
    assert found["cost"] == pytest.approx((math.log(2 / 3) + math.log(3) / 2) / math.log(2) / 2)


def test_the_record_of_answers_is_whole() -> None:
    """Every arm has the same seeds at the rate with its lowest own loss, and the settings are the script's."""
    record = json.loads((FOLDER / "answers.json").read_text())
    assert {k: v for k, v in record["settings"].items() if k in asdict(answers.SETTINGS)} == json.loads(
        json.dumps(asdict(answers.SETTINGS))
    )
    assert set(record["versions"]) == {"python", "torch", "numpy"} and record["date"]
    seeds = {arm: [r["seed"] for r in record["runs"] if r["arm"] == arm] for arm in answers.ARMS}
    assert all(found == list(range(len(found))) == seeds["constant"] for found in seeds.values())
    assert len(record["tuning"]) == len(answers.ARMS) * len(answers.SETTINGS.rates)
    for arm, rate in record["rates"].items():
        assert rate == run.chosen(record["tuning"], arm, answers.SETTINGS)
        assert all(run["rate"] == rate for run in record["runs"] if run["arm"] == arm)
