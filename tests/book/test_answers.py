"""The fields of the exercises by hand: the numbers are right, and a page takes them by keyboard."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import xent

ROOT = Path(__file__).resolve().parents[2]
ASKED = tomllib.loads((ROOT / "chapters" / "answers.toml").read_text(encoding="utf-8"))
# Each number, from what its exercise gives.
LIKELIHOOD = 1 / 2 * (1 - 1 / 4) * (1 - 1 / 8)
P, Q = (1 / 2, 1 / 4, 1 / 4), (1 / 4, 1 / 4, 1 / 2)
COMPUTED = {
    "ex-binary-four": [LIKELIHOOD, -math.log(LIKELIHOOD) / 3],
    "ex-multiclass-four": [xent.cross_entropy([[math.log(2), math.log(3), math.log(5)]], [2])],
    "ex-information-four": [
        -sum(p * math.log2(p) for p in P),
        -sum(p * math.log2(q) for p, q in zip(P, Q, strict=True)),
        sum(p * math.log2(p / q) for p, q in zip(P, Q, strict=True)),
    ],
    "ex-gradients-four": [xent.softmax([0, 0, math.log(2)])[0] - 1, xent.softmax([0, 0, math.log(2)])[2]],
    "ex-numerics-four": [2**11 + 1],
    "ex-certify-four": [-math.log(1e-7), -math.log(2**-52)],
    "ex-frameworks-four": [(1 * 1 + 3 * 3) / (1 + 3), (1 * 1 + 3 * 3) / 2],
    "ex-scoring-four": [0.7, round(0.7)],
    "ex-den-four": [(2 * 3 + 6 * 1) / (2 + 6), (3 + 1) / 2],
    "ex-soft-four": [math.log((0.7 + 0.1) / 0.1)],
    "ex-kd-pencil": [2 * (1 / 2 - xent.sigmoid(2 / 2)), (0 - 2 - (0 - 2 + 0) / 2) / 2],
    "ex-vocab-pencil": [math.log(1.5 * math.exp(2) + math.exp(2 + math.log(3)))],
}


def test_the_numbers_follow_from_their_exercises() -> None:
    rows = {label: list(numbers.values()) for page in ASKED.values() for label, numbers in page.items()}
    assert rows.keys() == COMPUTED.keys()
    assert {len(s.partition(".")[2]) for numbers in rows.values() for s in numbers} == {3}
    for label, numbers in rows.items():
        rounded = [f"{x:.{len(s.partition('.')[2])}f}" for s, x in zip(numbers, COMPUTED[label], strict=True)]
        assert rounded == numbers, label


@pytest.mark.parametrize("name", ASKED)
def test_a_page_takes_the_answers(browser: Browser, server: str, name: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(f"{server}chapters/{name}.html", wait_until="load")
    [numbers] = ASKED[name].values()
    for words, value in numbers.items():
        field = page.get_by_label(words, exact=True)
        says = field.locator("xpath=../following-sibling::output[1]")
        unit = 0.001
        typed = {
            value: "right",
            # Of a thousand and more a comma parts the thousands.
            value.replace(".", "," if abs(float(value)) < 1000 else ".").replace("-", "−"): "right",
            f"{2 * float(value)}/2": "right",
        }
        typed |= {f" {float(value):,} ": "right", value.replace("-", "– "): "right"}
        # What was rounded too early, what another field asks for, and a number that is near.
        typed |= {f"{float(value):.{d}f}": "more digits" for d in (1, 2)}
        typed = {
            answer: said
            for answer, said in typed.items()
            if said == "right" or abs(float(answer) - float(value)) > 0.6 * unit
        }
        typed |= {other: "not yet" for other in numbers.values() if float(other) != float(value)}
        typed |= {f"{float(value) + off:.3f}": "not yet" for off in (0.05, 2 * unit)}
        typed |= {"a third": "a number, such as 0.25 or 1/4", "": ""}
        for answer, said in typed.items():
            field.focus()
            page.keyboard.press("ControlOrMeta+a")
            page.keyboard.insert_text(answer) if answer else page.keyboard.press("Delete")
            assert says.inner_text() == said, (words, answer)
    page.close()
