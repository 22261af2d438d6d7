"""The figures that move, in Chromium: what they say is what `xent` computes, wherever their sliders stand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page

import xent
from xent import elicitation, gradients, information, scoring
from xent.denominators import learnt_distribution
from xent_book import pictures

ROOT = Path(__file__).resolve().parents[2]
MOVE = ROOT / "_static" / "move"

EMPTY = "Expected at least one length; got an empty field."
WANTED = "expected one length, from 1 on, and behind each its prompt or behind none"
# What is pasted, and the line that is said to be wrong with it.
BAD = ("0", "000 a", "-3", "2.5", "1e3", "9first", ",", "1234567890", "<b>", "٣", "x" * 40)
FAULTS = {f"5\n{line}\n6": (2, line) for line in BAD} | {line: (1, line) for line in ("9 11 90", "9,11,90")}
FAULTS |= {"5 a\n6": (2, "6"), "5\n6 a": (2, "6 a"), "9 1\n11 2 3": (2, "11 2 3")}


def text(value: float, digits: int) -> str:
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")  # no minus before zero


# What a figure says for the values of its sliders, by xent: numbers that stand in its words, in this order.


def say_softmax(temperature: float, shift: float, **logits: float) -> list[str]:
    probs = xent.softmax([(z + shift) / 2**temperature for z in logits.values()])
    return [*(text(p, 4) for p in probs), text(float(information.entropy(probs)), 4)]


def say_divergence(**logits: float) -> list[str]:
    p, q = np.array([0.6, 0.3, 0.1]), xent.softmax(list(logits.values()))
    said = [text(x, 4) for x in q]
    for first, second in ((p, q), (q, p)):
        blocks = first * np.log(first / second)
        kl = float(information.kl_divergence(first, second))
        said += [text(blocks[0], 4), *(text(abs(x), 4) for x in blocks[1:]), f"= {text(kl, 4)} nats"]
    return said


def say_binary_loss(label: float, logit: float, threshold: float) -> list[str]:
    p = xent.sigmoid(logit)
    wrong = 1 - label if p > threshold else label
    loss = xent.binary_cross_entropy(logit, label)
    return [text(p, 4), f"class {int(p > threshold)}", text(loss, 4), text(p - label, 4), text(wrong, 2)]


def say_scores(truth: float, report: float) -> list[str]:
    rules = (scoring.log_score, scoring.brier_score, scoring.linear_score)
    costs = [elicitation.expected_score(rule, [truth, 1 - truth], [report, 1 - report]) for rule in rules]
    linear = "any report" if truth == 0.5 else text(float(truth > 0.5), 2)
    return [*(text(float(cost), 4) for cost in costs), text(truth, 2), linear]


def say_tilt(batch: float) -> list[str]:
    lengths, size = np.arange(1, 400), round(2**batch)
    law = 0.1 * 0.9 ** (lengths - 1.0)
    learnt = learnt_distribution(law / law.sum(), lengths, size)
    return [f"B = {size}", f"{text(float(learnt @ lengths), 2)} tokens", f"{text(100 * learnt[0], 1)}%"]


def say_own_lengths(batch: float) -> list[str]:
    lengths, prompts = pictures.OWN
    sizes = (1, 4, 64, round(2**batch))
    means = [pictures.written(lengths, b, asked) for asked in (prompts, [""] * 4) for b in sizes]
    return ["4 answers to 2 prompts, 55.00 tokens", *(text(mean, 2) for mean in means)]


def say_temperature(temperature: float, classes: float) -> list[str]:
    *soft, label = pictures.sizes(2**temperature, round(2**classes))
    return [text(float(value), 4) for value in (*soft, label, *(s / label for s in soft))]


def say_gap(smoothing: float, gap: float, classes: float) -> list[str]:
    size = 10 ** round(classes) if classes else 2
    z = np.append(gap, np.zeros(size - 1))
    yours = [text(xent.softmax(z)[0], 4), text(xent.cross_entropy(z, 0, label_smoothing=smoothing), 4)]
    if not smoothing:
        return ["no gap is best", *yours]
    target = (1 - smoothing) * np.eye(1, size)[0] + smoothing / size
    best, least = float(np.log(target[0] / target[1])), float(information.entropy(target))
    return [text(best, 4), text(target[0], 5), text(least, 4), *yours]  # four digits of a target can be a tie


def say_pull(logit: float, shift: float) -> list[str]:
    z = np.append(pictures.SIX_Z[:5], logit) + shift
    slope = gradients.binary_cross_entropy_gradient(z, pictures.SIX_Y, reduction="none")
    said = [text(float(value), 4) for value in (xent.sigmoid(z[5]), slope[5], slope.mean())]
    return [*said, "lowers" if slope.mean() > 0 else "raises"]


def test_the_six_examples_are_those_of_chapter_4() -> None:
    chapter = (ROOT / "chapters" / "04_gradients.ipynb").read_text(encoding="utf-8")
    [cell] = [c for c in json.loads(chapter)["cells"] if "in_the_note" in "".join(c["source"])]
    rows = re.findall(r"\[(-?\d\.\d{4}), (-?\d\.\d{4})\]", "".join(cell["source"]))
    np.testing.assert_allclose(np.diff(np.array(rows, float))[:, 0], pictures.SIX_Z, atol=1e-12)
    assert f"y = np.array({pictures.SIX_Y.tolist()})" in "".join(cell["source"])


SAYS: dict[str, Callable[..., list[str]]] = {
    name.removeprefix("say_").replace("_", "-"): say for name, say in globals().items() if name[:4] == "say_"
}
# The figures whose bars can be pulled, and their axes.
BARS = {"softmax": (0.4, 4.6, 0, 1), "divergence": (0.3, 13.7, -0.5, 2.9)}
PAGES = {
    name: path.relative_to(ROOT).with_suffix(".html").as_posix()
    for path in [ROOT / "index.md", *(ROOT / "chapters").glob("*.ipynb")]
    for name in re.findall(r"```\{moving-figure\} ([\w-]+)", path.read_text(encoding="utf-8"))
}


def test_each_moving_figure_is_in_a_chapter_and_checked() -> None:
    assert set(PAGES) == set(SAYS)
    assert set(SAYS) == set(re.findall(r'^    "?([\w-]+)"?: \{\n', (MOVE / "figures.js").read_text(), re.M))
    assert set(SAYS) <= set(pictures.FIGURES)


def come_to(page: Page, built_site: Path, address: str, name: str) -> Locator:
    """Open the figure's page with nothing else in its article: thousands of formulas would be laid out as well."""
    whole = (built_site / PAGES[name]).read_text(encoding="utf-8")
    [figure] = re.findall(rf'<figure class="[^"]*\bfigure-{name}\b.*?</figure>', whole, re.DOTALL)
    start, end = whole.index(">", whole.index("<article")) + 1, whole.index("</article>")
    alone = whole[:start] + figure + whole[end:]
    page.route(address + PAGES[name], lambda route: route.fulfill(body=alone, content_type="text/html"))
    page.goto(address + PAGES[name], wait_until="load")
    return page.locator(f"figure.figure-{name}")


# Set the sliders to these shares of their ranges, and return where they stand and what the figure says.
SET = """(figure, settings) => settings.map(shares => {
  const sliders = [...figure.querySelectorAll("input[type=range]")];
  sliders.forEach((slider, i) => {
    slider.value = Number(slider.min) + shares[i] * (slider.max - slider.min);
    slider.dispatchEvent(new Event("input"));
  });
  return [sliders.map(s => [s.id, s.valueAsNumber]), figure.querySelector("output").textContent];
})"""


def check(figure: Locator, name: str) -> None:
    """Compare what the figure says with xent: at random places, at the ends, and at both."""
    rng = np.random.default_rng()
    shares = np.concatenate([rng.random((60, 3)), rng.integers(0, 2, (20, 3)), rng.random((20, 3)).round()])
    shares[-10:, 0] = rng.random(10)
    for pairs, said in figure.evaluate(SET, shares.tolist()):
        values, at = {identity.rsplit("-", 1)[1]: value for identity, value in pairs}, 0
        for part in SAYS[name](**values):
            found = said.find(part, at)
            assert found >= 0, f"{part} is not in {said!r} after {said[:at]!r}, at {values}"
            at = found + len(part)


def ink(figure: Locator) -> str:
    """Return the picture that the canvas holds, after the next frames."""
    figure.page.evaluate("() => new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))")
    return str(figure.locator("canvas").evaluate("canvas => canvas.toDataURL()"))


@pytest.mark.parametrize("name", SAYS)
def test_a_figure_moves(browser: Browser, built_site: Path, server: str, name: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800}, has_touch=True)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    figure = come_to(page, built_site, server, name)
    page.wait_for_selector(f"figure.figure-{name}.moving-live")
    assert not figure.locator("svg.drawn").is_visible()
    unset = ink(figure)
    assert ("What do you expect?" in figure.locator("output").inner_text()) == (name in ("gap", "pull"))
    says, sliders = figure.locator("output"), figure.locator("input[type=range]").all()
    sliders[0].press("ArrowLeft")

    def reset() -> tuple[str, str]:
        figure.get_by_role("button", name="Reset").press("Enter")
        return says.inner_text(), ink(figure)

    first = reset()
    assert unset == first[1], "data do not show before a value is set"
    check(figure, name)
    assert reset() == first
    if name not in ("tilt", "own-lengths"):  # whose controls are no place on the axis
        figure.locator(".u-over").scroll_into_view_if_needed()
        plot = figure.locator(".u-over").bounding_box()
        assert plot is not None
        # By a finger: the first bar is pulled from a tenth to a half, or a place chosen along the axis.
        left, right, low, high = BARS.get(name, (0, 1, 0, 1))
        path = [(1, 0.1), (1, 0.3), (1, 0.5)] if name in BARS else [(0.3, 0.7), (0.5, 0.7), (0.8, 0.7)]
        finger, points = context.new_cdp_session(page), []
        for x, y in path:
            shares = (x - left) / (right - left), (high - y) / (high - low)
            points.append(
                {"x": plot["x"] + shares[0] * plot["width"], "y": plot["y"] + shares[1] * plot["height"]}
            )
        for kind, at in (("Start", points[:1]), ("Move", points[1:2]), ("Move", points[2:]), ("End", [])):
            finger.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": at})
        assert ink(figure) != first[1], "a finger in the plot sets nothing"
        if name in BARS:  # the bar is as high as the finger
            found = re.search(r"(?:p|Q) = (\d\.\d+)", says.inner_text())
            assert found and abs(float(found[1]) - 0.5) < 0.03
    for slider in sliders:
        reset()
        slider.press("Home" if slider.input_value() == slider.get_attribute("max") else "End")
        # A shift of all logits changes nothing: that is what its slider is there for.
        assert (ink(figure) == first[1]) == (slider.get_attribute("id") == "moving-softmax-shift")
        box, stood = slider.bounding_box(), slider.input_value()
        assert box is not None and box["height"] >= 24, "too low for a finger"
        slider.tap(position={"x": 0.3 * box["width"], "y": box["height"] / 2})
        assert slider.input_value() != stood
    reset()

    # The canvas keeps its colours until the theme's switch has it drawn again.
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.wait_for_timeout(100)
    assert ink(figure) != first[1]
    # On paper, and where no script runs, the still picture stands.
    page.emulate_media(media="print")
    still = figure.locator("svg.drawn")
    box = still.bounding_box()
    assert box is not None and 250 < box["width"] <= 390 and not figure.locator(".moving").is_visible()
    page.emulate_media(media="screen")
    figure.evaluate("figure => figure.classList.remove('moving-live')")
    assert still.is_visible()
    assert len((still.get_attribute("aria-label") or "").split()) > 20
    assert re.search(r"Predict .*\. Then ", figure.locator("figcaption").text_content() or "", re.DOTALL)
    assert wrong == []
    context.close()


def test_lengths_are_pasted(browser: Browser, built_site: Path, server: str) -> None:
    """By keyboard: a fault is said, and neither the text nor the picture is lost; what cannot be known is said."""
    page = browser.new_page()
    figure = come_to(page, built_site, server, "own-lengths")
    page.wait_for_selector("figure.figure-own-lengths.moving-live")
    field, says = figure.get_by_label("Lengths in tokens"), figure.locator("output")
    field.focus()

    def paste(content: str) -> str:
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.insert_text(content)
        assert field.input_value() == content
        return says.inner_text()

    before = ink(figure)
    assert "90 second" in field.input_value() and "Learnt: 54.45 with B = 1" in says.inner_text()
    said = {content: f'Line {at}: {WANTED}; got "{line}".' for content, (at, line) in FAULTS.items()}
    for content, fault in {**said, "": EMPTY, " \n\n": EMPTY}.items():
        assert paste(content) == fault and field.get_attribute("aria-invalid") == "true"
        assert ink(figure) == before
    assert "All lengths are equal: every divisor teaches them. 2 answers to 1 prompt, 7.00" in paste("7\n7")
    assert field.get_attribute("aria-invalid") == "false" and ink(figure) != before
    assert "One answer to each prompt does not tell what is learnt" in paste("3 a\n30 b")
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    field.focus()
    for content, lengths, prompts in (
        ("9\tfirst\n\n  11, the second one \n3;first", [9, 11, 3], ["first", "the second one", "first"]),
        ("1\n1000000\n3\n999999999", [1, 10**6, 3, 999_999_999], [""] * 4),
        ("1\n3\n3\n12", [1, 3, 3, 12], [""] * 4),
    ):
        answer = paste(content)
        for size in (1, 4, 64, 1024):
            assert f"{text(pictures.written(lengths, size, prompts), 2)} with B = {size}" in answer
    figure.get_by_role("button", name="Reset").press("Enter")
    assert field.input_value() == "1\n3\n3\n12"
    page.close()


def test_the_map_agrees_with_the_openings_of_the_chapters() -> None:
    known: dict[int, set[int]] = {}
    for path in sorted((ROOT / "chapters").glob("[01]*.ipynb")):
        opening = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
        [named] = re.findall(r"\*\*You should know\*\*(.*?)\*\*You will", opening, re.DOTALL)
        known[int(path.name[:2])] = {int(number) for number in re.findall(r"[(`](\d\d)_", named)}
    follows: dict[int, set[int]] = {}
    for chapter, needed in known.items():
        follows[chapter] = needed.union(*(follows[before] for before in needed))
    drawn = {
        c: sorted(needed.difference(*(follows[before] for before in needed))) for c, needed in known.items()
    }
    needs = {chapter: needed for chapter, needed in drawn.items() if needed}
    assert needs == pictures.NEEDS, "the map, xent_book.pictures.NEEDS, is not what the openings name"
    assert len("/".join(pictures.PARTS.values()).split("/")) == len(known), "the map lacks a chapter"


@pytest.mark.parametrize("name", pictures.FIGURES)
def test_a_still_picture_repeats_in_the_colours_of_the_page(name: str) -> None:
    picture = pictures.picture(name, "What it shows.")
    assert picture == pictures.picture(name, "What it shows.")
    assert set(re.findall(r"#[0-9a-f]{6}\b", picture)) == set(), "a colour that does not follow the theme"
    # At 390 pixels a page's text is 350 wide: no letter is smaller than eleven of them.
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', picture)[1])  # type: ignore[index]
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", picture)]
    assert sizes and min(sizes) * 350 / width >= 11
