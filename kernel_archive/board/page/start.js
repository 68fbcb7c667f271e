// Start: the table first, the rest when it comes near the view.
const later = { behaviour: () => { chips(); plots(); }, compare: fillCompare, tasks: fillTasks, kernels: fillKernels };
const done = new Set();

function draw(id) {
  if (done.has(id)) return;
  done.add(id);
  later[id]();
  requestAnimationFrame(mark);
}

/** Mark the section in view in the navigation. */
let waiting = false;
function mark() {
  waiting = false;
  const places = ['standings', ...Object.keys(later), 'method'];
  const last = window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 2;
  const at = last ? 'method' : places.filter((id) => !$(id).hidden && $(id).getBoundingClientRect().top < window.innerHeight * 0.35).pop() || places[0];
  for (const link of $('nav').children) { if (link.hash === '#' + at) link.setAttribute('aria-current', 'true'); else link.removeAttribute('aria-current'); }
}

function setBoard(split, scroll) {
  board = data.boards.find((b) => b.split === split);
  for (const node of document.querySelectorAll('.board')) node.hidden = node.dataset.split !== split;
  for (const button of $('switch').querySelectorAll('button')) button.setAttribute('aria-pressed', String(button.dataset.split === split));
  done.clear();
  seen.row = -1;
  for (const id of Object.keys(later)) {
    $(id).hidden = !board.entries.length;
    if (board.entries.length && $(id).getBoundingClientRect().top < window.innerHeight * 1.5) draw(id);
  }
}

function theme() {
  const button = $('theme');
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ? root.dataset.theme === 'dark' : window.matchMedia('(prefers-color-scheme: dark)').matches);
  const label = () => { button.textContent = dark() ? 'Light' : 'Dark'; button.setAttribute('aria-label', dark() ? 'Light colours' : 'Dark colours'); button.removeAttribute('aria-pressed'); };
  button.hidden = false;
  button.addEventListener('click', () => { root.dataset.theme = dark() ? 'light' : 'dark'; label(); });
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', label);
  label();
}

function linked() {
  if (!location.hash.startsWith('#kernel=')) return;
  let id = '';
  try { id = decodeURIComponent(location.hash.slice(8)); } catch { return; }
  const target = data.boards.find((b) => b.rows.id.includes(id));
  if (!target) return;
  setBoard(target.split);
  draw('kernels');
  jump(target.rows.id.indexOf(id));
  $('kernels').scrollIntoView();
}

async function start() {
  theme();
  data = await load();
  document.documentElement.classList.add('scripted');
  $('nav').hidden = false;
  for (const b of data.boards) standingsOf(b.split);
  put($('switch'), data.boards.map((b) => h('button', { type: 'button', 'data-split': b.split, onclick: () => setBoard(b.split) }, b.title)));
  $('switch').hidden = data.boards.length < 2;
  setBoard(data.boards[0].split);

  const near = new IntersectionObserver((items) => { for (const item of items) if (item.isIntersecting && board.entries.length) draw(item.target.id); }, { rootMargin: '600px' });
  window.addEventListener('scroll', () => { if (!waiting) { waiting = true; requestAnimationFrame(mark); } }, { passive: true });
  mark();
  for (const id of Object.keys(later)) near.observe($(id));

  for (const id of ['cmp-a', 'cmp-b']) $(id).addEventListener('change', compare);
  $('cmp-swap').addEventListener('click', () => { const a = $('cmp-a').value; $('cmp-a').value = $('cmp-b').value; $('cmp-b').value = a; compare(); });
  $('task-metric').addEventListener('change', tasks);
  $('task-by').addEventListener('click', (event) => { if (event.target.dataset.by) { taskBy = event.target.dataset.by; tasks(); } });
  $('k-order').addEventListener('change', () => { kernelList(); show(seen.rows.length ? seen.rows[0] : -1); });
  for (const id of ['k-task', 'k-bin']) $(id).addEventListener('change', () => { kernelList(); show(seen.rows.includes(seen.row) ? seen.row : seen.rows.length ? seen.rows[0] : -1); });
  let wait = 0;
  $('k-find').addEventListener('input', () => { clearTimeout(wait); wait = setTimeout(() => { kernelList(); show(seen.rows.includes(seen.row) ? seen.row : seen.rows.length ? seen.rows[0] : -1); }, 120); });
  $('k-list').addEventListener('click', (event) => { const item = event.target.closest('[role="option"]'); if (item) show(Number(item.dataset.row)); });
  $('k-list').addEventListener('keydown', kernelKeys);
  window.addEventListener('hashchange', linked);
  linked();
  document.documentElement.dataset.ready = 'yes';
  performance.mark('ready');
}

start().catch((error) => {
  console.error(error);
  $('main').prepend(h('p', { class: 'note' }, 'The interactive part could not start in this browser; the standings below are complete.'));
});
