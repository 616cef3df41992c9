// What is known of the selected item. Everything from the model is set as text.

const panel = document.getElementById("panel");

function select(item) {
  state.selected = item;
  panel.hidden = !item;
  if (item) describe(item);
  redraw();
}

function describe(item) {
  panel.replaceChildren();
  const close = element("button", {class: "close", "aria-label": "Close"}, "×");
  close.addEventListener("click", () => select(null));
  panel.append(close, element("h2", {}, item.isNode ? item.label : titleOf(item)));
  panel.append(element("div", {class: "sub"}, item.isNode ? item.op + "  ·  " + item.id : item.path || item.id));
  if (!item.isNode && isSimple(item)) describeNode(operationsIn(item)[0]);
  if (item.isNode) describeNode(item); else describeGroup(item);
  numbers(item);
  if (item.isNode) {
    linked("Takes", item.takes);
    linked("Taken by", item.gives);
  }
  panel.scrollTop = 0;
}

function describeNode(node) {
  badge(node.family, shade(data.families[node.family] || data.families.other));
  if (node.served) badge(node.served, shade(data.served[node.served]));
  table("Gives", (node.out || []).map((look, i, all) => [all.length > 1 ? String(i) : "", look]), true);
  table("Arguments", node.args || [], true);
  table("Parameters", node.params || [], true);
  if (node.src) {
    const [file, line, name, text] = node.src;
    heading("Source");
    panel.append(element("div", {class: "sub"}, `${file}:${line}` + (name ? `  in ${name}` : "")));
    if (text) panel.append(element("pre", {}, text));
  }
  for (const [level, lines] of Object.entries(node.levels || {})) {
    heading({aten: "ATen", stablehlo: "StableHLO", "not known": "Not known"}[level] || level);
    panel.append(element("pre", {}, lines.join("\n")));
  }
}

function describeGroup(group) {
  const inside = nodesIn(group);
  table("Module", [["class", group.type || "—"], ["path", group.path], ...(group.call ? [["call", String(group.call + 1)]] : []), ...(isRun(group) ? [["alike", `${group.repeat} blocks`]] : []), ["operations", String(inside.filter(n => !isWeight(n)).length)]]);
  const own = new Set(inside);
  const looks = list => [...new Set(list.flatMap(node => node.out || []))].slice(0, 12).map(look => ["", look]);
  table("Takes", looks(inside.flatMap(node => node.takes).filter(node => !own.has(node) && !isWeight(node))), true);
  table("Gives", looks(inside.filter(node => !isWeight(node) && node.gives.some(to => !own.has(to)))), true);
  if (!isSimple(group)) describeMany(inside);
  const row = element("div", {});
  const open = element("a", {role: "button", tabindex: "0"}, state.open.has(group) ? "close" : "open");
  open.addEventListener("click", () => { flip(group); describe(group); });
  row.append(open);
  if (isRun(group)) {
    const all = element("a", {role: "button", tabindex: "0"}, state.unrolled.has(group) ? "show one" : `show all ${group.repeat}`);
    all.addEventListener("click", () => { unroll(group); describe(group); });
    row.append("   ·   ", all);
  }
  heading("Drawing");
  panel.append(row);
}

/** The weights of many nodes, and how often each operator is among what they become. */
function describeMany(inside) {
  const weights = new Map(inside.flatMap(node => node.params || []));
  table("Parameters", [...weights].slice(0, 40), true);
  const levels = new Map();
  for (const node of inside) for (const op of (node.levels || {}).aten || []) levels.set(op, (levels.get(op) || 0) + 1);
  table("ATen", [...levels].sort((a, b) => b[1] - a[1]).slice(0, 20).map(([op, count]) => [op, `× ${count}`]));
}

function numbers(item) {
  const was = state.colour, rows = [];
  for (const name of Object.keys(data.overlays)) {
    state.colour = "overlay:" + name;
    const value = amount(item);
    if (value !== null) rows.push([name, spokenNumber(value)]);
  }
  state.colour = was;
  table("Numbers", rows);
}

function heading(text) { panel.append(element("h3", {}, text)); }

function badge(text, colour) {
  const made = element("span", {class: "badge"}, text);
  made.style.color = colour;
  panel.append(made);
}

function table(title, rows, code) {
  if (!rows.length) return;
  heading(title);
  const made = element("table", {});
  for (const [name, value] of rows) {
    const row = element("tr", {});
    if (name || rows.some(([other]) => other)) row.append(element("td", {title: name}, name));
    row.append(element("td", code ? {class: "code"} : {}, value));
    made.append(row);
  }
  panel.append(made);
}

function linked(title, items) {
  const shown = items.filter(node => state.weights || !isWeight(node)).slice(0, 20);
  if (!shown.length) return;
  heading(title);
  const row = element("div", {});
  shown.forEach((node, i) => {
    const link = element("a", {role: "button", tabindex: "0"}, node.label);
    link.addEventListener("click", () => goTo(node));
    row.append(i ? ",  " : "", link);
  });
  panel.append(row);
}
