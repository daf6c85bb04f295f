// playground/page/page.js — the question as fields and as a link, asked after every keystroke; shows the answer
'use strict';

const $ = id => document.getElementById(id);
const make = (name, set = {}, ...inside) => {
  const out = Object.assign(document.createElement(name), set);
  out.append(...inside);
  return out;
};

// ---- the question ----

let state = structuredClone(usual), gallery = [];

function questionOf(from) {
  const out = { cells: 256 };
  for (const name of [...parts, 'lets', 'params', 'captures', 'q_len', 'kv_len', 'q_offset', 'tile', 'batch', 'heads', 'b', 'h'])
    out[name] = from[name];
  // A row that is being typed has no name yet.
  out.captures = from.captures.filter(c => c.name).map(c => ({ ...c, fill: { ...c.fill, limit: c.fill?.limit || 0 } }));
  out.params = from.params.filter(p => p.split('=')[0]), out.lets = from.lets.filter(l => l.split('=')[0]);
  if (from.random) out.qk = { d: from.d, seed: 1 };
  if (tab === 'CUDA') out.cuda = cuda;
  return out;
}

// ---- the fields ----

function grow(area) {
  area.style.height = 'auto';
  area.style.height = area.scrollHeight + 2 + 'px';
}

function show() {
  for (const part of parts) $(part).value = state[part], grow($(part));
  for (const name of numbers) $(name).value = state[name];
  $('tile_q').value = state.tile[0], $('tile_kv').value = state.tile[1];
  $('random').checked = state.random;
  for (const kind of Object.keys(rows)) showRows(kind);
}

const numeric = text => /^-?\d*\.?\d+(e-?\d+)?f?$/.test(text);
// A parameter's slider goes up to four times its value or more; an Int moves in whole steps.
function slider(text, input) {
  const value = parseFloat(text), whole = /^-?\d+$/.test(text), reach = Math.max(Math.abs(value) * 4, whole ? 8 : 1);
  const out = make('input', { type: 'range', min: value < 0 ? -reach : 0, max: reach, step: whole ? 1 : reach / 200 });
  out.value = value;
  out.ariaLabel = 'value';
  out.oninput = () => input(whole ? out.value : Number(out.value).toFixed(4).replace(/0+$/, '0').replace(/\.$/, '.0'));
  return out;
}

const rows = {
  params: (one, set) => {
    const [name, ...rest] = one.split('='), value = rest.join('=');
    const text = make('input', { type: 'text', value, ariaLabel: 'value', oninput: () => set(`${label.value}=${text.value}`) });
    const label = make('input', { type: 'text', value: name, ariaLabel: 'name', placeholder: 'cap', oninput: () => set(`${label.value}=${text.value}`) });
    const out = [label, text];
    if (numeric(value)) out.push(slider(value, v => { text.value = v; set(`${label.value}=${v}`); }));
    return out;
  },
  lets: (one, set) => {
    const [name, ...rest] = one.split('=');
    const text = make('input', { type: 'text', value: rest.join('='), ariaLabel: 'expression', placeholder: 'f32(kv - q)', oninput: () => set(`${label.value}=${text.value}`) });
    const label = make('input', { type: 'text', value: name, ariaLabel: 'name', placeholder: 'd', oninput: () => set(`${label.value}=${text.value}`) });
    text.style.flexGrow = 4;
    return [label, text];
  },
  captures: (one, set) => {
    const change = changed => set(Object.assign(one, changed));
    const choice = (of, value, label, then) => {
      const out = make('select', { ariaLabel: label, onchange: () => then(out.value) }, ...of.map(o => make('option', { value: o, textContent: o })));
      out.value = value;
      return out;
    };
    const fill = one.fill || (one.fill = {}), how = fill.how || (one.type === 'bool' ? 'coins' : /^[fb]/.test(one.type || 'f32') ? 'normal' : 'indices');
    const shape = text => text.split(',').map(t => t.trim()).filter(t => t).map(Number);
    const name = make('input', { type: 'text', value: one.name || '', ariaLabel: 'name', placeholder: 'slope', oninput: () => change({ name: name.value }) });
    const extents = make('input', { type: 'text', value: (one.shape || []).join(', '), ariaLabel: 'shape', placeholder: '8', oninput: () => change({ shape: shape(extents.value) }) });
    const limit = make('input', { type: 'number', value: fill.limit || '', ariaLabel: 'limit', placeholder: 'limit', title: 'limit', oninput: () => change({ fill: { ...fill, limit: Number(limit.value) } }) });
    const seed = make('input', { type: 'number', value: fill.seed ?? 1, min: 0, ariaLabel: 'seed', title: 'seed', oninput: () => change({ fill: { ...fill, seed: Number(seed.value) } }) });
    const list = make('input', { type: 'text', value: (fill.list || []).join(', '), ariaLabel: 'numbers', placeholder: '1, 2, 3', oninput: () => change({ fill: { ...fill, list: shape(list.value) } }) });
    return [name, choice(types, one.type || 'f32', 'type', v => { change({ type: v }); showRows('captures'); }), extents,
      choice(fills, how, 'filled with', v => { change({ fill: { ...fill, how: v } }); showRows('captures'); }), ...(how === 'list' ? [list] : []), ...(limited.includes(how) ? [limit] : []), ...(seeded.includes(how) ? [seed] : [])];
  },
};
const fresh = { params: () => 'cap=30.0', lets: () => '=', captures: () => ({ name: '', type: 'f32', shape: [8], fill: { how: 'normal' } }) };

function showRows(kind) {
  $(kind).replaceChildren(...state[kind].map((one, i) => {
    const drop = make('button', { type: 'button', className: 'drop', textContent: '×', ariaLabel: 'remove', onclick: () => {
      state[kind].splice(i, 1);
      showRows(kind), changed();
    } });
    return make('div', { className: 'row' }, ...rows[kind](one, value => { state[kind][i] = value; changed(); }), drop);
  }));
}

function listen() {
  for (const part of parts) $(part).oninput = () => { state[part] = $(part).value; grow($(part)); changed(); };
  const number = (id, set) => $(id).oninput = () => { set($(id).value === '' ? NaN : Number($(id).value)); changed(); };
  for (const name of numbers) number(name, v => state[name] = v);
  number('tile_q', v => state.tile = [v, state.tile[1]]), number('tile_kv', v => state.tile = [state.tile[0], v]);
  $('random').onchange = () => { state.random = $('random').checked; changed(); };
  for (const button of document.querySelectorAll('[data-add]'))
    button.onclick = () => { const kind = button.dataset.add; state[kind].push(fresh[kind]()); showRows(kind); $(kind).lastChild.querySelector('input').focus(); };
  $('example').onchange = () => choose(gallery.find(m => m.name === $('example').value));
  $('link').onclick = () => copy(location.href.split('#')[0] + linkOf(state), $('link'));
  $('theme').onclick = () => {
    const root = document.documentElement, dark = getComputedStyle(root).colorScheme === 'dark';
    root.dataset.theme = dark ? 'light' : 'dark';
    if (answer) showMaps();
  };
  matchMedia('(prefers-color-scheme: dark)').onchange = () => answer && showMaps();
  window.onhashchange = () => { if (location.hash !== linkOf(state)) fromLink(); };
  document.onkeydown = event => { if (event.key === 'Escape') stop('Stopped.'); };
}

function choose(mod) {
  if (!mod) return;
  state = { ...structuredClone(usual), ...structuredClone(mod.question) };
  $('example').value = mod.name;
  $('about').textContent = `${mod.title}. ${mod.about}`;
  show(), changed();
}

// Old browsers and pages from files may have no clipboard.
function copy(text, button) {
  const was = button.textContent, done = word => { button.textContent = word; setTimeout(() => button.textContent = was, 1200); };
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(() => done('copied'), () => done('no clipboard'));
  else done('no clipboard');
}

// ---- asking ----

const patience = 20000;  // ms until a question is abandoned
let worker = null, asked = 0, waiting = null, busy = null, answer = null, tab = 'explained', timer = 0;
const cuda = { arch: 90, d: 128, dtype: 'bf16', backward: false };

function start() {
  const url = URL.createObjectURL(new Blob([$('engine').textContent], { type: 'text/javascript' }));
  worker = new Worker(url);
  worker.onmessage = ({ data }) => {
    if (!busy || data.id !== busy.id) return;
    const sizes = busy.sizes;
    busy = null, clearTimeout(timer);
    if (data.trouble) stop(`The compiler stopped: ${data.trouble}`);
    else shown(JSON.parse(data.answer), sizes, data.took);
    next();
  };
  worker.onerror = event => stop(`The compiler cannot run here: ${event.message || 'this browser lacks WebAssembly exceptions'}`);
}

function stop(why) {
  if (worker) worker.terminate();
  worker = null, busy = null, waiting = null;
  clearTimeout(timer);
  $('state').textContent = why;
  document.body.dataset.done = ++asked;
}

function changed() {
  const link = linkOf(state);
  if (location.hash !== link) history.replaceState(null, '', link);
  ask();
}

function ask() {
  // The sizes are stored with the question, because the fields may have changed when the answer arrives.
  waiting = { question: JSON.stringify(questionOf(state)),
    sizes: { q: state.q_len, kv: state.kv_len, tileQ: state.tile[0], tileKv: state.tile[1], offset: state.q_offset } };
  delete document.body.dataset.done;
  // A newer question makes a slow one useless.
  if (busy && performance.now() - busy.from > 700) worker.terminate(), worker = null, busy = null;
  next();
}

function next() {
  if (busy || waiting === null) return;
  if (!worker) start();
  busy = { id: ++asked, from: performance.now(), sizes: waiting.sizes };
  worker.postMessage({ id: busy.id, question: waiting.question });
  waiting = null;
  clearTimeout(timer);
  const wait = () => {
    if (!busy) return;
    const took = performance.now() - busy.from;
    if (took > patience) return stop(`Given up after ${patience / 1000} seconds. Smaller sizes may help.`);
    if (took > 400) $('state').replaceChildren('Working … ', make('button', { type: 'button', textContent: 'stop (Esc)', onclick: () => stop('Stopped.') }));
    timer = setTimeout(wait, 200);
  };
  timer = setTimeout(wait, 400);
}

// ---- the answer ----

const grouped = n => String(n).replace(/\B(?=(\d{3})+$)/g, ' ');
const percent = share => `${(100 * share).toFixed(share > 0 && share < 0.01 ? 2 : 1)} %`;
const short = v => Number.isNaN(v) ? 'removed' : Math.abs(v) >= 1e-3 && Math.abs(v) < 1e5 || v === 0 ? String(+v.toPrecision(4)) : v.toExponential(2);

function shown(all, sizes, took) {
  for (const old of document.querySelectorAll('.field .error, .rows > .error')) old.remove();
  for (const field of document.querySelectorAll('.field')) field.classList.remove('wrong');
  $('elsewhere').hidden = true;
  if (all.error) showError(all.error);
  else {
    answer = all;
    answer.sizes = sizes;
    const m = all.maps;
    for (const name of ['score', 'prob', 'grad']) m[name] = floats(m[name]);
    showFacts(), showMaps(), showPanel();
    $('state').textContent = `${Math.round(took)} ms`;
  }
  // For tests: no question is in flight.
  if (waiting === null) document.body.dataset.done = asked;
}

function showError(error) {
  $('state').textContent = '';
  const place = (error.where && error.where.name || '').replace(/^--/, '').split(' ')[0];
  const text = make('pre', { className: 'error', textContent: error.message });
  const field = document.querySelector(`.field[data-part="${CSS.escape(place)}"]`);
  const list = { capture: 'captures', param: 'params', let: 'lets' }[place];
  if (field) field.classList.add('wrong'), field.append(text);
  else if (list) $(list).append(text);
  else $('elsewhere').textContent = error.message, $('elsewhere').hidden = false;
}

function showFacts() {
  const t = answer.tiles, fact = (value, what) => make('div', {}, make('b', { textContent: value }), make('span', { textContent: what }));
  const of = n => `${grouped(n)} (${percent(n / t.total)})`;
  const known = /^(.*?)((?: if |, ).*)?$/.exec(answer.cover.along_kv).map(text => text || '');
  $('facts').replaceChildren(
    fact(percent(t.skipped), 'of the tiles are never visited'),
    ...(t.kept == null ? [] : [fact(percent(t.kept / t.pairs), `of the pairs are kept: ${grouped(t.kept)} of ${grouped(t.pairs)}`)]),
    fact(of(t.full), 'full tiles: no mask to evaluate'), fact(of(t.partial), 'partial tiles'),
    fact(known[1], `${known[2].replace(/^[, ]+/, '')} is what the compiler has of the mask`.trim()));
}

function showMaps() {
  const m = answer.maps;
  const canvas = name => document.querySelector(`canvas[data-map="${name}"]`);
  const legend = (name, ...inside) => document.querySelector(`[data-legend="${name}"]`).replaceChildren(...inside);
  const box = (name, text) => { const i = make('i'); i.style.background = `var(--${name})`; return make('span', {}, i, text); };
  const bar = (...stops) => { const out = make('span', { className: 'bar' }); out.style.background = `linear-gradient(90deg, ${stops.join()})`; return out; };
  paintTiles(canvas('tiles'), answer.tiles, answer.sizes, m.score);
  legend('tiles', box('full', 'full'), box('partial', 'partial'), box('dropped', 'removed'));
  for (const name of ['score', 'grad']) {
    const top = short(paintSigned(canvas(name), m.rows, m.columns, m[name]));
    legend(name, `−${top}`, bar('var(--minus)', 'var(--page)', 'var(--plus)'), top);
  }
  paintRows(canvas('prob'), m.rows, m.columns, m.prob);
  legend('prob', '0', bar('var(--page)', 'var(--likely)'), "the row's largest");
  for (const c of document.querySelectorAll('canvas')) c.ariaLabel = `${c.dataset.map} of ${answer.sizes.q} queries by ${answer.sizes.kv} keys`;
  if (pair) showPair(pair.row, pair.column);
}

let pair = null;
function showPair(row, column) {
  const m = answer.maps, s = answer.sizes;
  row = Math.max(0, Math.min(m.rows - 1, row)), column = Math.max(0, Math.min(m.columns - 1, column));
  pair = { row, column };
  const at = row * m.columns + column;
  const q = Math.floor((2 * row + 1) * s.q / (2 * m.rows)), kv = Math.floor(column * s.kv / m.columns), end = Math.floor((column + 1) * s.kv / m.columns);
  const tile = answer.tiles.cells[Math.floor(q / s.tileQ) * answer.tiles.columns + Math.floor(kv / s.tileKv)];
  const kept = !Number.isNaN(m.score[at]);
  $('pair').textContent = `q = ${q + s.offset}, kv = ${kv}${end > kv + 1 ? ` to ${end - 1}` : ''}: ` +
    (kept ? `score ${short(m.score[at])}, probability ${short(m.prob[at])}, d probability / d s ${short(m.grad[at])}` : 'removed') +
    `; the tile is ${['empty', 'partial', 'full'][tile] || 'unknown'}`;
}

function pointing() {
  for (const canvas of document.querySelectorAll('canvas')) {
    canvas.onpointermove = canvas.onpointerdown = event => {
      if (!answer) return;
      const box = canvas.getBoundingClientRect();
      showPair(Math.floor((event.clientY - box.top) / box.height * answer.maps.rows), Math.floor((event.clientX - box.left) / box.width * answer.maps.columns));
    };
    canvas.onkeydown = event => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step || !answer) return;
      event.preventDefault();
      const far = event.shiftKey ? 16 : 1, from = pair || { row: 0, column: 0 };
      showPair(from.row + far * step[0], from.column + far * step[1]);
      showMaps();
      cross(canvas, pair.row, pair.column, answer.maps.rows, answer.maps.columns);
    };
    canvas.onblur = () => answer && showMaps();
  }
}

// ---- what is below the pictures ----

const tabs = {
  explained: () => answer.sections.flatMap(s => [make('h3', { textContent: s.title }), make('pre', { textContent: s.lines })]),
  'C++': () => code(answer.says.cpp),
  Python: () => code(answer.says.python),
  'command line': () => code(answer.says.command),
  CUDA: () => {
    const ask = make('div', { className: 'ask' });
    const field = (label, input) => ask.append(make('label', {}, label + ' ', input));
    const set = (name, value) => { cuda[name] = value; ask_again(); };
    const ask_again = () => changed();
    const arch = make('select', { onchange: () => set('arch', Number(arch.value)) }, ...[80, 89, 90, 120].map(a => make('option', { value: a, textContent: `sm_${a}` })));
    const dtype = make('select', { onchange: () => set('dtype', dtype.value) }, ...['bf16', 'f16', 'f32'].map(t => make('option', { textContent: t })));
    arch.value = cuda.arch, dtype.value = cuda.dtype;
    const d = make('input', { type: 'number', value: cuda.d, min: 1, max: 256, onchange: () => set('d', Number(d.value)) });
    const backward = make('input', { type: 'checkbox', checked: cuda.backward, onchange: () => set('backward', backward.checked) });
    field('for', arch), field('width of a head', d), field('of', dtype), field('gradients', backward);
    return [ask, ...(answer.cuda || []).flatMap(p => [make('h3', { textContent: `${p.of}: ${p.kernel}` }), make('pre', { textContent: p.text })])];
  },
};

function code(text) {
  const button = make('button', { type: 'button', className: 'copy', textContent: 'copy' });
  button.onclick = () => copy(text, button);
  return [button, make('pre', { textContent: text })];
}

function showPanel() { $('panel').replaceChildren(...tabs[tab]()); }

function showTabs() {
  const list = document.querySelector('[role=tablist]'), names = Object.keys(tabs);
  const select = (name, focus) => {
    tab = name;
    for (const b of list.children) {
      b.ariaSelected = String(b.textContent === name);
      b.tabIndex = b.textContent === name ? 0 : -1;
      if (focus && b.textContent === name) b.focus();
    }
    if (name === 'CUDA') ask();
    else if (answer) showPanel();
  };
  list.replaceChildren(...names.map((name, i) => {
    const button = make('button', { type: 'button', textContent: name, onclick: () => select(name) });
    button.setAttribute('role', 'tab');
    button.onkeydown = event => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) select(names[(i + step + names.length) % names.length], true);
    };
    return button;
  }));
  select(tab);
}

// ---- start ----

function fromLink() {
  try {
    state = stateOf(location.hash);
    show(), ask();
    $('about').textContent = '', $('example').value = '';
  } catch {
    $('state').textContent = 'The link cannot be read; it may have been cut.';
    show(), ask();
  }
}

function begin() {
  gallery = JSON.parse($('gallery').textContent);
  $('example').append(make('option', { value: '', textContent: 'a mod of the gallery …' }));
  for (const family of new Set(gallery.map(m => m.family)))
    $('example').append(make('optgroup', { label: family }, ...gallery.filter(m => m.family === family).map(m => make('option', { value: m.name, textContent: m.title }))));
  listen(), pointing(), showTabs();
  if (location.protocol === 'file:' && document.body.dataset.alone) for (const a of document.querySelectorAll('.site')) a.hidden = true;
  if (location.hash.length > 1) fromLink();
  else if (gallery.length) choose(gallery.find(m => m.name === 'alibi') || gallery[0]);
  else show(), ask();
}
