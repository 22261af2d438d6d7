// What a page does in the browser besides what the theme does: the search. Without this script every link still leads
// where it says.
"use strict";

globalThis.xentFind = (() => {
  const root = new URL(document.documentElement.dataset.content_root, location.href);
  // As in _ext/site_search.py: the words without their order, underscores and hyphens.
  const key = (words) => {
    const all = new Set(words.toLowerCase().match(/[\p{L}\p{N}]+(?:\.\d+)?/gu));
    return [...all].filter((word) => !["a", "at", "in", "is", "of", "the"].includes(word)).sort().join(" ");
  };
  let engine;

  // Pagefind's script and its WebAssembly come when the reader turns to the field, its index by the word.
  const load = () => (engine ??= import(new URL("pagefind/pagefind.js", root)).then(async (pagefind) => {
    await pagefind.options({ noWorker: true });
    return pagefind;
  }));

  // A whole question has words that no section has together: each is looked up, and counts more the rarer it is.
  async function loosely(pagefind, words) {
    const sums = new Map();
    for (const { results } of await Promise.all([...new Set(words)].map((word) => pagefind.search(word)))) {
      for (const result of results) {
        const sum = sums.get(result.id) ?? { ...result, score: 0 };
        sum.score += result.score ** 0.5 / results.length ** 0.75;
        sums.set(result.id, sum);
      }
    }
    return { results: [...sums.values()].sort((one, other) => other.score - one.score) };
  }

  // The ten best sections: first those that bear just these words as their name or in the book's index, in a chapter
  // before the glossary and the reference (unless it is a name from code), then what Pagefind ranks.
  async function find(words) {
    const pagefind = await load();
    const asked = words.split(/\s+/).filter((word) => key(word)).join(" ") || words;
    const filters = { [key(words)[0] ?? "-"]: key(words) };
    const all = await Promise.all([pagefind.search(asked, { filters }), pagefind.search(asked)]);
    if (all[1].results.length < 3) all.push(await loosely(pagefind, asked.split(" ")));
    const results = new Map(all.flatMap(({ results }) => results).map((result) => [result.id, result]));
    const found = await Promise.all([...results.values()].slice(0, 10).map((result) => result.data()));
    const named = found.splice(0, all[0].results.length);
    const order = words.includes("_") ? [/api/, /./] : [/chapters\/\d/, /notation/, /./];
    const main = ({ meta }) => meta.main?.split("; ").includes(key(words));
    const place = (one) => 2 * order.findIndex((kind) => kind.test(one.meta.at)) - main(one);
    return [...named.sort((one, other) => place(one) - place(other)), ...found].map(({ meta, excerpt }) => ({
      address: new URL(meta.at, root).href,
      ...meta,
      excerpt,
    }));
  }

  const element = (name, className, textContent = "") =>
    Object.assign(document.createElement(name), { className, textContent });

  function entry({ address, title, above, excerpt }) {
    const item = element("li", "");
    const link = item.appendChild(element("a", ""));
    link.href = address;
    link.append(element("span", "found-above", above ?? ""), element("strong", "", title), element("span", "found-says"));
    link.lastChild.innerHTML = excerpt; // Pagefind's: text, with <mark> around the words
    return item;
  }

  function field(form) {
    const input = form.querySelector("input");
    const list = element("div", "site-found");
    form.after(list);
    const says = list.appendChild(element("p", ""));
    says.setAttribute("role", "status");
    const entries = list.appendChild(element("ol", ""));
    async function show() {
      const words = input.value.trim();
      const found = words ? await find(words).catch(() => null) : [];
      if (words !== input.value.trim()) return; // more was typed meanwhile
      entries.replaceChildren(...(found ?? []).map(entry));
      const none = "Nothing found. Fewer words find more.";
      says.textContent = !words ? "" : found ? (found.length ? "" : none) : "The search needs a server: make serve starts one.";
    }
    input.addEventListener("focus", () => load().then((pagefind) => pagefind.init(), () => {}));
    let waits; // for the end of a word: what its beginning would fetch is spared
    input.addEventListener("input", () => {
      clearTimeout(waits);
      waits = setTimeout(show, 120);
    });
    form.parentElement.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const stops = [input, ...entries.querySelectorAll("a")];
      if (step) {
        event.preventDefault();
        stops.at((stops.indexOf(document.activeElement) + step) % stops.length).focus();
      }
    });
    const asked = new URLSearchParams(location.search).get("q");
    if (asked && form.closest("main")) {
      input.value = asked;
      show();
    }
  }

  document.querySelectorAll("form.bd-search").forEach(field);
  return find;
})();

// What a mark, a number or a reference leads to, as a card in place. A mark and the number of an equation open it by
// click, tap and Enter; with a mouse, it opens for references too while the pointer rests on them.
(() => {
  if (!HTMLElement.prototype.showPopover) return;
  const OPENS = "article a.claim, article .eqno > a:first-child";
  const SHOWN = `${OPENS}, article :is(${["#equation-", "#fig-", "#term-", "#erratum-", "references.html#"].map((to) => `a.reference[href*='${to}']`)})`;
  const WHOLE = ".ledger-entry, .erratum, figure, div.math, .citation";
  const card = document.createElement("div");
  Object.assign(card, { className: "bd-article card-in-place", popover: "auto", tabIndex: -1 });
  card.setAttribute("role", "dialog");
  document.body.append(card);
  const pages = new Map();
  let timer;

  async function document_at(address) {
    const answer = await fetch(address);
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  }

  async function content(link) {
    const place = new URL(link.href);
    const page = place.href.split("#")[0];
    if (page === location.href.split("#")[0]) pages.set(page, document);
    if (!pages.has(page)) pages.set(page, document_at(page));
    const found = (await pages.get(page)).getElementById(decodeURIComponent(place.hash.slice(1)));
    const whole = found.closest(WHOLE) ?? found;
    return (whole.matches("dt") ? [whole, whole.nextElementSibling] : [whole]).map((node) => {
      const copy = document.importNode(node, true);
      copy.querySelectorAll(".headerlink, .moving").forEach((one) => one.remove());
      for (const one of [copy, ...copy.querySelectorAll("*")]) {
        one.removeAttribute("id");
        for (const name of ["href", "src"]) if (one.hasAttribute(name)) one[name] = new URL(one.getAttribute(name), place).href;
      }
      return copy;
    });
  }

  async function show(link) {
    const inside = await content(link);
    const more = document.createElement("p");
    more.className = "card-more";
    more.append(Object.assign(document.createElement("a"), { href: link.href, textContent: link.matches(OPENS) ? "Open the ledger" : "Go there" }));
    card.setAttribute("aria-label", link.title || link.textContent);
    card.replaceChildren(...inside, more);
    card.showPopover();
    const [at, own] = [link.getBoundingClientRect(), card.getBoundingClientRect()];
    const below = at.bottom + 8 + own.height < innerHeight;
    card.style.left = `${Math.max(8, Math.min(at.left - 24, document.documentElement.clientWidth - own.width - 8))}px`;
    card.style.top = `${below ? at.bottom + 8 : Math.max(8, at.top - own.height - 8)}px`;
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest?.(OPENS);
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || card.contains(link)) return;
    event.preventDefault();
    show(link).then(() => card.focus(), () => location.assign(link.href));
  });
  card.addEventListener("click", (event) => event.target.closest("a") && card.hidePopover());
  // Sphinx's own script takes the key from the browser, which would close the card.
  document.addEventListener("keydown", (event) => event.key === "Escape" && card.matches(":popover-open") && card.hidePopover());
  const later = (wait, act) => {
    clearTimeout(timer);
    timer = setTimeout(act, wait);
  };
  document.addEventListener("pointerover", (event) => {
    if (event.pointerType !== "mouse" || !event.target.closest) return;
    const link = event.target.closest(SHOWN);
    if (link && !card.contains(link)) later(350, () => show(link).catch(() => {}));
    else if (card.contains(event.target)) clearTimeout(timer);
    else later(250, () => card.matches(":hover, :focus-within") || card.hidePopover());
  });
})();

// The theme's switch goes between light and dark; the theme's own third state looks like one of the two.
for (const button of document.querySelectorAll(".theme-switch-button")) {
  button.addEventListener("click", (event) => {
    event.stopImmediatePropagation();
    const { dataset } = document.documentElement;
    dataset.mode = dataset.theme = localStorage.mode = localStorage.theme = dataset.theme === "dark" ? "light" : "dark";
  }, true);
}

// On paper everything is open, and every font has to be there: what is far from the view has asked for none yet.
(() => {
  const now = print.bind(globalThis);
  addEventListener("beforeprint", () => document.querySelectorAll("article details").forEach((one) => (one.open = true)));
  globalThis.print = () => Promise.allSettled([...document.fonts].map((font) => font.load())).then(() => now());
  document.addEventListener("keydown", (event) => {
    if (event.key !== "p" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    globalThis.print();
  });
})();
