// explain.js - draws plan.html: the timeline of every rank, one for each planner, on one scale of time; a lane for each
// stage of a pipeline; what the makespan consists of, and what other searches came to.
//
// The first line of the data is what holds for all plans (page.c says what is in it). Behind it stand a line for each
// plan, one for each stage of a pipeline, and the line that log.jsonl has of a step that was measured.
const [x, ...rest] = lines();
x.plans = rest.filter(l => Array.isArray(l.micro_batches));
const lanes = rest.filter(l => 'tasks' in l), logged = rest.find(l => 'measured_ms' in l);
const body = document.body;
const gap = x.beside > 0 ? x.makespan / x.beside - 1 : 0;
title(x.title, x.ranks + ' ranks, ' + x.node + ' a node, ' +
  (x.least < x.capacity ? grouped(x.least) + ' to ' : '') + grouped(x.capacity) + ' tokens a rank, cost model ' +
  (x.machine || 'of this machine') + '. Predicted makespan ' + ms(x.makespan) + '; no plan of whole documents takes ' +
  'less than ' + ms(x.beside) + ': ' + share(gap) + ' above. Work divided without limit: ' + ms(x.l1) +
  '; longest document: ' + ms(x.l2) + '; exchanges hidden for nothing: ' + ms(x.l3) + '.' +
  (x.step ? ' The whole step, with weights and gradients: ' + ms(x.step) + ', at least ' + ms(x.step_bound) + '.'
    : ''));

// Times below a drawing that is `width` wide.
function timeAxis(c, longest, across, y, width) {
  c.fillStyle = css('--soft');
  c.textAlign = 'center';
  for (const t of roundNumbers(0, longest, Math.max(Math.min(width / 120, 8), 1)))
    c.fillText(t + (t ? '' : ' ms'), across(t), y);
}

// ---- stages of a pipeline: passes forward and backward, thin bars of messages, and bars of ranks as measured

// [computing, waiting] in ms of each rank of a stage, in the step that was measured; null: there is none.
function measuredRanks() {
  const ranks = lanes.reduce((sum, l) => sum + l.ranks, 0), of = logged && logged.ranks;
  if (!of || logged.stages !== lanes.length || !(logged.measured_ms > 0)) return null;
  const { compute_ms = [], wait_ms = [] } = of, times = compute_ms.map((compute, r) => [compute, wait_ms[r]]);
  return times.length === ranks && times.flat().every(t => typeof t === 'number') ? times : null;
}
function showStages() {
  const words = ['forward', 'backward', 'message'], times = measuredRanks(), took = times ? logged.measured_ms : 0;
  const left = 62, foot = 20, pass = 22, thin = 4, space = 8, scale = Math.max(x.schedule, took) || 1;
  const paints = ['--first', '--second', '--soft'];
  let height = 4, across;
  for (const l of lanes) {
    l.measured = times ? times.slice(l.first_rank, l.first_rank + l.ranks) : [];
    l.top = height;
    l.tall = pass + 3 + l.measured.length * (thin + 1);
    height += l.tall + space;
  }
  element(body, 'h2', 'Stages');
  const bubble = x.schedule > 0 ? 1 - lanes.reduce((sum, l) => sum + l.busy, 0) / (lanes.length * x.schedule) : 0;
  element(body, 'p', lanes.length + ' stages, played in the cost model: ' + ms(x.schedule) + ', of which stages ' +
    'wait ' + share(bubble) + '.' + (times ? ' Step ' + logged.step + ' of the run in this directory took ' +
    ms(took) + '.' : ' Nothing was measured.'));
  const legend = element(body, 'div', undefined, 'legend');
  words.forEach((w, i) => key(legend, 'var(' + paints[i] + ')',
    w + (i < 2 ? ' of a round' : ' to or from a neighbour')));
  key(legend, '', 'grey: waiting' + (times ? '; thin bars: what each rank computed and waited, as measured' : ''));
  const canvas = drawing(body, 'what every stage of the pipeline does in the step');
  always(() => {
    const c = paper(canvas, height + foot), width = canvas.clientWidth;
    across = t => left + t / scale * (width - left - 8);
    lanes.forEach((l, s) => {
      c.textAlign = 'right';
      c.fillStyle = css('--soft');
      c.fillText('stage ' + s, left - 8, l.top + 15);
      c.fillStyle = css('--idle');
      c.fillRect(left, l.top, across(x.schedule) - left, pass);
      for (const [kind, , round, , start, end] of l.tasks) {
        const a = across(start), w = Math.max(across(end) - a - 0.5, 0.5), message = kind > 1;
        c.fillStyle = css(paints[Math.min(kind, 2)]);
        c.fillRect(a, message ? l.top + pass : l.top, w, message ? 3 : pass - 1);
        if (message || w < 16) continue;
        c.fillStyle = '#ffffff';
        c.textAlign = 'center';
        c.fillText(round, a + w / 2, l.top + 15);
      }
      l.measured.forEach(([compute, wait], i) => {
        const y = l.top + pass + 3 + i * (thin + 1), b = across(compute);
        c.fillStyle = css('--ink');
        c.fillRect(left, y, b - left, thin);
        c.fillStyle = css('--line');
        c.fillRect(b, y, across(compute + wait) - b, thin);
      });
    });
    timeAxis(c, scale, across, height + 15, width);
  });
  function describe(l, s, task) {
    const told = ['stage ' + s + ': ranks ' + l.first_rank + ' to ' + (l.first_rank + l.ranks - 1) + ', layers ' +
      l.first_layer + ' to ' + (l.end_layer - 1) + ', ' + l.slots + (l.slots > 1 ? ' slots' : ' slot')];
    if (task) {
      const [kind, backward, round, slot, start, end] = task;
      const does = kind < 2 ? words[kind] : (kind === 2 ? 'sends ' : 'receives ') +
        (backward ? 'gradients' : 'activations');
      told.push(does + ' of round ' + round + ', slot ' + slot, ms(start) + ' to ' + ms(end));
    }
    told.push('computes ' + ms(l.busy) + ' as played; at most ' + l.in_flight + ' rounds in flight');
    const most = Math.max(...l.measured.map(m => m[0]));
    if (l.measured.length) told.push('measured: ' + ms(most) + ' of its rank with most' +
      (most > 0 ? ', ' + (l.busy / most).toFixed(2) + 'x of that as played' : ''));
    return told.join('\n');
  }
  hover(canvas, (px, y) => {
    const s = lanes.findIndex(l => y >= l.top && y < l.top + l.tall);
    if (s < 0) return '';
    const inPass = y < lanes[s].top + pass;
    return describe(lanes[s], s, lanes[s].tasks.find(([kind, , , , start, end]) =>
      (kind < 2) === inPass && px >= across(start) && px < across(end)));
  });
}
if (lanes.length) showStages();

// ---- all plans as a table

const plans = table(body);
row(plans, ['plan', 'makespan', 'longer', ...(x.step ? ['step'] : []), 'idle', 'communication', 'micro-batches',
  'planned in', ''], true);
for (const p of x.plans) {
  const longer = (p.makespan / x.plans[0].makespan).toFixed(3) + 'x';
  const tr = row(plans, [p.name, ms(p.makespan), longer, ...(x.step ? [ms(p.step)] : []), share(p.idle),
    share(p.communication), grouped(p.micro_batches.length), ms(p.us / 1000), p.words]);
  tr.lastChild.className = 'words';
  if (p.chosen) tr.className = 'chosen';
}

// ---- a timeline for each plan

// Narrow groups blue, wide ones towards yellow and red; every doubling is a step.
function colour(cpSize) {
  const stops = [[68, 119, 170], [102, 190, 200], [60, 160, 90], [190, 190, 60], [236, 160, 50],
    [214, 96, 77], [150, 50, 110]];
  const at = Math.min(Math.log2(cpSize), stops.length - 1);
  const i = Math.min(Math.floor(at), stops.length - 2), f = at - i;
  return 'rgb(' + stops[i].map((c, j) => Math.round(c + f * (stops[i + 1][j] - c))).join(',') + ')';
}
const legend = element(body, 'div', undefined, 'legend');
const cpSizes = [...new Set(x.plans.flatMap(p => p.micro_batches.map(i => i[1])))].sort((a, b) => a - b);
for (const d of cpSizes) key(legend, colour(d), d + (d === 1 ? ' rank' : ' ranks'));
key(legend, '', 'light end of a bar: communication that shows; bars of half a height: in one pass; grey: idle; red ' +
  'line: lower bound');

// The ranks that have a label: all, or where lanes are lower than letters the first of every 2, 4, ...
function namedRanks(lane) {
  const every = Math.pow(2, Math.max(Math.ceil(Math.log2(14 / lane)), 0));
  return Array.from({ length: Math.ceil(x.ranks / every) }, (_, i) => i * every);
}
const longest = Math.max(...x.plans.map(p => p.makespan)) || 1;
function draw(canvas, p) {
  const left = 56, foot = 20, width = canvas.clientWidth;
  const height = Math.min(Math.max(x.ranks * 14, 40), 460), lane = height / x.ranks;
  const c = paper(canvas, height + foot), across = t => left + t / longest * (width - left - 8);
  c.fillStyle = css('--idle');
  c.fillRect(left, 0, across(p.makespan) - left, height);
  for (const [first, cpSize, , start, end, communication, , place, beside] of p.micro_batches) {
    const a = across(start), b = across(end), from = across(end - communication);
    const bars = beside > 1 ? cpSize : 1, tall = lane * cpSize / bars / beside;
    const edge = Math.min(lane > 4 ? 1 : 0.25, tall / 4);
    for (let i = 0; i < bars; i++) {
      const top = (first + i + place / beside) * lane;
      c.fillStyle = colour(cpSize);
      c.fillRect(a, top, Math.max(b - a - 0.5, 0.5), tall - edge);
      c.fillStyle = 'rgba(255,255,255,0.55)';
      c.fillRect(from, top, Math.max(b - from - 0.5, 0), tall - edge);
    }
  }
  c.strokeStyle = css('--line');
  c.fillStyle = css('--soft');
  c.textAlign = 'right';
  for (let r = 0; r <= x.ranks; r += x.node) stroke(c, left - 6, r * lane, left, r * lane);
  for (const r of namedRanks(lane)) c.fillText(r ? r : 'rank 0', left - 9, r * lane + 11);
  timeAxis(c, longest, across, height + 15, width);
  c.strokeStyle = css('--best');
  stroke(c, across(x.beside), 0, across(x.beside), height);
  return { lane, across };
}
function describe([first, cpSize, kind, start, end, communication, docs, , beside]) {
  const kinds = ['local', 'ulysses', 'ring', 'ulysses x ring'];
  const tokens = docs.reduce((a, b) => a + b, 0);
  const shown = [...docs].sort((a, b) => b - a).slice(0, 24).map(grouped).join(', ');
  const ranks = cpSize === 1 ? 'rank ' + first : 'ranks ' + first + ' to ' + (first + cpSize - 1);
  const pass = beside > 1 ? ', in one pass with other documents, whose attention hides its first exchange' : '';
  return ranks + ', ' + kinds[kind] + pass + '\n' + ms(start) + ' to ' + ms(end) + ', of it communication ' +
    ms(communication) + '\n' + grouped(tokens) + ' tokens in ' + docs.length +
    (docs.length === 1 ? ' document: ' : ' documents: ') + shown + (docs.length > 24 ? ', ...' : '');
}
for (const p of x.plans) {
  element(body, 'h2', p.name + ': ' + ms(p.makespan));
  element(body, 'p', p.words + (p.rounds ? ' (a barrier after every round)' : ''));
  const canvas = drawing(body, 'timeline of all ranks under ' + p.name);
  let at;
  always(() => { at = draw(canvas, p); });
  hover(canvas, (px, py) => {
    const y = py / at.lane, rank = Math.floor(y);
    const found = p.micro_batches.find(([first, cpSize, , start, end, , , place, beside]) =>
      rank >= first && rank < first + cpSize && Math.floor((y - rank) * beside) === place &&
      px >= at.across(start) && px < at.across(end));
    return found ? describe(found) : '';
  });
}

// ---- the makespan by term, and searches

element(body, 'h2', 'What the makespan consists of');
element(body, 'p', 'Along the ranks that end last.');
const terms = table(body), names = ['attention', 'linear layers', 'communication', 'fixed cost of micro-batches'];
x.critical.forEach((t, i) => row(terms, [names[i], ms(t), share(x.makespan > 0 ? t / x.makespan : 0)]));
if (x.tries.length) {
  element(body, 'h2', 'Searches');
  element(body, 'p', 'A guess packs all documents to end before a target. Ranks: the narrowest group allowed.');
  const tries = table(body);
  row(tries, ['ranks', 'target', 'came to', ''], true);
  for (const [unit, name, target, came, chosen] of x.tries) {
    const verdict = chosen ? 'chosen' : came ? 'rejected: longer' : 'rejected';
    const tr = row(tries, [name || unit, ms(target), came ? ms(came) : 'not all fit', verdict]);
    if (chosen) tr.className = 'chosen';
  }
}
