// Data, DOM and formatting helpers. Text reaches the page through text nodes only.
const $ = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text nodes. */
function h(tag, attributes, ...children) {
  const svg = ['svg', 'line', 'circle', 'rect', 'title'].includes(tag);
  const node = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key.startsWith('--')) node.style.setProperty(key, value);
    else node.setAttribute(key, value === true ? '' : value);
  }
  node.append(...children.flat(9).filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

const put = (node, ...children) => node.replaceChildren(...children.flat(9).filter((c) => c !== null && c !== undefined && c !== false));

function bytes(base64) {
  const text = atob(base64);
  const out = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) out[i] = text.charCodeAt(i);
  return out;
}

/** The page's data: base64 of raw-deflated JSON. */
async function load() {
  const stream = new Blob([bytes($('payload').textContent)]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  return JSON.parse(await new Response(stream).text());
}

let data = null; // everything
let board = null; // the split in view

const info = (metric) => {
  const [title, unit, better, decimals, meaning] = data.metrics[metric];
  return { title, unit, better, decimals, meaning };
};
const DASH = '\u2013';
const fixed = (value, decimals) => (Number(value.toFixed(decimals)) + 0).toFixed(decimals);  // no -0.000
const number = (metric, value) => {
  if (value === null || value === undefined) return DASH;
  const { unit, decimals } = info(metric);
  return fixed(value, decimals) + (unit === ' %' ? '\u2009%' : unit === ' nats' ? '' : unit);
};
const span = (metric, figure) => (figure[1] === null ? '' : `${fixed(figure[1], info(metric).decimals)}${figure[1] < 0 ? ' to ' : DASH}${fixed(figure[2], info(metric).decimals)}`);
const times = (value) => (value === null || value === undefined ? DASH : (value >= 9.995 ? value.toFixed(1) : value >= 0.0995 ? value.toFixed(2) : value.toPrecision(2)) + 'x');
const COLOURS = 8;
const colour = (slot) => `var(--s${slot % COLOURS})`;
const ranked = () => board.entries.slice(0, board.ranked);

/** Position of a pair (i < j) in the upper triangle of k entries. */
const pairAt = (k, i, j) => i * k - (i * (i + 1)) / 2 + (j - i - 1);

/** A minus B by one metric: difference, interval, whether it is real. Null where it is not defined. */
function difference(metric, a, b) {
  const pairs = board.pairs[metric];
  const [x, y] = [board.entries[a].m[metric], board.entries[b].m[metric]];
  if (!pairs || !x || !y || x[0] === null || y[0] === null || a === b || a >= board.ranked || b >= board.ranked) return null;
  const at = pairAt(board.ranked, Math.min(a, b), Math.max(a, b));
  const [low, high] = [pairs[0][at], pairs[1][at]];
  return { value: x[0] - y[0], low: a < b || low === null ? low : -high, high: a < b || high === null ? high : -low, real: Boolean(pairs[2][at]) };
}

/** Decoded forecasts of an entry: probabilities, predicted bins, states. */
function casts(entry) {
  if (!entry.decoded) entry.decoded = { p: bytes(entry.p), y: bytes(entry.y), s: bytes(entry.s) };
  return entry.decoded;
}

/** Mean distribution of an entry for a row over the repeats that gave one; null where none did. */
function meanCast(entry, row) {
  const { p, y, s } = casts(entry);
  const n = board.rows.id.length;
  const mean = new Array(8).fill(0);
  let used = 0;
  const bins = [];
  const states = [];
  for (let r = 0; r < entry.repeats; r++) {
    const at = r * n + row;
    states.push(s[at]);
    if (!(s[at] & 2)) continue;
    used += 1;
    bins.push(y[at]);
    for (let b = 0; b < 8; b++) mean[b] += p[at * 8 + b] / 255;
  }
  return { mean: used ? mean.map((v) => v / used) : null, bins, states };
}

/** An interval drawn on a scale, like those of the server. */
function interval(figure, domain, control) {
  const [W, H] = [56, 16];
  const x = (v) => (4 + Math.min(Math.max((v - domain[0]) / (domain[1] - domain[0]), 0), 1) * (W - 8)).toFixed(1);
  const m = H / 2;
  return h('svg', { class: 'ci', width: W, height: H, viewBox: `0 0 ${W} ${H}`, 'aria-hidden': 'true' },
    h('line', { class: 'axis', x1: 0, x2: W, y1: m, y2: m }),
    control !== null && control !== undefined && h('line', { class: 'uniform', x1: x(control), x2: x(control), y1: 2, y2: H - 2 }),
    figure[1] !== null && h('line', { class: 'range', x1: x(figure[1]), x2: x(figure[2]), y1: m, y2: m }),
    figure[0] !== null && h('circle', { class: 'dot', cx: x(figure[0]), cy: m, r: 3.4 }));
}

function domainOf(place, metric) {
  const values = place.entries.filter((e) => e.ranked).flatMap((e) => e.m[metric]);
  values.push(...place.controls.map((figures) => figures[metric]));
  const known = values.filter((v) => v !== null && v !== undefined);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const room = (high - low) * 0.04 || 0.5;
  return [low - room, high + room];
}

const option = (value, text) => h('option', { value }, text);
