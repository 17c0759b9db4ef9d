// what_if.js - what-if.html: tables, and bars whose pieces are values in one scale; page.js is before it.
const colours = ['var(--first)', 'var(--second)', '#7a9e5f', '#b07aa1', '#8a8f99', '#c9a227'];
const style = element(document.head, 'style');
style.textContent = '.bar { display: flex; align-items: center; margin: 4px 0; }' +
  '.bar .name { width: 17em; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }' +
  '.bar .all { flex: 1; display: flex; height: 18px; background: var(--idle); border-radius: 2px; overflow: hidden; }' +
  '.bar .number { width: 8em; text-align: right; font-variant-numeric: tabular-nums; }' +
  '@media (max-width: 760px) { .bar .name { width: 8em; } .bar .number { width: 6em; } }';

function bars(x) {
  const rows = x.rows.slice(1), sum = r => r[1].reduce((a, b) => a + b, 0);
  const most = x.whole || Math.max(...rows.map(sum), 1e-9);
  element(document.body, 'h2', x.bars);
  element(document.body, 'p', x.words);
  const legend = element(document.body, 'p', undefined, 'legend');
  x.legend.forEach((words, i) => key(legend, colours[i], words));
  for (const [name, values, words] of rows) {
    const bar = element(document.body, 'div', undefined, 'bar');
    element(bar, 'span', name, 'name').title = name;
    const all = element(bar, 'span', undefined, 'all');
    values.forEach((v, i) => {
      const piece = element(all, 'i');
      piece.style.cssText = `width: ${100 * Math.max(v, 0) / most}%; background: ${colours[i]}`;
      piece.title = x.legend.length ? `${x.legend[i]}: ${share(v / sum([0, values]))}` : words;
    });
    element(bar, 'span', words, 'number');
  }
}

const [asked, ...rest] = lines();
title('what if', asked.title);
for (const x of rest)
  if (x.bars) bars(x);
  else {
    const t = table(document.body);
    x.table.forEach((cells, i) => row(t, cells, i === 0));
    for (const cell of t.querySelectorAll('td')) if (cell.textContent.startsWith('--')) cell.className = 'words';
  }
