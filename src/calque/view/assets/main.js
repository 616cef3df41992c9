// The page: buttons, keys and pointers.

function flip(group) {
  if (group.isNode) return;
  if (state.open.has(group)) state.open.delete(group); else state.open.add(group);
  arrangeAgain(group);
}

function unroll(group) {
  if (!isRun(group)) return;
  if (state.unrolled.has(group)) state.unrolled.delete(group); else state.unrolled.add(group);
  state.open.add(group);
  arrangeAgain(group);
}

function goTo(item) {
  reveal(item);
  pressed();
  arrangeAgain();
  select(item);
  centre(item);
}

/** Open all groups, but layers of a single operation, which say the same closed. */
function openAll() {
  for (const group of groups) if (state.weights || operationsIn(group).length > 1) state.open.add(group);
  arrangeAgain();
  fit(0.45);
}

function closeAll() { state.open.clear(); state.unrolled.clear(); arrangeAgain(); if (state.selected && !boxOf.has(state.selected)) select(null); fit(); }
function flipWeights() { state.weights = !state.weights; pressed(); arrangeAgain(state.selected); }
function flipHighlight() { state.highlight = !state.highlight; redraw(); }

function setTheme(dark) {
  state.dark = dark;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  drawLegend();
  if (state.selected) describe(state.selected);
  redraw();
}

function pressed() { document.getElementById("weights").setAttribute("aria-pressed", String(state.weights)); }

/** The drawn item nearest to the selected one, among those that the test lets through. */
function nearest(test, distance) {
  const from = boxOf.get(state.selected);
  let best = null, least = Infinity;
  for (const box of drawing.boxes) {
    if (box === from || box.open || !test(box, from)) continue;
    const far = distance(box, from);
    if (far < least) [best, least] = [box.item, far];
  }
  return best;
}

function step(key) {
  if (!state.selected || !boxOf.has(state.selected)) {
    const first = drawing.boxes.filter(box => !box.open).reduce((a, b) => !a || b.y < a.y ? b : a, null);
    if (first) { select(first.item); bringIn(first.item); }
    return;
  }
  const way = {ArrowDown: "gives", ArrowUp: "takes"}[key];
  const middle = box => [box.x + box.w / 2, box.y + box.h / 2];
  const apart = (a, b) => { const [ax, ay] = middle(a), [bx, by] = middle(b); return Math.abs(ax - bx) + 3 * Math.abs(ay - by); };
  let next = null;
  if (way) {
    const own = new Set(nodesIn(state.selected));
    const near = new Set(nodesIn(state.selected).flatMap(node => node[way]).filter(node => !own.has(node)).map(standIn));
    next = nearest(box => near.has(box.item), apart);
  } else {
    const right = key === "ArrowRight";
    next = nearest((box, from) => (middle(box)[0] > middle(from)[0] + 4) === right && Math.abs(middle(box)[0] - middle(from)[0]) > 4 && Math.abs(middle(box)[1] - middle(from)[1]) < 60, apart);
  }
  if (next) { select(next); bringIn(next); }
}

const KEYS = {
  "/": () => search.focus(),
  "+": () => zoom(1.25),
  "=": () => zoom(1.25),
  "-": () => zoom(0.8),
  "0": () => fit(),
  "e": openAll,
  "c": closeAll,
  "w": flipWeights,
  "h": flipHighlight,
  "d": () => setTheme(!state.dark),
  "u": () => state.selected && unroll(isRun(state.selected) ? state.selected : around(state.selected).reverse().find(isRun) || state.selected),
  "Enter": () => state.selected && flip(state.selected),
  " ": () => state.selected && flip(state.selected),
  "Escape": () => select(null),
  "?": () => document.getElementById("help").showModal(),
};
for (const key of ["ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight"]) KEYS[key] = () => step(key);

document.addEventListener("keydown", event => {
  const typing = event.target.closest?.("input, select, dialog, button, a");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});

function drawnAt(event) { // from afar, boxes are not elements
  if (event.target.closest?.(".box")) return boxFor(event.target.closest(".box"));
  const place = stage.getBoundingClientRect();
  const x = (event.clientX - place.left - camera.x) / camera.scale, y = (event.clientY - place.top - camera.y) / camera.scale;
  return drawing.boxes.find(box => !box.open && x >= box.x && x <= box.x + box.w && y >= box.y && y <= box.y + box.h)?.item;
}
function boxFor(box) {
  const kind = box.dataset.kind;
  return kind === "group" ? groups.find(group => group.id === box.dataset.id) : byId.get(box.dataset.id);
}

let press = null;
const pointers = new Map();
stage.addEventListener("pointerdown", event => {
  pointers.set(event.pointerId, event);
  tip.hidden = true;
  press = {x: event.clientX, y: event.clientY, moved: false, item: drawnAt(event), toggles: !!event.target.closest?.(".toggle")};
  stage.setPointerCapture(event.pointerId);
});
stage.addEventListener("pointermove", event => {
  if (!press) { hover(event); return; }
  const before = pointers.get(event.pointerId);
  if (!before) return;
  pointers.set(event.pointerId, event);
  if (pointers.size === 2) {
    const other = [...pointers.values()].find(p => p.pointerId !== event.pointerId);
    const far = p => Math.hypot(p.clientX - other.clientX, p.clientY - other.clientY);
    const place = stage.getBoundingClientRect();
    zoom(far(event) / Math.max(1, far(before)), other.clientX - place.left, other.clientY - place.top);
    press.moved = true;
    return;
  }
  if (!press.moved && Math.hypot(event.clientX - press.x, event.clientY - press.y) < 4) return;
  press.moved = true;
  stage.classList.add("dragging");
  camera.x += event.clientX - before.clientX;
  camera.y += event.clientY - before.clientY;
  look();
});
const release = event => {
  pointers.delete(event.pointerId);
  stage.classList.remove("dragging");
  if (press && !press.moved && event.type === "pointerup") {
    stage.focus({preventScroll: true});
    if (press.toggles && press.item) flip(press.item); else select(press.item || null);
  }
  press = null;
};
stage.addEventListener("pointerup", release);
stage.addEventListener("pointercancel", release);
stage.addEventListener("dblclick", event => { const item = drawnAt(event); if (item && !item.isNode) { flip(item); describe(item); } });
stage.addEventListener("wheel", event => {
  event.preventDefault();
  const place = stage.getBoundingClientRect();
  if (event.ctrlKey || event.metaKey || Math.abs(event.deltaY) >= 60 && !event.deltaX && !event.shiftKey) {
    zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016)), event.clientX - place.left, event.clientY - place.top);
  } else {
    camera.x -= event.shiftKey ? event.deltaY : event.deltaX;
    camera.y -= event.shiftKey ? 0 : event.deltaY;
    look();
  }
}, {passive: false});

const tip = document.getElementById("tip");
function hover(event) {
  const item = drawnAt(event);
  tip.hidden = !item;
  if (!item) return;
  const value = amount(item);
  tip.textContent = (item.isNode ? item.op : item.path || item.title) + (item.out?.length ? "\n" + item.out.join("  ") : "") + (value === null ? "" : "\n" + state.colour.slice(8) + "  " + spokenNumber(value));
  const place = stage.getBoundingClientRect();
  tip.style.left = Math.min(event.clientX - place.left + 14, place.width - 300) + "px";
  tip.style.top = event.clientY - place.top + 18 + "px";
}
stage.addEventListener("pointerleave", () => { tip.hidden = true; });

const onClick = (id, action) => document.getElementById(id).addEventListener("click", action);
onClick("expand", openAll);
onClick("collapse", closeAll);
onClick("weights", flipWeights);
onClick("fit", () => fit());
onClick("save-svg", saveSvg);
onClick("save-png", savePng);
onClick("theme", () => setTheme(!state.dark));
onClick("help-button", KEYS["?"]);

const colour = document.getElementById("colour");
colour.append(element("option", {value: "family"}, "by family"));
if (nodes.some(node => node.served)) colour.append(element("option", {value: "served"}, "by what serves it"));
for (const name of Object.keys(data.overlays)) colour.append(element("option", {value: "overlay:" + name}, name));
colour.addEventListener("change", () => { state.colour = colour.value; measureOverlay(drawing.boxes.filter(box => !box.open).map(box => box.item)); redraw(); drawLegend(); });
if (Object.keys(data.overlays).length) colour.value = state.colour = "overlay:" + Object.keys(data.overlays)[0];

const nameBox = document.getElementById("name");
nameBox.textContent = data.name;
nameBox.append(element("small", {}, `${nodes.filter(n => !isWeight(n)).length} operations · ${data.origin}`));

const scheme = window.matchMedia("(prefers-color-scheme: dark)");
scheme.addEventListener("change", event => setTheme(event.matches));
state.dark = scheme.matches;
document.documentElement.dataset.theme = state.dark ? "dark" : "light";
if (nodes.length && nodes.every(isWeight)) { state.weights = true; pressed(); }
if (data.depth === null) openSome(64); else openTo(data.depth);
arrangeAgain();
fit(0.7);
new ResizeObserver(() => redraw()).observe(stage);
document.documentElement.dataset.ready = "true";
