// What the pages do besides being read. They work without it: it adds, and nothing waits for it.
(function () {
  "use strict";
  var html = document.documentElement;
  var all = function (selector, root) { return Array.from((root || document).querySelectorAll(selector)); };
  var one = function (selector) { return document.querySelector(selector); };

  // ---- light and dark: the system's choice, until the reader makes another
  var dark = matchMedia("(prefers-color-scheme: dark)");
  var store = function (mode) { try { localStorage.setItem("mode", mode); } catch (refused) {} };
  function show(mode) {
    html.dataset.mode = mode;
    html.dataset.theme = mode === "auto" ? (dark.matches ? "dark" : "light") : mode;
    all(".theme-switch-button").forEach(function (button) {
      button.title = "Light or dark: now " + (mode === "auto" ? "as the system has it" : mode);
      button.setAttribute("aria-label", button.title);
    });
  }
  dark.addEventListener("change", function () { show(html.dataset.mode || "auto"); });
  all(".theme-switch-button").forEach(function (button) {
    button.hidden = false;
    button.addEventListener("click", function () {
      // The first click always changes something; the third returns to the system's choice.
      var order = dark.matches ? ["auto", "light", "dark"] : ["auto", "dark", "light"];
      var mode = order[(order.indexOf(html.dataset.mode) + 1) % 3];
      store(mode);
      show(mode);
    });
  });
  show(html.dataset.mode || "auto");

  // ---- the two lists of contents, which a narrow screen keeps out of sight
  [["primary", "#book-contents"], ["secondary", "#page-contents"]].forEach(function (pair) {
    var box = one("#pst-" + pair[0] + "-sidebar-checkbox"), button = one("." + pair[0] + "-toggle"), bar = one(pair[1]);
    if (!box || !button || !bar) return;
    function tell() { button.setAttribute("aria-expanded", String(getComputedStyle(bar).visibility !== "hidden")); }
    function turn() {
      box.checked = !box.checked;
      tell();
    }
    button.addEventListener("click", function () {
      turn();
      if (getComputedStyle(bar).visibility === "hidden") return;
      var first = bar.querySelector("a, button, input");
      // The drawer slides in; what is not yet visible cannot take the focus.
      if (box.checked && first) setTimeout(function () { first.focus({ preventScroll: true }); }, 100);
    });
    bar.addEventListener("keydown", function (event) {
      if (event.key === "Escape" && box.checked) { turn(); button.focus(); }
    });
    bar.addEventListener("click", function (event) {
      // A drawer over the text closes when one of its links was followed on the same page.
      if (box.checked && event.target.closest("a[href^='#']")) turn();
    });
    box.addEventListener("change", function () { tell(); if (!box.checked) button.focus(); });
    tell();
  });

  // ---- search: Ctrl+K or Command+K
  document.addEventListener("keydown", function (event) {
    if (!/^k$/i.test(event.key) || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
    event.preventDefault();
    var field = all("input[name=q]").find(function (input) { return input.checkVisibility ? input.checkVisibility({ visibilityProperty: true }) : true; });
    if (field) { field.focus(); field.select(); } else { var link = one("a.search-button"); if (link) location.href = link.href; }
  });
  if (one(".bd-search-container")) one(".bd-search-container input").focus();

  // ---- a word that the search found is marked on the page by Sphinx's own script, fetched for this alone
  if (/[?&]highlight=/.test(location.search)) {
    ["documentation_options.js", "doctools.js", "sphinx_highlight.js"].forEach(function (name) {
      var script = document.createElement("script");
      script.async = false;
      script.src = html.dataset.content_root + "_static/" + name;
      document.head.append(script);
    });
  }

  // ---- the list "on this page" follows the reading
  var links = all("#page-contents nav a[href^='#']");
  var headings = links.map(function (link) {
    return document.getElementById(decodeURIComponent(link.hash.slice(1)));
  });
  if (links.length && "IntersectionObserver" in window) {
    var inView = new Set();
    var observer = new IntersectionObserver(function (entries) {
      entries.forEach(function (entry) { inView[entry.isIntersecting ? "add" : "delete"](entry.target); });
      // Sections contain their subsections: the last one in the order of the page is the innermost.
      var current = -1;
      headings.forEach(function (section, index) { if (inView.has(section)) current = index; });
      links.forEach(function (link, index) {
        link.classList.toggle("active", index === current);
        link.parentElement.classList.toggle("active", index === current);
        if (index === current) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
      });
    }, { rootMargin: "-20% 0px -75% 0px" });
    headings.forEach(function (section) { if (section) observer.observe(section); });
  }

  // ---- the contents of the book show the current page
  var here = one("#book-contents .current.active > a") || one("#book-contents li.active > a");
  var drawer = one("#book-contents");
  if (here) {
    here.setAttribute("aria-current", "page");
    var place = here.getBoundingClientRect();
    if (place.bottom > drawer.clientHeight) drawer.scrollTop = place.top - drawer.clientHeight / 3;
  }

  // ---- copy a listing
  function copied(text) {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    var area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    var done = document.execCommand("copy");
    area.remove();
    return done ? Promise.resolve() : Promise.reject(new Error("refused"));
  }
  document.addEventListener("click", function (event) {
    var button = event.target.closest && event.target.closest("button.copybtn");
    if (!button) return;
    var finish = function (text) {
      button.textContent = text;
      setTimeout(function () { button.textContent = "copy"; }, 2000);
    };
    copied(button.parentElement.querySelector("pre").textContent.replace(/\n$/, "")).then(
      function () { finish("copied"); }, function () { finish("failed"); });
  });

  // ---- boxes that scroll sideways can be reached and scrolled with the keyboard
  var BOXES = "pre, .katex-display, .cell_output > .output, .pst-scrollable-table-container, .cell_output table, .scroll-wide";
  function name(box) {
    if (box.matches("pre")) return box.closest(".cell_output") ? "Output, scrolls sideways" : "Code, scrolls sideways";
    return box.matches(".katex-display") ? "Equation, scrolls sideways" : "Table, scrolls sideways";
  }
  function check(box) {
    var style = getComputedStyle(box), sideways = /auto|scroll/;
    var wide = sideways.test(style.overflowX) && box.scrollWidth > box.clientWidth ||
      sideways.test(style.overflowY) && box.scrollHeight > box.clientHeight;
    if (wide && !box.hasAttribute("tabindex")) {
      box.tabIndex = 0;
      if (!box.matches("table") && !box.hasAttribute("role")) {
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", name(box));
        box.dataset.named = "";
      }
    } else if (!wide && box.tabIndex === 0) {
      box.removeAttribute("tabindex");
      if ("named" in box.dataset) {
        ["role", "aria-label", "data-named"].forEach(function (attribute) { box.removeAttribute(attribute); });
      }
    }
  }
  function button(listing) {
    if (listing.closest(".cell_output") || listing.querySelector(".copybtn")) return;
    var copy = document.createElement("button");
    copy.type = "button";
    copy.className = "copybtn";
    copy.textContent = "copy";
    listing.append(copy);
  }
  // Part by part, when it comes near: to measure a box, the browser must lay out the part in which it is.
  var parts = all("article > section > *, .bd-search-container, article > :not(section)");
  function prepare(part) {
    all("div.highlight", part).forEach(button);
    (part.matches(BOXES) ? [part] : []).concat(all(BOXES, part)).forEach(check);
    part.dataset.ready = "";
  }
  var near = new IntersectionObserver(function (entries) {
    entries.forEach(function (entry) {
      if (!entry.isIntersecting) return;
      near.unobserve(entry.target);
      prepare(entry.target);
    });
  }, { rootMargin: "60% 0px" });
  function watch() { parts.forEach(function (part) { near.observe(part); }); }
  if (document.readyState === "complete") watch(); else addEventListener("load", watch);
  var timer;
  function again() { clearTimeout(timer); timer = setTimeout(watch, 200); }
  addEventListener("resize", again);
  // A font of the formulas arrives when the first formula comes near, and with it every width changes.
  if (document.fonts) document.fonts.addEventListener("loadingdone", again);
  document.addEventListener("toggle", function (event) { all(BOXES, event.target).forEach(check); }, true);

  // ---- menus close on Escape and when the reader goes on elsewhere
  all("details.menu").forEach(function (menu) {
    menu.addEventListener("keydown", function (event) {
      if (event.key === "Escape" && menu.open) { menu.open = false; menu.querySelector("summary").focus(); }
    });
    document.addEventListener("click", function (event) { if (!menu.contains(event.target)) menu.open = false; });
  });

  // ---- paper is light, and on it every solution is open
  var opened = [];
  addEventListener("beforeprint", function () {
    html.dataset.theme = "light";
    opened = all("article details:not([open])");
    opened.forEach(function (details) { details.open = true; });
  });
  addEventListener("afterprint", function () {
    show(html.dataset.mode || "auto");
    opened.forEach(function (details) { details.open = false; });
    opened = [];
  });

  // ---- the report of a mistake names the section that is being read
  var report = one("#report-a-mistake");
  function sectionInView() {
    var found = null;
    all("article :is(h1, h2, h3)").forEach(function (heading) {
      if (heading.getBoundingClientRect().top < innerHeight / 2) found = heading;
    });
    var title = found && found.cloneNode(true);
    if (title) all(".headerlink, .katex-html, annotation", title).forEach(function (extra) { extra.remove(); });
    return title ? title.textContent.trim() : "(top)";
  }
  if (report) {
    report.addEventListener("click", function () {
      var address = new URL(report.href);
      address.searchParams.forEach(function (value, key) {
        address.searchParams.set(key, value.replace(/^Section: .*$/m, "Section: " + sectionInView()));
      });
      report.href = address.href;
    });
  }
})();
