"""The fields of the exercises by hand: the numbers are right, and a page takes them by keyboard."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

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
    "ex-scoring-four": [0.7, round(0.7)],
    "ex-soft-four": [math.log((0.7 + 0.1) / 0.1)],
    "ex-kd-pencil": [2 * (1 / 2 - xent.sigmoid(2 / 2)), (0 - 2 - (0 - 2 + 0) / 2) / 2],
    "ex-vocab-pencil": [math.log(1.5 * math.exp(2) + math.exp(2 + math.log(3)))],
}
# What is typed for the slopes and the whole number of two pages, and what the field says of it.
SAID = {
    ("04_gradients", "slope in the first logit"): {
        **dict.fromkeys(("-0.750", "−0,75", " -3/4 ", "-.7504"), "right"),
        **dict.fromkeys(("-0.8", "-0.7"), "more digits"),
        **dict.fromkeys(("0.75", "0.500", "-0.752", "-0.700"), "not yet"),
        "a third": "a number, such as 0.25 or 1/4",
        "": "",
    },
    ("05_numerics", "whole number"): {"2,049": "right", "2048": "not yet", "2.049": "not yet"},
}


def test_the_numbers_follow_from_their_exercises() -> None:
    rows = {label: list(numbers.values()) for page in ASKED.values() for label, numbers in page.items()}
    assert rows == {label: [f"{x:.3f}" for x in numbers] for label, numbers in COMPUTED.items()}


def test_a_page_takes_the_answers(browser: Browser, server: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    for name, asked in ASKED.items():
        page.goto(f"{server}chapters/{name}.html", wait_until="load")
        for words, value in next(iter(asked.values())).items():
            field = page.get_by_label(words, exact=True)
            for answer, said in {value: "right", **SAID.get((name, words), {})}.items():
                field.focus()
                page.keyboard.press("ControlOrMeta+a")
                page.keyboard.insert_text(answer) if answer else page.keyboard.press("Delete")
                says = field.locator("xpath=../following-sibling::output[1]")
                assert says.inner_text() == said, (words, answer)
    page.close()
