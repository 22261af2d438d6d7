"""The denominator experiment on speeches: its arms are what they claim to be, its record is whole."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).parents[2] / "experiments" / "shakespeare"


@pytest.fixture(scope="module")
def run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shakespeare_run", FOLDER / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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
def test_the_weights_are_a_loop_over_micro_batches(run: ModuleType, speeches: list[Any], arm: str) -> None:
    torch.manual_seed(0)
    model = run.Transformer(5, run.Settings(layers=1, width=8)).double()
    batch = speeches[:128]
    lengths = np.array([len(s) for s in batch])
    run.backward(model, batch, run.weights(lengths, arm, 7.5))
    emulated = gradient(model)

    if arm == "constant":
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
            logits, targets.flatten(), reduction="sum" if arm == "constant" else "mean"
        )
        (loss / (128 * 7.5 if arm == "constant" else len(micro_batches))).backward()
    # The same sums in another order: a few hundred roundings of float64.
    torch.testing.assert_close(emulated, gradient(model), rtol=1e-10, atol=1e-14)


def test_the_cache_draws_from_the_same_law(run: ModuleType, speeches: list[Any]) -> None:
    torch.manual_seed(1)
    model = run.Transformer(5, run.Settings(layers=2, width=8)).double()
    tokens = torch.cat([speech[:-1] for speech in speeches])[None, :12]
    whole, _ = model(tokens)
    past = None
    for i in range(12):
        step, past = model(tokens[:, i : i + 1], past, i)
        torch.testing.assert_close(step[:, 0], whole[:, i], rtol=1e-12, atol=1e-13)


def test_another_text_is_refused(run: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "input.txt"
    path.write_text("First Citizen:\nSpeak, speak.\n")
    with pytest.raises(ValueError, match="another text: its SHA-256 is"):
        run.load(path)


def test_a_stopped_experiment_goes_on(
    run: ModuleType, speeches: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "HERE", tmp_path)
    settings = run.Settings(layers=1, width=8, epochs=1, samples=20)
    model = run.train(speeches, 5, "B=4", 0, settings)
    row = run.evaluate(model, speeches[:20], 0, settings)
    assert not run.done("B=4", 0, settings)
    run.store({"arm": "B=4", "seed": 0, **row}, settings)
    run.store({"arm": "constant", "seed": 0, **row}, settings)
    assert run.done("B=4", 0, settings) and not run.done("B=4", 1, settings)
    stored = json.loads((tmp_path / "result.json").read_text())
    assert [r["arm"] for r in stored["runs"]] == ["constant", "B=4"]
    with pytest.raises(ValueError, match="other settings"):
        run.done("B=4", 0, replace(settings, width=16))


def test_the_prediction_follows_from_the_lengths(run: ModuleType) -> None:
    committed = json.loads((FOLDER / "prediction.json").read_text())
    again = run.predict(np.repeat(committed["lengths"], committed["counts"]))
    for arm, values in again["arms"].items():
        for key, value in values.items():
            assert committed["arms"][arm][key] == pytest.approx(value, rel=1e-9, abs=0)
    assert committed["arms"]["constant"]["mean_length"] == pytest.approx(committed["mean_length"])
    # B = 1 by hand: the harmonic mean.
    harmonic = sum(committed["counts"]) / np.sum(np.divide(committed["counts"], committed["lengths"]))
    assert committed["arms"]["B=1"]["mean_length"] == pytest.approx(harmonic)


def test_the_record_is_whole(run: ModuleType) -> None:
    result = json.loads((FOLDER / "result.json").read_text())
    assert result["settings"] == asdict(run.Settings())
    seeds = {r["seed"] for r in result["runs"]}
    assert len(seeds) >= 5
    assert {(r["arm"], r["seed"]) for r in result["runs"]} == {(a, s) for a in run.ARMS for s in seeds}
    assert len(result["runs"]) == len(seeds) * len(run.ARMS)


@pytest.mark.parametrize("page", ["README.md", "index.md"])
def test_the_front_pages_quote_the_record(page: str) -> None:
    runs = json.loads((FOLDER / "result.json").read_text())["runs"]
    one, constant = (
        np.mean([r["mean_length"] for r in runs if r["arm"] == arm]) for arm in ("B=1", "constant")
    )
    text = " ".join((FOLDER.parents[1] / page).read_text(encoding="utf-8").split())
    assert (
        f"writes speeches of {one:.0f} characters, and of {constant:.0f} with a constant denominator" in text
    )
    loss = {
        arm: np.mean([r["nll_per_token"] for r in runs if r["arm"] == arm]) for arm in ("B=1", "constant")
    }
    assert abs(loss["B=1"] / loss["constant"] - 1) < 0.01
