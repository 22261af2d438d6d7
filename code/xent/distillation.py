"""Distillation: losses of a student's logits against a teacher's, and their gradients.

With z the student's logits, v the teacher's and a temperature T,

    q = softmax(z / T),  p = softmax(v / T),  loss = T^2 KL(p || q)

or KL(q || p), or the Jensen-Shannon divergence of the two, with or without T^2.

The sum behind KL(a || b) is taken as sum_k (a_k log(a_k / b_k) - a_k + b_k), whose terms are all >= 0. With
d = log(a / b) a term is a (exp(-d) - 1 + d), close to a d^2 / 2 for small d. At a high temperature d goes to
zero like 1/T, and T^2 KL to a limit; computed this way, both keep their digits.

Over the sweep of tests/xent/test_accuracy.py the relative error is at most (8 + margin) epsilons, the margin
being the largest difference between two logits of a row, over T. Elsewhere it may be a few times that, and more where a
number is below the smallest normal one. `top_k_loss` adds up terms of either sign and takes the tail as what its
log-probabilities leave of one, so that a result close to zero has few digits or none.

The teacher is a constant: nothing here differentiates with respect to v. The mean is that of `xent.losses`.
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _validate as check
from ._blocks import Block, Index
from ._validate import Each, Floats, Number, Reduction, Total, Values
from ._walk import differentiate_rows, reduce_rows

__all__ = ["distillation_gradient", "distillation_loss", "top_k_loss"]

Scale = Literal["t_squared", "none"]
Direction = Literal["forward", "reverse", "jsd"]
Treatment = Literal["truncated", "renormalised", "renormalised_both", "tail"]

SCALES = ("t_squared", "none")
DIRECTIONS = ("forward", "reverse", "jsd")
TREATMENTS = ("truncated", "renormalised", "renormalised_both", "tail")


class _Rows(TypedDict, total=False):
    axis: int
    sample_weight: ArrayLike | None
    denominator: float | None


class _TopK(_Rows, total=False):
    treatment: Treatment


class _Heat(_Rows, total=False):
    temperature: float
    scale: Scale
    direction: Direction
    beta: float


@overload
def distillation_loss(
    student_logits: ArrayLike, teacher_logits: ArrayLike, *, reduction: Each, **how: Unpack[_Heat]
) -> Floats: ...
@overload
def distillation_loss(
    student_logits: ArrayLike, teacher_logits: ArrayLike, *, reduction: Total = ..., **how: Unpack[_Heat]
) -> Number: ...
def distillation_loss(
    student_logits: ArrayLike,
    teacher_logits: ArrayLike,
    *,
    temperature: float = 1.0,
    scale: Scale = "t_squared",
    direction: Direction = "forward",
    beta: float = 0.5,
    axis: int = -1,
    sample_weight: ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Values:
    r"""Kullback-Leibler divergence between a teacher's and a student's softened distributions.

    .. math:: \ell = T^2 \sum_k p_k \log\frac{p_k}{q_k}, \qquad
              p = \operatorname{softmax}(v/T), \quad q = \operatorname{softmax}(z/T)

    Parameters
    ----------
    student_logits : array_like, shape (..., K, ...)
        Logits z. -inf marks an impossible class; +inf and nan are refused.
    teacher_logits : array_like, shape of `student_logits`
        Logits v of the teacher, in the same order of classes.
    temperature : float, default 1
        T > 0 divides both.
    scale : {"t_squared", "none"}, default "t_squared"
        Multiply by T^2, which keeps the size of the gradient as T grows, or leave the divergence as it is.
    direction : {"forward", "reverse", "jsd"}, default "forward"
        KL(p || q), the teacher first; KL(q || p); or the generalised Jensen-Shannon divergence
        beta KL(p || m) + (1 - beta) KL(q || m) with m = beta p + (1 - beta) q.
    beta : float, default 0.5
        The teacher's share of m, in (0, 1), for "jsd" alone. Divided by beta it tends to the forward
        divergence as beta goes to 0; divided by 1 - beta, to the reverse one as beta goes to 1. In TRL's
        GKDTrainer, whose beta this is, 0 and 1 stand for these two; here "forward" and "reverse" do.
    axis, sample_weight, reduction, denominator
        As in `xent.cross_entropy`, with a target for each row. All K classes of a row make one l.

    Returns
    -------
    scalar or ndarray
        Loss in nats (times T^2), never negative; +inf where one distribution misses a class that the other,
        the first of the divergence, does not. In the first, a probability that underflows counts as zero. float32 if
        both arguments are float16 or float32, float64 otherwise.

    Notes
    -----
    G. Hinton, O. Vinyals and J. Dean, *Distilling the Knowledge in a Neural Network*, arXiv:1503.02531
    (2015). For large T the scaled loss approaches the variance of v - z over the classes, halved (for "jsd" times
    beta (1 - beta)), with an error of order 1/T.

    Examples
    --------
    >>> from xent.distillation import distillation_loss
    >>> [float(distillation_loss([[0.0, 0.0]], [[2.0, 0.0]], temperature=T)) for T in (1.0, 1e9)]
    [0.327813..., 0.5]
    """
    z, v, axis, w = _pair(student_logits, teacher_logits, axis, sample_weight)
    temperature, squared, beta = divergence_settings(temperature, scale, direction, beta)
    settings = check.reduction_arguments(reduction, denominator)
    factor = temperature if squared else 1.0

    def losses(block: Block, index: Index) -> Floats:
        student, teacher = _wide(block.rows), _wide(v[index])
        first, second = (student, teacher) if direction == "reverse" else (teacher, student)
        a, b, d = compared(first, second, temperature)
        if direction != "jsd":
            return _defined(_divergence(a, b, d, factor), student, teacher)
        m, d_a, d_b = _mixture(a, b, d, beta)
        mean = beta * _divergence(a, m, d_a, factor) + (1 - beta) * _divergence(b, m, d_b, factor)
        return _defined(mean, student, teacher)

    dtype = np.promote_types(z.dtype, v.dtype)
    return reduce_rows(losses, axis, w, settings, dtype=dtype, student_logits=z, teacher_logits=v)


def distillation_gradient(
    student_logits: ArrayLike,
    teacher_logits: ArrayLike,
    *,
    temperature: float = 1.0,
    scale: Scale = "t_squared",
    direction: Direction = "forward",
    beta: float = 0.5,
    axis: int = -1,
    sample_weight: ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Floats:
    r"""Gradient of `distillation_loss`, whose arguments it takes, with respect to the student's logits.

    .. math:: \frac{\partial}{\partial z_k} T^2 \mathrm{KL}(p \,\|\, q) = T (q_k - p_k), \qquad
              \frac{\partial}{\partial z_k} T^2 \mathrm{KL}(q \,\|\, p) =
              T q_k \Bigl(\log\frac{q_k}{p_k} - \mathrm{KL}(q \,\|\, p)\Bigr)

    and for "jsd" 1 - beta times the second, with the mixture m in the place of p; without the scale 1/T stands in the
    place of T. As in `xent.gradients`, the gradient is zero where a row does not count, and "none" is the same as
    "sum". A forward divergence of inf has the formula's value, T (q - p); a reverse one has no gradient, and its row
    is nan.

    Examples
    --------
    >>> from xent.distillation import distillation_gradient
    >>> distillation_gradient([[0.0, 0.0]], [[1.0, 0.0]], temperature=1e6)
    array([[-0.25,  0.25]])
    """
    z, v, axis, w = _pair(student_logits, teacher_logits, axis, sample_weight)
    temperature, squared, beta = divergence_settings(temperature, scale, direction, beta)
    settings = check.reduction_arguments(reduction, denominator)
    factor = temperature if squared else 1 / temperature

    def rows(block: Block, index: Index) -> Floats:
        student, teacher = _wide(block.rows), _wide(v[index])
        if direction == "reverse":
            q, p, d = compared(student, teacher, temperature)
            divergence = _divergence(q, p, d, 1.0)[:, None]
            gradient = np.where(divergence < np.inf, factor * q * (d - divergence), np.nan)
        elif direction == "forward":
            p, q, d = compared(teacher, student, temperature)
            # p (q/p - 1) has the digits of the difference; where p is zero, d says nothing.
            gradient = factor * np.where((np.abs(d) < 1) & (p > 0), p * np.expm1(-d), q - p)
        else:
            p, q, d = compared(teacher, student, temperature)
            m, _, d = _mixture(p, q, d, beta)
            gradient = factor * (1 - beta) * q * (d - _divergence(q, m, d, 1.0)[:, None])
        return _defined(np.asarray(gradient), student, teacher)

    dtype = np.promote_types(z.dtype, v.dtype)
    return differentiate_rows(rows, axis, w, settings, dtype=dtype, student_logits=z, teacher_logits=v)


@overload
def top_k_loss(
    student_logits: ArrayLike,
    top_log_probs: ArrayLike,
    top_indices: ArrayLike,
    *,
    reduction: Each,
    **how: Unpack[_TopK],
) -> Floats: ...
@overload
def top_k_loss(
    student_logits: ArrayLike,
    top_log_probs: ArrayLike,
    top_indices: ArrayLike,
    *,
    reduction: Total = ...,
    **how: Unpack[_TopK],
) -> Number: ...
def top_k_loss(
    student_logits: ArrayLike,
    top_log_probs: ArrayLike,
    top_indices: ArrayLike,
    *,
    treatment: Treatment = "tail",
    axis: int = -1,
    sample_weight: ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Values:
    r"""Divergence from a teacher of whom only the k largest probabilities are known.

    With S the k classes, p their probabilities, q = softmax(z) and P(S) = sum_S p, Q(S) = sum_S q:

    .. math::
        \begin{aligned}
        \text{truncated} &: \sum_{k \in S} p_k \log\frac{p_k}{q_k} \\
        \text{renormalised} &: \sum_{k \in S} \tilde p_k \log\frac{\tilde p_k}{q_k},
                              \qquad \tilde p_k = p_k / P(S) \\
        \text{renormalised\_both} &: \sum_{k \in S} \tilde p_k \log\frac{\tilde p_k}{q_k / Q(S)} \\
        \text{tail} &: \sum_{k \in S} p_k \log\frac{p_k}{q_k} + (1-P(S)) \log\frac{1-P(S)}{1-Q(S)}
        \end{aligned}

    Parameters
    ----------
    student_logits, axis, sample_weight, reduction, denominator
        As in `distillation_loss`, but a row of weight zero needs a valid top k too; all three have one class axis.
        For a temperature T pass logits / T and the teacher's log-probabilities at T: in general, a cached top k at one
        temperature does not determine that at another.
    top_log_probs : array_like, shape (..., k, ...)
        Log-probabilities of k of the K classes, of the whole softmax: their exponentials sum to at most one
        (within the tolerance of `xent.soft_cross_entropy`).
    top_indices : array_like of integers, shape of `top_log_probs`
        Which classes these are, distinct in each row.
    treatment : {"tail", "truncated", "renormalised", "renormalised_both"}, default "tail"
        What stands in for the classes that are missing. "truncated" and "renormalised" draw the student to
        zero on all of them, "renormalised_both" says nothing about them, and "tail" gets their total right.

    Returns
    -------
    scalar or ndarray
        Loss in nats. With k = K and probabilities that sum to 1, all treatments are KL(p || q).
        "truncated" can be negative, since it lacks terms of a divergence, and so can "tail" with k = K if they sum
        to less; the others cannot, beyond rounding.

    Examples
    --------
    >>> import numpy as np
    >>> from xent.distillation import top_k_loss
    >>> abs(float(top_k_loss(np.log([0.5, 0.3, 0.1, 0.1]), np.log([0.5, 0.3]), [0, 1]))) < 1e-12
    True
    """
    z, axis = _logits(student_logits, "student_logits", axis)
    check.choice(treatment, "treatment", TREATMENTS)
    log_p = check.real_array(top_log_probs, "top_log_probs")
    if log_p.ndim != z.ndim:
        raise ValueError(
            f"top_log_probs: expected {z.ndim} dimensions, as student_logits, got shape {log_p.shape}"
        )
    log_p, _ = _logits(log_p, "top_log_probs", axis)
    indices = _class_choices(top_indices, "top_indices", z, axis)
    check.same_shape(np.asarray(top_indices), "top_indices", np.shape(top_log_probs), "top_log_probs")
    with np.errstate(all="ignore"):
        mass = np.asarray(np.exp(log_p.astype(np.float64)).sum(-1))
    check_top_k(np.sort(indices), mass, log_p.dtype.newbyteorder("="))
    if treatment.startswith("renormalised"):
        check.refuse_where(
            log_p.max(-1) == -np.inf, "top_log_probs", "a sum above 0 to renormalise by", got="0"
        )
    settings = check.reduction_arguments(reduction, denominator)
    w = check.sample_weights(sample_weight, z.shape[:-1])

    def losses(block: Block, index: Index) -> Floats:
        student, at = _wide(block.rows), indices[index].reshape(len(block.rows), -1)
        lp: Floats = log_p[index].reshape(at.shape).astype(np.float64)
        log_q = _log_softmax(student)
        lq = np.take_along_axis(log_q, at, -1)
        if treatment.startswith("renormalised"):
            lp = _log_softmax(lp)
        if treatment == "renormalised_both":
            # A student that rules out all of them is infinitely far, and nan would say less.
            lq = np.where(np.isneginf(lq), -np.inf, lq - _log_sum_exp(lq)[:, None])
        result = _terms(lp, lq).sum(-1)
        if treatment == "tail" and at.shape[-1] < log_q.shape[-1]:
            np.put_along_axis(log_q, at, -np.inf, -1)
            rest = np.maximum(1 - np.exp(lp).sum(-1), 0.0)
            result = result + _terms(np.log(rest), _log_sum_exp(log_q))
        return _defined(result, student)

    dtype = np.promote_types(z.dtype, log_p.dtype)
    return reduce_rows(losses, axis, w, settings, dtype=dtype, student_logits=z)


# The arithmetic, on rows in float64.


def _wide(rows: Floats) -> Floats:
    return rows.reshape(-1, rows.shape[-1]).astype(np.float64)


def _defined(result: Floats, *logits: Floats) -> Floats:
    """Make the row of a block nan where logits have no softmax, also where the formula does not show it."""
    for rows in logits:
        result = result + (0.0 * rows.max(-1)).reshape(-1, *[1] * (result.ndim - 1))
    return result


def compared(first: Floats, second: Floats, temperature: float) -> tuple[Floats, Floats, Floats]:
    """Return a = softmax(first / T), b = softmax(second / T) and d = log(a / b), finite where a is zero."""
    tops = first.max(-1, keepdims=True), second.max(-1, keepdims=True)
    one, other = (first - tops[0]) / temperature, (second - tops[1]) / temperature
    log_a, log_b = _log_softmax(one), _log_softmax(other)
    a, b = np.exp(log_a), np.exp(log_b)
    d = np.where(a > 0, log_a - log_b, 0.0)
    # log a - log b cancels where the two are close. There, d is the difference of the logits less its mean in
    # the exponential sense: d = x - log sum b exp(x), for x = (first - second) / T less any constant. Taken off
    # is about the mean, so that x is as small as d, and what the difference of two floats loses is put back.
    gap, lost = difference(first, second)
    apart, beside = difference(*tops)
    around = np.clip(np.where(np.isnan(gap), 0.0, gap - apart) / temperature, -16, 16)
    centre = apart + temperature * (b * around).sum(-1, keepdims=True)
    x = (gap - centre + (lost - beside)) / temperature
    near = np.abs(x) < 1
    x = np.where(near, x, 0.0)
    # Elsewhere b exp(x) comes from `first`, since b may have underflowed where a has not.
    moved = np.exp(one + (apart - centre) / temperature - np.expand_dims(_log_sum_exp(other), -1))
    total = np.log1p(np.where(near, b * np.expm1(x), moved - b).sum(-1, keepdims=True))
    return a, b, np.where(near & (np.abs(total) < 1), x - total, d)


def difference(x: Any, y: Any) -> tuple[Any, Any]:
    """Return x - y rounded, and what the rounding lost; arrays and tensors alike."""
    rounded = x - y
    back = rounded - x
    return rounded, (x - (rounded - back)) - (y + back)


def _mixture(p: Floats, q: Floats, d: Floats, beta: float) -> tuple[Floats, Floats, Floats]:
    """Return m = beta p + (1 - beta) q, log(p / m), log(q / m); d is log(p / q) where p is not zero."""
    d = np.where(p > 0, d, -np.inf)
    # Each from the form whose exponential is at most e.
    of_p, of_q = -_log_mean(-np.maximum(d, -1), 1 - beta, beta), -_log_mean(np.minimum(d, 1), beta, 1 - beta)
    of_p, of_q = np.where(d > -1, of_p, of_q + d), np.where(d < 1, of_q, of_p - d)
    return beta * p + (1 - beta) * q, np.where(p > 0, of_p, 0.0), np.where(q > 0, of_q, 0.0)


def _log_mean(d: Floats, share: float, rest: float) -> Floats:
    """Return log(share exp(d) + rest), for shares that add up to one; a share close to one cancels in log1p."""
    return np.where(d > -0.5, np.log1p(share * np.expm1(d)), np.log(rest + share * np.exp(d)))


def _divergence(a: Floats, b: Floats, d: Floats, scale: float) -> Floats:
    """Return scale^2 sum (a d - a + b), each term from d alone where d is small."""
    near = np.abs(d) < 1
    small = np.where(near, d, 0.0)
    # (exp(-d) - 1 + d) / d^2 = 1/2 - d/6 + d^2/24 - ...
    series = np.zeros_like(d)
    for n in range(20, 1, -1):
        series = 1 / math.factorial(n) - small * series
    far = a * d - a + b
    terms = np.where(near & (a > 0), a * (scale * small) ** 2 * series, scale * (scale * far))
    return np.asarray(terms.sum(-1))


def _terms(log_a: Floats, log_b: Floats) -> Floats:
    """Return a (log a - log b), with 0 log 0 = 0."""
    a = np.exp(log_a)
    return np.where(a > 0, a * (log_a - log_b), 0.0)


def _log_sum_exp(x: Floats) -> Floats:
    top = x.max(-1, keepdims=True)
    safe = np.where(np.isneginf(top), 0.0, top)
    return np.asarray(np.log(np.exp(x - safe).sum(-1)) + safe[..., 0])


def _log_softmax(x: Floats) -> Floats:
    # The maximum goes first: beside a large one, the logarithm of the sum would be rounded away.
    x = x - x.max(-1, keepdims=True)
    others = np.exp(x)
    # Without the highest: beside its one, what is next to nothing would be lost.
    np.put_along_axis(others, x.argmax(-1)[..., None], 0.0, -1)
    return np.asarray(x - np.log1p(others.sum(-1, keepdims=True)))


# The checks.


def _logits(value: ArrayLike, name: str, axis: int) -> tuple[Floats, int]:
    """Return logits with the classes moved to the last axis, and where they were."""
    array, axis = check.logits_array(value, name, axis)
    return np.moveaxis(array, axis, -1), axis


def check_top_k(ordered: Any, mass: Any, dtype: Any, refuse_where: Any = check.refuse_where) -> None:
    """Refuse classes, sorted, that repeat, or masses above one; arrays and tensors alike."""
    repeated = (ordered[..., 1:] == ordered[..., :-1]).any(-1)
    refuse_where(repeated, "top_indices", "distinct classes", got="a repeated one")
    slack = check.sum_tolerance(dtype, ordered.shape[-1])
    expected = f"log-probabilities whose exponentials sum to at most one (within {slack:.2g} for {dtype})"
    refuse_where(~(mass <= 1 + slack), "top_log_probs", expected, mass, got="a sum of {:.10g}")


def choices_of_rows(array: Any, name: str, rows: tuple[int, ...], axis: int, *, integers: bool) -> None:
    """Refuse what is not some class indices along `axis` for each row; arrays and tensors alike."""
    if not integers:
        raise TypeError(f"{name}: expected integer class indices, got dtype {array.dtype}")
    shape = tuple(array.shape)
    if len(shape) != len(rows) + 1 or shape[:axis] + shape[axis + 1 :] != tuple(rows):
        raise ValueError(
            f"{name}: expected the shape of student_logits but for the class axis, with rows of shape "
            f"{tuple(rows)}, got shape {shape}"
        )
    if shape[axis] == 0:
        raise ValueError(f"{name}: expected at least one class in each row, got shape {shape}")


def padding(teacher: Any, student: Any, axis: int) -> str:
    """Say what fits where two models have unlike numbers of classes."""
    shapes = ([*x.shape[:axis], *x.shape[axis + 1 :]] for x in (teacher, student))
    alike = teacher.ndim == student.ndim and next(shapes) == next(shapes)
    return "; if both have the same tokens and the rest is padding, slice the longer" if alike else ""


def _pair(
    student: ArrayLike, teacher: ArrayLike, axis: int, sample_weight: ArrayLike | None
) -> tuple[Floats, Floats, int, Floats | None]:
    """Return both logits, classes last, where these were, and the rows' weights."""
    z, axis = check.logits_array(student, "student_logits", axis)
    v = check.real_array(teacher, "teacher_logits")
    check.same_shape(v, "teacher_logits", z.shape, "student_logits", padding(v, z, axis))
    z, v = np.moveaxis(z, axis, -1), np.moveaxis(v, axis, -1)
    return z, v, axis, check.sample_weights(sample_weight, z.shape[:-1])


def divergence_settings(temperature: Any, scale: Any, direction: Any, beta: Any) -> tuple[float, bool, float]:
    """Return T, whether T^2 multiplies, and the teacher's share of a mixture."""
    temperature = check.setting(temperature, "temperature")
    check.choice(scale, "scale", SCALES)
    check.choice(direction, "direction", DIRECTIONS)
    return temperature, scale == "t_squared", check.setting(beta, "beta")


def _class_choices(value: ArrayLike, name: str, logits: Floats, axis: int) -> NDArray[np.intp]:
    """Return some class indices for each row, moved to the last axis."""
    array = check.any_array(value, name)
    choices_of_rows(array, name, logits.shape[:-1], axis, integers=array.dtype.kind in "iu")
    return np.moveaxis(check.in_range(array, name, logits.shape[-1], hints=False), axis, -1)
