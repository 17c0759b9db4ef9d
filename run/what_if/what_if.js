// what_if.js - what-if.html: clusters side by side, or the replays of a run; page.js is before it.
const [asked, ...rows] = lines(), clusters = rows.filter(r => r.cluster), replays = rows.filter(r => r.replayed);
const colours = ['var(--first)', 'var(--second)', '#7a9e5f', '#b07aa1', '#8a8f99', '#c9a227'];
const count = n => n >= 1e6 ? (n / 1e6).toFixed(2) + 'M' : n >= 1e4 ? (n / 1e3).toFixed(0) + 'k' : n.toFixed(0);
const gib = n => (n / 2 ** 30).toFixed(1) + ' GiB';

// A bar of pieces, [share of the widest, colour, words]; hovering a piece says its words.
function bar(parent, name, pieces, words) {
  const line = element(parent, 'div', undefined, 'bar');
  element(line, 'span', name, 'name');
  const all = element(line, 'span', undefined, 'all');
  for (const [share, colour, about] of pieces) {
    const piece = element(all, 'i');
    piece.style.width = 100 * Math.max(share, 0) + '%';
    piece.style.background = colour;
    piece.title = about;
  }
  element(line, 'span', words, 'number');
}

const style = element(document.head, 'style');
style.textContent = '.bar { display: flex; align-items: center; margin: 4px 0; }' +
  '.bar .name { width: 15em; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }' +
  '.bar .all { flex: 1; display: flex; height: 18px; background: var(--idle); border-radius: 2px; overflow: hidden; }' +
  '.bar .number { width: 9em; text-align: right; font-variant-numeric: tabular-nums; }' +
  '@media (max-width: 760px) { .bar .name { width: 8em; } .bar .number { width: 6em; } }' +
  'code { overflow-wrap: anywhere; }';

function steps() {
  const fit = clusters.filter(c => c.ms !== null), longest = Math.max(...fit.map(c => c.ms));
  element(document.body, 'h2', 'A step');
  element(document.body, 'p', 'What its time goes into, of the stage that takes longest. Computing: all work divided ' +
    'over all ranks, which no layout beats.');
  const legend = element(document.body, 'p', undefined, 'legend');
  asked.parts.forEach((words, i) => key(legend, colours[i], words));
  for (const c of fit)
    bar(document.body, c.cluster, c.part.map((t, i) => [t / longest, colours[i], asked.parts[i] + ': ' + ms(t)]),
      ms(c.ms));
  const all = table(document.body), priced = clusters.some(c => c.price !== null);
  row(all, ['cluster', 'tokens/s', 'of the limit', 'fullest rank', 'of room', ...priced ? ['$ a billion tokens'] : [],
    'bound by'], true);
  for (const c of clusters)
    if (c.ms === null) row(all, [c.cluster, 'no layout fits', '', c.bytes ? gib(c.bytes) : '', gib(c.room)]);
    else row(all, [c.cluster, count(1000 * c.tokens / c.ms), share(c.limit / c.ms), gib(c.bytes), gib(c.room),
      ...priced ? [c.price === null ? '' : c.price.toFixed(2)] : [], c.bound]);
}

function changes() {
  element(document.body, 'h2', 'One change');
  element(document.body, 'p', 'How much sooner a step would end with the best layout of the changed cluster.');
  const most = Math.max(0.01, ...clusters.flatMap(c => c.gain));
  for (const c of clusters)
    c.gain.forEach((g, i) => {
      const words = g === null ? '-' : c.ms !== null ? share(g) : g > 0 ? 'fits' : 'fits not';
      bar(document.body, c.cluster + ': ' + asked.changes[i], [[(g || 0) / most, colours[i], words]], words);
    });
}

function deaths() {
  if (!clusters.some(c => c.goodput)) return;
  element(document.body, 'h2', 'Where ranks die');
  const all = table(document.body);
  row(all, ['cluster', 'deaths an hour', 'seconds a save', 'steps between saves', 'goodput'], true);
  for (const c of clusters.filter(c => c.goodput))
    row(all, [c.cluster, c.deaths.toPrecision(3), c.save.toFixed(2), c.every, share(c.goodput)]);
}

function layouts() {
  element(document.body, 'h2', 'Layouts');
  for (const c of clusters.filter(c => c.layout)) {
    const p = element(document.body, 'p', c.cluster + ': ');
    element(p, 'code', `--capacity ${c.capacity} --layout "${c.layout}"`);
  }
}

title('what if', asked.title);
if (clusters.length) steps(), changes(), deaths(), layouts();
if (replays.length) {
  const longest = Math.max(asked.measured, ...replays.map(r => r.ms));
  element(document.body, 'h2', 'A step in the mean');
  bar(document.body, 'measured', [[asked.measured / longest, 'var(--second)', '']], ms(asked.measured));
  for (const r of replays)
    bar(document.body, r.replayed, [[r.ms / longest, 'var(--first)', r.words]], r.ms === null ? 'no plan' : ms(r.ms));
}
