// Curves of chosen entries: recovery or precision-recall, reliability, error against confidence, risk-coverage, confusion.
const drawn = {}; // split -> positions of the entries to draw, in the order of their colours

function chosen() {
  if (!drawn[board.split]) drawn[board.split] = board.entries.slice(0, Math.min(4, board.entries.length)).map((_, i) => i);
  return drawn[board.split];
}

function chips() {
  const at = chosen();
  put($('chips'), board.entries.map((entry, i) => {
    const slot = at.indexOf(i);
    return h('button', { type: 'button', class: 'chip', 'aria-pressed': String(slot >= 0), 'data-entry': i, '--c': colour(Math.max(slot, 0)),
      onclick: () => {
        const now = chosen();
        const where = now.indexOf(i);
        if (where >= 0) now.splice(where, 1);
        else { now.push(i); if (now.length > COLOURS) now.shift(); }
        chips();
        plots();
        $('chips').querySelector(`[data-entry="${i}"]`).focus({ preventScroll: true });
      } }, entry.name);
  }));
}

function chart(title, text, label, options) {
  const svg = Plot.plot({ width: 560, height: 330, marginLeft: 44, marginBottom: 40, marginTop: 26, marginRight: 16, style: { background: 'none', color: 'inherit', fontSize: '12.5px', overflow: 'visible' }, ariaLabel: label, ...options });
  return h('figure', {}, h('figcaption', {}, h('b', {}, title), text), svg);
}

const points = (xs, ys) => ys.map((y, i) => ({ x: xs[i], y })).filter((d) => d.y !== null);
const muted = { stroke: 'var(--muted)', strokeDasharray: '4 3', strokeOpacity: 0.9 };
const grid = { stroke: 'var(--line)', strokeOpacity: 1 };

function plots() {
  const entries = chosen().map((i) => board.entries[i]);
  const out = [];
  const hundred = Array.from({ length: 100 }, (_, i) => i + 1);
  const lines = (of, xs, channel = {}) => entries.map((e, s) => Plot.lineY(points(xs, of(e)), { x: 'x', y: 'y', stroke: colour(s), strokeWidth: 2, ...channel }));
  if (board.random) {
    out.push(chart('Speedup recovered', 'Share of each task’s best speedup that is found by measuring only so many of the candidates an entry puts first. Dashed: at random. Band: 95 % of the first entry.',
      'Recovery curves', { x: { label: 'measured candidates, %', type: 'log', ticks: [1, 2, 5, 10, 25, 50, 100], tickFormat: String }, y: { label: 'recovered, %', domain: [Math.min(40, ...board.random), 100] },
        marks: [Plot.gridY(grid), Plot.gridX({ ...grid, ticks: [1, 2, 5, 10, 25, 50, 100] }),
          entries[0] && entries[0].recovery[1].length ? Plot.areaY(hundred.map((x, i) => ({ x, a: entries[0].recovery[1][i], b: entries[0].recovery[2][i] })), { x: 'x', y1: 'a', y2: 'b', fill: colour(0), fillOpacity: 0.13 }) : null,
          Plot.lineY(points(hundred, board.random), { x: 'x', y: 'y', ...muted }), lines((e) => e.recovery[0], hundred)] }));
  } else {
    const cutoffs = (board.entries[0] ? board.entries[0].discovery : []).map((c) => c[0]);
    cutoffs.forEach((cutoff, c) => out.push(chart(`Finding children at least ${cutoff}x as fast`, `Precision against recall. Dashed: the base rate, ${(100 * board.entries[0].discovery[c][1]).toFixed(0)} %.`,
      `Precision-recall curves at ${cutoff}x`, { x: { label: 'recall', domain: [0, 1] }, y: { label: 'precision', domain: [0, 1] },
        marks: [Plot.gridY(grid), Plot.gridX(grid), Plot.ruleY([board.entries[0].discovery[c][1]], muted), entries.map((e, s) => Plot.lineY(points(e.discovery[c][2], e.discovery[c][3]), { x: 'x', y: 'y', stroke: colour(s), strokeWidth: 2 }))] })));
  }
  const used = (e) => e.buckets.filter((b) => b[0] > 0 && b[1] !== null);
  if (entries.some((e) => e.buckets.length)) out.push(chart('Reliability', 'Share of hits among forecasts of a confidence. On the dashed line confidence is honest; below it, the entry is too sure. Larger dots: more forecasts.',
    'Reliability diagram', { x: { label: 'confidence', domain: [0, 1] }, y: { label: 'accuracy', domain: [0, 1] }, r: { range: [0, 8] },
      marks: [Plot.gridY(grid), Plot.gridX(grid), Plot.line([[0, 0], [1, 1]], muted), entries.map((e, s) => [Plot.line(used(e), { x: (b) => b[1], y: (b) => b[2], stroke: colour(s), strokeWidth: 1.5, strokeOpacity: 0.7 }), Plot.dot(used(e), { x: (b) => b[1], y: (b) => b[2], r: (b) => b[0], fill: colour(s) })])] }));
  if (!isOutcome() && entries.some((e) => e.buckets.length)) out.push(chart('Error against confidence', 'Mean distance in x from the predicted bin’s speedup to the measured one. A useful confidence makes the line fall.',
    'Forecast error against confidence', { x: { label: 'confidence', domain: [0, 1] }, y: { label: 'forecast error, x', zero: true },
      marks: [Plot.gridY(grid), Plot.gridX(grid), entries.map((e, s) => Plot.line(used(e), { x: (b) => b[1], y: (b) => b[3], stroke: colour(s), strokeWidth: 2, marker: 'dot' }))] }));
  if (entries.some((e) => e.risk)) {
    const shares = Array.from({ length: 100 }, (_, i) => (i + 1) / 100);
    out.push(chart('Risk and coverage', 'Error rate when only the most confident forecasts are taken.',
      'Risk-coverage curves', { x: { label: 'share of rows taken', domain: [0, 1] }, y: { label: 'error rate', domain: [0, 1] },
        marks: [Plot.gridY(grid), Plot.gridX(grid), lines((e) => e.risk || [], shares)] }));
  }
  if (entries.some((e) => e.confusion.length)) out.push(h('figure', { class: 'wide' }, h('figcaption', {}, h('b', {}, 'Confusion'), isOutcome() ? 'Rows: outcome, failures on top. Columns: predicted outcome. Shade: share of the row.' : 'Rows: measured bin, slowest on top. Columns: predicted bin, slowest left. Shade: share of the row.'),
    h('div', { class: 'matrices' }, entries.map((e) => h('div', {}, h('h4', {}, e.name), matrix(e))))));
  put($('plots'), out);
}

function matrix(entry) {
  const cells = bins().flatMap((i) => {
    const row = entry.confusion[i - 1];
    const total = row.reduce((a, b) => a + b, 0);
    return bins().map((j) => h('i', { class: i === j ? 'diag' : null, '--p': total ? row[j - 1] / total : 0, title: `measured ${binName(i)}, predicted ${binName(j)}: ${row[j - 1]} of ${total}` }));
  });
  return h('div', { class: isOutcome() ? 'matrix two' : 'matrix', role: 'img', 'aria-label': `Confusion matrix of ${entry.name}` }, cells);
}
