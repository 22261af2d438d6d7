"""What chapter 11 says of the speeches, against the stored runs: paired by seed, with Student's intervals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

FOLDER = Path(__file__).parents[2] / "experiments" / "shakespeare"
RECORD: dict[str, Any] = json.loads((FOLDER / "result.json").read_text(encoding="utf-8"))
THEORY: dict[str, Any] = json.loads((FOLDER / "prediction.json").read_text(encoding="utf-8"))


def by_seed(arm: str, key: str, part: str = "runs") -> NDArray[np.float64]:
    """One number for each seed, in the order of the seeds; a list counts with its sum."""
    return np.array([np.sum(run[key]) for run in RECORD[part] if run["arm"] == arm])


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """The 95 % interval of the mean."""
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


@pytest.mark.claim(
    "11",
    "With one speech to a denominator the transformer writes speeches of about a third of the length, as the lengths "
    "alone foretold.",
)
def test_a_third_of_the_length() -> None:
    """The paired ratio's interval holds the predicted one and excludes a half; each seed is below a half, too."""
    ratio = by_seed("B=1", "mean_length") / by_seed("constant", "mean_length")
    predicted = THEORY["arms"]["B=1"]["mean_length"] / THEORY["mean_length"]
    low, high = interval(ratio)
    assert low < predicted < high < 0.5 and ratio.max() < 0.5
    assert abs(ratio.mean() - 1 / 3) < 0.05


@pytest.mark.claim("11", "Buckets of similar length do nearly the same to micro-batches of 16.")
def test_buckets() -> None:
    """Bucketed is far from unsorted micro-batches of 16 in each seed, and close to one speech at a time."""
    bucketed, one, sixteen = (by_seed(arm, "mean_length") for arm in ("bucketed", "B=1", "B=16"))
    assert interval(bucketed - sixteen)[1] < -40 and (bucketed < 0.5 * sixteen).all()
    low, high = interval(bucketed - one)
    assert low < 0 < high or abs((bucketed - one).mean()) < 0.15 * one.mean()


@pytest.mark.claim(
    "11",
    "With 64 or 128 speeches to a denominator there is nothing to see, and blocks of one length leave the lengths as "
    "they are.",
)
def test_nothing_to_be_seen() -> None:
    """No interval of the paired difference to the constant arm excludes zero; that of 16 speeches does."""
    for arm, key in (
        ("B=64", "mean_length"),
        ("B=64", "nll_per_speech"),
        ("B=128", "mean_length"),
        ("B=128", "nll_per_speech"),
        ("blocks", "mean_length"),
    ):
        low, high = interval(by_seed(arm, key) - by_seed("constant", key))
        assert low < 0 < high, (arm, key)
    assert interval(by_seed("B=16", "mean_length") - by_seed("constant", "mean_length"))[1] < 0


@pytest.mark.claim("11", "Every run is far below the trigram, in one pass over the data")
def test_below_the_trigram() -> None:
    """The worst single run of any arm, seed and length, against trigrams on the same split."""
    trigram = THEORY["ngrams"]["constant"][2]
    assert max(run["nll_per_speech"] for run in RECORD["runs"] + RECORD["long"]) < 0.9 * trigram
    assert RECORD["settings"]["epochs"] == 1


@pytest.mark.claim(
    "11",
    "With four passes the constant arm is below the 5-gram too; micro-batches of one are not, and the lengths stay as "
    "far apart.",
)
def test_four_passes() -> None:
    """By intervals over the seeds that were trained for so long, and each of them."""
    five = THEORY["ngrams"]["constant"][4]
    constant, one = (by_seed(arm, "nll_per_speech", "long") for arm in ("constant", "B=1"))
    assert len(constant) >= 4 and (constant < five).all() and (one > five).all()
    assert interval(constant)[1] < five < interval(one)[0]
    ratio = by_seed("B=1", "mean_length", "long") / by_seed("constant", "mean_length", "long")
    assert interval(ratio)[1] < 0.5


@pytest.mark.claim(
    "11",
    "The runs that were repeated from scratch, in another folder, gave the same numbers to the last digit.",
)
def test_the_repeated_runs() -> None:
    """By the record: every number of the compared runs but their time, learning curves included."""
    assert RECORD["repeated"]["runs"] >= 8 and RECORD["repeated"]["largest_difference"] == 0


@pytest.mark.claim(
    "11",
    "Three more passes are worth about twelve nats to each arm, and the gap between them does not close.",
)
def test_three_more_passes() -> None:
    """Paired by seed; the gap after four passes is at least what it was after one."""
    seeds = sorted({run["seed"] for run in RECORD["long"]})
    gaps = []
    for part in ("runs", "long"):
        one, constant = (by_seed(arm, "nll_per_speech", part)[: len(seeds)] for arm in ("B=1", "constant"))
        gaps.append(one - constant)
    for arm in ("B=1", "constant"):
        gain = by_seed(arm, "nll_per_speech")[: len(seeds)] - by_seed(arm, "nll_per_speech", "long")
        low, high = interval(gain)
        assert 9 < low < 12 < high < 15
    assert seeds == list(range(len(seeds))) and gaps[1].mean() > gaps[0].mean()


@pytest.mark.claim("11", "For the end of a speech the models pay about what theory asks.")
def test_the_end_costs_what_the_tilt_costs() -> None:
    """For the three arms whose tilt costs anything: the interval lies within half and twice of it."""
    for arm in ("B=1", "bucketed", "B=4"):
        low, high = interval(by_seed(arm, "end_nll") - by_seed("constant", "end_nll"))
        cost = THEORY["arms"][arm]["cost"]
        assert 0.5 * cost < low and high < 2 * cost, arm


@pytest.mark.claim("11", "the two seeds that pay most have the lowest loss on blocks")
def test_the_blocks_that_pay_most() -> None:
    """By rank over the six seeds: the spelling's cost, and the best validation loss of the arm's own kind."""
    paid = by_seed("blocks", "character_nll") - by_seed("constant", "character_nll")
    own = [min(look["own"] for look in run["curve"]) for run in RECORD["runs"] if run["arm"] == "blocks"]
    assert set(np.argsort(paid)[-2:]) == set(np.argsort(own)[:2])


@pytest.mark.claim("11", "After the second pass the long runs gain hardly anything")
def test_where_the_long_runs_stop() -> None:
    """Of every long run, by validation: the last two passes bring under a nat, the one before them five and more."""
    for run in RECORD["long"]:
        nats = [look["nll_per_speech"] for look in run["curve"]]
        assert len(nats) == 8 and abs(nats[7] - nats[3]) < 1 and nats[1] - nats[3] > 4


@pytest.mark.claim("11", "The larger part is in the spelling, and no theorem about minima predicts it.")
def test_the_spelling_costs_more() -> None:
    """The paired interval of the characters' part lies above the whole cost of the tilt, for buckets too."""
    for arm in ("B=1", "bucketed"):
        low, _ = interval(by_seed(arm, "character_nll") - by_seed("constant", "character_nll"))
        assert low > 3 * THEORY["arms"][arm]["cost"]


@pytest.mark.claim("11", "They pay nearly twice as much.")
def test_the_controls_pay_more() -> None:
    """Paired by seed: the controls' cost of the characters is above their arms', by a factor of 1.4 to 2."""
    for control, arm in (("46 of 128", "B=1"), ("91 of 128", "B=4")):
        paid = by_seed(control, "character_nll", "controls")
        constant, weighted = (by_seed(a, "character_nll")[: len(paid)] for a in ("constant", arm))
        assert len(paid) >= 3 and interval(paid - weighted)[0] > 0
        assert 1.4 < (paid - constant).mean() / (weighted - constant).mean() < 2, control


@pytest.mark.claim("11", "Weighted counts of 5-grams lose something to this too.")
def test_weighted_counts_lose() -> None:
    """Orders two to five, not only the printed one. At order six the comparison turns: sparse counts are smoothed."""
    one, constant = (np.array(THEORY["ngrams"][arm]) for arm in ("B=1", "constant"))
    assert ((one - constant)[1:5] > THEORY["arms"]["B=1"]["cost"]).all()


@pytest.mark.claim("11", "The models raise the odds by much the same at every position.")
def test_the_odds_rise_alike() -> None:
    """Theory falls by two from the first bin to the last; the measured rise falls by less than half of that."""
    rise = [
        np.array(one["log_odds"][0][:8], float) - np.array(constant["log_odds"][0][:8], float)
        for one in RECORD["runs"]
        for constant in RECORD["runs"]
        if one["arm"] == "B=1" and constant["arm"] == "constant" and one["seed"] == constant["seed"]
    ]
    predicted = np.array(THEORY["arms"]["B=1"]["shift"])
    spread = np.mean(rise, axis=0)
    assert predicted[0] - predicted[7] > 2
    assert spread[2:].max() - spread[2:].min() < 0.5 and np.ptp(spread) < 1
    low, _ = interval(np.array([r[7] for r in rise]))
    assert low > 3 * predicted[7]


@pytest.mark.claim(
    "11", "with a constant denominator the models write more very short speeches than they should"
)
def test_too_many_short_speeches() -> None:
    """The share below 8 characters, over the seeds, against the predicted one."""
    share = np.array([run["histogram"][0] for run in RECORD["runs"] if run["arm"] == "constant"])
    assert interval(share)[0] > 1.5 * THEORY["arms"]["constant"]["histogram"][0]


@pytest.mark.claim("11", "All seven of these intervals hold the prediction.")
def test_the_predictions_hold() -> None:
    """Arm by arm, none left out; and the intervals of the arms that differ most do not overlap."""
    mean = THEORY["mean_length"]
    for arm, expected in THEORY["arms"].items():
        if arm != "constant":
            low, high = interval(by_seed(arm, "mean_length") / by_seed("constant", "mean_length"))
            assert low < expected["mean_length"] / mean < high, arm
    edges = [interval(by_seed(arm, "mean_length")) for arm in ("B=1", "B=4", "B=16")]
    assert edges[0][1] < edges[1][0] and edges[1][1] < edges[2][0]


@pytest.mark.claim("11", "all arms write a little too much, the proper one included")
def test_all_arms_write_too_much() -> None:
    """Each mean lies above its prediction, by less than a tenth; the interval of the proper arm excludes its own."""
    for arm, expected in THEORY["arms"].items():
        assert 1 < by_seed(arm, "mean_length").mean() / expected["mean_length"] < 1.1, arm
    assert interval(by_seed("constant", "mean_length"))[0] > THEORY["mean_length"]


@pytest.mark.claim("10", "The loss of a test speech rises by several nats, more than the tilt alone costs")
def test_the_loss_rises() -> None:
    """The paired interval, for one speech to a denominator and for buckets."""
    for arm in ("B=1", "bucketed"):
        low, _ = interval(by_seed(arm, "nll_per_speech") - by_seed("constant", "nll_per_speech"))
        assert low > 3 > THEORY["arms"][arm]["cost"]
