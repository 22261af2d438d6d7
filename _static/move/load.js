// Fetches what the figures that move need, when the first of them comes near. Until then, and where anything
// fails, the still picture stands.
"use strict";

(() => {
  const here = document.currentScript.src.replace(/[^/]*$/, "");
  const figures = [...document.querySelectorAll("figure.moving-figure")];

  const fetched = (tag, is) => new Promise((onload, onerror) => {
    document.head.append(Object.assign(document.createElement(tag), { ...is, onload, onerror }));
  });
  const sheet = (name) => fetched("link", { rel: "stylesheet", href: here + name });
  const script = (name) => fetched("script", { src: here + name, async: false });

  const near = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    near.disconnect();
    Promise.all([
      ...["uplot/uPlot.min.css", "move.css"].map(sheet),
      ...["uplot/uPlot.iife.min.js", "formulas.js", "figures.js"].map(script),
    ]).then(() => figures.forEach(globalThis.xentMoving), () => {});
  }, { rootMargin: "800px" });
  figures.forEach((figure) => near.observe(figure));
})();
