// SVG elements for boxes and wires. Colours are attributes, so that a saved picture needs no style sheet.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; text is text, never markup. */
function element(name, attributes, text) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const round = value => Math.round(value * 10) / 10;

/** The curve of a wire: down from its start, straight along its lanes, down into its end. */
function wirePath(wire) {
  let [x, y] = wire.start;
  let path = `M${round(x)} ${round(y)}`;
  const to = (nx, ny) => {
    if (nx === x && ny === y) return;
    const bend = Math.max(8, Math.abs(ny - y) / 2);
    path += `C${round(x)} ${round(y + bend)} ${round(nx)} ${round(ny - bend)} ${round(nx)} ${round(ny)}`;
    [x, y] = [nx, ny];
  };
  if (wire.back) {
    const side = Math.max(x, wire.end[0]) + 90;
    return `${path}C${round(side)} ${round(y + 60)} ${round(side)} ${round(wire.end[1] - 60)} ${round(wire.end[0])} ${round(wire.end[1])}`;
  }
  for (const [lx, top, bottom] of wire.via) {
    to(lx, top);
    if (bottom > top) { path += `V${round(bottom)}`; y = bottom; }
  }
  to(...wire.end);
  return path;
}

function drawWire(wire, look) {
  const colours = ink();
  const colour = look === "up" ? colours.up : look === "down" ? colours.down : colours.wire;
  const width = look === "up" || look === "down" ? 2 : wire.long ? 1.6 : 1.3;
  const path = shape("path", {d: wirePath(wire), fill: "none", stroke: colour, "stroke-width": width, opacity: look === "dim" ? 0.18 : 1});
  if (wire.kind === "binding") path.setAttribute("stroke-dasharray", "4 3");
  if (!wire.ends) return path;
  const [x, y] = wire.end;
  const group = shape("g", {class: "wire"});
  group.append(path, shape("path", {d: `M${round(x)} ${round(y + 0.5)}l-3.4 -6.2h6.8z`, fill: colour, opacity: look === "dim" ? 0.18 : 1}));
  return group;
}

function drawBox(box, look) {
  const {item} = box;
  const group = shape("g", {class: "box", "data-id": item.id, "data-kind": item.isNode ? item.kind : "group", role: "button",
    "aria-label": item.isNode ? item.label : titleOf(item), transform: `translate(${round(box.x)} ${round(box.y)})`, opacity: look === "dim" ? 0.28 : 1});
  if (box.open) drawFrame(group, box, look); else if (isSimple(item)) drawNode(group, box, look); else drawClosed(group, box, look);
  return group;
}

function outline(look, colour) {
  const colours = ink();
  if (look === "selected") return {stroke: colours.ink, "stroke-width": 2.2};
  if (look === "up") return {stroke: colours.up, "stroke-width": 1.8};
  if (look === "down") return {stroke: colours.down, "stroke-width": 1.8};
  return {stroke: colour, "stroke-width": 1.1};
}

function drawNode(group, box, look) {
  const colours = ink(), colour = colourOf(box.item);
  const isEnd = box.item.kind === "input" || box.item.kind === "output";
  const fill = overlay() ? colour : mix(colours.surface, colour, state.dark ? 0.2 : 0.11);
  group.append(shape("rect", {width: box.w, height: box.h, rx: isEnd ? box.h / 2 : 8, fill, ...outline(look, overlay() ? mix(colours.frame, colour, 0.4) : mix(colours.surface, colour, 0.62))}));
  const value = amount(box.item);
  const text = value === null ? caption(box.item) : spokenNumber(value);
  const middle = box.w / 2;
  group.append(label(middle, text ? 18 : 25.5, cut(box.item.isNode ? box.item.label : titleOf(box.item), box.w - 18, 12.5, 500), {"font-size": 12.5, "font-weight": 500, fill: colours.ink, "text-anchor": "middle"}));
  if (text) group.append(label(middle, 32.5, cut(text, box.w - 16, 10.5), {"font-size": 10.5, fill: overlay() ? mix(colours.soft, colours.ink, 0.6) : colours.soft, "text-anchor": "middle"}));
}

function drawClosed(group, box, look) {
  const colours = ink(), {item} = box;
  const frame = {width: box.w, height: box.h, rx: 10};
  if (isRun(item)) {
    for (const step of [8, 4]) group.append(shape("rect", {...frame, x: step, y: -step, fill: colours.surface, stroke: colours.frame, "stroke-width": 1}));
  }
  const fill = overlay() ? colourOf(item) : colours.surface;
  group.append(shape("rect", {...frame, fill, ...outline(look, mix(colours.frame, colours.soft, 0.45))}));
  group.append(label(14, 20, cut(titleOf(item), box.w - 40, 12.5, 600), {"font-size": 12.5, "font-weight": 600, fill: colours.ink}));
  group.append(label(14, 34.5, cut(amount(item) === null ? caption(item) : spokenNumber(amount(item)), box.w - 28, 10.5), {"font-size": 10.5, fill: overlay() ? mix(colours.soft, colours.ink, 0.6) : colours.soft}));
  group.append(toggle(box.w - 15, 15, "+", colours));
  if (overlay()) return;
  let x = 14;
  const whole = box.w - 28;
  for (const [colour, share] of composition(item)) {
    group.append(shape("rect", {x: round(x), y: box.h - 9, width: round(Math.max(1, whole * share - 1.2)), height: 3.4, rx: 1.7, fill: colour}));
    x += whole * share;
  }
}

function drawFrame(group, box, look) {
  const colours = ink(), {item} = box;
  const fill = mix(colours.ground, colours.tint, state.dark ? 0.022 * (box.depth + 1) : 0.016 * (box.depth + 1));
  const frame = {width: box.w, height: box.h, rx: 12};
  if (isRun(item) && !state.unrolled.has(item)) {
    for (const step of [10, 5]) group.append(shape("rect", {...frame, x: step, y: -step, fill: colours.ground, stroke: colours.frame, "stroke-width": 1}));
  }
  group.append(shape("rect", {...frame, fill, ...outline(look, colours.frame)}));
  group.append(toggle(box.w - 16, 16, "−", colours));
}

/** The title of an open group, over the wires that cross it. */
function drawTitle(box, look) {
  const colours = ink();
  const text = cut(titleOf(box.item), box.w - 46, 12, 600);
  return label(box.x + 14, round(box.y + 20), text, {"font-size": 12, "font-weight": 600, fill: colours.soft, stroke: colours.ground, "stroke-width": 4,
    "stroke-linejoin": "round", "paint-order": "stroke", opacity: look === "dim" ? 0.28 : 1});
}

function label(x, y, text, attributes) {
  return shape("text", {x: round(x), y, "font-family": FONT, "pointer-events": "none", ...attributes}, text);
}

function toggle(x, y, sign, colours) {
  const made = shape("g", {class: "toggle", transform: `translate(${round(x)} ${y})`});
  const bar = sign === "+" ? "M-3.5 0h7M0 -3.5v7" : "M-3.5 0h7";
  made.append(shape("circle", {r: 8, fill: mix(colours.surface, colours.tint, 0.06)}), shape("path", {d: bar, stroke: colours.soft, "stroke-width": 1.5, "stroke-linecap": "round"}));
  return made;
}
