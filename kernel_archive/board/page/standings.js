// The standings table: ranked by any metric that ranks. Controls and bounds stand among the entries and have no rank.
const sorting = {}; // split -> { key, descending }
const ordering = {}; // split -> what orders its table: (key, descending)

function standingsOf(split) {
  const table = $('table-' + split);
  const place = data.boards.find((b) => b.split === split);
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const bySlug = new Map(place.entries.map((e, i) => [e.slug, { ...e, i }]));
  const of = (row) => bySlug.get(row.dataset.entry); // undefined for a control
  const at = (row) => (of(row) ? of(row).i : 1000 + Number(row.dataset.control));
  const heads = [...table.tHead.rows[0].cells];
  const better = (key) => (data.metrics[key] ? data.metrics[key][2] : key === 'rank' || key === 'cost' || key === 'defer' ? 'lower' : 'higher');

  function value(row, key) {
    if (key === 'name') return row.querySelector('.entry').textContent;
    const cell = row.querySelector(`[data-key="${key}"]`);
    return cell === null || cell.dataset.v === '' ? null : Number(cell.dataset.v);
  }

  /** Ranks and the set that can't be told apart from the best, by a metric. */
  function rerank(key) {
    if (!place.rankings.includes(key)) return;
    for (const row of rows) {
      const entry = of(row);
      if (!entry) continue;
      const r = entry.r[key];
      row.querySelector('.place').textContent = r ? r[0] : DASH;
      row.querySelector('.range').textContent = r ? (r[1] === r[2] ? '' : `${r[1]}${DASH}${r[2]}`) : '';
      row.classList.toggle('best', Boolean(r) && r[1] === 1);
    }
  }

  function sort(key, descending) {
    sorting[split] = { key, descending };
    remember();
    const sign = descending ? -1 : 1;
    const order = rows.map((row) => ({ row, v: value(row, key), ranked: !of(row) || of(row).ranked }));
    order.sort((a, b) => {
      if (a.ranked !== b.ranked) return a.ranked ? -1 : 1;
      if (a.v === null || b.v === null) return (a.v === null) - (b.v === null) || at(a.row) - at(b.row);
      const d = typeof a.v === 'string' ? a.v.localeCompare(b.v) : a.v - b.v;
      return sign * d || at(a.row) - at(b.row);
    });
    rerank(key);
    body.append(...order.map((o) => o.row));
    for (const head of heads) {
      const mine = head.dataset.key === key;
      if (head.querySelector('button')) head.setAttribute('aria-sort', mine ? (descending ? 'descending' : 'ascending') : 'none');
      head.classList.toggle('chosen', mine);
    }
    for (const cell of body.querySelectorAll('td.major')) cell.classList.toggle('chosen', cell.dataset.key === key);
    const by = $('rank-by-' + split);
    if (by && place.rankings.includes(key)) by.value = key;
  }

  /** Put another metric into the further column. */
  function further(key) {
    const was = board;
    board = place;
    const head = heads.find((c) => c.dataset.further);
    head.dataset.key = key;
    const { title, better: way, meaning } = info(key);
    head.querySelector('button > span').textContent = title;
    head.querySelector('small').textContent = way === 'higher' ? 'higher is better' : 'lower is better';
    head.title = meaning;
    const domain = domainOf(key);
    for (const row of rows) {
      const entry = of(row);
      const figure = entry ? entry.m[key] : [place.controls[Number(row.dataset.control)][2][key], null, null, null];
      if (figure[0] === undefined) figure[0] = null;
      const weak = Boolean(entry) && entry.weak.includes(key);
      const cell = row.querySelector('[data-further]');
      cell.dataset.key = key;
      cell.dataset.v = figure[0] === null ? '' : figure[0];
      cell.classList.toggle('weak', weak);
      put(cell, h('span', { class: 'fig' }, h('span', { class: 'v' }, number(key, figure[0]), weak && h('abbr', { title: 'does not beat the best control by its interval' }, '*'), h('small', {}, span(key, figure))), interval(figure, domain, controlOf(place, key))));
    }
    board = was;
  }

  for (const head of heads) {
    const key = head.dataset.key;
    if (key === 'rank') continue;
    if (data.metrics[key]) head.title = data.metrics[key][4];
    if (data.metrics[key] && !place.rankings.includes(key) && !head.dataset.further) {
      head.title += '. Stands here as the paper defines it, and does not rank: a forecast that knows nothing can lead in it';
      continue;
    }
    const label = [...head.childNodes];
    head.replaceChildren();
    const button = h('button', { type: 'button' }, label.length === 1 && label[0].nodeType === 3 ? h('span', {}, label[0]) : label);
    button.addEventListener('click', () => {
      const now = head.dataset.key;
      if (data.metrics[now] && !place.rankings.includes(now)) return;
      const best = better(now) === 'higher' && now !== 'name';
      const state = sorting[split];
      sort(now, state && state.key === now ? !state.descending : best);
    });
    head.append(button);
  }

  const choose = h('select', { id: 'rank-by-' + split }, place.rankings.map((key) => option(key, data.metrics[key][0])));
  const order = (key, descending) => {
    if (data.metrics[key] ? !place.rankings.includes(key) : !['name', 'replay', 'coverage', 'cost'].includes(key)) return;
    if (data.metrics[key] && !heads.some((c) => c.dataset.key === key)) further(key);
    sort(key, descending === undefined ? better(key) === 'higher' : descending);
  };
  choose.addEventListener('change', () => order(choose.value));
  const many = rows.filter((row) => row.classList.contains('further'));
  const all = h('button', { type: 'button', class: 'ghost', 'aria-pressed': 'false' }, `Show all ${place.controls.length} controls and bounds`);
  all.addEventListener('click', () => {
    const pressed = all.getAttribute('aria-pressed') !== 'true';
    all.setAttribute('aria-pressed', String(pressed));
    for (const row of many) row.hidden = !pressed;
  });
  for (const row of many) row.hidden = true;
  $('board-' + split).querySelector('.explained').after(h('div', { class: 'controls' }, h('label', {}, 'Rank by', choose), many.length ? all : null));
  ordering[split] = order;
  order(place.rankings[0] || 'name');
}

const controlOf = (place, key) => (place.controls.find(([name]) => name === place.best[key]) || [null, null, {}])[2][key];
