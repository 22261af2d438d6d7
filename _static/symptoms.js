// A filter for the table of symptoms: a row stays if it holds every word. Without this script all rows stay.
document.querySelectorAll("table.xent-symptoms").forEach((table) => {
  const rows = [...table.querySelectorAll("tbody tr[id]")];
  const form = document.createElement("div");
  form.className = "xent-filter";
  form.innerHTML = `<label for="symptom-filter">Filter the symptoms</label>
    <input id="symptom-filter" placeholder="nan, Keras, weights ..."><output for="symptom-filter"></output>`;
  table.before(form);
  const input = form.querySelector("input");

  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row) => {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    });
    table.querySelectorAll("tbody").forEach((group) => {
      group.rows[0].hidden = [...group.rows].slice(1).every((row) => row.hidden);
    });
    form.querySelector("output").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} symptoms`;
  };
  input.addEventListener("input", filter);
  filter();
});
