"""The script of chapter 14's shares of labels: rows, models side by side, losses, and what a run minimises."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import special, stats

from adversary import rng
from experiments.language_models import shares

Array = np.ndarray
Tensor = torch.Tensor


@pytest.fixture(scope="module")
def data() -> Any:
    """Random speeches of five letters, one seed with an untrained teacher, and settings for runs of a second."""
    made, g = object.__new__(shares.Data), np.random.default_rng(0)
    made.settings = replace(
        shares.Settings(), teacher=shares.Size(12, 4, 16), student=shares.Size(8, 4, 8), batch=32, steps=200,
        patience=50, rates=(0.02,), samples=20,
    )  # fmt: skip
    counts = {"train": 60, "validation": 10, "test": 10}
    made.speeches = {
        part: [torch.tensor([*g.integers(1, 6, n), 0]) for n in g.integers(1, 40, count)]
        for part, count in counts.items()
    }
    made.letters, made.owned = 6, {}
    made.rows = {part: shares.rows_of(texts, 12) for part, texts in made.speeches.items()}
    made.first = np.cumsum([0, *map(len, made.speeches["train"])])
    for seed in (0, 1):
        teacher = shares.Stack([50 + seed], made.settings.teacher, 6)
        teacher.flat = 1.5 * teacher.flat.detach()
        said = {part: shares.predict(teacher, rows) for part, rows in made.rows.items()}
        written = {part: made.rows[part] for part in ("train", "validation")}
        made.owned[seed] = shares.Owned(teacher, said, written, g.permutation(60))
    return made


def students(data: Any, *seeds: int) -> Any:
    return shares.Stack([*seeds], data.settings.student, 6)


def test_a_row_for_each_token(data: Any) -> None:
    """A row's past is what the speech has before its token, <eos> where there is nothing; places never fall."""
    rows, speeches = data.rows["train"], [speech.tolist() for speech in data.speeches["train"]]
    pasts = [([0] * 12 + text)[n : n + 12] for text in speeches for n in range(len(text))]
    assert rows.before.tolist() == pasts and rows.token.tolist() == [t for text in speeches for t in text]
    places = shares.place_of(torch.arange(1000))
    assert places[:9].tolist() == list(range(9)) and (places.diff() >= 0).all()
    assert int(places[16]) == 11 and int(places.max()) == shares.PLACES - 1


def test_models_side_by_side_are_models(data: Any) -> None:
    """Logits written out in NumPy for one row; the gradient of one model's loss is zero in the other."""
    models, p, at = students(data, 3, 4), {}, 0
    rows = shares.joined([data.rows["test"].take(torch.arange(5))] * 2)
    logits, flat = models.logits(rows), models.flat[1].detach().double().numpy()
    for name, shape in models.shapes.items():
        p[name], at = flat[at : at + np.prod(shape)].reshape(shape), at + int(np.prod(shape))
    x = p["read"][rows.before[1, 3, -8:].numpy()].ravel()
    hidden = x @ p["in"] + p["place"][int(rows.place[1, 3])]
    expected = (hidden * stats.norm.cdf(hidden)) @ p["out"] + p["bias"][0]
    np.testing.assert_allclose(logits[1, 3].detach(), expected, atol=1e-5)
    (gradient,) = torch.autograd.grad(logits[1].square().sum(), models.flat)
    assert not gradient[0].any() and gradient[1].any()


def test_what_a_model_writes_is_its_own(data: Any) -> None:
    """Along a model's own draws a token's loss has its entropy as mean; along another model's it has not."""
    speeches = shares.write(data.owned[0].teacher, shares.draws([5], 500, 1))[0]
    assert all((s[:-1] != 0).all() and (s[-1] == 0 or len(s) == shares.LONGEST) for s in speeches)
    rows = shares.rows_of(speeches, 12)
    for seed in (0, 1):
        log_q = shares.predict(data.owned[seed].teacher, rows).double()
        surplus = -log_q.gather(1, rows.token[:, None])[:, 0] + (log_q.exp() * log_q).sum(1)
        assert (abs(float(surplus.mean()) / float(stats.sem(surplus))) < 4) == (seed == 0)


def test_the_soft_losses() -> None:
    """Each against its formula in NumPy, with temperatures, on random rows; top k is of four tokens and a bucket."""
    g = rng(1)
    z, v = torch.tensor(g.normal(size=(2, 2, 4, 6)) * np.array([1.0, 2.0])[:, None, None, None])
    log_p, y = v.log_softmax(-1), torch.tensor(g.integers(6, size=(2, 4)))

    def kl(p: Array, q: Array) -> Array:
        return np.asarray(special.rel_entr(p, q).sum(-1))

    p, q, cold = (special.softmax(x, -1) for x in (log_p.numpy(), z.numpy(), log_p.numpy() / 4))
    top, mine = (np.take_along_axis(x, np.argsort(-p), -1) for x in (p, q))
    bucket = [np.concatenate([x[..., :4], x[..., 4:].sum(-1, keepdims=True)], -1) for x in (top, mine)]
    for name, value in {
        "labels": -np.log(np.take_along_axis(q, y.numpy()[..., None], -1))[..., 0],
        "mixed, same text": kl(p, q),
        "T=4, half": 16 * kl(cold, special.softmax(z.numpy() / 4, -1)),
        "on-policy": (kl(p, (p + q) / 2) + kl(q, (p + q) / 2)) / 2,
        "top 4, all text": kl(bucket[0], bucket[1]),
    }.items():
        np.testing.assert_allclose(shares.soft_loss(shares.ARMS[name], z, log_p, y, 4), value, rtol=1e-6)


def test_shares_of_labels(data: Any) -> None:
    """A larger share holds a smaller one; all is all; no label at all is refused, and named."""
    rows = [set(data.labelled(0, share)) for share in (0.001, 0.05, 0.2, 1.0)]
    assert all(a < b for a, b in pairwise(rows)) and rows[-1] == set(range(len(data.rows["train"].token)))
    assert len(rows[0]) == len(data.speeches["train"][data.owned[0].order[0]])
    for share in (0.0, -0.1, 1.01, float("nan")):
        with pytest.raises(ValueError, match=r"share: expected a number in \(0, 1\]"):
            data.labelled(0, share)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["labels", "mixed, all text", "on-policy"])
def test_a_student_learns_alone(data: Any, name: str) -> None:
    """Beside another or alone, a job ends at the same student; one that has stopped is left where it was best."""
    alpha, arm = {"labels": 0.0, "on-policy": 1.0}.get(name, 0.5), shares.ARMS[name]
    jobs = [shares.Job(0, 0.02, 0.2, alpha), shares.Job(1, 0.05, 0.0, alpha)]

    def fitted(some: Any) -> Any:
        task = shares.Task.of(data, arm, 0.3, some)
        return shares.fit(task, some, students(data, *(job.seed for job in some)), 200, (25, 250, 125))

    both, records = fitted(jobs)
    for m, job in enumerate(jobs):
        alone, [record] = fitted([job])
        torch.testing.assert_close(alone.flat[0], both.flat[m], atol=1e-4, rtol=1e-3)
        assert record["best_step"] == records[m]["best_step"]
        assert min(record["curve"]) == pytest.approx(record["own"], abs=2e-5)
        found = shares.objective(shares.Task.of(data, arm, 0.3, [job]), job, alone, 0, 1.0)
        assert found == pytest.approx(record["own"], abs=1e-5)


def test_equal_gradients(data: Any) -> None:
    """With the measured factor the soft gradient is as large as the labels', on rows that it was not measured on."""
    arm, job, models = shares.ARMS["T=4, balanced"], shares.Job(0, 0.02, 0.0, 0.5), students(data, 7)
    factor = float(shares.factor_of(shares.Task.of(data, arm, 1.0, [job]), [job], models)[0])
    rows = data.rows["train"]
    z = models.logits(shares.Rows(*(column[None] for column in rows))).detach().requires_grad_()
    hard = F.cross_entropy(z[0], rows.token, reduction="sum")
    soft = factor * shares.soft_loss(arm, z, data.owned[0].said["train"][None], rows.token, 0).sum()
    sizes = [float(torch.autograd.grad(loss, z, retain_graph=True)[0].norm()) for loss in (hard, soft)]
    assert sizes[0] / sizes[1] == pytest.approx(1, rel=0.1) and abs(factor - 1) > 0.2


@pytest.mark.parametrize(
    ("name", "alpha"), [("on-policy", 1.0), ("mixed, all text", 0.5), ("mixed, same text", 0.5)]
)
def test_the_teacher_speaks_along_the_rows_of_the_step(
    data: Any, monkeypatch: pytest.MonkeyPatch, name: str, alpha: float
) -> None:
    """What is compared with the student's logits is the teacher's word on these rows: all of a batch, or half."""
    seen: list[Any] = []
    compared: list[int] = []
    logits, soft_loss = shares.Stack.logits, shares.soft_loss

    def kept(self: Any, rows: Any, dropout: Any = None) -> Any:
        seen.append(rows)
        return logits(self, rows, dropout)

    def checked(arm: Any, z: Any, log_p: Any, tokens: Any, top_k: int) -> Any:
        if z.requires_grad:
            rows = shares.Rows(*(column[0, -z.shape[1] :] for column in seen[-1]))
            said = shares.predict(data.owned[1].teacher, rows)
            torch.testing.assert_close(log_p[0], said, atol=1e-5, rtol=0)
            assert torch.equal(tokens[0], rows.token)
            compared.append(z.shape[1])
        return soft_loss(arm, z, log_p, tokens, top_k)

    monkeypatch.setattr(shares.Stack, "logits", kept)
    monkeypatch.setattr(shares, "soft_loss", checked)
    jobs = [shares.Job(1, 0.02, 0.0, alpha)]
    task = shares.Task.of(data, shares.ARMS[name], 0.3, jobs)
    shares.fit(task, jobs, students(data, 1), 10, (5, 10, 5))
    assert compared == [16 if alpha < 1 else 32] * 10


def test_the_objective_is_what_is_minimised(data: Any) -> None:
    """(1 - alpha) labels + alpha soft, on the validation rows, written out."""
    rows, models = data.rows["validation"], students(data, 1)
    log_q, log_p = (shares.predict(m, rows).double() for m in (models, data.owned[0].teacher))
    nll = -float(log_q.gather(1, rows.token[:, None]).mean())
    soft = float((log_p.exp() * (log_p - log_q)).sum(1).mean())
    for alpha in (0.0, 0.3, 1.0):
        job = shares.Job(0, 0.1, 0.0, alpha)
        task = shares.Task.of(data, shares.ARMS["mixed, all text"], 0.3, [job])
        found = shares.objective(task, job, models, 0, 2.0)
        assert found == pytest.approx((1 - alpha) * nll + 2 * alpha * soft, rel=1e-4)
