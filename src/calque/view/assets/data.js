// The graph as it is written into the page, with indexes over it. An item is a node or a group.

const data = JSON.parse(document.getElementById("data").textContent);

const nodes = data.nodes.map((node, order) => ({...node, isNode: true, order, parent: null}));
const groups = data.groups.map(group => ({...group, isNode: false, order: Infinity, children: [], parent: null}));
const root = {isNode: false, isRoot: true, id: "", title: data.name, children: [], parent: null, repeat: 1};

for (const item of [...nodes, ...groups]) item.parent = item.in < 0 ? root : groups[item.in];
for (const weights of [false, true]) { // the place of a group is that of its first operation
  for (const node of nodes) {
    if ((node.kind === "parameter" || node.kind === "constant") !== weights) continue;
    for (let group = node.parent; !group.isRoot; group = group.parent) {
      if (group.order === Infinity || !weights && group.order > node.order) group.order = node.order;
    }
  }
}
for (const item of [...groups, ...nodes]) item.parent.children.push(item);
for (const group of [root, ...groups]) group.children.sort((a, b) => a.order - b.order || a.isNode - b.isNode);

const byId = new Map([...groups, ...nodes].map(item => [item.id, item])); // a node wins over a group
const edges = data.edges.map(([source, target, kind]) => ({source: nodes[source], target: nodes[target], kind: kind || "data"}));
for (const node of nodes) { node.takes = []; node.gives = []; }
for (const edge of edges) { edge.source.gives.push(edge.target); edge.target.takes.push(edge.source); }

/** All nodes inside of an item, the item itself if it is a node. */
function nodesIn(item) {
  if (item.isNode) return [item];
  if (!item.inside) item.inside = item.children.flatMap(nodesIn);
  return item.inside;
}

/** The groups around an item, from the outermost; without the root. */
function around(item) {
  const found = [];
  for (let group = item.parent; group && !group.isRoot; group = group.parent) found.unshift(group);
  return found;
}

/** Whether a node is drawn only when asked for: weights, checks, and inputs that nothing takes but checks. */
const isWeight = item => item.isNode && (item.kind === "parameter" || item.kind === "constant" || item.kind === "check" ||
  item.kind === "input" && nodes.length > 1 && item.gives.every(to => to.kind === "check"));
const isRun = item => item.repeat > 1;

/** Of a run of like blocks, the first. */
const firstOf = run => run.children.find(item => !item.isNode);

/** Whether a group is only a list around another one, which is drawn in its place. */
const isList = group => !group.isRoot && !group.type && group.children.length === 1 && !group.children[0].isNode;

/** The nodes of an item that compute: no weights and no checks. */
function operationsIn(item) {
  if (!item.operations) item.operations = nodesIn(item).filter(node => !isWeight(node));
  return item.operations;
}

function titleOf(group) {
  return (group.parent && isList(group.parent) ? titleOf(group.parent) + "." : "") + group.title;
}
