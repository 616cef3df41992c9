// What is open, and what is therefore drawn: which items, and which edges between them.

const state = {open: new Set(), unrolled: new Set(), weights: false, selected: null, highlight: true, colour: "family", dark: false};

/** Whether a group has no frame of its own: what is in it is drawn in the frame around it. */
const isFrameless = group => isList(group) || isRun(group.parent) && !state.unrolled.has(group.parent) && group === firstOf(group.parent);
const isOpen = item => !item.isNode && (state.open.has(item) || isFrameless(item));

/** The groups around an item that have frames, from the outermost. */
const framesAround = item => around(item).filter(group => !isFrameless(group));

/** What is drawn inside of an open group: of a run of like blocks the first, unless it is unrolled. */
function shownIn(group) {
  let parts = group.children;
  if (isRun(group) && !state.unrolled.has(group)) {
    const places = parts.map((part, i) => part.isNode ? -1 : i).filter(i => i >= 0);
    parts = parts.slice(0, places[1]);
  }
  parts = parts.filter(part => state.weights || operationsIn(part).length);
  return parts.flatMap(part => !part.isNode && isFrameless(part) ? shownIn(part) : [part]);
}

/** The item that stands for a node in the drawing: itself, or the closed group that it is in. */
function standIn(node) {
  const groups = around(node);
  for (let i = 0; i < groups.length; i++) {
    const group = groups[i];
    if (!isOpen(group)) return group;
    if (isRun(group) && !state.unrolled.has(group) && !isOfFirst(group, groups[i + 1] || node)) return group;
  }
  return node;
}

/** Whether a part of a run is drawn when only the first block is. */
function isOfFirst(run, part) {
  const groups = run.children.filter(item => !item.isNode);
  return part === groups[0] || part.isNode && part.order < groups[1].order;
}

function holds(group, item) {
  for (let at = item.parent; at; at = at.parent) if (at === group) return true;
  return false;
}

/** Edges between drawn items: each pair once, none between a group and what is in it. */
function drawnEdges() {
  const stands = new Map();
  const of = node => { if (!stands.has(node)) stands.set(node, standIn(node)); return stands.get(node); };
  const found = new Map();
  for (const edge of edges) {
    if (!state.weights && (isWeight(edge.source) || isWeight(edge.target))) continue;
    const source = of(edge.source), target = of(edge.target);
    if (source === target || holds(source, target) || holds(target, source)) continue;
    let to = found.get(source);
    if (!to) found.set(source, to = new Map());
    if (!to.has(target)) to.set(target, edge.kind);
  }
  return found;
}

/** Open groups, outer ones first, as long as what is drawn stays few. */
function openSome(most) {
  state.open.clear();
  let drawn = shownIn(root).length;
  let level = shownIn(root).filter(item => !item.isNode);
  while (level.length) {
    const next = [];
    for (const group of level) {
      const parts = shownIn(group);
      if (drawn + parts.length > most || operationsIn(group).length === 1) continue;
      drawn += parts.length - 1;
      state.open.add(group);
      next.push(...parts.filter(item => !item.isNode));
    }
    level = next;
  }
}

function openTo(depth) {
  state.open.clear();
  const level = group => around(group).filter(other => !isRun(other)).length;
  for (const group of groups) if (level(group) < depth - 1) state.open.add(group);
}

/** Open all groups around an item, so that it is drawn. */
function reveal(item) {
  for (const group of around(item)) {
    state.open.add(group);
    const part = isRun(group) && group.children.find(part => part === item || holds(part, item));
    if (part && !isOfFirst(group, part)) state.unrolled.add(group);
  }
  if (isWeight(item)) state.weights = true;
}
