"""The claims of chapter 11 about real trainers, against the stored runs of `experiments/trainers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from adversary import refuted

FOLDER = Path(__file__).parents[2] / "experiments" / "trainers"
RESULT: dict[str, Any] = json.loads((FOLDER / "result.json").read_text())
ROWS: list[dict[str, Any]] = RESULT["rows"]
ON_POLICY = [row for row in RESULT["on_policy"] if row["recipe"].startswith("GKD")]
STEPS = 4
ROUNDING = 1e-6  # gradients in float32, compared with float64

# The group of each recipe, by how its name begins; the longest beginning counts.
GROUPS = {
    "Trainer, Llama": "right",
    "Trainer, Llama, 2 ranks, average_tokens_across_devices=False": "means",
    "TRL SFTTrainer, Llama": "right",
    "Trainer, GPT-2": "shift",
    "TRL SFTTrainer, GPT-2": "shift",
    "Accelerate, its example for causal models": "shift",
    "Trainer, T5": "K times",
    "Trainer, BERT-MLM": "K times",
    "Trainer, subclass with a mean": "K times",
    "Trainer, compute_loss_func with a mean": "K times",
    "Trainer, the same, forward without **kwargs": "means",
    "Trainer, the same, loss_is_scaled_for_ga = False": "means",
    **dict.fromkeys(
        ("Accelerate, acc", "Lightning", "litgpt", "nano", "DistributedDataParallel", "FSDP2"), "means"
    ),
}


def expected(recipe: str) -> str:
    return GROUPS[max((name for name in GROUPS if recipe.startswith(name)), key=len)]


def told(cause: str) -> str:
    """The group that `check_accumulation` names."""
    for words, group in (
        ("none: ", "right"),
        (f"K = {STEPS} times", "K times"),
        ("before the shift", "shift"),
    ):
        if words in cause:
            return group
    return "means" if cause.startswith("a mean of means") else cause


@pytest.mark.claim(
    "11",
    "The lines fall into four groups, and `check_accumulation` tells them apart, given the targets that count and a "
    "reference.",
)
@pytest.mark.claim(
    "11", "An error near 3 is a gradient four times that of a mean of means, for K\u00a0=\u00a04 steps."
)
@pytest.mark.claim(
    "11",
    "GPT-2's `loss_type` is None, so the Trainer counts one label too many for each sequence whose first label is not "
    "masked.",
)
@pytest.mark.claim("11", "nanoGPT, exact for its blocks of one length, a mean of means if labels are masked;")
@pytest.mark.claim("11", "DistributedDataParallel and FSDP2 divide by the number of ranks.")
@pytest.mark.claim("11", "divide a short window by the steps that it should have had.")
@pytest.mark.claim(
    "11", "so does a subclass whose `compute_loss` returns a mean, if the model's `forward` takes"
)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["recipe"])
def test_the_group_of_a_trainer(row: dict[str, Any]) -> None:
    """Cause and error on five sets of data; with equal counts a mean of means is right, and the other faults stay.

    Would be refuted by a trainer whose error, cause or error at equal counts is that of another group. That an error
    near 3 is the right gradient times four, as the page once said, is refuted by each of them at ragged counts.
    """
    group = expected(row["recipe"])
    says(row, group)
    for other in {"right", "means", "K times", "shift"} - {group}:
        with refuted(other):
            says(row, other)


def says(row: dict[str, Any], group: str) -> None:
    equal = row["error_equal_counts"]
    assert told(row["check"]["cause"]) == group
    assert row["check"]["ok"] == (group == "right")
    assert len(row["error"]) == 5
    if group == "right":
        assert max(*row["error"], equal) < ROUNDING
    elif group == "K times":
        assert equal == pytest.approx(STEPS - 1, abs=ROUNDING)
        assert row["check"]["cause"].startswith("a mean of means")
        assert all(2 < error < 5 for error in row["error"])
        with refuted("a factor of four, and the right direction"):
            assert row["error"] == pytest.approx([STEPS - 1] * 5, abs=0.01)
    elif group == "shift":  # one label in 24 at equal counts: they count each sequence's first
        assert equal == pytest.approx(1 / 24, abs=ROUNDING)
        assert all(0.01 < error < 0.2 for error in row["error"])
    elif "half full" in row["recipe"]:  # divided by twice its steps
        assert equal == pytest.approx(0.5, abs=ROUNDING)
        assert all(0.5 < error < 0.75 for error in row["error"])
    else:
        assert equal < ROUNDING
        assert all(0.01 < error < 1 for error in row["error"])


@pytest.mark.claim("11", "Then it applies a repair and measures again.")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["recipe"])
def test_a_repair_repairs(row: dict[str, Any]) -> None:
    """On all five sets of data. Would be refuted by an error above rounding after a repair."""

    def mended(errors: list[float], check: dict[str, Any]) -> None:
        assert len(errors) == 5 and max(errors) < ROUNDING
        assert check["ok"] and told(check["cause"]) == "right"

    mended(row["error_repaired"], row["check_repaired"])
    if row["repair"] != "none needed":
        with refuted("the step as it comes"):
            mended(row["error"], row["check"])
    assert (row["repair"] == "none needed") == (expected(row["recipe"]) == "right")


@pytest.mark.claim(
    "11", "`check_trainer` gives the same verdict on each trainer that is handed over unchanged."
)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["recipe"])
def test_a_trainer_that_is_handed_over(row: dict[str, Any]) -> None:
    """As it comes and repaired; the Trainer, SFTTrainer and Lightning are trainers, and no other row is one.

    Would be refuted by a trainer of which the two checks say different things, or which is refused; one is, repaired:
    its training step takes a whole window.
    """
    said, mended = row["check_trainer"], row["check_trainer_repaired"]
    trainer = row["recipe"].startswith(("Trainer", "TRL", "Lightning"))
    assert (said is not None) is (mended is not None) is trainer
    if not trainer:
        return

    def same(handed: dict[str, Any], by_hand: dict[str, Any]) -> None:
        assert handed == by_hand

    same(said, row["check"])
    if row["recipe"] == "Lightning, manual":
        assert "check_accumulation takes any step" in mended["refused"]
    else:
        same(mended, row["check_repaired"])
    if not said["ok"]:
        with refuted("of the repaired one"):
            same(said, row["check_repaired"])


@pytest.mark.claim(
    "11",
    "The gradient on the student's texts is multiplied by the ratio of their tokens to the loader's, and halved on two "
    "ranks.",
)
@pytest.mark.claim(
    "11", "`check_trainer` finds the first divisor, keeping one reply for each prompt while it compares."
)
@pytest.mark.parametrize("row", ON_POLICY, ids=lambda row: f"{row['recipe']}, {row['ranks']}")
def test_the_two_divisors_of_gkd(row: dict[str, Any]) -> None:
    """Three sets of data, on one rank and on two, on the loader's texts and on the student's.

    Would be refuted by a gradient whose length does not follow from the two counts and the ranks, or by another
    direction. Said of the optimiser's step, as it was, it is refuted by Adam's.
    """
    repaired, written = "repaired" in row["recipe"], "student" in row["recipe"]
    assert len(row["runs"]) == 3
    for run in row["runs"]:
        given, trained = run["labels_given"], run["labels_trained"]
        assert (given == trained) is not written

        def divides_by(count: float, run: dict[str, Any] = run, trained: int = trained) -> None:
            assert run["factor"] == pytest.approx(trained / count, rel=1e-6)
            assert run["error"] == pytest.approx(
                abs(trained / count - 1), abs=1e-6
            )  # nothing beside a factor

        if repaired:
            divides_by(trained)
            continue
        divides_by(given * row["ranks"])
        for other in {trained, given, given * 2} - {given * row["ranks"]}:
            with refuted(f"divided by {other}"):
                divides_by(other)
    if row["ranks"] == 2 and not repaired:
        halves = row["runs"][0]["factor"] * row["runs"][0]["labels_given"] / row["runs"][0]["labels_trained"]

        def halved(optimiser: type[torch.optim.Optimizer]) -> None:
            """The step that the scaled gradient makes, over the step that it should have made."""
            moved = []
            for factor in (1.0, halves):
                weight = torch.zeros(5, dtype=torch.float64, requires_grad=True)
                weight.grad = factor * torch.arange(1.0, 6.0, dtype=torch.float64)
                optimiser([weight], lr=0.1).step()  # type: ignore[call-arg]
                moved.append(float(weight.detach().norm()))
            assert moved[1] / moved[0] == pytest.approx(0.5, rel=1e-6)

        halved(torch.optim.SGD)
        with refuted("the step of AdamW, the Trainer's default"):
            halved(torch.optim.AdamW)
    if row["ranks"] == 1:
        said = row["check_trainer"]
        assert said["ok"] is (repaired or not written)
        assert said["ok"] or "labels of the loader's batch, before the reply was generated" in said["cause"]
