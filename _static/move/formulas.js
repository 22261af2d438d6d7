// The formulas behind the figures that move, by themselves: no page, no picture, nothing rounded.
// tests/book/test_moving_formulas.py runs this file under Node and compares it with the package `xent`.
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

  // What a model reports at its best under label smoothing, and the way back.
  const smoothed = (p, eps, classes) => (1 - eps) * p + eps / classes;
  const unsmoothed = (q, eps, classes) => (q - eps / classes) / (1 - eps);

  // Expected costs of the report q for the first of two outcomes, when its probability is p.
  const expectedLog = (p, q) => -(p > 0 ? p * Math.log(q) : 0) - (p < 1 ? (1 - p) * Math.log1p(-q) : 0);
  const expectedBrier = (p, q) => 2 * (p * (1 - q) ** 2 + (1 - p) * q ** 2);
  const expectedLinear = (p, q) => p * (1 - q) + (1 - p) * q;

  return {
    binaryLoss,
    binarySlope,
    entropy,
    eosOptimum,
    expectedBrier,
    expectedLinear,
    expectedLog,
    logit,
    mistakes,
    sigmoid,
    smoothed,
    softmax,
    softplus,
    unsmoothed,
  };
})();
