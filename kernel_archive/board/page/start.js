// Start: the table first, the rest when it comes near the view.
const later = { behaviour: () => { chips(); plots(); }, compare: fillCompare, tasks: fillTasks, kernels: fillKernels };
const done = new Set();

const REACH = 600; // sections so far below the window are drawn ahead, when they come near and when the split changes

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
    if (board.entries.length && $(id).getBoundingClientRect().top <= window.innerHeight + REACH) draw(id);
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

/** What the address asks for: a board, an order of its table, two entries to compare, a kernel. */
const asked = { a: null, b: null, kernel: null, at: null };
let quiet = true; // while the address is read, it is not written

/** Write what is seen into the address, as far as it is not what everybody sees first. */
function remember() {
  if (quiet || !board) return;
  const parts = [];
  const say = (key, value) => parts.push(`${key}=${encodeURIComponent(value)}`);
  if (board !== data.boards[0]) say('split', board.split);
  const { key, descending } = sorting[board.split] || {};
  if (key && (key !== board.rankings[0] || descending !== usual(key))) say('sort', (descending === usual(key) ? '' : '-') + key);
  if (asked.a && asked.b) { say('a', asked.a); say('b', asked.b); }
  if (asked.kernel) say('kernel', asked.kernel);
  if (asked.at && parts.length) say('at', asked.at);
  history.replaceState(null, '', parts.length ? '#' + parts.join('&') : asked.at ? '#' + asked.at : location.pathname + location.search);
}

/** Go to a section: all that stands above it is drawn first, so that it stays where it lands. */
function go(id) {
  if (!$(id)) return;
  const order = Object.keys(later);
  const last = id === 'method' ? order.length : order.indexOf(id) + 1;
  if (board.entries.length) for (const above of order.slice(0, last)) draw(above);
  const land = () => $(id).scrollIntoView({ behavior: 'instant' });
  land();
  requestAnimationFrame(() => { land(); requestAnimationFrame(land); });
}

function linked() {
  const hash = location.hash.slice(1);
  if (!hash) return;
  if (!hash.includes('=')) { if (document.getElementById(hash)) { asked.at = hash; go(hash); } return; }
  const wanted = new URLSearchParams(hash.replace(/\+/g, '%2B'));
  quiet = true;
  const id = wanted.get('kernel');
  const holder = id !== null && (data.boards.find((b) => b.split === wanted.get('split') && b.rows.id.includes(id)) || data.boards.find((b) => b.rows.id.includes(id)));
  const place = holder || data.boards.find((b) => b.split === wanted.get('split')) || data.boards[0];
  [asked.a, asked.b, asked.kernel, asked.at] = [wanted.get('a'), wanted.get('b'), holder ? id : null, wanted.get('at')];
  setBoard(place.split);
  const sort = wanted.get('sort');
  if (sort) {
    const key = sort.replace(/^-/, '');
    ordering[place.split](key, sort.startsWith('-') ? !usual(key) : usual(key));
  }
  if (holder) {
    go('kernels');
    jump(holder.rows.id.indexOf(id));
  } else if (asked.at) go(asked.at);
  else if (asked.a || asked.b) go('compare');
  quiet = false;
  remember();
}

async function start() {
  theme();
  data = await load();
  document.documentElement.classList.add('scripted');
  $('nav').hidden = false;
  for (const b of data.boards) standingsOf(b.split);
  put($('switch'), data.boards.map((b) => h('button', { type: 'button', 'data-split': b.split, onclick: () => { Object.assign(asked, { a: null, b: null, kernel: null }); setBoard(b.split); remember(); } }, b.title)));
  $('switch').hidden = data.boards.length < 2;
  setBoard(data.boards[0].split);

  const near = new IntersectionObserver((items) => { for (const item of items) if (item.isIntersecting && board.entries.length) draw(item.target.id); }, { rootMargin: `${REACH}px` });
  window.addEventListener('scroll', () => { if (!waiting) { waiting = true; requestAnimationFrame(mark); } }, { passive: true });
  mark();
  for (const id of Object.keys(later)) near.observe($(id));

  for (const id of ['cmp-a', 'cmp-b']) $(id).addEventListener('change', compared);
  $('cmp-swap').addEventListener('click', () => { const a = $('cmp-a').value; $('cmp-a').value = $('cmp-b').value; $('cmp-b').value = a; compared(); });
  $('task-metric').addEventListener('change', tasks);
  $('task-by').addEventListener('click', (event) => { if (event.target.dataset.by) { taskBy = event.target.dataset.by; tasks(); } });
  $('k-order').addEventListener('change', () => { kernelList(); show(seen.rows.length ? seen.rows[0] : -1); });
  for (const id of ['k-task', 'k-bin']) $(id).addEventListener('change', () => { kernelList(); show(seen.rows.includes(seen.row) ? seen.row : seen.rows.length ? seen.rows[0] : -1); });
  let wait = 0;
  $('k-find').addEventListener('input', () => { clearTimeout(wait); wait = setTimeout(() => { kernelList(); show(seen.rows.includes(seen.row) ? seen.row : seen.rows.length ? seen.rows[0] : -1); }, 120); });
  $('k-list').addEventListener('click', (event) => { const item = event.target.closest('[role="option"]'); if (item) choose(Number(item.dataset.row)); });
  $('k-list').addEventListener('keydown', kernelKeys);
  $('nav').addEventListener('click', (event) => {
    const link = event.target.closest('a');
    if (!link) return;
    event.preventDefault();
    asked.at = link.hash.slice(1);
    history.pushState(null, '', location.hash || link.hash);
    remember();
    go(asked.at);
  });
  window.addEventListener('hashchange', linked);
  window.addEventListener('popstate', linked);
  quiet = false;
  linked();
  document.documentElement.dataset.ready = 'yes';
  performance.mark('ready');
}

start().catch((error) => {
  console.error(error);
  $('main').prepend(h('p', { class: 'note' }, 'The interactive part could not start in this browser; the standings below are complete.'));
});
