// Before the first paint, so that a dark page does not flash.
(function (html) {
  var mode;
  try { mode = localStorage.getItem("mode"); } catch (refused) {}
  html.dataset.mode = mode || "auto";
  html.dataset.theme = /^(light|dark)$/.test(mode) ? mode : matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
})(document.documentElement);
