"""Every equation test can fail: with a mistake planted in its transcription, it does.

The mistakes stand in variants.json, one for each label. The test's file is executed in memory with one of
them in its place, and the marked test is called as pytest calls it: with its fixtures, and with its
parameters, one after the other until one rejects the mistake. Only an assertion rejects; any other error is
the mistake's own.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import variants
from ledger import TEST_FOLDER

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = variants.read_variants(ROOT)
pytestmark = pytest.mark.slow  # each equation's test once more
REJECTIONS = (AssertionError, pytest.fail.Exception)


@cache
def source_of(file: str) -> str:
    return (ROOT / TEST_FOLDER / file).read_text(encoding="utf-8")


def parameters(function: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """The arguments of each call that the parametrize marks ask for."""
    axes: list[list[dict[str, Any]]] = []
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "parametrize":
            names, values = mark.args
            names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
            axes.append([dict(zip(names, v if len(names) > 1 else (v,), strict=True)) for v in values])
    for chosen in itertools.product(*axes):
        yield {name: value for part in chosen for name, value in part.items()}


def fixture(module: ModuleType, name: str, request: pytest.FixtureRequest) -> Any:
    """A fixture of the test's file, made anew, or one of the conftest files."""
    own = getattr(module, name, None)
    if own is None:
        return request.getfixturevalue(name)
    inner = inspect.unwrap(own)
    return inner(**{n: fixture(module, n, request) for n in inspect.signature(inner).parameters})


def run(module: ModuleType, name: str, request: pytest.FixtureRequest) -> None:
    """Call a test of the module, once for each set of its parameters."""
    function = getattr(module, name)
    ignored = [m.args[0] for m in getattr(function, "pytestmark", []) if m.name == "filterwarnings"]
    names = inspect.signature(function).parameters
    for given in parameters(function):
        fixtures = {n: fixture(module, n, request) for n in names if n not in given}
        with warnings.catch_warnings():
            for text in ignored:
                action, _, message = text.partition(":")
                warnings.filterwarnings(action, message)
            function(**given, **fixtures)


PASSED: set[str] = set()


def objection(variant: variants.Variant, request: pytest.FixtureRequest) -> str | None:
    """What is wrong with a variant, if its test does not reject it by an assertion."""
    path, source = ROOT / TEST_FOLDER / variant.file, source_of(variant.file)
    planted = variants.plant(variant, source)
    if variant.test not in PASSED:
        # Here as well, so that a rejection below is due to the mistake and not to the way of calling.
        run(variants.load(path, source), variant.function, request)
        PASSED.add(variant.test)
    module = variants.load(path, planted)
    try:
        run(module, variant.function, request)
    except REJECTIONS:
        return None
    except Exception as error:
        return f"{variant.wrong!r} ends {variant.test} with {error!r}, which is no rejection"
    return f"{variant.test} passes with {variant.wrong!r} in the place of {variant.right!r}"


@pytest.mark.parametrize("label", VARIANTS)
def test_a_wrong_variant_is_rejected(label: str, request: pytest.FixtureRequest) -> None:
    said = objection(VARIANTS[label], request)
    assert said is None, said


def test_a_harmless_variant_and_one_that_breaks_down_are_objected_to(request: pytest.FixtureRequest) -> None:
    variant = VARIANTS["eq-log-monotone"]
    # Any positive function of p will do, since the statement is about the logarithm.
    harmless = replace(variant, right="at_p, at_q = p**k * (1", wrong="at_p, at_q = p**k / (1")
    assert "passes with" in (objection(harmless, request) or "")
    broken = replace(variant, right="np.log(at_p) <", wrong="np.logarithm(at_p) <")
    assert "no rejection" in (objection(broken, request) or "")
    assert objection(variant, request) is None


def test_every_equation_has_a_variant_and_every_variant_its_place() -> None:
    assert variants.problems(ROOT, VARIANTS) == []


def test_a_missing_a_stale_and_a_spare_variant_are_named() -> None:
    first, second, *rest = VARIANTS
    broken = {label: VARIANTS[label] for label in rest}
    broken[second] = replace(VARIANTS[second], right="this was edited")
    broken["eq-of-nothing"] = VARIANTS[first]
    misplaced = rest[0]
    broken[misplaced] = replace(VARIANTS[misplaced], test=VARIANTS[first].test)
    found = variants.problems(ROOT, broken)
    assert len(found) == 4
    for label, why in (
        (first, "no variant"),
        (second, "stale"),
        ("eq-of-nothing", "no chapter"),
        (misplaced, "does not check"),
    ):
        assert any(label in line and why in line for line in found), (label, found)


def test_a_variant_that_changes_nothing_or_has_no_place_is_refused() -> None:
    source = (
        "def test_it():\n    assert 1 + 2 == 3\n    assert 3 - 2 == 1\n\n\ndef helper():\n    return 1 + 2\n"
    )

    def planted(right: str, wrong: str, where: str = "test_it") -> str:
        return variants.plant(variants.Variant("eq-it", "test_it.py::test_it", right, wrong, where), source)

    assert planted("1 + 2", "1 - 2") == source.replace("1 + 2", "1 - 2", 1)
    assert planted("1 + 2", "1 - 2", "helper").endswith("return 1 - 2\n")
    for right, wrong, where, why in (
        ("1 * 2", "1 + 2", "test_it", "0 times"),
        ("assert", "assert not", "test_it", "2 times"),
        ("1 + 2", "(1 + 2)", "test_it", "means the same"),
        ("1 + 2", "1 +", "test_it", "no Python"),
        ("1 + 2", "1 - 2", "other", "does not exist"),
    ):
        with pytest.raises(ValueError, match=why):
            planted(right, wrong, where)
