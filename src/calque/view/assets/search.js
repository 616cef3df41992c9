// Search by name, operator, path and source; a hit is opened and shown.

const search = document.getElementById("search"), results = document.getElementById("results");
const MOST_HITS = 60;
let hits = [], chosen = 0;

const haystack = item => (item.isNode ? [item.label, item.id, item.op, item.family, ...around(item).map(group => group.path), ...(item.src || []), ...(item.params || []).map(([name]) => name)] : [item.title, item.path, item.id]).join("\n").toLowerCase();

function find() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  hits = [];
  if (words.length) {
    for (const item of [...groups, ...nodes]) {
      item.text ??= haystack(item);
      if (words.every(word => item.text.includes(word)) && hits.push(item) >= MOST_HITS) break;
    }
  }
  chosen = 0;
  list();
}

function list() {
  results.hidden = !search.value.trim();
  results.replaceChildren(...hits.map((item, i) => {
    const row = element("li", {role: "option", "aria-selected": String(i === chosen)}, item.isNode ? item.label : item.title);
    row.append(element("small", {}, item.isNode ? [...around(item).filter(g => !isRun(g)).map(g => g.name), item.id].join(" › ") : item.path));
    row.addEventListener("pointerdown", event => { event.preventDefault(); take(i); });
    return row;
  }));
  if (!hits.length) results.append(element("li", {}, "nothing found"));
  results.children[chosen]?.scrollIntoView({block: "nearest"});
}

function take(index) {
  if (!hits[index]) return;
  goTo(hits[index]);
  results.hidden = true;
  stage.focus();
}

search.addEventListener("input", find);
search.addEventListener("focus", find);
search.addEventListener("blur", () => { results.hidden = true; });
search.addEventListener("keydown", event => {
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    chosen = (chosen + (event.key === "ArrowDown" ? 1 : -1) + hits.length) % Math.max(1, hits.length);
    list();
  } else if (event.key === "Enter") take(chosen);
  else if (event.key === "Escape") { search.value = ""; results.hidden = true; stage.focus(); }
  else return;
  event.preventDefault();
});
