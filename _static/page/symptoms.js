// A filter for the table of symptoms: a row stays if it holds every word. Without this script all rows stay.
document.querySelectorAll("table.xent-symptoms").forEach((table) => {
  const rows = [...table.querySelectorAll("tbody tr[id]")];
  const form = document.createElement("div");
  form.className = "xent-filter";
  // No landmark and no search field: the page has one way into the search of the book already.
  form.setAttribute("role", "group");
  form.setAttribute("aria-label", "Filter the symptoms");
  const label = document.createElement("label");
  label.textContent = "Filter";
  label.htmlFor = "symptom-filter";
  const input = document.createElement("input");
  input.type = "text";
  input.id = "symptom-filter";
  input.placeholder = "nan, Keras, weights ...";
  const count = document.createElement("output");
  count.htmlFor = "symptom-filter";
  form.append(label, input, count);
  table.before(form);

  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row) => {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    });
    table.querySelectorAll("tbody").forEach((group) => {
      group.rows[0].hidden = [...group.rows].slice(1).every((row) => row.hidden);
    });
    const shown = rows.filter((row) => !row.hidden).length;
    count.textContent = `${shown} of ${rows.length} symptoms`;
  };
  input.addEventListener("input", filter);
  // A link to a row shows the row, whatever was typed before.
  window.addEventListener("hashchange", () => {
    const row = document.getElementById(location.hash.slice(1));
    if (row && row.hidden) {
      input.value = "";
      filter();
      row.scrollIntoView();
    }
  });
  filter();
});
