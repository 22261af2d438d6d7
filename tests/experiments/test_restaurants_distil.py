"""Distilling on restaurants: losses along texts, what a seed owns, the search, stops, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from experiments.restaurants import distil
from experiments.restaurants.data import Data, Pair
from experiments.restaurants.distil import ARMS, Job, Owned, Runs
from experiments.restaurants.model import Describer, along, log_probs, log_q
from experiments.shared import records

KIND, FOOD = ("pub", "restaurant", ""), ("French", "Indian", "Chinese", "")
AREA = ("riverside", "city centre", "")
MEANINGS = [("NAME", kind, food, "", "", area, "", "") for kind in KIND for food in FOOD for area in AREA]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer steps, a smaller teacher, two rates."""
    small = {"steps": 24, "rate": 0.032}
    arms = {n: a._replace(**small, size=(16, 1) if n == "teacher" else a.size) for n, a in ARMS.items()}
    constants = {"ARMS": arms, "LOOK": 4, "TESTED": 6, "TOP": 3, "RATES": (0.008, 0.032)}
    for name, value in constants.items():
        monkeypatch.setattr(distil, name, value)


@pytest.fixture
def data() -> Data:
    g = np.random.default_rng(0)

    def answers(meanings: list[Any], number: int) -> list[Pair]:
        lengths = g.integers(1, 9, (len(meanings), number))
        asked = zip(meanings, lengths, strict=True)
        return [Pair(m, (*g.integers(2, 10, n).tolist(), 0)) for m, row in asked for n in row]

    parts = answers(MEANINGS[:24], 3), answers(MEANINGS[24:30], 2), answers(MEANINGS[30:], 2)
    return Data(*parts, ["<eos>", "<unk>", *"abcdefgh"])


@pytest.fixture
def own(data: Data) -> Owned:
    torch.manual_seed(5)
    return Owned(data, 3, Describer(data, 16, 1))


def student(data: Data) -> Describer:
    torch.manual_seed(1)
    return Describer(data, *ARMS["labels"].size)


def test_rows_are_those_of_the_texts(data: Data) -> None:
    """Position by position, text after text, whatever their lengths, as the padded rows of the first experiment."""
    model, pairs = student(data).eval(), data.train[:20]
    padded, targets = log_probs(model, pairs)
    due = torch.cat([row[: len(p.reply)] for row, p in zip(padded, pairs, strict=True)])
    logits, words = along(model, pairs)
    torch.testing.assert_close(logits.log_softmax(1), due)
    torch.testing.assert_close(log_q(model, pairs), due.detach())
    assert words.tolist() == [w for p in pairs for w in p.reply] == targets[targets >= 0].tolist()


def test_soft_losses() -> None:
    g = torch.Generator().manual_seed(0)
    z, v = (torch.randn(50, 10, generator=g, dtype=torch.float64) for _ in range(2))
    y, p, q = torch.randint(10, (50,), generator=g), v.softmax(1), z.softmax(1)
    top = [row.argsort(descending=True)[:3] for row in p]
    kept = [(torch.stack([r[t] for r, t in zip(x, top, strict=True)])) for x in (p, q)]
    both = [torch.cat([x, 1 - x.sum(1, keepdim=True)], 1) for x in kept]
    share = kept[0] / kept[0].sum(1, keepdim=True)
    cool, mild = (v / 2).softmax(1), (z / 2).softmax(1)
    due = {
        "forward": (p * (p / q).log()).sum(1),
        "tail": (both[0] * (both[0] / both[1]).log()).sum(1),
        "kept": (share * (share / kept[1]).log()).sum(1),
        "T = 2": 4 * (cool * (cool / mild).log()).sum(1),
        "reverse": (q * (q / p).log()).sum(1),
        "jsd": ((p * (2 * p / (p + q)).log()).sum(1) + (q * (2 * q / (p + q)).log()).sum(1)) / 2,
        "labels": -q.log().gather(1, y[:, None])[:, 0],
    }
    for loss, rows in due.items():
        arm = distil.ARMS.get(loss, distil.Arm("one", loss))
        found = distil.soft_loss(arm, z, None if loss == "labels" else v.log_softmax(1), y)
        torch.testing.assert_close(found, rows.mean())


def test_draws_are_of_the_teacher_and_stay_the_same() -> None:
    log_p = torch.randn(2000, 5, generator=torch.Generator().manual_seed(1)).log_softmax(1)
    shares = distil.drawn(log_p, 3).exp()
    for seed, equal in ((3, True), (4, False)):
        assert torch.equal(shares, distil.drawn(log_p, seed).exp()) is equal
    torch.testing.assert_close(shares.sum(1), torch.ones(2000))
    assert torch.equal(shares * distil.DRAWS, (shares * distil.DRAWS).round())
    p = log_p.exp()
    torch.testing.assert_close((shares * p).mean(0), p.square().mean(0), rtol=0, atol=0.006)


def test_what_an_arm_reads(data: Data, own: Owned) -> None:
    """The teacher's texts and what it says of them; shares are nested, and no answer of another meaning leaks."""
    few, part = own.meanings(0.25), own.meanings(0.5)
    assert part[: len(few)] == few and len(few) == 6 and len(part) == 12
    assert sorted(own.labelled(0.25)) == sorted(p for p in data.train if p.meaning in few)
    for name in ("distributions", "texts", "top 8"):
        pool, validation = own.pool(ARMS[name], 0.25)
        assert [p.meaning for p in pool.pairs] == own.order
        assert {p.meaning for p in validation.pairs} == {p.meaning for p in data.validation}
        for some in (pool, validation) if name != "texts" else ():
            torch.testing.assert_close(some.log_p, log_q(own.teacher, some.pairs))
    same, four = own.pool(ARMS["texts, same"], 0.25)[0], own.pool(ARMS["texts x4"], 0.25)[0]
    assert [p.meaning for p in same.pairs] == few * 4 and [p.meaning for p in four.pairs] == own.order * 4
    assert set(same.pairs) <= set(four.pairs) and len(set(four.pairs)) > len(own.order)
    human = own.pool(ARMS["human text"], 0.25)[0]
    assert human.pairs == own.labelled(0.25) and human.log_p is not None
    other = Owned(data, 4, own.teacher)
    assert other.order != own.order and other.written[0] != own.written[0]


@pytest.mark.parametrize("name", ["on-policy reverse", "fresh texts"])
def test_who_writes_what_the_teacher_scores(
    data: Data, own: Owned, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step along texts of the student, or of the teacher, written anew every eight steps."""
    assert len(own.written) == distil.TEXTS + 1
    soft_loss = mock.Mock(wraps=distil.soft_loss)
    monkeypatch.setattr(distil, "soft_loss", soft_loss)
    monkeypatch.setattr(distil, "LOOK", 1000)
    written: list[list[Pair]] = []
    texts = distil.texts_of

    def kept(model: Describer, meanings: Any, seed: int) -> list[Pair]:
        assert (model is own.teacher) == (name == "fresh texts")
        written.append(texts(model, meanings, seed))
        return written[-1]

    monkeypatch.setattr(distil, "texts_of", kept)
    row = fitted(data, own, name, 1.0, steps=17)[1]
    looks = [6] * (name != "fresh texts")
    assert [len(pairs) for pairs in written] == [256] * 3 + looks and written[0] != written[1]
    assert {p.meaning for p in written[0]} == set(own.order)  # labelled or not
    assert row["scored"] == sum(len(p.reply) for pairs in written[:3] for p in pairs)
    for k, ((_, _, said, words), _) in enumerate(soft_loss.call_args_list[:17]):
        pairs = written[k // 8][32 * (k % 8) :][:32]
        assert words.tolist() == [w for p in pairs for w in p.reply]
        torch.testing.assert_close(said, log_q(own.teacher, pairs))


def test_batches_are_epochs() -> None:
    batches = distil.cycle(7, 3, np.random.default_rng(0))
    drawn = [i for _ in range(7) for i in next(batches)]
    assert all(sorted(drawn[k : k + 7]) == list(range(7)) for k in (0, 7, 14))
    assert len(next(distil.cycle(2, 5, np.random.default_rng(0)))) == 5


@pytest.mark.parametrize("best", range(6))
def test_the_search_ends_where_both_neighbours_are_worse(best: int) -> None:
    grid, asked = [10.0 * i for i in range(6)], []

    def value(x: float) -> float:
        asked.append(x)
        return abs(x - grid[best])

    assert distil.climb(grid, 20.0, value) == grid[best]
    assert {grid[j] for j in (best - 1, best, best + 1) if 0 <= j < 6} <= set(asked)
    assert distil.climb(grid, 20.0, lambda x: 1.0) == 20.0


def fitted(
    data: Data, own: Owned, name: str, alpha: float, **options: Any
) -> tuple[Describer, dict[str, Any]]:
    options = {"steps": 24, "patience": 1000, **options}
    return distil.fit(student(data), ARMS[name], Job(0.01, 0.1, alpha), own, 0.25, **options)


@pytest.mark.parametrize("name", [n for n in ARMS if n != "labels + validation"])
def test_a_run_repeats_and_keeps_its_best_look(data: Data, own: Owned, name: str) -> None:
    alpha = 0.5 if ARMS[name].texts else 0.0
    (one, row), (two, again) = (fitted(data, own, name, alpha) for _ in range(2))
    assert row | {"seconds": 0} == again | {"seconds": 0}
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert len(row["curve"]) == 6 and row["best_step"] == 4 * (1 + int(np.argmin(row["curve"])))
    validation = own.pool(ARMS[name], 0.25)[1] if alpha else distil.Pool([])
    value, nats = distil.objective(one, ARMS[name], alpha, own, validation)
    assert abs(value - row["own"]) < 1e-6 and abs(nats - row["validation"]) < 1e-6
    arm = ARMS[name]
    assert (row["scored"] > 0) == (arm.texts in distil.WRITES and arm.loss != "labels")
    assert (row["written"] > 0) == (arm.texts == "fresh")


def test_the_best_look_is_kept(data: Data, own: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    due = fitted(data, own, "labels", 0.0, at=8)[0]
    looks = iter([3.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    monkeypatch.setattr(distil, "objective", lambda *_: (next(looks), 0.5))
    model, row = fitted(data, own, "labels", 0.0)
    assert (row["own"], row["validation"], row["best_step"], row["steps_run"]) == (1.0, 0.5, 8, 24)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), due.parameters(), strict=True))


def test_stops(data: Data, own: Owned) -> None:
    assert fitted(data, own, "labels", 0.0, patience=0)[1]["steps_run"] == 4
    row = fitted(data, own, "labels + validation", 0.0, patience=0, at=8)[1]
    assert row["best_step"] == row["steps_run"] == 8


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_labels_count_only_below_one(data: Data, own: Owned, alpha: float) -> None:
    """At alpha = 1 the answers of people change nothing, at alpha = 0 the teacher does not."""
    spoilt = [Pair(p.meaning, (2, 0)) for p in data.train]
    other = Owned(data._replace(train=spoilt), 3, own.teacher)
    other.written = (
        [[Pair(p.meaning, (3, 0)) for p in pairs] for pairs in own.written] if alpha == 0 else own.written
    )
    same = Owned(data, 3, own.teacher)
    same.written = other.written if alpha == 0 else own.written
    one = fitted(data, own, "texts", alpha)[0]
    two = fitted(data, same if alpha == 0 else other, "texts", alpha)[0]
    equal = all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert equal == (alpha in (0.0, 1.0))


def test_what_is_measured(data: Data) -> None:
    model = student(data).eval()
    own = Owned(data, 0, model)
    row = distil.evaluate(model, own)
    log = torch.cat([log_q(model, [p]) for p in data.test]).double()
    words = torch.tensor([w for p in data.test for w in p.reply])
    nats = -float(log.gather(1, words[:, None]).mean())
    assert abs(row["nats"] - nats) < 1e-5
    assert abs(row["ends"] - float(log[:, 0].exp().sum()) / len(data.test)) < 1e-5
    assert abs(row["gap"] - (nats + float((log.exp() * log).sum(1).mean()))) < 1e-5
    held = {t: distil.nats(log_q(model, own.validation), own.validation, t) for t in (0.9, 1, 1.1, 2)}
    best = distil.best_temperature(log_q(model, own.validation), own.validation)
    lowest = distil.nats(log_q(model, own.validation), own.validation, best)
    assert row["temperature"] == best and lowest <= min(held.values()) + 1e-5
    tempered = (log / best).log_softmax(1).gather(1, words[:, None]).mean()
    assert abs(row["tempered"] + float(tempered)) < 1e-5
    assert 0 < row["trigrams"] <= 1 and 0.25 <= row["distinct"] <= 1
    assert 0 <= row["missed"] <= 1 and row["slots"] > 0
    model.head.bias.data[0] = 1e3  # always ends: one text, nothing said
    row = distil.evaluate(model, own)
    assert row["distinct"] == 0.25 and row["length"] == 1 and row["missed"] == row["missed_half"] == 1


@pytest.mark.slow
def test_runs_are_made_once_and_kept(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [("teacher", 1.0)] + [(n, 0.05) for n in ("labels", "on-policy JSD", "labels + validation")]
    monkeypatch.setattr(distil, "RUNS", [(1, range(2), cells), (3, range(1), [("labels", 0.05)])])
    Runs(data, tmp_path / "a").work(range(2))
    made = records(tmp_path / "a")
    Runs(data, tmp_path / "a").work(range(2))
    assert records(tmp_path / "a") == made
    rows = [r for r in made if "nats" in r]
    assert len(rows) == 2 * 4 + 1 and [r["part"] for r in rows] == [1] * 8 + [3]
    assert {r["answers"] for r in rows if r["arm"] == "labels + validation"} == {3 + 6}
    assert all((r["scored"] > 0) == (r["arm"] == "on-policy JSD" and r["alpha"] > 0) for r in rows)
    Runs(data, tmp_path / "b").work(range(1))
    assert distil.compare(tmp_path / "a", tmp_path / "b")["largest_differences"]["nats"] == 0
    found = distil.paired(rows, "nats", "on-policy JSD", 0.05, {"arm": "labels", "share": 0.05})
    values = [
        [r["nats"] for r in rows if r["arm"] == n and r["part"] == 1] for n in ("on-policy JSD", "labels")
    ]
    assert found["seeds"] == 2 and abs(found["mean"] - np.subtract(*values).mean()) < 1e-12


def test_what_is_refused(data: Data, own: Owned) -> None:
    assert distil.check(data) is data
    twice = data._replace(test=[*data.test, data.train[0]])
    with pytest.raises(ValueError, match=r"test: \('NAME', .* a meaning of train too, expected in one part"):
        distil.check(twice)
    for empty in ((0,), ()):
        blank = data._replace(validation=[*data.validation, Pair(data.validation[0].meaning, empty)])
        with pytest.raises(ValueError, match=r"validation: .* \('NAME', .* is empty, expected at least one"):
            distil.check(blank)
    for share in (0.0, 1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match=rf"share: expected a number in \(0, 1\], got {share}"):
            own.labelled(share)
    with pytest.raises(ValueError, match=r"share: expected a part, .* prompts without answers, got 1\.0"):
        own.pool(ARMS["texts"], 1.0)
    state, words = own.teacher.state_dict(), data.words
    assert isinstance(distil.teacher_of(data, words, state), Describer)
    for other, named in (
        ([*words[:3], "z", *words[4:]], "'z' where the student has 'b'"),
        ([*words, "i"], "11 words for 10"),
    ):
        with pytest.raises(ValueError, match=f"teacher: another vocabulary.*{named}"):
            distil.teacher_of(data, other, state)
