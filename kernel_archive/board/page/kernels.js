// The kernel browser: every row with its programs, measurement, and what every entry forecast for it.
const seen = { row: -1, mode: null, rows: [] };
let spread = null; // row -> standard deviation of the entries' mean bins

const orders = [['split', 'as in the split'], ['fast', 'fastest first'], ['slow', 'slowest first'], ['leader', 'largest errors of the leader first'], ['missed', 'most missed first'], ['disputed', 'most disputed first']];

function fillKernels() {
  spread = null;
  const { rows } = board;
  put($('k-task'), option('', `all ${rows.tasks.length} tasks`), rows.tasks.map((t, i) => option(i, t)));
  put($('k-bin'), option('', 'any'), Object.entries(board.bins).map(([b, texts]) => option(b, texts.filter(Boolean).join(': '))));
  put($('k-order'), orders.filter(([v]) => rows.speedup || !['fast', 'slow'].includes(v)).map(([v, t]) => option(v, t)));
  $('k-find').value = '';
  kernelList();
  show(seen.rows.length ? seen.rows[0] : -1, false);
}

/** Mean probability that entries gave to the measured bin, and how far their expected bins are apart. */
function judged() {
  if (spread) return spread;
  spread = board.rows.id.map((_, row) => {
    let [hit, n, sum, squares] = [0, 0, 0, 0];
    for (const entry of board.entries) {
      const { mean } = meanCast(entry, row);
      if (!mean) continue;
      const bin = mean.reduce((s, p, b) => s + p * (b + 1), 0);
      hit += mean[board.rows.bin[row] - 1]; n += 1; sum += bin; squares += bin * bin;
    }
    return { hit: n ? hit / n : 1, apart: n ? squares / n - (sum / n) ** 2 : 0 };
  });
  return spread;
}

/** CRPS of an entry's mean distribution for a row. */
function errorOf(entry, row) {
  const { mean } = meanCast(entry, row);
  let [sum, total] = [0, 0];
  for (let b = 0; b < 7; b++) { sum += mean ? mean[b] : 0.125; total += (sum - (board.rows.bin[row] <= b + 1 ? 1 : 0)) ** 2; }
  return total / 7;
}

/** Open the kernel browser at the programs with the largest errors of the leader. */
function showMissed() {
  asked.at = 'kernels';
  go('kernels');
  for (const id of ['k-task', 'k-bin', 'k-find']) $(id).value = '';
  $('k-order').value = 'leader';
  kernelList();
  choose(seen.rows[0]);
  $('k-list').focus({ preventScroll: true });
}

function kernelList() {
  const { rows } = board;
  const [task, bin, order, find] = [$('k-task').value, $('k-bin').value, $('k-order').value, $('k-find').value.trim().toLowerCase()];
  let found = rows.id.map((_, i) => i).filter((i) => (task === '' || rows.task[i] === Number(task)) && (bin === '' || rows.bin[i] === Number(bin)));
  if (find) found = found.filter((i) => rows.id[i].toLowerCase().includes(find) || data.codes[rows.code[i]].toLowerCase().includes(find));
  if (order === 'fast') found.sort((a, b) => rows.speedup[b] - rows.speedup[a]);
  if (order === 'slow') found.sort((a, b) => rows.speedup[a] - rows.speedup[b]);
  if (order === 'leader') { const errors = new Map(found.map((i) => [i, errorOf(board.entries[0], i)])); found.sort((a, b) => errors.get(b) - errors.get(a)); }
  if (order === 'missed') { const j = judged(); found.sort((a, b) => j[a].hit - j[b].hit); }
  if (order === 'disputed') { const j = judged(); found.sort((a, b) => j[b].apart - j[a].apart); }
  seen.rows = found;
  $('k-count').textContent = `${found.length} of ${rows.id.length} ${{ eval: 'kernels', validity: 'programs' }[board.kind] || 'pairs'}`;
  const list = $('k-list');
  put(list, found.map((i) => {
    const node = rows.kernel[i];
    return h('div', { role: 'option', id: `k-${i}`, 'data-row': i, 'aria-selected': String(i === seen.row) },
      h('span', { class: 't' }, rows.tasks[rows.task[i]]), h('span', { class: 'x' }, rows.speedup ? times(rows.speedup[i]) : binName(rows.bin[i])),
      h('span', { class: 's' }, `${node ? node.lang + ' · ' : ''}${rows.id[i].slice(0, 8)}`));
  }));
  list.scrollTop = 0;
}

function show(row, scroll = true) {
  seen.row = row;
  const list = $('k-list');
  for (const old of list.querySelectorAll('[aria-selected="true"]')) old.setAttribute('aria-selected', 'false');
  const item = $(`k-${row}`);
  if (item) {
    item.setAttribute('aria-selected', 'true');
    list.setAttribute('aria-activedescendant', item.id);
    if (scroll) item.scrollIntoView({ block: 'nearest' });
  } else list.removeAttribute('aria-activedescendant');
  detail();
}

/** A reader chose a kernel: the address says so. */
function choose(row) {
  show(row);
  asked.kernel = board.rows.id[row];
  remember();
}

function jump(row) {
  asked.kernel = board.rows.id[row];
  if (!seen.rows.includes(row)) { $('k-task').value = ''; $('k-bin').value = ''; $('k-find').value = ''; kernelList(); }
  show(row);
}

const isOutcome = () => board.kind === 'validity';
const bins = () => Object.keys(board.bins).map(Number);
const binName = (b) => board.bins[b][0];
const share = (mean, b) => `${binName(b)}: ${(100 * mean[b - 1]).toFixed(0)} %`;

function forecastTable(row) {
  const truth = board.rows.bin[row];
  const strip = (mean, label) => h('span', { class: 'strip', role: 'img', 'aria-label': label }, bins().map((b) => h('i', { class: b === truth ? 'true' : null, '--p': mean[b - 1].toFixed(3), title: share(mean, b) })));
  const any = board.entries.some((e) => e.why[row]);
  return h('div', { class: 'casts', tabindex: 0, role: 'region', 'aria-label': 'Forecasts of every entry' }, h('table', {},
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Entry'), h('th', { scope: 'col' }, h('span', { class: 'strip head' }, bins().map((b) => h('i', { class: b === truth ? 'true' : null, title: binName(b) }, isOutcome() ? { 1: '−', 8: '+' }[b] : b)))),
      h('th', { scope: 'col' }, 'Predicted'), h('th', { scope: 'col' }, isOutcome() ? 'On the outcome' : 'On the measured bin'), any && h('th', { scope: 'col', class: 'minor' }, 'Its reason'))),
    h('tbody', {}, board.entries.map((entry) => {
      const { mean, bins: named, states } = meanCast(entry, row);
      const deferred = states.some((s) => s & 4);
      const none = states.every((s) => !(s & 1)) ? 'no line' : deferred ? 'deferred' : 'not parsed';
      const off = named.length ? named.map((b) => b - truth) : [];
      return h('tr', {}, h('th', { scope: 'row' }, entry.name),
        h('td', {}, mean ? strip(mean, `${entry.name}: ${bins().map((b) => share(mean, b)).join(', ')}`) : none),
        h('td', { class: off.length && off.every((d) => d === 0) ? 'yes' : null }, named.length ? named.map((b) => (isOutcome() ? binName(b) : b)).join(' ') : DASH, deferred && mean ? ' (deferred)' : ''),
        h('td', {}, mean ? `${(100 * mean[truth - 1]).toFixed(0)}\u2009%` : DASH), any && h('td', { class: 'why minor' }, reason(entry.why[row])));
    }))));
}

/** A rationale: short ones whole, long ones behind their beginning. */
function reason(text) {
  if (!text || text.length <= 110) return text || '';
  return h('details', {}, h('summary', {}, `${text.slice(0, 100)}…`), text);
}

function detail() {
  const out = $('k-detail');
  const { row } = seen;
  if (row < 0) { put(out, h('p', { class: 'note' }, 'No kernel matches.')); return; }
  const { rows } = board;
  const node = rows.kernel[row];
  const [left, right] = [rows.anchor[row], rows.code[row]];
  const names = board.kind === 'close' ? ['First', 'Second'] : board.kind === 'discovery' ? ['Parent', 'Child'] : ['Reference', 'Candidate'];
  const mode = seen.mode || (window.matchMedia('(max-width: 820px)').matches ? 'unified' : 'split');
  const cut = (i) => (data.cut[i] ? `, the first ${data.limit.toLocaleString('en')} of ${data.cut[i].toLocaleString('en')} characters` : '');
  const modes = [['split', 'Side by side'], ['unified', 'Unified'], ['candidate', `${names[1]} only`]];
  const facts = node ? [node.lang, node.how.replace(/_/g, ' '), node.model, node.n > 1 ? `${node.n} measurements` : null, node.flags.length ? `flags: ${node.flags.join(', ')}` : null].filter(Boolean).join(' · ') : 'published row without a log';
  put(out,
    h('div', { class: 'k-head' }, rows.speedup && h('span', { class: 'x' }, times(rows.speedup[row])), h('h3', {}, rows.tasks[rows.task[row]]), h('span', {}, binName(rows.bin[row]), isOutcome() ? '' : ` (bin ${rows.bin[row]})`), h('span', { class: 'small' }, rows.gpu[row])),
    h('p', { class: 'small' }, facts, h('br'), h('a', { href: `#kernel=${encodeURIComponent(rows.id[row])}`, title: 'Link to this kernel' }, h('code', {}, rows.id[row])), node ? [' from ', h('code', {}, node.src)] : null),
    h('h3', {}, 'What was forecast'), forecastTable(row),
    h('div', { class: 'controls' }, h('div', { class: 'segmented', role: 'group', 'aria-label': 'View of the code' }, modes.map(([value, text]) => h('button', { type: 'button', 'data-mode': value, 'aria-pressed': String(value === mode), onclick: () => { seen.mode = value; detail(); $('k-detail').querySelector(`[data-mode="${value}"]`).focus({ preventScroll: true }); } }, text)))),
    codeView(data.codes[left], data.codes[right], names, mode, [cut(left), cut(right)]));
}

function kernelKeys(event) {
  const at = seen.rows.indexOf(seen.row);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: seen.rows.length - 1, PageDown: at + 10, PageUp: at - 10 }[event.key];
  if (to === undefined || !seen.rows.length) return;
  event.preventDefault();
  choose(seen.rows[Math.min(Math.max(to, 0), seen.rows.length - 1)]);
}
