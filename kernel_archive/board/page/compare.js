// Two entries against each other: every metric with the interval of its difference, and whether it is real.
function fillCompare() {
  for (const id of ['cmp-a', 'cmp-b']) put($(id), ranked().map((e, i) => option(i, e.name)));
  $('compare').hidden = board.ranked < 2;
  if (board.ranked < 2) return;
  $('cmp-a').value = 0;
  // The first that is really behind tells more than a near-twin.
  const tied = (ranked()[0].r[board.rankings[0]] || [0, 0, 0, []])[3];
  const other = ranked().findIndex((_, i) => i > 0 && !tied.includes(i));
  $('cmp-b').value = other > 0 ? other : 1;
  const wanted = [asked.a, asked.b].map((slug) => ranked().findIndex((e) => e.slug === slug));
  if (wanted[0] >= 0) $('cmp-a').value = wanted[0];
  if (wanted[1] >= 0) $('cmp-b').value = wanted[1];
  compare();
}

/** Two entries were chosen: the address says so. */
function compared() {
  [asked.a, asked.b] = ['cmp-a', 'cmp-b'].map((id) => board.entries[Number($(id).value)].slug);
  compare();
  remember();
}

function compare() {
  const [a, b] = [Number($('cmp-a').value), Number($('cmp-b').value)];
  const [A, B] = [board.entries[a], board.entries[b]];
  if (a === b) { put($('cmp-out'), h('p', { class: 'note' }, 'Choose two different entries.')); return; }
  const wins = { a: [], b: [] };
  const rows = board.paired.map((key) => {
    const d = difference(key, a, b);
    if (!d) return null;
    const up = info(key).better === 'higher';
    const who = (up ? d.value > 0 : d.value < 0) ? 'a' : 'b';
    if (d.real) wins[who].push(info(key).title);
    const reach = Math.max(Math.abs(d.low), Math.abs(d.high), Math.abs(d.value)) * 1.08 || 1;
    const x = (v) => (80 + (v / reach) * 76).toFixed(1);
    const f = (v) => (v > 0 ? '+' : v < 0 ? '\u2212' : '') + Math.abs(v).toFixed(info(key).decimals);
    return h('tr', { class: d.real ? 'real' : null },
      h('th', { scope: 'row' }, h('details', { class: 'term' }, h('summary', {}, info(key).title), info(key).meaning)),
      h('td', { class: d.real && who === 'a' ? 'wins' : null }, number(key, A.m[key][0])), h('td', { class: d.real && who === 'b' ? 'wins' : null }, number(key, B.m[key][0])),
      h('td', { class: 'minor' }, f(d.value)), h('td', { class: 'minor' }, d.low === null ? DASH : `${f(d.low)} to ${f(d.high)}`),
      h('td', { class: 'minor' }, d.low === null ? '' : h('svg', { width: 160, height: 18, viewBox: '0 0 160 18', 'aria-hidden': 'true' },
        h('line', { class: 'zero', x1: 80, x2: 80, y1: 1, y2: 17 }), h('line', { class: 'range', x1: x(d.low), x2: x(d.high), y1: 9, y2: 9 }), h('circle', { class: 'dot', cx: x(d.value), cy: 9, r: 4 }))),
      h('td', { class: d.real ? 'yes' : 'no' }, d.real ? `${who === 'a' ? 'A' : 'B'} is better` : 'can’t tell'));
  });
  const list = (titles) => titles.join(', ').replace(/, ([^,]*)$/, ' and $1');
  const say = wins.a.length || wins.b.length
    ? [wins.a.length ? [h('b', {}, A.name), ` is really better in ${list(wins.a)}. `] : null, wins.b.length ? [h('b', {}, B.name), ` is really better in ${list(wins.b)}.`] : null]
    : 'No difference between the two is real, with all entries of the board compared at once.';
  put($('cmp-out'), h('p', { class: 'verdict' }, say),
    h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Comparison' }, h('table', { class: 'cmp' },
      h('thead', {}, h('tr', {}, ['Figure', 'A', 'B'].map((t) => h('th', { scope: 'col' }, t)), ['A \u2212 B', '95 % interval'].map((t) => h('th', { scope: 'col', class: 'minor' }, t)), h('th', { scope: 'col', class: 'minor' }, h('span', { class: 'hidden' }, 'Drawn')), h('th', { scope: 'col' }, 'Real?'))),
      h('tbody', {}, rows))),
    h('p', { class: 'note' }, 'Real is stricter than the interval: it compares all pairs of entries at once. kernel-archive compare tests one pair, corrected for the number of metrics: with few entries it can be the stricter of the two.'));
}
