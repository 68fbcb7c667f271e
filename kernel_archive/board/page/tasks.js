// Entries by task or by budget, as a table whose shade follows the figure.
let taskBy = 'task';

function fillTasks() {
  const first = board.entries[0];
  const metrics = Object.keys(first ? Object.values(first.g)[0] || {} : {}).filter((k) => !k.startsWith('speedup_recovered_at_'));
  $('tasks').hidden = !metrics.length;
  if (!metrics.length) return;
  put($('task-metric'), metrics.map((k) => option(k, info(k).title)));
  const budgets = board.kind === 'eval';
  $('task-by').hidden = !budgets;
  if (!budgets) taskBy = 'task';
  tasks();
}

function tasks() {
  const budgetKeys = Object.keys(board.entries[0].m).filter((k) => k.startsWith('speedup_recovered_at_'));
  const byTask = taskBy === 'task';
  $('task-metric').disabled = !byTask;
  for (const button of $('task-by').querySelectorAll('button')) button.setAttribute('aria-pressed', String(button.dataset.by === taskBy));
  const key = byTask ? $('task-metric').value : 'speedup_recovered';
  const columns = byTask
    ? Object.keys(board.groups).map((g) => ({ name: g, head: [g, h('small', {}, `${board.groups[g]} rows`)], get: (e) => (e.g[g] || {})[key] }))
    : budgetKeys.map((k) => ({ name: `${k.split('_').pop()} % of candidates`, head: [`${k.split('_').pop()} %`, h('small', {}, 'of candidates')], get: (e) => e.m[k] }));
  columns.push({ name: 'all', head: ['all', h('small', {}, byTask ? 'over the split' : 'mean of budgets')], get: (e) => e.m[key] });
  const { better } = info(key);
  const scales = columns.map((c) => {
    const values = board.entries.map((e) => (c.get(e) || [null])[0]).filter((v) => v !== null);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return (v) => (high === low ? 0 : better === 'lower' ? (high - v) / (high - low) : (v - low) / (high - low));
  });
  put($('task-out'), h('table', { class: 'heat' },
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Entry'), columns.map((c) => h('th', { scope: 'col' }, c.head)))),
    h('tbody', {}, board.entries.map((e) => h('tr', { class: e.ranked ? null : 'apart' }, h('th', { scope: 'row', class: 'name' }, h('span', { class: 'entry' }, e.name)),
      columns.map((c, i) => {
        const figure = c.get(e);
        if (!figure || figure[0] === null) return h('td', { 'data-column': c.name }, DASH);
        return h('td', { 'data-column': c.name, '--h': scales[i](figure[0]) }, number(key, figure[0]), h('small', {}, span(key, figure)));
      }))))));
}
