// What a page does in the browser besides what the theme does: the search, cards in place, answers to exercises. Without
// this script every link still leads where it says.
"use strict";

globalThis.xentFind = (() => {
  const root = new URL(document.documentElement.dataset.content_root, location.href);
  // As in _ext/site_search.py.
  const WORD = /[\p{L}\p{N}](?:[\p{L}\p{N}_.]*[\p{L}\p{N}_])?(?:-\p{L}[\p{L}\p{N}_]*)*/gu;
  const PART = /[A-Z]+(?![a-z])|[A-Z]?[a-z]+/g;
  let engine;

  // The index, and Sphinx's stems, come when the reader turns to the field.
  const load = () => (engine ??= (async () => {
    const coming = fetch(new URL("_static/sections.json", root));
    const src = new URL("_static/language_data.js", root);
    await new Promise((onload, onerror) => document.head.append(Object.assign(document.createElement("script"), { src, onload, onerror })));
    const index = await (await coming).json();
    return { ...index, stopped: new Set(index.stop), stemmer: new globalThis.Stemmer() };
  })());

  // A word with the parts of a name, as they are compared.
  function forms({ stopped, stemmer }, word) {
    const parts = /^\p{N}/u.test(word) ? [] : [...word.matchAll(PART)].map(([part]) => part.toLowerCase());
    const all = [...new Set([word.toLowerCase().replaceAll("-", ""), ...parts])];
    return all.filter((form) => form.length > 1 && !stopped.has(form)).map((form) => stemmer.stemWord(form));
  }

  // The ten best sections: first those that bear just these words as their name or in the book's index, then those that
  // have most of the words, the rarer the better. A single name from code leads to the reference.
  async function find(question) {
    const index = await load();
    const { records, words, levels, stopped, stemmer } = index;
    const coded = /^\S*[a-z][_.][a-z]\S*$/i.test(question.trim());
    const scores = records.map(() => ({ score: 0, share: 0 }));
    let whole = 0;
    const postings = (word) => {
      let at = 0;
      const found = (Object.hasOwn(words, word) ? words[word] : []).map((step) => {
        at += Math.floor(step / (levels + 1));
        return [at, (step % (levels + 1)) / levels];
      });
      return { found, rarity: found.length && Math.log(1 + (records.length - found.length + 0.5) / (found.length + 0.5)) };
    };
    for (const [word] of question.matchAll(WORD)) {
      const [first, ...parts] = forms(index, word);
      if (!first) continue;
      // The end of what is typed may be the beginning of a word.
      const begun = question.endsWith(word) && !Object.hasOwn(words, first) ? Object.keys(words).filter((one) => one.startsWith(first)) : [];
      const [best, groups] = [new Map(), [[first], parts, ...begun.map((one) => [one])]];
      let rarest = 0;
      for (const group of groups) {
        const sums = new Map();
        for (const { found, rarity } of group.map(postings)) {
          rarest = Math.max(rarest, rarity);
          for (const [at, level] of found) sums.set(at, (sums.get(at) ?? 0) + (rarity * level) / group.length ** 0.5);
        }
        for (const [at, sum] of sums) best.set(at, Math.max(sum, best.get(at) ?? 0));
      }
      whole += rarest;
      for (const [at, score] of best) {
        scores[at].score += score;
        scores[at].share += rarest;
      }
    }
    const plain = (question.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []).filter((word) => !stopped.has(word));
    for (const pair of new Set(plain.slice(1).map((word, i) => stemmer.stemWord(plain[i] + word)))) {
      const { found, rarity } = postings(pair);
      for (const [at, level] of found) scores[at].score += 0.7 * rarity * level;
    }
    const named = new Map(postings(`=${[...new Set(plain.map((word) => stemmer.stemWord(word)))].sort().join(" ")}`).found);
    const rank = ({ score, share }, at) => {
      const place = coded && records[at][0].includes("/api") ? 3 : records[at][1];
      return (whole && score * (share / whole) ** 0.7 * place) + (named.has(at) ? 2000 * place + 500 * (named.get(at) === 1) : 0);
    };
    const ranked = scores.map((one, at) => [rank(one, at), at]).filter(([score]) => score).sort(([one, i], [other, j]) => other - one || i - j);
    return ranked.slice(0, 10).map(([, at]) => {
      const [url, , headings, lead] = records[at];
      return { address: new URL(url, root).href, above: headings.slice(0, -1).join(" \u203a "), title: headings.at(-1), lead };
    });
  }

  const element = (name, className, textContent = "") =>
    Object.assign(document.createElement(name), { className, textContent });

  function entry({ address, title, above, lead }) {
    const item = element("li", "");
    const link = item.appendChild(element("a", ""));
    link.href = address;
    link.append(element("span", "found-above", above), element("strong", "", title), element("span", "found-says", lead));
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
    input.addEventListener("focus", () => load().catch(() => {}));
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

// What an exercise asks for by hand: the field says whether it is right, to three decimals.
for (const box of document.querySelectorAll(".answers")) {
  box.hidden = false;
  for (const input of box.querySelectorAll("input")) {
    const says = input.parentElement.nextElementSibling;
    input.addEventListener("input", () => {
      // Blanks, a decimal comma, a true minus and a fraction are numbers as well, and so is a comma between thousands.
      const plain = input.value.replace(/\s/g, "").replace(/[\u2212\u2013]/g, "-");
      const typed = Math.abs(input.dataset.value) < 1000 ? plain : plain.replace(/,(?=\d{3}(?!\d))/g, "");
      const parts = typed.replace(",", ".").split("/").map((part) => (part ? Number(part) : NaN));
      const value = parts.length === 2 ? parts[0] / parts[1] : parts.length === 1 ? parts[0] : NaN;
      const off = Math.abs(value - input.dataset.value);
      const right = off <= 0.0006;
      // An answer that was rounded too early: right in the decimals that it has.
      const short = parts.length === 1 && off <= 0.6 * 10 ** -(typed.split(/[.,]/)[1] ?? "").length && /[.,]\d/.test(typed);
      says.textContent = !input.value.trim() ? "" : Number.isNaN(value) ? "a number, such as 0.25 or 1/4" : right ? "right" : short ? "more digits" : "not yet";
    });
  }
}

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
