// Fetches what the figures that move need, when the first of them comes near. Until then, and where anything
// fails, the still picture stands.
"use strict";

(() => {
  const here = document.currentScript.src.replace(/[^/]*$/, "");
  const figures = [...document.querySelectorAll("figure.moving-figure")];

  function fetched(element) {
    return new Promise((resolve, reject) => {
      element.addEventListener("load", resolve);
      element.addEventListener("error", reject);
      document.head.append(element);
    });
  }

  function script(name) {
    const element = document.createElement("script");
    element.src = here + name;
    element.async = false;
    return fetched(element);
  }

  function sheet(name) {
    const element = document.createElement("link");
    element.rel = "stylesheet";
    element.href = here + name;
    return fetched(element);
  }

  function load() {
    const parts = [
      ...["uplot/uPlot.min.css", "move.css"].map(sheet),
      ...["uplot/uPlot.iife.min.js", "formulas.js", "figures.js"].map(script),
    ];
    Promise.all(parts).then(() => figures.forEach(globalThis.xentMoving), () => {});
  }

  const near = new IntersectionObserver(
    (entries) => {
      if (entries.some((entry) => entry.isIntersecting)) {
        near.disconnect();
        load();
      }
    },
    { rootMargin: "800px" },
  );
  figures.forEach((figure) => near.observe(figure));
})();
