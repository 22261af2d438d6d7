// Chapter 8: a field that lists the rows which hold every word typed into it.
const field = document.querySelector(".symptom-filter"), list = document.createElement("ul");
const rows = [...document.querySelectorAll("[id^=symptom-]")].map(mark => {
  const row = mark.closest("section"), title = row.querySelector("h4").textContent.replace(/^[\d.\s]+(?=\S)|#$/g, "");
  return { id: mark.id, title, text: (title + row.textContent).toLowerCase() };
});
list.setAttribute("aria-live", "polite");
field.hidden = false;
field.after(list);
field.addEventListener("input", () => {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = words.length ? rows.filter(row => words.every(word => row.text.includes(word))) : [];
  found.sort((a, b) => words.filter(w => b.title.toLowerCase().includes(w)).length - words.filter(w => a.title.toLowerCase().includes(w)).length);
  list.replaceChildren(...found.slice(0, 8).map(row => {
    const item = document.createElement("li"), link = document.createElement("a");
    link.href = "#" + row.id;
    link.textContent = row.title;
    item.append(link);
    return item;
  }));
});
