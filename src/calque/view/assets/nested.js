// The layout of the whole drawing: each open group is a level of its own, laid out from the inside out.
// An edge that crosses the border of a group goes through a port: a point on the border.

const PAD = 18, HEAD = 30, NODE_H = 42, GROUP_H = 50;

const ruler = document.createElement("canvas").getContext("2d");
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif";
const widths = new Map();

function textWidth(text, size, weight = 400) {
  const key = weight + "/" + size + "/" + text;
  if (!widths.has(key)) {
    ruler.font = `${weight} ${size}px ${FONT}`;
    widths.set(key, ruler.measureText(text).width);
  }
  return widths.get(key);
}

/** A text cut to a width, with an ellipsis. */
function cut(text, width, size, weight = 400) {
  if (textWidth(text, size, weight) <= width) return text;
  let most = Math.max(1, Math.floor(text.length * width / textWidth(text, size, weight)));
  while (most > 1 && textWidth(text.slice(0, most) + "…", size, weight) > width) most--;
  return text.slice(0, most) + "…";
}

/** A shape as a caption: `float32[2, 3]` is 2 × 3. */
const spokenShape = look => { const sizes = look.slice(look.indexOf("[") + 1, -1); return sizes ? sizes.replace(/, /g, " × ") : "scalar"; };

function caption(item) {
  if (!isSimple(item)) return `${operationsIn(item).length} operations`;
  const looks = (operationsIn(item)[0] || item).out || [];
  const type = item.isNode && item.args?.find(([name]) => name === "type signature");
  if (type) return type[1];
  return looks.length > 1 ? `${looks.length} tensors` : looks.map(spokenShape).join("");
}

/** Whether an item is drawn as a node: one, or a closed group with a single operation. */
const isSimple = item => item.isNode || operationsIn(item).length === 1 && !isRun(item);

function sizeOf(item) {
  const simple = isSimple(item);
  const text = item.isNode ? item.label : titleOf(item);
  const wanted = Math.max(textWidth(text, 12.5, simple ? 500 : 600) + (simple ? 0 : 26), textWidth(caption(item), 10.5));
  return {w: Math.min(260, Math.max(simple ? 76 : 120, Math.ceil(wanted) + 28)), h: simple ? NODE_H : GROUP_H};
}

/** Boxes and wires with their places: {boxes: [{item, x, y, w, h, depth, open}], wires: [{source, target, points, …}], w, h}. */
function arrange() {
  const drawn = drawnEdges();
  const levels = new Map([[root, new Map()]]);
  const net = (level, source, from) => {
    if (!levels.has(level)) levels.set(level, new Map());
    const nets = levels.get(level);
    if (!nets.has(source)) nets.set(source, {source, from, to: new Set()});
    return nets.get(source);
  };
  for (const [source, targets] of drawn) for (const target of targets.keys()) thread(source, target, net);
  const done = level(root, levels, 0);
  const boxes = [], wires = [];
  place(done, 0, 0, boxes, wires, drawn);
  return {boxes, wires, w: done.w, h: done.h};
}

/** Note in each level what an edge does there: from a box or a port to a box or a port. */
function thread(source, target, net) {
  const up = [...framesAround(source).reverse(), root], down = [...framesAround(target).reverse(), root];
  const common = up.find(group => down.includes(group));
  let item = source;
  for (const group of up.slice(0, up.indexOf(common))) {
    net(group, source, item).to.add("out");
    item = group;
  }
  const inner = down.slice(0, down.indexOf(common));
  const entry = inner.length ? inner[inner.length - 1] : target;
  net(common, source, item).to.add(entry);
  inner.forEach((group, i) => net(group, source, "in").to.add(i ? inner[i - 1] : target));
}

/** Lay out what is in a group, and in the open groups in it. */
function level(group, levels, depth) {
  const nets = [...(levels.get(group) || new Map()).values()];
  const cells = new Map(), inners = new Map();
  for (const item of shownIn(group)) {
    if (!item.isNode && isOpen(item)) {
      const inner = level(item, levels, depth + 1);
      inners.set(item, inner);
      cells.set(item, {item, order: item.order, w: inner.w, h: inner.h});
    } else {
      cells.set(item, {item, order: item.order, ...sizeOf(item)});
    }
  }
  const ins = new Map(), outs = new Map();
  const port = (ports, net, kind) => {
    if (!ports.has(net.source)) ports.set(net.source, {port: kind, order: net.source.order, w: 0, h: 0});
    return ports.get(net.source);
  };
  const wired = nets.map(net => ({
    source: net.source,
    from: net.from === "in" ? port(ins, net, "in") : cells.get(net.from),
    to: [...net.to].map(to => to === "out" ? port(outs, net, "out") : cells.get(to)),
  })).filter(net => net.from && net.to.every(Boolean));
  const all = [...ins.values(), ...cells.values(), ...outs.values()];
  const size = layOut(all, wired);
  const isTop = group.isRoot;
  const head = isTop ? 0 : HEAD, pad = isTop ? 0 : PAD;
  const titled = isTop ? 0 : Math.min(320, textWidth(titleOf(group), 12, 600) + 76);
  const w = Math.max(size.w + 2 * pad, titled);
  return {group, depth, cells, inners, wired, ins, outs, dx: (w - size.w) / 2, dy: head, w, h: size.h + head + pad};
}

/** Give absolute places to what was laid out. */
function place(done, x, y, boxes, wires, drawn) {
  const ox = x + done.dx, oy = y + done.dy;
  for (const [item, cell] of done.cells) {
    const open = done.inners.has(item);
    const box = {item, x: ox + cell.x - cell.w / 2, y: oy + cell.y - cell.h / 2, w: cell.w, h: cell.h, depth: done.depth, open};
    boxes.push(box);
    cell.box = box;
    if (open) place(done.inners.get(item), box.x, box.y, boxes, wires, drawn);
  }
  const entering = new Map();
  for (const net of done.wired) for (const cell of net.to) if (!cell.port) entering.set(cell, [...(entering.get(cell) || []), net]);
  for (const [cell, nets] of entering) nets.sort((a, b) => lastX(a, cell) - lastX(b, cell));
  for (const net of done.wired) {
    const start = net.from.port ? [ox + net.from.x, y] : leaving(net, done, ox, oy);
    for (const cell of net.to) {
      const end = cell.port ? [ox + cell.x, y + done.h] : arriving(net, cell, entering.get(cell), done, ox);
      const via = net.routes.get(cell).map(([lx, top, bottom]) => [ox + lx, oy + top, oy + bottom]);
      if (net.from.port) via.unshift([start[0], y, oy]); // straight down past the title
      wires.push({source: net.source, target: cell.port ? null : cell.item, ends: !cell.port && !done.inners.get(cell.item)?.ins.has(net.source), level: done.group, start, end, via,
        kind: drawn.get(net.source)?.get(cell.item) || "data", long: net.routes.get(cell).length > 0, back: !cell.port && !net.from.port && end[1] < start[1]});
    }
  }
}

const lastX = (net, cell) => { const via = net.routes.get(cell); return via && via.length ? via[via.length - 1][0] : net.from.x; };

function leaving(net, done, ox) {
  const box = net.from.box, inner = done.inners.get(net.from.item);
  const port = inner && inner.outs.get(net.source);
  return [port ? box.x + inner.dx + port.x : box.x + box.w / 2, box.y + box.h];
}

function arriving(net, cell, nets, done) {
  const box = cell.box, inner = done.inners.get(cell.item);
  const port = inner && inner.ins.get(net.source);
  if (port) return [box.x + inner.dx + port.x, box.y];
  const spread = Math.min(16 * (nets.length - 1), box.w * 0.6);
  const at = nets.length > 1 ? nets.indexOf(net) / (nets.length - 1) - 0.5 : 0;
  return [box.x + box.w / 2 + at * spread, box.y];
}
