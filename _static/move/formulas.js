// The formulas behind the figures that move, by themselves: no page, no picture, nothing rounded.
// tests/book/test_moving.py compares what the figures say with the package `xent`.
// A classic script, because browsers refuse to load ES modules when a page is opened as a file.
"use strict";

globalThis.xentFormulas = (() => {
  const sum = (values) => values.reduce((total, value) => total + value, 0);

  // Probabilities of the logits divided by the temperature. The largest exponent is zero, so none overflows.
  function softmax(logits, temperature = 1) {
    const largest = Math.max(...logits);
    const powers = logits.map((z) => Math.exp((z - largest) / temperature));
    const total = sum(powers);
    return powers.map((power) => power / total);
  }

  // The logit that gives one class a probability, while the other logits stay.
  function logitFor(logits, at, prob, temperature = 1) {
    const others = logits.filter((_, k) => k !== at);
    const largest = Math.max(...others);
    const rest = sum(others.map((z) => Math.exp((z - largest) / temperature)));
    return largest + temperature * (logit(prob) + Math.log(rest));
  }

  // What each class adds to the divergence of Q from P.
  const divergenceTerms = (p, q) => p.map((share, k) => (share > 0 ? share * Math.log(share / q[k]) : 0));

  // In nats, with 0 log 0 = 0.
  const entropy = (probs) => -sum(probs.map((p) => (p > 0 ? p * Math.log(p) : 0)));

  // log(1 + exp(u)) for any u: the exponential never overflows and its digits survive.
  const softplus = (u) => Math.max(u, 0) + Math.log1p(Math.exp(-Math.abs(u)));

  function sigmoid(z) {
    const power = Math.exp(-Math.abs(z));
    return (z < 0 ? power : 1) / (1 + power);
  }

  // The binary loss of a logit, log(1 + e^z) - y z, as two positive terms that do not cancel.
  const binaryLoss = (z, y) => y * softplus(-z) + (1 - y) * softplus(z);

  const binarySlope = (z, y) => sigmoid(z) - y;

  // The share of mistakes when class 1 is said exactly if the probability exceeds the threshold.
  const mistakes = (z, y, threshold) => (sigmoid(z) > threshold ? 1 - y : y);

  // The logit at which a probability is reached.
  const logit = (p) => Math.log(p / (1 - p));

  // q*(B, beta) = beta 2F1(1, 1; B + 1; 1 - beta) by its series, whose terms are positive:
  // t_0 = 1, t_(k+1) = t_k (k + 1) / (B + 1 + k) (1 - beta). It stops where the rest cannot matter.
  function eosOptimum(stop, batchSize) {
    const x = 1 - stop;
    let term = 1;
    let total = 1;
    for (let k = 0; term * x > 1e-17 * total * stop; k += 1) {
      term *= ((k + 1) / (batchSize + 1 + k)) * x;
      total += term;
    }
    return stop * total;
  }

  // The share of each length from 1 to `most` that is learnt of a geometric law, P(n) E[1 / (n + S)] over its sum q* / B:
  // S is the sum of B - 1 lengths; the mean is an integral over t of e^(-nt) E[e^(-nt)]^(B-1), by the trapezoidal rule
  // in log t.
  function tiltedShares(stop, batchSize, most) {
    const weights = new Array(most).fill(0);
    const step = 1 / 8;
    for (let u = -20; batchSize > 1 && u < 5; u += step) {
      const t = Math.exp(u);
      const others = (stop * Math.exp(-t)) / (1 - (1 - stop) * Math.exp(-t));
      weights.forEach((_, i) => (weights[i] += step * t * Math.exp(-(i + 1) * t) * others ** (batchSize - 1)));
    }
    const total = eosOptimum(stop, batchSize) / batchSize;
    return weights.map((w, i) => ((1 - stop) ** i * stop * (batchSize > 1 ? w : 1 / (i + 1))) / total);
  }

  // Expected costs of the report q for the first of two outcomes, when its probability is p.
  const expectedLog = (p, q) => -(p > 0 ? p * Math.log(q) : 0) - (p < 1 ? (1 - p) * Math.log1p(-q) : 0);
  const expectedBrier = (p, q) => 2 * (p * (1 - q) ** 2 + (1 - p) * q ** 2);
  const expectedLinear = (p, q) => p * (1 - q) + (1 - p) * q;

  // The smoothed loss of a label whose logit is ahead of the others, which are equal, and the gap at which it is least.
  const smoothedLoss = (gap, eps, classes) => Math.log1p((classes - 1) * Math.exp(-gap)) + eps * (1 - 1 / classes) * gap;
  const softmaxOfGap = (gap, classes) => 1 / (1 + (classes - 1) * Math.exp(-gap));
  const bestGap = (eps, classes) => Math.log1p((classes * (1 - eps)) / eps);

  // The size of the distillation loss's gradient in the logits, with T^2, and that of a label of the first class; each
  // logit is that of so many classes.
  function softSize(student, teacher, temperature, copies) {
    const [q, p] = [student, teacher].map((logits) => softmax(logits, temperature));
    return temperature * Math.sqrt(sum(q.map((x, k) => (x - p[k]) ** 2)) / copies);
  }
  function labelSize(student, copies) {
    const q = softmax(student).map((x) => x / copies);
    const others = copies * sum(q.map((x) => x * x)) - q[0] ** 2;
    return Math.sqrt((1 - q[0]) ** 2 + others);
  }

  // The six examples of chapter 4, the last with another logit: logit of class 1 minus that of class 0, label, slope.
  const SIX = [[3.5346, 0], [-0.2119, 1], [1.846, 0], [0.3021, 1], [-0.8732, 1], [6.6285, 0]];
  const pulls = (last, shift) => SIX.map(([z, y], i) => {
    const logit = (i === 5 ? last : z) + shift;
    return [logit, y, binarySlope(logit, y)];
  });

  // A mean of means, each with the number that it is of.
  const oneMean = (counts, losses) => sum(counts.map((n, i) => n * losses[i])) / sum(counts);

  // Lengths, one a line, each with its prompt or none with one; or what is wrong, and where.
  function parseLengths(text) {
    const rows = text.split("\n").map((line, i) => ({ i: i + 1, line: line.trim() })).filter(({ line }) => line);
    const [lengths, prompts] = [[], []];
    for (const { i, line } of rows) {
      const [, number, prompt] = line.match(/^([^\s,;]*)[\s,;]*(.*)$/);
      const several = /^\d+[\s,;]+[\d\s,;]+$/.test(prompt) || (rows.length === 1 && /^\d+$/.test(prompt));
      if (!/^\d{1,9}$/.test(number) || Number(number) === 0 || several || (prompts.length && !prompt !== !prompts[0])) {
        return { fault: `Line ${i}: expected one length, from 1 on, and behind each its prompt or behind none; got "${line.slice(0, 40)}".` };
      }
      lengths.push(Number(number));
      prompts.push(prompt);
    }
    return rows.length ? { lengths, prompts } : { fault: "Expected at least one length; got an empty field." };
  }

  // E[1 / (n + S)] for each length n, with S the sum of B - 1 of them: the trapezoidal rule in log t for the integral
  // of e^(-nt) E[e^(-nt)]^(B-1), as in xent.denominators; then each prompt's weights, divided by their sum.
  function learntLengths(lengths, batchSize, prompts) {
    const weight = new Map(lengths.map((n) => [n, batchSize === 1 ? 1 / n : 0]));
    const counts = new Map(lengths.map((n) => [n, 0]));
    lengths.forEach((n) => counts.set(n, counts.get(n) + 1));
    const kinds = [...weight.keys()];
    const [least, most] = [Math.min(...kinds), Math.max(...kinds)];
    const step = 3 / 16;
    const decay = batchSize * least;
    const first = Math.floor((Math.log(1e-18) - Math.log(batchSize * most)) / step);
    const last = Math.ceil(Math.log((45 + Math.log((batchSize * most) / decay)) / decay) / step);
    for (let k = first; batchSize > 1 && k <= last; k += 1) {
      const t = Math.exp(k * step);
      const mean = sum(kinds.map((n) => counts.get(n) * Math.exp((least - n) * t))) / lengths.length;
      const others = (batchSize - 1) * (Math.log(mean) - least * t);
      kinds.forEach((n) => weight.set(n, weight.get(n) + step * t * Math.exp(others - n * t)));
    }
    const totals = new Map();
    lengths.forEach((n, i) => totals.set(prompts[i], (totals.get(prompts[i]) ?? 0) + weight.get(n)));
    return lengths.map((n, i) => weight.get(n) / totals.get(prompts[i]));
  }

  // The mean length that is written if the prompts come as in the data.
  function writtenLength(lengths, batchSize, prompts) {
    const asked = new Map();
    prompts.forEach((prompt) => asked.set(prompt, (asked.get(prompt) ?? 0) + 1 / prompts.length));
    return sum(learntLengths(lengths, batchSize, prompts).map((q, i) => q * asked.get(prompts[i]) * lengths[i]));
  }

  return {
    bestGap, binaryLoss, binarySlope, divergenceTerms, entropy, eosOptimum, expectedBrier, expectedLinear, expectedLog, labelSize,
    logit, logitFor, mistakes, oneMean, parseLengths, pulls, sigmoid, smoothedLoss, softmax, softmaxOfGap, softSize, sum, tiltedShares, writtenLength,
  };
})();
