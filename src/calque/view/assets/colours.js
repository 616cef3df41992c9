// Colours: by family, by what serves a node, or by the numbers of an overlay.

const INK = {
  light: {ground: "#f8fafc", surface: "#ffffff", ink: "#0f172a", soft: "#64748b", wire: "#94a3b8", frame: "#cbd5e1", tint: "#0f172a", up: "#2563eb", down: "#ea580c"},
  dark: {ground: "#0b1120", surface: "#131c2e", ink: "#e2e8f0", soft: "#94a3b8", wire: "#56657f", frame: "#33435e", tint: "#ffffff", up: "#60a5fa", down: "#fb923c"},
};
const ink = () => INK[state.dark ? "dark" : "light"];

const RAMP = ["#fef9e7", "#fde68a", "#fdba74", "#fb8a66", "#ef5350"];
const RAMP_DARK = ["#1c2333", "#4a3416", "#854d0e", "#c2410c", "#ef4444"];

function mix(a, b, share) {
  const part = (c, i) => parseInt(c.slice(1 + 2 * i, 3 + 2 * i), 16);
  const at = i => Math.round(part(a, i) * (1 - share) + part(b, i) * share).toString(16).padStart(2, "0");
  return "#" + at(0) + at(1) + at(2);
}

function onRamp(share) {
  const ramp = state.dark ? RAMP_DARK : RAMP;
  const at = Math.min(0.9999, Math.max(0, share)) * (ramp.length - 1);
  return mix(ramp[Math.floor(at)], ramp[Math.floor(at) + 1], at % 1);
}

const shade = pair => pair[state.dark ? 1 : 0];
const overlay = () => state.colour.startsWith("overlay:") ? data.overlays[state.colour.slice(8)] : null;

/** The number of an item in the overlay: of a group the sum, or the largest for errors; null if it has none. */
function amount(item) {
  const values = overlay();
  if (!values) return null;
  const found = nodesIn(item).filter(node => Object.hasOwn(values, node.id)).map(node => values[node.id])
    .map(value => typeof value === "string" ? Infinity : value); // "nan" and "inf" are worse than any number
  if (!found.length) return null;
  return /error|max|peak/i.test(state.colour) ? found.reduce((a, b) => Math.max(a, b), -Infinity) : found.reduce((a, b) => a + b, 0);
}

let largest = 1;
function measureOverlay(items) {
  largest = items.map(item => amount(item) ?? 0).filter(isFinite).reduce((a, b) => Math.max(a, b), 1e-300);
}

function nodeColour(node) {
  if (state.colour === "served") return shade(data.served[node.served || ""]);
  return shade(data.families[node.family] || data.families.other);
}

function colourOf(item) {
  if (overlay()) {
    const value = amount(item);
    return value === null ? ink().surface : onRamp(Math.sqrt(Math.max(0, value) / largest));
  }
  return isSimple(item) ? nodeColour(operationsIn(item)[0] || item) : shade(data.families.group);
}

/** Of a closed group, what its nodes are, as [[colour, share], …]. */
function composition(group) {
  const counts = new Map();
  let all = 0;
  for (const node of operationsIn(group)) {
    const colour = nodeColour(node);
    counts.set(colour, (counts.get(colour) || 0) + 1);
    all++;
  }
  return [...counts].sort((a, b) => b[1] - a[1]).map(([colour, count]) => [colour, count / all]);
}

function spokenNumber(value) {
  if (value === 0) return "0";
  if (!isFinite(value)) return "not finite";
  const size = Math.abs(value);
  if (size < 1e-2 || size >= 1e15) return value.toExponential(2);
  const steps = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
  const [unit, name] = steps.find(([unit]) => size >= unit) || [1, ""];
  return String(+(value / unit).toPrecision(3)) + name;
}

function drawLegend() {
  const legend = document.getElementById("legend");
  legend.replaceChildren();
  if (overlay()) {
    const scale = element("div", {class: "scale"}), ends = element("div", {class: "ends"});
    scale.style.background = `linear-gradient(90deg, ${[0, .25, .5, .75, 1].map(onRamp).join(",")})`;
    ends.append(element("span", {}, "0"), element("span", {}, spokenNumber(largest)));
    legend.append(element("span", {}, state.colour.slice(8)), scale, ends);
    return;
  }
  const served = state.colour === "served";
  const names = new Set(nodes.filter(n => state.weights || !isWeight(n)).map(n => served ? n.served || "" : n.family));
  for (const name of Object.keys(served ? data.served : data.families)) {
    if (!names.has(name)) continue;
    const row = element("span", {}), swatch = element("i", {});
    swatch.style.background = shade((served ? data.served : data.families)[name]);
    row.append(swatch, name || "not known");
    legend.append(row);
  }
}
