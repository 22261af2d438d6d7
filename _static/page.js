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
  const load = () => (engine ??= import(new URL("pagefind/pagefind.js", root)));

  // The ten best sections: first those that bear just these words as their name or in the book's index, in a chapter
  // before the glossary and the reference (unless it is a name from code), then what Pagefind ranks.
  async function find(words) {
    const pagefind = await load();
    const all = await Promise.all([pagefind.search(words, { filters: { named: key(words) } }), pagefind.search(words)]);
    const results = new Map(all.flatMap(({ results }) => results).map((result) => [result.id, result]));
    const found = await Promise.all([...results.values()].slice(0, 10).map((result) => result.data()));
    const named = found.splice(0, all[0].results.length);
    const order = words.includes("_") ? [/api/, /./] : [/chapters\/\d/, /notation/, /./];
    const main = ({ meta }) => meta.main?.split("; ").includes(key(words));
    const place = (one) => 2 * order.findIndex((kind) => kind.test(one.raw_url)) - main(one);
    return [...named.sort((one, other) => place(one) - place(other)), ...found].map(({ raw_url, meta, excerpt }) => ({
      address: new URL(raw_url.replace(/^\//, ""), root).href,
      ...meta,
      excerpt,
    }));
  }

  function element(name, className, text = "") {
    const made = document.createElement(name);
    made.className = className;
    made.textContent = text;
    return made;
  }

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
    input.addEventListener("input", show);
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
