// run_page.js - draws report.html: of one run or of several beside each other the results, charts over steps, which
// strategy each step chose, a lane for each rank, options, events and samples.
//
// The data are lines of log.jsonl as data/runlog.h has them. Before those of a run stands a line of run_page.c: its
// name as "run", and what all its lines come to, of which very long logs have not all here: "seconds", "loss", as the
// terminal showed it last, the best "val_loss" and "bits_per_byte", and "tokens_per_second" of all steps together.

// ---- from lines to runs

const runs = [];
for (const line of lines()) {
  if ('event' in line) last(runs).events.push(line);
  else if ('val_targets' in line) last(runs).evals.push(line);
  else if ('step' in line) last(runs).steps.push(line);
  else runs.push({ name: line.run, sums: line, steps: [], evals: [], events: [] });
}
const several = runs.length > 1;

// Columns of equally many steps, some `most` of them: {first, last, lines}. A column without a line is a part of the
// next one.
function columns(steps, most) {
  const list = [], low = steps.length ? steps[0].step : 0, range = steps.length ? last(steps).step - low + 1 : 0;
  let span = 1, before;
  while (range / span > most) span *= 2;
  for (const line of steps) {
    const number = Math.floor((line.step - low) / span);
    const behind = list.length ? last(list).last + 1 : line.step;
    if (number !== before) list.push({ first: Math.min(behind, line.step), lines: [] });
    last(list).last = line.step;
    last(list).lines.push(line);
    before = number;
  }
  return list;
}
// Of the numbers that are known; null: none is.
function mean(list, weight) {
  let sum = 0, n = 0;
  list.forEach((v, i) => {
    if (typeof v !== 'number') return;
    const w = weight ? weight(i) : 1;
    sum += w * v;
    n += w;
  });
  return n ? sum / n : null;
}
// Of columns, by how many steps they are.
const wholeMean = (list, columns) => mean(list, i => columns[i].last - columns[i].first + 1);

// What a step says of every rank: the field, its name, how it is shown.
const figures = [['compute_ms', 'computing', ms], ['wait_ms', 'waiting', ms],
  ['gamma', 'left out of its matmuls', share], ['sent', 'slices given away', v => short(v)],
  ['taken', 'slices taken over', v => short(v)],
  ['speed', 'speed', v => v >= 1000 ? short(Math.round(v)) : String(+v.toPrecision(3))]];
const fields = figures.map(f => f[0]);
// The steps that say what ranks did, from where they were as many as they are last.
function stepsOfRanks(run) {
  const whole = run.steps.filter(s => s.ranks && fields.every(f => Array.isArray(s.ranks[f]) &&
    s.ranks[f].length === s.ranks.speed.length) && s.ranks.speed.length > 1);
  const count = s => s.ranks.speed.length;
  return whole.slice(whole.findLastIndex(s => count(s) !== count(last(whole))) + 1);
}
// {columns, ranks: [{rank, compute_ms: [of each column], ..., mean: {compute_ms, ...}}]}, or null.
function ranksOf(run) {
  const steps = stepsOfRanks(run);
  if (!steps.length) return null;
  const found = columns(steps, 512);
  const ranks = steps[0].ranks.speed.map((_, rank) => {
    const r = { rank, mean: {} };
    for (const f of fields) {
      r[f] = found.map(c => mean(c.lines.map(s => s.ranks[f][rank])));
      r.mean[f] = wholeMean(r[f], found);
    }
    return r;
  });
  return { columns: found, ranks };
}
// {columns, list: [{name, share: [of each column], mean}]}, or null; the last of very many stands for all others.
function strategiesOf(run) {
  const steps = run.steps.filter(s => typeof s.strategy === 'string'), found = columns(steps, 512), most = 12;
  if (!steps.length) return null;
  const names = [...new Set(steps.map(s => s.strategy))], named = names.length > most ? most - 1 : names.length;
  const list = names.slice(0, most).map((name, i) => {
    const is = i < named ? s => s.strategy === name : s => names.indexOf(s.strategy) >= named;
    const part = found.map(c => mean(c.lines.map(s => is(s) ? 1 : 0)));
    return { name: i < named ? name : 'others', share: part, mean: wholeMean(part, found) };
  });
  return { columns: found, list };
}
for (const r of runs) {
  r.columns = columns(r.steps, 1024);
  r.ranks = ranksOf(r);
  r.strategies = strategiesOf(r);
}

// ---- words and colours

const known = (v, show) => v === null || v === undefined ? '' : show(v);
const short = v => Math.abs(v) >= 1e6 || (v && Math.abs(v) < 1e-3) ? v.toExponential(2) : grouped(+v.toPrecision(4));
const colour = i => 'var(--c' + i % 8 + ')';
const paint = name => css(name.slice(4, -1));
const of = (r, words) => several ? r.name + ', ' + words : words;
function duration(seconds) {
  const s = Math.floor(seconds + 0.5), two = n => String(n % 60).padStart(2, '0');
  return s >= 3600 ? Math.floor(s / 3600) + 'h' + two(Math.floor(s / 60)) + 'm' :
    s >= 60 ? Math.floor(s / 60) + 'm' + two(s) + 's' : s + 's';
}
function median(list) {
  const l = list.filter(v => v !== null).sort((a, b) => a - b);
  return l.length ? l[Math.floor(l.length / 2)] : null;
}

// ---- what happened: events of the log, and two that are not in it

// The two ends of an injected straggler.
function stragglers(start) {
  return String(start.straggle || '').split(';').filter(piece => piece.trim()).flatMap(piece => {
    const { rank, x, from = 1, to } = Object.fromEntries(piece.split(',').map(word => word.trim().split('=')));
    const at = { kind: 'straggler', colour: 'var(--best)' };
    return [{ ...at, at: Number(from), words: 'rank ' + rank + ' is made ' + x + ' times as slow' }].concat(to ?
      [{ ...at, at: Number(to) + 1, words: 'rank ' + rank + ' is as fast as before' }] : []);
  });
}
// Where the work that slow ranks leave out or give away changes by more than a tenth and what is to be seen.
function decisions(run) {
  const list = [], changed = (a, b, least) => typeof a === 'number' && typeof b === 'number' &&
    Math.abs(a - b) > Math.max(least, 0.1 * Math.max(a, b));
  const what = [['gamma', 0.005, v => v > 0 ? 'leaves out ' + share(v) + ' of its matmuls' : 'leaves nothing out'],
    ['sent', 0.5, v => v > 0 ? 'gives away ' + v.toFixed(0) + ' hidden units' : 'gives nothing away']];
  stepsOfRanks(run).forEach((s, i, all) => s.ranks.speed.forEach((_, rank) => {
    for (const [f, least, words] of what) {
      const before = i ? all[i - 1].ranks[f][rank] : 0, now = s.ranks[f][rank];
      if (!changed(before, now, least)) continue;
      list.push({ at: s.step, kind: 'balance', colour: 'var(--sent)', words: 'rank ' + rank + ' ' + words(now) });
    }
  }));
  return list;
}
// What is another option than in the start before.
function changes(run, e) {
  const starts = run.events.filter(s => s.event === 'start'), before = starts[starts.indexOf(e) - 1];
  if (!before || !before.options || !e.options) return '';
  const names = [...new Set(Object.keys(before.options).concat(Object.keys(e.options)))];
  return names.filter(n => String(before.options[n]) !== String(e.options[n])).map(n => '; ' + n + ' ' +
    known(before.options[n], String) + ' to ' + known(e.options[n], String)).join('');
}
function happened(run) {
  const words = e => e.event === 'start' && e.resumed ?
    'resumed on ' + e.ranks + (e.ranks > 1 ? ' ranks' : ' rank') + changes(run, e) :
    e.event === 'death' ? 'the start before ended with status ' + e.status + ': ' + e.repeats +
      ' steps repeated, ' + e.seconds + ' s until it trained again' :
    e.event === 'from close copies' ? 'goes on from close copies; the newest checkpoint was of step ' + e.checkpoint :
    e.event === 'slow rank' ? 'rank ' + e.rank + ' computes at ' + share(e.pace) + ' of the usual pace: ' + ms(e.ms) +
      ' a step should take, ' + ms(e.ms_without) + ' on ' + e.ranks_without + ' ranks without' :
    e.event + (e.path ? ': ' + e.path : e.how ? ': ' + e.how : '');
  return run.events.map(e => ({ at: e.at, colour: 'var(--soft)', kind: e.event, words: words(e) }))
    .concat(run.events.filter(e => e.event === 'start').flatMap(stragglers), decisions(run));
}
const marks = several || !runs.length ? [] :
  happened(runs[0]).filter(m => !['save', 'sample', 'end'].includes(m.kind) && m.at > 0);

// ---- the head: results

const start = r => last(r.events.filter(e => e.event === 'start')) || {};
const about = r => [known(start(r).model, String),
  known(start(r).parameters, v => (v / 1e6).toFixed(2) + 'M parameters'),
  known(start(r).ranks, v => v + (v > 1 ? ' ranks' : ' rank')), known(start(r).device, String),
  known(start(r).dtype, String), known(start(r).tokens, v => grouped(v) + ' tokens to train on')]
  .filter(Boolean).join(', ');
const series = (r, name) => r.columns.map(c => mean(c.lines.map(line => line[name])));

title(several ? 'runs' : runs[0].name, several ? runs.length + ' runs' : about(runs[0]) || 'No step is known.');
if (several) {
  const legend = element(document.body, 'div', undefined, 'legend');
  runs.forEach((r, i) => key(legend, colour(i), r.name));
}
const results = [
  ['steps', r => r.columns.length ? last(r.columns).last : 0, grouped],
  ['training loss', r => r.sums.loss, v => v.toFixed(4)],
  ['best validation loss', r => r.sums.val_loss, v => v.toFixed(4)],
  ['bits per byte', r => r.sums.bits_per_byte, v => v.toFixed(4)],
  ['tokens/s', r => r.sums.tokens_per_second, v => grouped(Math.round(v))],
  ['median step', r => median(series(r, 'measured_ms')), ms],
  ['of peak', r => median(series(r, 'mfu')) <= 1 ? median(series(r, 'mfu')) : null, share],
  ['time', r => r.sums.seconds, duration],
].filter(([, value]) => runs.some(r => known(value(r), String) !== ''));
const facts = table(document.body);
row(facts, ['run', ...results.map(q => q[0])], true);
for (const r of runs) row(facts, [r.name, ...results.map(([, value, show]) => known(value(r), show))]);

// ---- charts: lines over steps, each a list of [step, value], value null where it is not known

const charts = element(document.body, 'div');
charts.id = 'charts';
const steps = runs.flatMap(r => r.columns.flatMap(c => [c.first, c.last]).concat(r.evals.map(e => e.step)));
const firstStep = steps.reduce((a, b) => Math.min(a, b), steps[0] || 0);
const lastStep = steps.reduce((a, b) => Math.max(a, b), steps.length ? steps[0] : 1);
const across = (step, width) => (step - firstStep) / Math.max(lastStep - firstStep, 1) * width;

// From the least to the greatest; of losses that fall from far above what matters, the upper tenth is cut off.
function bounds(lines, fromZero) {
  const all = lines.flatMap(l => l.points.map(p => p[1])).filter(v => v !== null).sort((a, b) => a - b);
  if (!all.length) return null;
  let low = fromZero ? Math.min(0, all[0]) : all[0], high = last(all);
  const most = all[Math.floor(0.98 * (all.length - 1))];
  if (all.length > 20 && high - low > 3 * (most - low)) high = most + 0.1 * (most - low);
  if (high === low) high = low + (Math.abs(low) || 1) * 0.1, low -= fromZero ? 0 : (high - low);
  return [low, high + 0.04 * (high - low)];
}
function nearest(points, s) {
  let best = null;
  for (const p of points) if (p[1] !== null && (!best || Math.abs(p[0] - s) < Math.abs(best[0] - s))) best = p;
  return best;
}
function chart(name, unit, lines, options) {
  lines = lines.filter(l => l.points.some(p => p[1] !== null));
  const range = bounds(lines, options.zero);
  if (!range) return;
  const figure = element(charts, 'figure'), caption = element(figure, 'figcaption', name + ' ');
  element(caption, 'span', unit + (options.words ? '; ' + options.words : ''));
  const canvas = drawing(figure, name), cursor = element(figure, 'div', undefined, 'cursor');
  const right = 8, top = 6, bottom = 20, high = 190, inner = high - top - bottom;
  let left;
  const y = v => top + inner * (1 - (v - range[0]) / (range[1] - range[0]));
  always(() => {
    const c = paper(canvas, high), values = roundNumbers(range[0], range[1], 4).map(v => [v, short(+v.toPrecision(6))]);
    left = Math.max(46, ...values.map(([, words]) => c.measureText(words).width)) + 6;
    const width = canvas.clientWidth - left - right;
    c.strokeStyle = css('--line');
    c.fillStyle = css('--soft');
    c.textAlign = 'right';
    for (const [v, words] of values) {
      stroke(c, left, y(v), left + width, y(v));
      c.fillText(words, left - 6, y(v) + 4);
    }
    c.fillText('step', left - 6, high - 5);
    c.textAlign = 'center';
    for (const s of roundNumbers(firstStep, lastStep, Math.max(width / 90, 2)).filter(Number.isInteger)) {
      const at = left + across(s, width), half = c.measureText(grouped(s)).width / 2;
      stroke(c, at, top + inner, at, top + inner + 4);
      c.fillText(grouped(s), Math.min(Math.max(at, left + half), left + width - half), high - 5);
    }
    c.save();
    c.beginPath(); c.rect(left - 4, top, width + 8, inner + 4); c.clip();
    c.globalAlpha = 0.5;
    c.setLineDash([3, 3]);
    for (const m of marks) {
      c.strokeStyle = paint(m.colour);
      stroke(c, left + across(m.at, width), top, left + across(m.at, width), top + inner);
    }
    for (const l of lines) {
      c.strokeStyle = c.fillStyle = paint(l.colour);
      c.globalAlpha = l.faint ? 0.35 : 1;
      c.lineWidth = l.faint ? 1 : 1.8;
      c.setLineDash(l.dashed ? [5, 4] : []);
      c.beginPath();
      let open = false;
      for (const [s, v] of l.points) {
        if (v !== null) c[open ? 'lineTo' : 'moveTo'](left + across(s, width), y(v));
        open = v !== null;
      }
      c.stroke();
      const single = l.points.filter(p => p[1] !== null);
      if (l.dots || single.length === 1) for (const [s, v] of single) {
        c.beginPath(); c.arc(left + across(s, width), y(v), 3, 0, 7); c.fill();
      }
    }
    c.restore();
  });
  hover(canvas, (px, py, box) => {
    const width = box - left - right, s = Math.round(firstStep + (px - left) / width * (lastStep - firstStep));
    const inside = py >= 0 && s >= firstStep && s <= lastStep;
    cursor.style.display = inside ? 'block' : 'none';
    if (!inside) return '';
    cursor.style.left = left + across(s, width) + 'px';
    cursor.style.top = canvas.offsetTop + top + 'px';
    cursor.style.height = inner + 'px';
    const values = lines.filter(l => !l.faint || lines.length === 1).map(l => {
      const p = nearest(l.points, s);
      return p && l.label + ': ' + short(p[1]) + (l.dots && p[0] !== s ? ' (step ' + grouped(p[0]) + ')' : '');
    });
    const near = marks.filter(m => Math.abs(across(m.at - s + firstStep, width)) < 4).map(m => m.words);
    return ['step ' + grouped(s), ...values, ...near].filter(Boolean).join('\n');
  });
}
// The mean of the columns so far, each further back counting less: about a hundredth of the run wide, at least 3.
function smooth(points) {
  const keep = 1 - 1 / Math.max(3, points.length / 50);
  let sum = 0, weight = 0;
  return points.map(([s, v]) => {
    if (v === null) return [s, weight ? sum / weight : null];
    sum = keep * sum + v;
    weight = keep * weight + 1;
    return [s, sum / weight];
  });
}
const points = (r, name) => series(r, name).map((v, i) => [(r.columns[i].first + r.columns[i].last) / 2, v]);
// For each run a line, by what f makes of the run and its number.
const each = f => runs.flatMap((r, i) => f(r, i));
const pair = (name, words) => each((r, i) => [
  { label: '', colour: colour(i), points: points(r, name), faint: true },
  { label: of(r, words), colour: colour(i), points: smooth(points(r, name)) }]);
const second = i => several ? colour(i) : 'var(--c1)';
const evals = name => each((r, i) => ({ label: of(r, 'validation'), colour: second(i), dots: true,
  points: r.evals.map(e => [e.step, typeof e[name] === 'number' ? e[name] : null]) }));
const faint = runs.some(r => r.columns.some(c => c.last > c.first)) ? 'faint: some steps or their means' :
  'faint: each step';
const isPredicted = runs.some(r => series(r, 'predicted_ms').some(v => v !== null));

chart('Training loss', 'nats a token', pair('loss', 'training loss'), { words: faint });
chart('Reward', 'mean of the answers', pair('reward', 'reward'), { zero: true });
chart('Validation loss', 'nats a token', evals('val_loss'), {});
chart('Validation', 'bits per byte', evals('bits_per_byte'), {});
chart('Speed', 'tokens a second', pair('tokens_per_second', 'tokens/s'), { zero: true });
chart('Step time', 'ms', each((r, i) => [
  { label: of(r, 'measured'), colour: colour(i), points: smooth(points(r, 'measured_ms')) },
  { label: of(r, 'predicted'), colour: second(i), dashed: true, points: smooth(points(r, 'predicted_ms')) }]),
  { zero: true, words: isPredicted ? 'dashed: predicted' : '' });
// One rank alone has nothing to plan.
chart('Gap of the plan to the bound', '%, in the cost model', each((r, i) => start(r).ranks === 1 ? [] :
  { label: of(r, 'gap'), colour: colour(i),
    points: smooth(points(r, 'gap')).map(([s, v]) => [s, v === null ? null : 100 * v]) }), { zero: true });
chart('Learning rate', '', each((r, i) => ({ label: of(r, 'lr'), colour: colour(i), points: points(r, 'lr') })),
  { zero: true });
chart('Gradient norm', 'before clipping', pair('grad_norm', 'norm'), { zero: true });

// ---- --strategies: which one each step chose

// Left end and width in pixels of column i of n.
function spot(i, n, width) {
  const a = Math.round(i * width / n), b = Math.round((i + 1) * width / n);
  return [a, Math.max(b - a - (width / n >= 6 ? 1 : 0), 1)];
}
const columnAt = (px, n, width) => Math.min(Math.max(Math.floor(px / width * n), 0), n - 1);

function strategies(run) {
  const { columns, list } = run.strategies, n = columns.length;
  const hasMeans = columns.some(c => c.lines.length > 1);
  element(document.body, 'h2', several ? 'Strategies of ' + run.name : 'Strategies');
  element(document.body, 'p', 'Which one each step chose, steps ' + grouped(columns[0].first) + ' to ' +
    grouped(last(columns).last) + ' from left to right.' + (hasMeans ? ' Paler: some of the steps of a column.' : ''));
  for (const s of list) {
    element(document.body, 'p', s.name + ': ' + share(s.mean) + ' of steps', 'chosen-by');
    const canvas = drawing(document.body, 'steps that chose ' + s.name);
    always(() => {
      const c = paper(canvas, 16), width = canvas.clientWidth;
      c.fillStyle = css('--idle');
      c.fillRect(0, 0, width, 16);
      c.fillStyle = css('--compute');
      s.share.forEach((part, i) => {
        const [at, wide] = spot(i, n, width);
        c.globalAlpha = part;
        c.fillRect(at, 0, wide, 16);
      });
    });
    hover(canvas, (px, py, width) => {
      if (py < 0) return '';
      const i = columnAt(px, n, width), { first, last } = columns[i];
      return s.name + '\nstep ' + grouped(first) + (last > first ? ' to ' + grouped(last) : '') + ': ' +
        share(s.share[i]);
    });
  }
}

// ---- ranks: a lane for each, in it a bar for each column of steps (computing below, waiting above), bands for work
// that was left out or moved

const waits = r => r.wait_ms + r.compute_ms > 0 ? r.wait_ms / (r.wait_ms + r.compute_ms) : 0;

function lanes(run) {
  const { columns, ranks } = run.ranks, n = columns.length, place = document.body;
  const hasTp = run.events.some(e => e.options && Number(e.options['--tp'] || 1) > 1);
  const unit = hasTp ? ' hidden units/ms' : ' of the usual speed';
  const most = name => ranks.reduce((m, r) => r[name].reduce((a, b) => Math.max(a, b), m), 0);
  const greatest = { gamma: most('gamma'), sent: most('sent'), taken: most('taken') };
  const slowest = i => ranks.reduce((a, b) => b.compute_ms[i] > a.compute_ms[i] ? b : a);
  const speeds = ranks.some(r => r.speed.some(v => v !== null && v !== 1));
  const shown = figures.filter(([f]) => f === 'speed' ? speeds : !(f in greatest) || greatest[f] > 0);
  // The bars' scale: the longest, but for the first step, which opens everything.
  const heights = ranks.flatMap(r => r.compute_ms.map((c, i) => c + r.wait_ms[i]).slice(n > 1 ? 1 : 0));
  const full = heights.reduce((a, b) => Math.max(a, b), 0) || 1;
  const bands = [['sent', 'taken'], ['gamma']].filter(names => names.some(name => greatest[name] > 0));
  const [compute_ms, wait_ms] = ['compute_ms', 'wait_ms'].map(f => mean(ranks.map(r => r.mean[f])) || 0);
  const wide = n > 1 ? columns[1].last - columns[1].first + 1 : 1;
  element(place, 'h2', several ? 'Ranks of ' + run.name : 'Ranks');
  element(place, 'p', 'A step has ' + ms(compute_ms) + ' of computing and ' + ms(wait_ms) + ' of waiting on a rank: ' +
    share(waits({ compute_ms, wait_ms })) + ' of its time is waiting.' +
    (wide > 1 ? ' A bar stands for ' + wide + ' steps.' : ''));
  const legend = element(place, 'div', undefined, 'legend');
  for (const [f, name, show] of shown.filter(([f]) => f !== 'speed'))
    key(legend, 'var(--' + f.replace('_ms', '') + ')', name + (f in greatest ? ', at most ' + show(greatest[f]) : ''));
  if (speeds) key(legend, '', 'right: speed now,' + unit);
  const box = element(place, 'div', undefined, 'lanes');
  const tall = Math.round(Math.min(Math.max(680 / ranks.length, 22), 80)), band = tall >= 60 ? 8 : tall >= 30 ? 5 : 3;
  box.style.setProperty('--gap', (tall >= 40 ? 8 : 4) + 'px');

  function whereIs(step, width) {
    const i = columns.findIndex(c => step <= c.last);
    if (i < 0) return -1;
    const { first, last } = columns[i];
    return (i + (step - first + 0.5) / (last - first + 1)) * width / n;
  }
  function draw(canvas, r, scaled) {
    const c = paper(canvas, tall), width = canvas.clientWidth, bars = tall - bands.length * (band + 1);
    const high = t => Math.min(t / full, 1) * bars;
    c.fillStyle = css('--idle');
    c.fillRect(0, 0, width, bars);
    for (let i = 0; i < n; i++) {
      const [at, wide] = spot(i, n, width), part = high(r.compute_ms[i]), whole = high(r.compute_ms[i] + r.wait_ms[i]);
      c.fillStyle = css('--compute');
      c.fillRect(at, bars - part, wide, part);
      c.fillStyle = css('--wait');
      c.fillRect(at, bars - whole, wide, whole - part);
    }
    bands.forEach((names, b) => {
      for (let i = 0; i < n; i++) {
        const [at, wide] = spot(i, n, width), there = names.filter(name => r[name][i] > 0), part = band / there.length;
        there.forEach((name, k) => {
          c.fillStyle = css('--' + name);
          c.globalAlpha = 0.2 + 0.8 * r[name][i] / greatest[name];
          c.fillRect(at, bars + 1 + b * (band + 1) + k * part, wide, part);
        });
        c.globalAlpha = 1;
      }
    });
    if (!scaled) return;
    c.fillStyle = css('--ink'), c.strokeStyle = css('--paper'), c.lineWidth = 4;  // bars are behind it
    c.strokeText(ms(full), 10, 13), c.fillText(ms(full), 10, 13);
  }
  function describe(r, i) {
    const { first, last } = columns[i], worst = slowest(i);
    return ['rank ' + r.rank + ', ' + (first === last ? 'step ' + grouped(first) :
      'mean of steps ' + grouped(first) + ' to ' + grouped(last)),
      ...shown.map(([f, name, show]) => name + ': ' + known(r[f][i], show) + (f === 'speed' ? unit : '')),
      'computes longest: rank ' + worst.rank + ', ' + known(worst.compute_ms[i], ms)].join('\n');
  }
  function lane(before, label, after) {
    const div = element(box, 'div', undefined, 'lane');
    element(div, 'span', before);
    const canvas = drawing(div, label);
    element(div, 'span', after);
    return canvas;
  }
  ranks.forEach((r, number) => {
    const name = 'rank ' + r.rank, now = speeds ? known(last(r.speed), last(figures)[2]) : '';
    const canvas = lane(name, name + ' over all steps', now);
    always(() => draw(canvas, r, number === 0));
    hover(canvas, (px, py, width) => py < 0 ? '' : describe(r, columnAt(px, n, width)));
  });
  const axis = lane('step', 'steps', '');
  always(() => {
    const c = paper(axis, 20), width = axis.clientWidth, ends = [columns[0].first, last(columns).last];
    c.fillStyle = css('--soft');
    c.strokeStyle = css('--line');
    c.textAlign = 'center';
    for (const s of roundNumbers(...ends, Math.max(width / 70, 1)).filter(Number.isInteger)) {
      const at = whereIs(s, width), half = c.measureText(grouped(s)).width / 2;
      stroke(c, at, 0, at, 4);
      c.fillText(grouped(s), Math.min(Math.max(at, half), width - half), 16);
    }
  });
  element(place, 'p', 'Means of all steps; bold: the rank that computes longest.');
  const means = table(place), longest = Math.max(...ranks.map(r => r.mean.compute_ms));
  row(means, ['rank', ...shown.map(f => f[1]), 'waiting share'], true);
  for (const { rank, mean } of ranks) {
    const tr = row(means, [rank, ...shown.map(([f, , show]) => known(mean[f], show)),
      known(mean.compute_ms, () => share(waits(mean)))]);
    if (mean.compute_ms === longest) tr.className = 'chosen';
  }
}

// ---- tables at the foot: options, events, samples

// Rows whose cells but the first are text.
function textRow(table, cells, head) {
  for (const cell of [...row(table, cells, head).cells].slice(1)) cell.className = 'left';
}
function optionsTable() {
  const all = runs.map(r => ({ ...start(r).options, device: start(r).device, ranks: start(r).ranks,
    dtype: start(r).dtype }));
  const names = [...new Set(all.flatMap(o => Object.keys(o)))];
  const shown = several ? names.filter(n => new Set(all.map(o => String(o[n]))).size > 1) : names;
  if (!shown.length && several) {
    element(document.body, 'p', 'No option differs.');
    return;
  }
  element(document.body, 'h2', several ? 'Options that differ' : 'Options');
  let place = document.body;
  if (!several) {
    place = element(place, 'details');
    element(place, 'summary', 'all ' + shown.length);
  }
  const options = table(place);
  textRow(options, ['option', ...runs.map(r => several ? r.name : 'value')], true);
  for (const n of shown) textRow(options, [n, ...all.map(o => known(o[n], String))]);
}
function eventsTable(run) {
  // Of one step: its start, its evaluation, then all else as it came.
  const turn = m => m.kind === 'start' && m.words === 'start' ? 0 : m.kind === 'evaluation' ? 1 : 2;
  const list = happened(run).concat(run.evals.map(e => ({ at: e.step, kind: 'evaluation', words: 'validation loss ' +
    known(e.val_loss, v => v.toFixed(4)) + known(e.bits_per_byte, v => ', ' + v.toFixed(4) + ' bits per byte') })))
    .filter(m => m.kind !== 'sample').sort((a, b) => a.at - b.at || turn(a) - turn(b));
  if (!list.length) return;
  element(document.body, 'h2', several ? 'Events of ' + run.name : 'Events');
  const events = table(document.body);
  textRow(events, ['step', 'event'], true);
  for (const m of list) textRow(events, [grouped(m.at), m.words]);
}
// What deaths have cost: each is a start by scripts/keep_going.sh after one that ended.
function deaths(run) {
  const list = run.events.filter(e => e.event === 'death'), step = (median(series(run, 'measured_ms')) || 0) / 1e3;
  const total = name => list.reduce((sum, e) => sum + e[name], 0), before = (e, event) =>
    last(run.events.slice(0, run.events.indexOf(e)).filter(s => s.event === event)) || {};
  const isClose = e => run.events.some(c => c.event === 'from close copies' && c.at === e.at);
  if (!list.length) return;
  element(document.body, 'h2', several ? 'Deaths of ' + run.name : 'Deaths');
  element(document.body, 'p', (list.length > 1 ? list.length + ' deaths' : 'One death') + ' cost ' +
    duration(total('seconds') + total('repeats') * step) + ': ' + duration(total('seconds')) +
    ' until ranks had started again, ' + duration(total('repeats') * step) + ' for ' + grouped(total('repeats')) +
    ' steps repeated.');
  const rows = table(document.body);
  row(rows, ['goes on from step', 'repeated', 's until it started again', 'status before', 'ranks', 'state'], true);
  for (const e of list) row(rows, [grouped(e.at), grouped(e.repeats), e.seconds, e.status,
    known(before(e, 'start').ranks, String), isClose(e) ? 'close copies' : 'checkpoint']);
}
function samples(run) {
  const list = run.events.filter(e => e.event === 'sample');
  if (!list.length) return;
  element(document.body, 'h2', several ? 'Samples of ' + run.name : 'Samples');
  for (const e of list.slice(-4).reverse()) {
    element(document.body, 'p', 'step ' + grouped(e.at));
    element(document.body, 'pre', e.text);
  }
}
runs.filter(r => r.strategies).forEach(strategies);
runs.filter(r => r.ranks).forEach(lanes);
optionsTable();
runs.forEach(deaths);
runs.forEach(eventsTable);
runs.forEach(samples);
