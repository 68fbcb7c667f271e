// The standings table: ranked by any metric that ranks. Controls and bounds stand below, folded.
const sorting = {}; // split -> { key, descending }
const ordering = {}; // split -> what orders its table: (key, descending)
const MINOR = { name: ['Entry', 'the name of the entry'], accuracy: ['Accuracy', null], coverage: ['Coverage', 'share of the rows and repeats that it forecasts; under 95 % it is not ranked'], cost: ['Cost', 'tokens, or else seconds, per forecast'] };

const better = (key) => (data.metrics[key] ? data.metrics[key][2] : key === 'cost' || key === 'name' ? 'lower' : 'higher');
const usual = (key) => better(key) === 'higher';

/** What a column says, in a sentence. */
function meaningOf(place, key) {
  if (!data.metrics[key]) return MINOR[key][1];
  const paper = place.rankings.includes(key) || key === 'accuracy' ? '' : '. It stands here as the paper defines it and does not rank: a forecast that knows nothing can lead in it';
  return data.metrics[key][4] + paper;
}

function standingsOf(split) {
  const table = $('table-' + split);
  const place = data.boards.find((b) => b.split === split);
  const bySlug = new Map(place.entries.map((e, i) => [e.slug, { ...e, i }]));
  const of = (row) => bySlug.get(row.dataset.entry); // undefined for a control
  const bodies = [...table.tBodies].map((body) => ({ body, rows: [...body.rows] }));
  const rows = bodies.flatMap((b) => b.rows);
  const at = (row) => (of(row) ? of(row).i : Number(row.dataset.control));
  const heads = [...table.tHead.rows[0].cells];

  function value(row, key) {
    if (key === 'name') return row.querySelector('.entry').textContent;
    const cell = row.querySelector(`[data-key="${key}"]`);
    return cell === null || cell.dataset.v === '' ? null : Number(cell.dataset.v);
  }

  /** Say what a column means, where a finger can read it, too. */
  function explain(key) {
    const text = meaningOf(place, key);
    if (text) put($('meaning-' + split), h('b', {}, data.metrics[key] ? data.metrics[key][0] : MINOR[key][0]), ': ', text, '.');
  }

  /** Ranks and the set that can't be told apart from the best, by a metric. */
  function rerank(key) {
    if (!place.rankings.includes(key)) return;
    for (const row of bodies[0].rows) {
      const r = of(row).r[key];
      row.querySelector('.place').textContent = r ? r[0] : DASH;
      row.querySelector('.range').textContent = r && r[1] !== null && r[1] !== r[2] ? `${r[1]}${DASH}${r[2]}` : '';
      row.classList.toggle('best', Boolean(r) && r[1] === 1);
    }
  }

  function sort(key, descending) {
    sorting[split] = { key, descending };
    remember();
    const sign = descending ? -1 : 1;
    for (const { body, rows: own } of bodies) {
      const order = own.map((row) => ({ row, v: value(row, key), ranked: !of(row) || of(row).ranked }));
      order.sort((a, b) => {
        if (a.ranked !== b.ranked) return a.ranked ? -1 : 1;
        if (a.v === null || b.v === null) return (a.v === null) - (b.v === null) || at(a.row) - at(b.row);
        const d = typeof a.v === 'string' ? a.v.localeCompare(b.v) : a.v - b.v;
        return sign * d || at(a.row) - at(b.row);
      });
      body.append(...order.map((o) => o.row));
    }
    rerank(key);
    for (const head of heads) {
      const mine = head.dataset.key === key;
      if (!head.dataset.fixed && head.querySelector('button')) head.setAttribute('aria-sort', mine ? (descending ? 'descending' : 'ascending') : 'none');
      head.classList.toggle('chosen', mine);
    }
    for (const cell of table.querySelectorAll('td.major')) cell.classList.toggle('chosen', cell.dataset.key === key);
    const by = $('rank-by-' + split);
    if (by && place.rankings.includes(key)) by.value = key;
    explain(key);
  }

  /** Draw a metric in a column of cells: the figure, its interval, the best control. */
  function draw(key, cellOf) {
    const domain = domainOf(place, key);
    for (const row of rows) {
      const entry = of(row);
      const alone = entry ? null : place.controls[Number(row.dataset.control)][key];
      const figure = entry ? entry.m[key] : [alone === undefined ? null : alone, null, null];
      const weak = Boolean(entry) && entry.weak.includes(key);
      const cell = cellOf(row);
      cell.dataset.key = key;
      cell.dataset.v = figure[0] === null ? '' : figure[0];
      cell.classList.toggle('weak', weak);
      put(cell, h('span', { class: 'fig' }, h('span', { class: 'v' }, number(key, figure[0]), weak && h('abbr', { title: 'does not beat the best control by its interval' }, '*'), h('small', {}, span(key, figure))), interval(figure, domain, place.bars[key])));
    }
  }

  /** Put another metric into the further column. */
  function further(key) {
    const head = heads.find((c) => c.dataset.further);
    head.dataset.key = key;
    head.querySelector('button > span').textContent = info(key).title;
    head.querySelector('small').textContent = `${better(key)} is better`;
    head.title = meaningOf(place, key);
    draw(key, (row) => row.querySelector('[data-further]'));
  }

  for (const head of heads) {
    const key = head.dataset.key;
    if (key === 'rank') continue;
    if (head.classList.contains('major')) draw(key, (row) => row.querySelector(`td[data-key="${key}"]`));
    head.title = meaningOf(place, key) || '';
    const label = [...head.childNodes];
    head.replaceChildren();
    // A figure of the paper orders nothing: its button says what it is.
    const button = h('button', { type: 'button' }, label.length === 1 && label[0].nodeType === 3 ? h('span', {}, label[0]) : label);
    button.addEventListener('focus', () => explain(head.dataset.key));
    button.addEventListener('click', () => {
      const now = head.dataset.key;
      explain(now);
      if (data.metrics[now] && !place.rankings.includes(now) && now !== 'accuracy') return;
      const state = sorting[split];
      sort(now, state && state.key === now ? !state.descending : usual(now));
    });
    if (data.metrics[key] && !place.rankings.includes(key) && !head.dataset.further) head.dataset.fixed = '1';
    head.append(button);
  }

  const choose = h('select', { id: 'rank-by-' + split }, place.rankings.map((key) => option(key, data.metrics[key][0])));
  const order = (key, descending) => {
    if (data.metrics[key] ? !place.rankings.includes(key) : !(Object.hasOwn(MINOR, key))) return;
    if (data.metrics[key] && !heads.some((c) => c.dataset.key === key)) further(key);
    sort(key, descending === undefined ? usual(key) : descending);
  };
  choose.addEventListener('change', () => order(choose.value));
  const controls = bodies[1].body;
  const fold = h('button', { type: 'button', class: 'ghost fold', 'aria-expanded': 'false', 'aria-controls': table.id }, `Show ${place.controls.length} controls and bounds`);
  fold.addEventListener('click', () => {
    controls.hidden = !controls.hidden;
    fold.setAttribute('aria-expanded', String(!controls.hidden));
    fold.textContent = `${controls.hidden ? 'Show' : 'Hide'} ${place.controls.length} controls and bounds`;
  });
  controls.hidden = true;
  const missed = place.ranked ? h('button', { type: 'button', class: 'ghost missed' }, 'Programs with the leader’s largest errors') : null;
  if (missed) missed.addEventListener('click', showMissed);
  $('board-' + split).querySelector('.explained').after(h('div', { class: 'controls' }, h('label', {}, 'Rank by', choose), fold, missed));
  ordering[split] = order;
  order(place.rankings[0] || 'name');
}
