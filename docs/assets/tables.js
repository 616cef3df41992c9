// Tables of many rows get a field that filters them, and show their first rows until asked for all.
// Without scripts every row is there.
const SHOWN = 40;

function equip(table) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length <= SHOWN || table.dataset.filtered) return;
  table.dataset.filtered = "yes";
  const words = rows.map((row) => row.textContent.toLowerCase());
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = `Filter ${rows.length} rows: words of the name, family or reason`;
  field.setAttribute("aria-label", "Filter the table");
  field.className = "table-filter";
  const more = document.createElement("button");
  more.className = "md-button table-more";
  let all = false;
  const show = () => {
    const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((_, at) => wanted.every((word) => words[at].includes(word)));
    const seen = new Set(all ? found : found.slice(0, SHOWN));
    for (const row of rows) row.hidden = !seen.has(row);
    more.hidden = seen.size === found.length;
    more.textContent = `Show all ${found.length}`;
  };
  field.addEventListener("input", show);
  more.addEventListener("click", () => {
    all = true;
    show();
  });
  const frame = table.closest(".md-typeset__scrollwrap") ?? table;
  frame.before(field);
  frame.after(more);
  show();
}

const equipAll = () => document.querySelectorAll(".md-typeset table").forEach(equip);
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", equipAll);
else equipAll();
