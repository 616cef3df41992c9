// The drawing in the window: only what is in sight is in the page; from afar, boxes are drawn by the thousand.

const stage = document.getElementById("stage");
const world = stage.appendChild(shape("g", {id: "world"}));
const camera = {x: 0, y: 0, scale: 1};
let drawing = {boxes: [], wires: [], w: 0, h: 0};
let boxOf = new Map();
let sight = null; // what of the world is in the page now
const MOST_BOXES = 700;

function arrangeAgain(keep) {
  const before = keep && boxOf.get(keep);
  drawing = arrange();
  boxOf = new Map(drawing.boxes.map(box => [box.item, box]));
  for (const wire of drawing.wires) {
    const ys = [wire.start[1], wire.end[1]], xs = [wire.start[0], wire.end[0], ...wire.via.map(([x]) => x)];
    Object.assign(wire, {left: Math.min(...xs) - 100, right: Math.max(...xs) + 100, top: Math.min(...ys), bottom: Math.max(...ys)});
  }
  measureOverlay(drawing.boxes.filter(box => !box.open).map(box => box.item));
  const after = keep && boxOf.get(keep);
  if (before && after) { // what was clicked stays where it is on the screen
    camera.x += (before.x + before.w / 2 - after.x - after.w / 2) * camera.scale;
    camera.y += (before.y - after.y) * camera.scale;
  }
  redraw();
  drawLegend();
}

function redraw() { sight = null; look(); }

let pending = false;
function look() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; show(); });
}

function inSight() {
  const {width, height} = stage.getBoundingClientRect();
  return {left: -camera.x / camera.scale, top: -camera.y / camera.scale, right: (width - camera.x) / camera.scale, bottom: (height - camera.y) / camera.scale, scale: camera.scale};
}

/** Some of the drawing is always in the window. */
function keepInWindow() {
  const {width, height} = stage.getBoundingClientRect(), margin = 80;
  camera.x = Math.min(width - margin, Math.max(margin - drawing.w * camera.scale, camera.x));
  camera.y = Math.min(height - margin, Math.max(margin - drawing.h * camera.scale, camera.y));
}

function show() {
  keepInWindow();
  const now = inSight();
  world.setAttribute("transform", `translate(${camera.x} ${camera.y}) scale(${camera.scale})`);
  drawMap(now);
  const same = sight && now.left >= sight.left && now.right <= sight.right && now.top >= sight.top && now.bottom <= sight.bottom;
  if (same && now.scale / sight.scale < 1.6 && sight.scale / now.scale < 1.6) return;
  const wide = now.right - now.left, high = now.bottom - now.top;
  sight = {left: now.left - wide / 2, right: now.right + wide / 2, top: now.top - high / 2, bottom: now.bottom + high / 2, scale: now.scale};
  const boxes = drawing.boxes.filter(box => box.x < sight.right && box.x + box.w > sight.left && box.y < sight.bottom && box.y + box.h > sight.top);
  const wires = drawing.wires.filter(wire => wire.left < sight.right && wire.right > sight.left && wire.top < sight.bottom && wire.bottom > sight.top);
  const parts = boxes.length > MOST_BOXES ? fromAfar(boxes, wires) : closely(boxes, wires);
  world.replaceChildren(...parts);
}

function closely(boxes, wires) {
  const looks = looksOf();
  const frames = boxes.filter(box => box.open), others = boxes.filter(box => !box.open);
  return [
    ...frames.map(box => drawBox(box, looks.box(box.item))),
    ...wires.map(wire => drawWire(wire, looks.wire(wire))),
    ...frames.map(box => drawTitle(box, looks.box(box.item))),
    ...others.map(box => drawBox(box, looks.box(box.item))),
  ];
}

/** One path for all boxes of a colour, and one for all wires. */
function fromAfar(boxes, wires) {
  const colours = ink(), looks = looksOf();
  const frames = boxes.filter(box => box.open), by = new Map();
  for (const box of boxes) {
    if (box.open) continue;
    const mark = looks.box(box.item);
    const colour = mark === "up" || mark === "down" ? colours[mark] : mark === "selected" ? colours.ink : mark === "dim" ? mix(colours.ground, colourOf(box.item), 0.25) : overlay() ? colourOf(box.item) : mix(colours.surface, colourOf(box.item), 0.6);
    by.set(colour, (by.get(colour) || "") + `M${round(box.x)} ${round(box.y)}h${round(box.w)}v${round(box.h)}h-${round(box.w)}z`);
  }
  const lines = wires.length > 6000 ? [] : wires;
  return [
    ...frames.map(box => drawBox(box, looks.box(box.item))),
    shape("path", {d: lines.map(wirePath).join(""), fill: "none", stroke: colours.wire, "stroke-width": 1.6}),
    ...[...by].map(([fill, d]) => shape("path", {d, fill, class: "many"})),
  ];
}

/** How each box and wire looks, given the selection: selected, up (leads to it), down, dim or plain. */
function looksOf() {
  const selected = state.selected && boxOf.has(state.selected) ? state.selected : null;
  if (!selected) return {box: () => "", wire: () => ""};
  if (!state.highlight) return {box: item => item === selected ? "selected" : "", wire: () => ""};
  const up = reached(selected, "takes"), down = reached(selected, "gives");
  const stands = set => { const found = new Set(); for (const node of set) { const item = standIn(node); found.add(item); for (const group of framesAround(item)) found.add(group); } return found; };
  const ups = stands(up), downs = stands(down), frames = new Set(framesAround(selected));
  return {
    box: item => item === selected ? "selected" : holds(selected, item) ? "" : isOpen(item) ? (frames.has(item) || ups.has(item) || downs.has(item) ? "" : "dim") : ups.has(item) ? "up" : downs.has(item) ? "down" : "dim",
    wire: wire => {
      const mine = wire.source === selected || holds(selected, wire.source);
      if (mine || downs.has(wire.source) && (!wire.target || downs.has(wire.target) || !ups.has(wire.target))) return mine && wire.target && holds(selected, wire.target) ? "" : wire.target === null || downs.has(wire.target) || frames.has(wire.target) ? "down" : "dim";
      return ups.has(wire.source) && (!wire.target || wire.target === selected || ups.has(wire.target) || holds(selected, wire.target)) ? "up" : "dim";
    },
  };
}

/** All nodes from which, or to which, data flows from an item. */
function reached(item, way) {
  const own = new Set(nodesIn(item)), found = new Set(), stack = [...own];
  while (stack.length) for (const next of stack.pop()[way]) if (!found.has(next) && !own.has(next)) { found.add(next); stack.push(next); }
  return found;
}

function zoom(factor, x, y) {
  const {width, height} = stage.getBoundingClientRect();
  x ??= width / 2; y ??= height / 2;
  const scale = Math.min(4, Math.max(0.004, camera.scale * factor));
  camera.x = x - (x - camera.x) * scale / camera.scale;
  camera.y = y - (y - camera.y) * scale / camera.scale;
  camera.scale = scale;
  look();
}

/** Show the whole drawing; at first, no smaller than can be read. */
function fit(least = 0) {
  const {width, height} = stage.getBoundingClientRect();
  const whole = Math.min((width - 60) / drawing.w, (height - 60) / drawing.h, 1.25);
  camera.scale = Math.max(whole, Math.min(least, 1), 0.004);
  const w = drawing.w * camera.scale, h = drawing.h * camera.scale;
  camera.x = w <= width ? (width - w) / 2 : width / 2 - middleAtTop(height / camera.scale) * camera.scale;
  camera.y = h <= height - 40 ? (height - h) / 2 : 24;
  redraw();
}

/** What is wider than the window is shown where it begins: the middle of the boxes that are so far up. */
function middleAtTop(height) {
  const middles = drawing.boxes.filter(box => !box.open && box.y < height).map(box => box.x + box.w / 2).sort((a, b) => a - b);
  return middles.length ? middles[middles.length >> 1] : drawing.w / 2;
}

function centre(item) {
  const box = boxOf.get(item);
  if (!box) return;
  const {width, height} = stage.getBoundingClientRect();
  if (camera.scale < 0.5) camera.scale = 0.9;
  const tall = Math.min(box.h, height / camera.scale - 80);
  camera.x = width / 2 - (box.x + box.w / 2) * camera.scale;
  camera.y = height / 2 - (box.y + tall / 2) * camera.scale;
  look();
}

/** Move the drawing if a box is out of sight. */
function bringIn(item) {
  const box = boxOf.get(item), now = inSight();
  if (box && (box.x < now.left || box.x + box.w > now.right || box.y < now.top || box.y + box.h > now.bottom)) centre(item);
}
