// The figures that move: what each draws, and the controls, words and redrawing that all of them share.
// uPlot draws (uplot/), formulas.js computes. Nothing moves by itself, and there is no inline script or style
// attribute in a page for it.
"use strict";

globalThis.xentMoving = (() => {
  const f = globalThis.xentFormulas;

  const grid = (from, to, steps) => Array.from({ length: steps + 1 }, (_, i) => from + ((to - from) * i) / steps);
  // A number as the book prints it: fixed digits, a true minus, no minus before zero.
  function fixed(value, digits) {
    const text = value.toFixed(digits);
    return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "\u2212");
  }

  // A figure: controls; the axes; the keys of the legend with their colours; and from the controls' values what
  // is drawn (`data` for uPlot's series, `marks` over them) and said. Colours are names of the palette. The control
  // `drag` is that of the x axis, beside what `over` adds to it: a finger in the plot sets it. The first bars are
  // probabilities whose logits are the controls `bars`: each can be pulled up and down. The words of a figure that `asks`
  // are the answer to its caption: they wait until something is set.
  const FIGURES = {
    softmax: {
      bars: ["first", "second", "third", "fourth"],
      controls: [
        { name: "temperature", label: "Temperature T", min: -3, max: 3, step: 0.25, value: 0, shown: (v) => String(Number((2 ** v).toPrecision(3))) },
        ...["first", "second", "third", "fourth"].map((name, k) => (
          { name, label: `Logit of class ${"ABCD"[k]}`, min: -6, max: 6, step: 0.05, value: 2 - k, shown: (v) => fixed(v, 2) })),
        { name: "shift", label: "Add to all logits", min: -20, max: 20, step: 1, value: 0, shown: (v) => fixed(v, 0) },
      ],
      keys: [{ text: "softmax(z / T): pull a bar", colour: "blue", bars: true }, { text: "the same at T = 1", colour: "orange" }],
      x: { range: [0.4, 4.6], label: "class", splits: [1, 2, 3, 4], values: ["A", "B", "C", "D"] },
      y: { range: [0, 1], label: "probability" },
      state({ temperature, first, second, third, fourth, shift }) {
        const logits = [first, second, third, fourth].map((z) => z + shift);
        const probs = f.softmax(logits, 2 ** temperature);
        const plain = f.softmax(logits);
        return {
          data: [[1, 2, 3, 4], probs],
          marks: plain.map((p, i) => ({ from: [i + 0.62, p], to: [i + 1.38, p], colour: "orange" })),
          says:
            `z = ${logits.map((z) => fixed(z, 2)).join(", ")}. p = ${probs.map((p) => fixed(p, 4)).join(", ")}. ` +
            `Entropy ${fixed(f.entropy(probs), 4)} nats.`,
        };
      },
    },

    divergence: {
      bars: ["first", "second", "third"],
      controls: ["first", "second", "third"].map((name, k) => (
        { name, label: `Logit of class ${"ABC"[k]} under Q`, min: -2, max: 2, step: 0.05, value: k - 1, shown: (v) => fixed(v, 2) })),
      keys: [
        { text: "Q: pull a bar", colour: "blue", bars: true },
        { text: "block of a class", colour: "green", bars: true },
        { text: "their sum", colour: "grey", bars: true },
        { text: "P", colour: "orange" },
      ],
      x: {
        range: [0.3, 13.7],
        label: "Q,  KL(P ‖ Q),  KL(Q ‖ P)",
        splits: [1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13],
        values: ["A", "B", "C", "A", "B", "C", "Σ", "A", "B", "C", "Σ"],
      },
      y: { range: [-0.5, 2.9], label: "probability, or nats" },
      state({ first, second, third }) {
        const p = [0.6, 0.3, 0.1];
        const q = f.softmax([first, second, third]);
        const blocks = [f.divergenceTerms(p, q), f.divergenceTerms(q, p)];
        const nothing = [null, null, null];
        const said = blocks.map((terms) => `${terms.map((x, k) => (k ? (x < 0 ? " − " : " + ") + fixed(Math.abs(x), 4) : fixed(x, 4))).join("")} = ${fixed(f.sum(terms), 4)}`);
        return {
          data: [
            [1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13],
            [...q, ...nothing, null, ...nothing, null],
            [...nothing, ...blocks[0], null, ...blocks[1], null],
            [...nothing, ...nothing, f.sum(blocks[0]), ...nothing, f.sum(blocks[1])],
          ],
          marks: p.map((x, k) => ({ from: [k + 0.6, x], to: [k + 1.4, x], colour: "orange" })),
          says: `Q = ${q.map((x) => fixed(x, 4)).join(", ")}. KL(P ‖ Q) = ${said[0]} nats. KL(Q ‖ P) = ${said[1]} nats.`,
        };
      },
    },

    "binary-loss": {
      drag: "logit",
      controls: [
        { name: "label", label: "Label y", min: 0, max: 1, step: 0.05, value: 1, shown: (v) => fixed(v, 2) },
        { name: "logit", label: "Logit z", min: -6, max: 6, step: 0.1, value: 2, shown: (v) => fixed(v, 1) },
        { name: "threshold", label: "Threshold", min: 0.05, max: 0.95, step: 0.05, value: 0.5, shown: (v) => fixed(v, 2) },
      ],
      keys: [
        { text: "loss", colour: "blue" },
        { text: "tangent at z", colour: "grey", dash: [4, 4] },
        { text: "share of mistakes", colour: "orange", dash: [10, 4] },
      ],
      x: { range: [-6, 6], label: "logit z", splits: [-6, -4, -2, 0, 2, 4, 6] },
      y: { range: [-0.3, 5], label: "nats, or share" },
      state({ label, logit, threshold }) {
        const jump = f.logit(threshold);
        const xs = [...grid(-6, 6, 240), jump, jump + 1e-9].sort((a, b) => a - b);
        const loss = f.binaryLoss(logit, label);
        const slope = f.binarySlope(logit, label);
        const wrong = f.mistakes(logit, label, threshold);
        return {
          data: [
            xs,
            xs.map((z) => f.binaryLoss(z, label)),
            xs.map((z) => loss + slope * (z - logit)),
            xs.map((z) => (z > jump ? 1 - label : label)),
          ],
          marks: [{ at: [logit, loss], colour: "blue" }, { at: [logit, wrong], colour: "orange" }],
          says:
            `σ(z) = ${fixed(f.sigmoid(logit), 4)}, so the answer is class ${f.sigmoid(logit) > threshold ? 1 : 0}. ` +
            `Loss ${fixed(loss, 4)} nats, slope ${fixed(slope, 4)}. Share of mistakes ${fixed(wrong, 2)}.`,
        };
      },
    },

    scores: {
      drag: "report",
      controls: [
        { name: "truth", label: "True probability p", min: 0, max: 1, step: 0.05, value: 0.7, shown: (v) => fixed(v, 2) },
        { name: "report", label: "Report q", min: 0.01, max: 0.99, step: 0.01, value: 0.4, shown: (v) => fixed(v, 2) },
      ],
      keys: [
        { text: "log", colour: "blue" },
        { text: "Brier", colour: "green", dash: [10, 4] },
        { text: "linear", colour: "pink", dash: [4, 4] },
      ],
      x: { range: [0, 1], label: "report q" },
      y: { range: [0, 2], label: "expected cost", splits: [0, 0.5, 1, 1.5, 2] },
      state({ truth, report }) {
        const xs = grid(0.002, 0.998, 249);
        const rules = [
          [f.expectedLog, "blue", "log"],
          [f.expectedBrier, "green", "Brier"],
          [f.expectedLinear, "pink", "linear"],
        ];
        const corner = truth > 0.5 ? 1 : 0;
        const linear = truth === 0.5 ? "any report" : fixed(corner, 2);
        const best = [truth, truth, truth === 0.5 ? null : corner];
        return {
          data: [xs, ...rules.map(([rule]) => xs.map((q) => rule(truth, q)))],
          marks: rules.flatMap(([rule, colour], i) => [
            ...(best[i] === null ? [] : [{ ring: [best[i], rule(truth, best[i])], colour }]),
            { at: [report, rule(truth, report)], colour },
          ]),
          says:
            "Your report costs " +
            rules.map(([rule, , name]) => `${fixed(rule(truth, report), 4)} (${name})`).join(", ") +
            `. Cheapest: ${fixed(truth, 2)} for log and Brier, ${linear} for linear.`,
        };
      },
    },
    tilt: {
      controls: [{ name: "batch", label: "Sequences per denominator B", min: 0, max: 7, step: 1, value: 7, shown: (v) => fixed(2 ** v, 0) }],
      keys: [{ text: "learnt with the mean over tokens", colour: "blue", bars: true }, { text: "the data", colour: "orange" }],
      x: { range: [0.3, 30.7], label: "length in tokens", splits: [1, 5, 10, 15, 20, 25, 30] },
      y: { range: [0, 0.42], label: "share of the sequences" },
      state({ batch }) {
        const [stop, size] = [0.1, 2 ** batch];
        const lengths = grid(1, 30, 29);
        const learnt = f.tiltedShares(stop, size, 30);
        const mean = 1 / f.eosOptimum(stop, size);
        const data = lengths.map((n) => stop * (1 - stop) ** (n - 1));
        return {
          data: [lengths, learnt],
          marks: [
            ...lengths.map((n, i) => ({ from: [n - 0.45, data[i]], to: [n + 0.45, data[i]], colour: "orange" })),
            { from: [mean, 0], to: [mean, 0.34], colour: "blue" },
            { at: [mean, 0.34], colour: "blue", text: `mean ${fixed(mean, 1)}`, by: [0, -14] },
          ],
          says:
            `With B = ${size} the model learns sequences of ${fixed(mean, 2)} tokens on average; the data's have 10. ` +
            `One token long are ${fixed(100 * learnt[0], 1)}% instead of 10%.`,
        };
      },
    },

    "own-lengths": {
      field: { label: "Lengths in tokens, one a line; behind each its prompt, if you have it", value: "9 first\n11 first\n90 second\n110 second" },
      controls: [{ name: "batch", label: "Sequences per denominator B", min: 0, max: 10, step: 1, value: 3, shown: (v) => fixed(2 ** v, 0) }],
      keys: [{ text: "learnt", colour: "blue", bars: true }, { text: "without prompts", colour: "orange" }],
      x: { range: [0.4, 5.6], label: "sequences that share a denominator", splits: [1, 2, 3, 4, 5], values: ["1", "4", "64", "your B", "constant"] },
      y: { range: [0, 100], label: "length, % of the data's" },
      state({ batch, text }) {
        const { lengths, prompts, fault } = f.parseLengths(text);
        if (fault) return { fault };
        const alone = lengths.map(() => "");
        const mean = f.oneMean(alone.map(() => 1), lengths);
        const sizes = [1, 4, 64, 2 ** batch];
        const learnt = [...sizes.map((size) => f.writtenLength(lengths, size, prompts)), mean];
        const without = [...sizes.map((size) => f.writtenLength(lengths, size, alone)), mean];
        const say = (means) => sizes.map((size, i) => `${fixed(means[i], 2)} with B = ${size}`).join(", ");
        const asked = new Set(prompts).size;
        const nothing = new Set(lengths).size === 1 ? "All lengths are equal: every divisor teaches them. " : "";
        const one = asked > 1 && asked === lengths.length ? "One answer to each prompt does not tell what is learnt: at best the bars, at worst about the lines. " : "";
        return {
          data: [[1, 2, 3, 4, 5], learnt.map((n) => (100 * n) / mean)],
          marks: without.map((n, i) => ({ from: [i + 0.62, (100 * n) / mean], to: [i + 1.38, (100 * n) / mean], colour: "orange" })),
          says:
            `${nothing}${one}${lengths.length} answers to ${asked} prompt${asked > 1 ? "s" : ""}, ${fixed(mean, 2)} tokens on average, as a constant teaches. ` +
            `Learnt: ${say(learnt)}. Without prompts: ${say(without)}.`,
        };
      },
    },

    temperature: {
      drag: "temperature",
      controls: [
        { name: "temperature", label: "Temperature T", min: 0, max: 6, step: 0.25, value: 0, shown: (v) => String(Number((2 ** v).toPrecision(3))) },
        { name: "classes", label: "Classes K", min: 2, max: 17, step: 1, value: 2, shown: (v) => String(2 ** v) },
      ],
      keys: [
        { text: "soft, with T\u00b2", colour: "blue" },
        { text: "soft, without", colour: "orange" },
        { text: "a label", colour: "grey", dash: [4, 4] },
      ],
      x: { range: [-0.15, 6.15], label: "temperature T", splits: [0, 1, 2, 3, 4, 5, 6], values: [1, 2, 4, 8, 16, 32, 64] },
      y: { range: [0, 1.75], label: "size of the gradient", splits: [0, 0.5, 1, 1.5] },
      state({ temperature, classes }) {
        const [student, teacher, copies] = [[1, 0, 0.5, -1], [6, 3, -1, -4], 2 ** classes / 4];
        const soft = (x) => f.softSize(student, teacher, 2 ** x, copies);
        const [xs, label] = [grid(0, 6, 120), f.labelSize(student, copies)];
        const [large, small] = [soft(temperature), soft(temperature) / 4 ** temperature];
        return {
          data: [xs, xs.map(soft), xs.map((x) => soft(x) / 4 ** x), xs.map(() => label)],
          marks: [{ at: [temperature, large], colour: "blue" }, { at: [temperature, small], colour: "orange" }],
          says: `Size ${fixed(large, 4)} with T\u00b2, ${fixed(small, 4)} without; of a label ${fixed(label, 4)}. Soft over label: ${fixed(large / label, 4)}, and ${fixed(small / label, 4)}.`,
        };
      },
    },

    gap: {
      drag: "gap",
      asks: true,
      controls: [
        { name: "smoothing", label: "Smoothing \u03b5", min: 0, max: 0.9, step: 0.01, value: 0.1, shown: (v) => fixed(v, 2) },
        { name: "gap", label: "Your gap", min: 0, max: 15, step: 0.1, value: 10, shown: (v) => fixed(v, 1) },
        { name: "classes", label: "Classes K", min: 0, max: 3, step: 1, value: 1, shown: (v) => String(v ? 10 ** v : 2) },
      ],
      keys: [{ text: "smoothed loss", colour: "blue" }, { text: "without smoothing", colour: "grey", dash: [4, 4] }],
      x: { range: [0, 15], label: "gap to the other logits", splits: [0, 5, 10, 15] },
      y: { range: [0, 7], label: "nats", splits: [0, 1, 2, 3, 4, 5, 6, 7] },
      state({ smoothing, gap, classes }) {
        const [xs, size] = [grid(0, 15, 300), classes ? 10 ** classes : 2];
        const loss = (x) => f.smoothedLoss(x, smoothing, size);
        const best = f.bestGap(smoothing, size);
        const least = smoothing
          ? `Best gap ${fixed(best, 4)}: the label has ${fixed(f.softmaxOfGap(best, size), 5)}, and the loss is ${fixed(loss(best), 4)} nats. `
          : "Without smoothing no gap is best: a larger one always costs less. ";
        return {
          data: [xs, xs.map(loss), xs.map((x) => f.smoothedLoss(x, 0, size))],
          marks: [...(smoothing ? [{ ring: [best, loss(best)], colour: "blue" }] : []), { at: [gap, loss(gap)], colour: "blue" }],
          says: `${least}Yours: the label has ${fixed(f.softmaxOfGap(gap, size), 4)}, and it costs ${fixed(loss(gap), 4)}.`,
        };
      },
    },

    pull: {
      drag: "logit",
      over: "shift",
      asks: true,
      controls: [
        { name: "logit", label: "Logit of example 6", min: -7, max: 7, step: 0.1, value: 6.6, shown: (v) => fixed(v, 1) },
        { name: "shift", label: "Add to all six", min: -3, max: 3, step: 0.1, value: 0, shown: (v) => fixed(v, 1) },
      ],
      keys: [
        { text: "prediction σ(z)", colour: "blue" },
        { text: "pull on example 6", colour: "orange" },
        { text: "pull on the others", colour: "grey" },
      ],
      x: { range: [-10.2, 10.2], label: "logit of class 1 minus that of class 0", splits: [-10, -5, 0, 5, 10] },
      y: { range: [-0.14, 1.14], label: "probability of class 1", splits: [0, 0.25, 0.5, 0.75, 1] },
      state({ logit, shift }) {
        const xs = grid(-10.2, 10.2, 204);
        const six = f.pulls(logit, shift);
        const slope = six.reduce((total, [, , each]) => total + each, 0) / 6;
        return {
          data: [xs, xs.map(f.sigmoid)],
          marks: six.flatMap(([z, y, each], i) => [
            { at: [z, y], colour: i === 5 ? "orange" : "grey", text: String(i + 1), by: [[0, 4, -4][i - 2] ?? 0, y ? -14 : 14] },
            { from: [z, y], to: [z, y + each], colour: i === 5 ? "orange" : "grey" },
          ]),
          says:
            `Example 6: prediction ${fixed(six[5][2], 4)}, target 0, slope ${fixed(six[5][2], 4)}. ` +
            `Mean slope of the six: ${fixed(slope, 4)}; a step downhill ${slope > 0 ? "lowers" : "raises"} a bias that they share.`,
        };
      },
    },
  };

  const element = (name, className, textContent = "") =>
    Object.assign(document.createElement(name), { className, textContent });

  // The legend shows each colour beside its name, in the line's own dashes.
  function legend(keys) {
    const list = element("ul", "moving-keys");
    for (const key of keys) {
      const item = element("li", `moving-${key.colour}`, key.text);
      const swatch = element("span", `moving-swatch${key.bars ? " moving-bar" : key.dash ? ` moving-dash-${key.dash[0]}` : ""}`);
      item.prepend(swatch);
      list.append(item);
    }
    return list;
  }

  // One native range for each control: it works by mouse, touch and keyboard, and says its value.
  function slider(control, id, changed) {
    const row = element("div", "moving-control");
    const label = element("label", "", control.label);
    const input = element("input", "");
    const value = element("span", "moving-value");
    label.htmlFor = id;
    // The order matters: a browser clips the value to the range that it knows so far.
    Object.assign(input, { id, type: "range", min: control.min, max: control.max, step: control.step });
    value.setAttribute("aria-hidden", "true");
    const show = () => {
      value.textContent = control.shown(input.valueAsNumber);
      input.setAttribute("aria-valuetext", value.textContent);
    };
    input.addEventListener("input", () => {
      show();
      changed();
    });
    row.append(label, input, value);
    return {
      row,
      input,
      set(number) {
        input.value = number;
        show();
      },
    };
  }

  function drawMarks(u, marks, colour) {
    const { ctx } = u;
    const ratio = globalThis.uPlot.pxRatio;
    const place = ([x, y]) => [u.valToPos(x, "x", true), u.valToPos(y, "y", true)];
    ctx.save();
    ctx.beginPath();
    // Dots on the frame stay whole.
    ctx.rect(u.bbox.left - 6 * ratio, u.bbox.top - 6 * ratio, u.bbox.width + 12 * ratio, u.bbox.height + 12 * ratio);
    ctx.clip();
    ctx.lineWidth = 2.5 * ratio;
    Object.assign(ctx, { font: `${13 * ratio}px system-ui, sans-serif`, textAlign: "center", textBaseline: "middle" });
    // uPlot leaves the dashes of its last curve behind.
    ctx.setLineDash([]);
    for (const mark of marks) {
      ctx.strokeStyle = ctx.fillStyle = colour(mark.colour);
      ctx.beginPath();
      if (mark.from) {
        ctx.moveTo(...place(mark.from));
        ctx.lineTo(...place(mark.to));
        ctx.stroke();
      } else {
        ctx.arc(...place(mark.at ?? mark.ring), 5.5 * ratio, 0, 2 * Math.PI);
        ctx[mark.at ? "fill" : "stroke"]();
      }
      if (mark.text) {
        const [x, y] = place(mark.at);
        ctx.fillStyle = colour("text");
        ctx.fillText(mark.text, x + mark.by[0] * ratio, y + mark.by[1] * ratio);
      }
    }
    ctx.restore();
  }

  // Replace the still picture of one <figure> by the figure that moves.
  function start(figure) {
    const name = Object.keys(FIGURES).find((key) => figure.classList.contains(`figure-${key}`));
    const spec = FIGURES[name];
    const box = element("div", "moving");
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", figure.querySelector("figcaption").textContent);
    const canvas = element("div", "moving-plot");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", figure.querySelector("svg").getAttribute("aria-label"));
    const says = element("output", "moving-says");
    says.setAttribute("aria-live", "polite");
    const controls = element("div", "moving-controls");
    const reset = element("button", "moving-reset", "Reset");
    reset.type = "button";

    let state;
    let plot;
    let waits = true;
    const colour = (key) => getComputedStyle(box).getPropertyValue(`--${key}`).trim();

    function update() {
      const values = Object.fromEntries(spec.controls.map((control, i) => [control.name, sliders[i].input.valueAsNumber]));
      const made = spec.state({ ...values, text: field?.value });
      field?.setAttribute("aria-invalid", String(Boolean(made.fault)));
      if (made.fault) { // what was drawn stays, and so does the text
        says.textContent = made.fault;
        return;
      }
      state = made;
      if (waits) {
        state = { ...state, ...(spec.asks && { says: "What do you expect? Set a value, and the answer appears." }) };
      }
      says.textContent = state.says;
      plot?.setData(state.data);
    }

    const sliders = spec.controls.map((control) => slider(control, `moving-${name}-${control.name}`, set));
    const field = spec.field && Object.assign(element("textarea", "moving-field"), { id: `moving-${name}-text`, rows: 6, spellcheck: false });
    if (field) {
      const label = Object.assign(element("label", "", spec.field.label), { htmlFor: field.id });
      field.value = spec.field.value;
      field.addEventListener("input", update);
      controls.append(label, field);
    }
    function set() {
      waits = false;
      update();
    }
    const of = (control) => sliders[spec.controls.findIndex(({ name: one }) => one === control)]?.input;
    function give(input, number) {
      input.value = number;
      input.dispatchEvent(new Event("input"));
    }
    let held = -1; // the bar that a finger has
    function drag(event) {
      const { left, top } = plot.over.getBoundingClientRect();
      const [x, y] = [plot.posToVal(event.clientX - left, "x"), plot.posToVal(event.clientY - top, "y")];
      if (spec.drag) give(of(spec.drag), x - (of(spec.over)?.valueAsNumber ?? 0));
      if (event.type === "pointerdown") held = Math.round(x) - 1;
      if (!(held in (spec.bars ?? []))) return;
      const prob = Math.min(Math.max(y, 0.005), 0.995);
      give(of(spec.bars[held]), f.logitFor(spec.bars.map((one) => of(one).valueAsNumber), held, prob, 2 ** (of("temperature")?.valueAsNumber ?? 0)));
    }
    if (spec.drag || spec.bars) {
      // A finger that pulls a bar up does not scroll the page.
      Object.assign(canvas.style, spec.drag ? { cursor: "ew-resize" } : { cursor: "ns-resize", touchAction: "none" });
      canvas.addEventListener("pointerdown", (event) => {
        canvas.setPointerCapture(event.pointerId);
        drag(event);
      });
      canvas.addEventListener("pointermove", (event) => canvas.hasPointerCapture(event.pointerId) && drag(event));
    }
    function initial() {
      spec.controls.forEach((control, i) => sliders[i].set(control.value));
      update();
    }
    reset.addEventListener("click", initial);
    says.htmlFor = sliders.map(({ input }) => input.id).join(" ");
    controls.append(...sliders.map(({ row }) => row), reset);
    box.append(legend(spec.keys), canvas, says, controls);

    function axis(side) {
      const { label, splits, values } = spec[side];
      return {
        label,
        labelSize: 24,
        size: side === "x" ? 32 : 40,
        gap: 4,
        font: "13px system-ui, sans-serif",
        labelFont: "14px system-ui, sans-serif",
        stroke: colour("text"),
        grid: { stroke: colour("grid"), width: 1 },
        ticks: { stroke: colour("grid"), width: 1, size: 4 },
        ...(splits ? { splits: () => splits } : {}),
        values: (_, at) => values ?? at.map((value) => String(value).replace("-", "\u2212")),
      };
    }

    const size = () => ({ width: canvas.clientWidth, height: Math.min(320, Math.max(220, 0.62 * canvas.clientWidth)) });

    function build() {
      plot?.destroy();
      // Curves have a series each; keys beyond them stand for marks.
      const series = spec.keys.slice(0, state.data.length - 1).map(({ colour: key, dash, bars }) => ({
        stroke: colour(key),
        width: bars ? 0 : 2.5,
        dash,
        points: { show: false },
        ...(bars ? { fill: colour(key), paths: globalThis.uPlot.paths.bars({ size: [0.5, 80] }) } : {}),
      }));
      plot = new globalThis.uPlot(
        {
          ...size(),
          pxAlign: 0, // a curve whose points snap to pixels wobbles
          padding: [8, 10, 0, 0],
          legend: { show: false },
          cursor: { show: false },
          scales: { x: { time: false, range: () => spec.x.range }, y: { range: () => spec.y.range } },
          axes: [axis("x"), axis("y")],
          series: [{}, ...series],
          hooks: { draw: [(u) => drawMarks(u, state.marks, colour)] },
        },
        state.data,
        canvas,
      );
    }

    figure.prepend(box);
    figure.classList.add("moving-live");
    initial();
    build();
    let width = canvas.clientWidth;
    new ResizeObserver(() => {
      if (canvas.clientWidth !== width) {
        width = canvas.clientWidth;
        plot.setSize(size());
      }
    }).observe(canvas);
    // The theme's switch between light and dark changes the colours, which a canvas keeps.
    new MutationObserver(build).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  return start;
})();
