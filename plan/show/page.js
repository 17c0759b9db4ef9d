// page.js - what the scripts of report.html and plan.html share: the data, words for numbers, elements, canvases, and
// the box that hovering shows. The script of a page follows; it makes all elements of the page.

// ---- data: an object of JSON a line

function lines() {
  const list = [];
  for (const text of document.getElementById('data').textContent.split('\n')) {
    try {
      const line = JSON.parse(text);
      if (line && typeof line === 'object') list.push(line);
    } catch { /* no JSON: nothing is known of it */ }
  }
  return list;
}

// ---- words for numbers

const grouped = n => n.toLocaleString('en');
const share = f => (100 * f).toFixed(1) + ' %';
const ms = t => t >= 100 ? t.toFixed(0) + ' ms' : t >= 1 ? t.toFixed(2) + ' ms' :
  t > 0 ? (1000 * t).toFixed(1) + ' us' : '0 ms';
const last = list => list[list.length - 1];

// Round numbers from low to high, some `count` of them.
function roundNumbers(low, high, count) {
  const least = (high - low) / count || 1, ten = Math.pow(10, Math.floor(Math.log10(least)));
  const every = [1, 2, 5, 10].map(m => m * ten).find(m => m >= least * 0.999), list = [];
  for (let v = Math.ceil(low / every - 1e-9) * every; v <= high + 1e-9 * every && list.length <= count + 1; v += every)
    list.push(+v.toPrecision(12));
  return list;
}

// ---- elements

function element(parent, tag, words, name) {
  const e = document.createElement(tag);
  if (words !== undefined) e.textContent = words;
  if (name) e.className = name;
  parent.append(e);
  return e;
}
function title(words, about) {
  document.title = 'ragged: ' + words;
  element(document.body, 'h1', words);
  element(document.body, 'p', about);
}
// A table that may be wider than the page.
const table = parent => element(element(parent, 'div', undefined, 'wide'), 'table');
function row(table, cells, head) {
  const tr = table.insertRow();
  for (const cell of cells) element(tr, head ? 'th' : 'td', cell);
  return tr;
}
// An entry of a legend: a swatch of the colour, if one is given, and words.
function key(legend, colour, words) {
  const span = element(legend, 'span');
  if (colour) element(span, 'i').style.background = colour;
  span.append(words);
}

// ---- canvases

// The value of a variable of the style now: canvases know no var().
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function drawing(parent, label) {
  const canvas = element(parent, 'canvas');
  canvas.setAttribute('role', 'img');
  canvas.setAttribute('aria-label', label);
  return canvas;
}
// The canvas ready to be drawn on, as wide as it may be and so high, in CSS pixels.
function paper(canvas, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.style.height = height + 'px';
  canvas.width = canvas.clientWidth * scale;
  canvas.height = height * scale;
  const c = canvas.getContext('2d');
  c.scale(scale, scale);
  c.font = '12px system-ui, sans-serif';
  return c;
}
function stroke(c, x0, y0, x1, y1) {
  c.beginPath(); c.moveTo(x0, y0); c.lineTo(x1, y1); c.stroke();
}
// Now, and again when the window or its colours change.
function always(draw) {
  draw();
  window.addEventListener('resize', draw);
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
}

// ---- hovering

const tip = element(document.body, 'div');
tip.id = 'tip';
// say(x, y, width) has the words for a place in the canvas; none: no box.
function hover(canvas, say) {
  function tell(e, words) {
    tip.style.display = words ? 'block' : 'none';
    tip.textContent = words;
    tip.style.left = Math.min(e.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + 'px';
    tip.style.top = Math.min(e.clientY + 14, window.innerHeight - tip.offsetHeight - 8) + 'px';
  }
  canvas.addEventListener('mousemove', e => {
    const box = canvas.getBoundingClientRect();
    tell(e, say(e.clientX - box.left, e.clientY - box.top, box.width));
  });
  canvas.addEventListener('mouseleave', e => { tell(e, ''); say(-1, -1, 1); });
}
