// A layered layout of one level: boxes in rows, in the order of the program, with edges that go around boxes.
// Sugiyama, Tagawa and Toda (1981); x by repeated averaging with rows kept in order (isotonic regression).

const ROW_GAP = 30, ENTRY_GAP = 16, EXIT_GAP = 4, BOX_GAP = 26, LANE_GAP = 12, MOST_LANES = 20000;

/**
 * Lay out one level.
 * cells: [{w, h, order, port: "in" | "out" | undefined}]; nets: [{from, to: [cell], ...}], one for each source.
 * Gives {w, h}; sets cell.x, cell.y (centres), and on each net `routes`: Map(cell -> [[x, top, bottom], …]).
 */
function layOut(cells, nets) {
  const forward = net => net.to.filter(cell => comesBefore(net.from, cell));
  setRows(cells, nets, forward);
  const rows = [];
  for (const cell of cells) (rows[cell.row] ||= []).push(cell);
  for (let i = 0; i < rows.length; i++) rows[i] ||= [];
  addLanes(rows, nets, forward);
  orderRows(rows);
  setX(rows);
  return setY(rows, nets);
}

const RANK = {in: 0, out: 2};
const rank = cell => RANK[cell.port] ?? 1;
function comesBefore(a, b) {
  return rank(a) !== rank(b) ? rank(a) < rank(b) : rank(a) === 1 && a.order < b.order;
}

function setRows(cells, nets, forward) {
  for (const cell of cells) { cell.row = 0; cell.ins = []; cell.outs = []; }
  const takes = new Map(cells.map(cell => [cell, []]));
  for (const net of nets) for (const cell of forward(net)) takes.get(cell).push(net.from);
  const inner = cells.filter(cell => !cell.port).sort((a, b) => a.order - b.order);
  const first = cells.some(cell => cell.port === "in") ? 1 : 0;
  for (const cell of inner) cell.row = takes.get(cell).reduce((row, from) => Math.max(row, from.row + 1), first);
  const gives = new Map();
  for (const net of nets) gives.set(net.from, [...(gives.get(net.from) || []), ...forward(net).filter(cell => !cell.port)]);
  for (const cell of inner) { // what takes nothing stands right above what takes it
    const to = gives.get(cell);
    if (!takes.get(cell).length && to && to.length) cell.row = Math.max(first, to.reduce((row, c) => Math.min(row, c.row), Infinity) - 1);
  }
  const last = inner.reduce((row, cell) => Math.max(row, cell.row + 1), first);
  for (const cell of cells) if (cell.port === "out") cell.row = last;
}

function addLanes(rows, nets, forward) {
  let lanes = 0;
  for (const net of nets) {
    net.routes = new Map();
    const targets = forward(net);
    const farthest = targets.reduce((row, cell) => Math.max(row, cell.row), 0);
    const chain = [net.from];
    if (lanes + farthest - net.from.row < MOST_LANES) {
      for (let row = net.from.row + 1; row < farthest; row++) {
        const lane = {w: 0, h: 0, lane: true, row, order: net.from.order, ins: [], outs: []};
        rows[row].push(lane);
        join(chain[chain.length - 1], lane);
        chain.push(lane);
        lanes++;
      }
    }
    for (const cell of targets) {
      const via = chain.slice(1, Math.max(1, cell.row - net.from.row));
      join(via.length ? via[via.length - 1] : net.from, cell);
      net.routes.set(cell, via);
    }
    for (const cell of net.to) if (!net.routes.has(cell)) net.routes.set(cell, []);
  }
}

function join(a, b) {
  const weight = a.lane && b.lane ? 8 : a.lane || b.lane ? 2 : 1;
  a.outs.push([b, weight]);
  b.ins.push([a, weight]);
}

function orderRows(rows) {
  for (const row of rows) row.sort((a, b) => a.order - b.order).forEach((cell, i) => { cell.place = i; });
  for (let sweep = 0; sweep < 8; sweep++) {
    const down = sweep % 2 === 0;
    for (let i = 0; i < rows.length; i++) {
      const row = rows[down ? i : rows.length - 1 - i];
      for (const cell of row) {
        const near = down ? cell.ins : cell.outs;
        cell.mean = near.length ? near.reduce((sum, [c]) => sum + c.place / Math.max(1, rows[c.row].length - 1 || 1), 0) / near.length : cell.place / Math.max(1, row.length - 1);
      }
      if (row.length > 1) row.sort((a, b) => a.mean - b.mean || a.place - b.place).forEach((cell, j) => { cell.place = j; });
    }
  }
}

const gapBetween = (a, b) => (a.w + b.w) / 2 + (a.lane || b.lane || a.port || b.port ? LANE_GAP : BOX_GAP);

function setX(rows) {
  for (const row of rows) {
    let x = 0;
    row.forEach((cell, i) => { cell.x = i ? (x += gapBetween(row[i - 1], cell)) : 0; });
    const middle = row.length ? row[row.length - 1].x / 2 : 0;
    for (const cell of row) cell.x -= middle;
  }
  for (let sweep = 0; sweep < 14; sweep++) {
    const both = sweep >= 10, down = sweep % 2 === 0;
    for (let i = 0; i < rows.length; i++) {
      const row = rows[down ? i : rows.length - 1 - i];
      const wanted = row.map(cell => {
        const near = both ? [...cell.ins, ...cell.outs] : down ? cell.ins : cell.outs;
        let sum = 0, weights = 0;
        for (const [other, weight] of near) { sum += other.x * weight; weights += weight; }
        return weights ? [sum / weights, weights] : [cell.x, 0.1];
      });
      keepOrder(row, wanted);
    }
  }
  straighten(rows);
}

/** Put what follows each other without a branch, and each lane, on straight lines as far as neighbours let it. */
function straighten(rows) {
  const next = cell => {
    const to = cell.lane ? cell.outs.map(([c]) => c).find(c => c.lane) : cell.outs.length === 1 ? cell.outs[0][0] : null;
    return to && (to.lane || to.ins.length === 1) && !!to.lane === !!cell.lane ? to : null;
  };
  const followed = new Set(rows.flat().map(next));
  const lines = [];
  for (const cell of rows.flat()) {
    if (followed.has(cell)) continue;
    const line = [];
    for (let at = cell; at; at = next(at)) { line.push(at); at.line = line; }
    lines.push(line);
  }
  const mean = xs => xs.reduce((a, b) => a + b, 0) / xs.length;
  const rounds = rows.length < 300 ? 40 : 12;
  for (let round = 0; round < rounds; round++) {
    const settling = round >= rounds / 2; // boxes stay, and lanes make way for them
    for (const line of lines) line.x = settling && line[0].lane ? outermost(line) : wantedX(line, settling ? 0 : 0.5);
    const weight = cell => settling && cell.lane ? 0.01 : cell.line.length;
    for (const row of rows) keepOrder(row, row.map(cell => [cell.line.x, weight(cell)]));
  }

  /** Where a line is, drawn towards what is above and below it. */
  function wantedX(line, pull) {
    const own = mean(line.map(cell => cell.x));
    const near = [...line[0].ins, ...line[line.length - 1].outs].map(([cell]) => cell.x);
    if (line[0].lane || !near.length) return own;
    if (line.length === 1) pull = 1;
    return own * (1 - pull) + mean(near) * pull;
  }

  /** Where a lane has to be so that no row bends it: as far out as a row has moved it. */
  function outermost(line) {
    const xs = line.map(cell => cell.x), least = Math.min(...xs), most = Math.max(...xs);
    const was = line.x ?? mean(xs);
    return most - was >= was - least ? most : least;
  }
}

/** x as near as can be to what is wanted, with neighbours far enough apart (pool adjacent violators). */
function keepOrder(row, wanted) {
  const blocks = [];
  let offset = 0;
  row.forEach((cell, i) => {
    offset += i ? gapBetween(row[i - 1], cell) : 0;
    cell.offset = offset;
    let block = {sum: (wanted[i][0] - offset) * wanted[i][1], weight: wanted[i][1], count: 1};
    while (blocks.length && blocks[blocks.length - 1].sum / blocks[blocks.length - 1].weight > block.sum / block.weight) {
      const before = blocks.pop();
      block = {sum: before.sum + block.sum, weight: before.weight + block.weight, count: before.count + block.count};
    }
    blocks.push(block);
  });
  let i = 0;
  for (const block of blocks) for (let k = 0; k < block.count; k++, i++) row[i].x = block.sum / block.weight + row[i].offset;
}

const isBorder = row => row.every(cell => cell.port || cell.lane);

function setY(rows, nets) {
  let left = Infinity, right = -Infinity, y = 0, gap = 0;
  for (const [i, row] of rows.entries()) {
    const height = row.reduce((h, cell) => Math.max(h, cell.h), 0);
    for (const cell of row) {
      cell.y = y + height / 2;
      cell.top = y;
      cell.bottom = y + height;
      left = Math.min(left, cell.x - cell.w / 2);
      right = Math.max(right, cell.x + cell.w / 2);
    }
    const next = rows[i + 1];
    gap = isBorder(row) ? ENTRY_GAP : next && isBorder(next) ? EXIT_GAP : ROW_GAP;
    y += height + gap;
  }
  if (!isFinite(left)) left = right = 0;
  for (const row of rows) for (const cell of row) cell.x -= left;
  for (const net of nets) {
    for (const [cell, via] of net.routes) net.routes.set(cell, via.map(lane => [lane.x, lane.top, lane.bottom]));
  }
  return {w: right - left, h: Math.max(0, y - gap)};
}
