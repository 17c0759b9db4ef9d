// page.c - a plan as one HTML file that needs nothing else: the timeline of every rank, one for each planner, on one
// scale of time. The numbers stand in the page as JSON; the script of the page draws them. What all pages of this
// program share comes first (page.h).
#include "plan/page.h"

#include "plan/explain.h"
#include "plan/text.h"

// ---- what all pages share

void page_string(FILE* out, const char* text) {
    TextFilter safe = {{0}, 0, 0};
    char bytes[TEXT_MOST];
    fputc('"', out);
    for (; *text; text++)
        for (int i = 0, n = text_filter(&safe, (unsigned char)*text, 0, bytes); i < n; i++) {
            if (bytes[i] == '"' || bytes[i] == '\\' || bytes[i] == '<') fprintf(out, "\\u%04x", bytes[i]);
            else fputc(bytes[i], out);
        }
    text_print_end(out, &safe);
    fputc('"', out);
}

// clang-format off
const char page_begin[] =
    "<!doctype html>\n"
    "<html lang='en'>\n"
    "<head>\n"
    "<meta charset='utf-8'>\n"
    "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
    "<title>ragged</title>\n"
    "<style>\n"
    ":root { --ink: #1d2430; --soft: #5d6675; --line: #d8dce3; --paper: #ffffff; --idle: #eceef2; --best: #b3261e; }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "  :root { --ink: #e8eaee; --soft: #a0a8b5; --line: #3a414d; --paper: #14171c; --idle: #23272f;\n"
    "    --best: #ff8a80; }\n"
    "}\n"
    "body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);\n"
    "  margin: 0 auto; max-width: 1180px; padding: 20px 24px 60px; }\n"
    "h1 { font-size: 22px; margin: 0 0 4px; }\n"
    "h2 { font-size: 17px; margin: 30px 0 2px; }\n"
    "p { margin: 2px 0 8px; color: var(--soft); }\n"
    "table { border-collapse: collapse; margin: 8px 0; font-variant-numeric: tabular-nums; }\n"
    "th, td { text-align: right; padding: 3px 14px 3px 0; border-bottom: 1px solid var(--line);\n"
    "  white-space: nowrap; }\n"
    "th { font-weight: 600; color: var(--soft); }\n"
    "th:first-child, td:first-child, td.words { text-align: left; }\n"
    "td.words { color: var(--soft); font-size: 13px; white-space: normal; min-width: 18em; }\n"
    "tr.chosen td { font-weight: 600; }\n"
    "tr.chosen td.words { font-weight: 400; }\n"
    "canvas { width: 100%; display: block; }\n"
    "#legend span { display: inline-block; margin-right: 14px; color: var(--soft); }\n"
    "#legend i { display: inline-block; width: 13px; height: 13px; margin-right: 5px; vertical-align: -2px;\n"
    "  border-radius: 2px; }\n"
    "#tip { position: fixed; pointer-events: none; display: none; white-space: pre-line;\n"
    "  background: var(--ink); color: var(--paper); padding: 7px 10px; border-radius: 5px; font-size: 13px;\n"
    "  line-height: 1.4; max-width: 430px; z-index: 2; }\n"
    ".wide { overflow-x: auto; }\n";

const char page_numbers[] =
    "<div id='tip'></div>\n"
    "<script id='numbers' type='application/json'>\n";

const char page_functions[] =
    "</script>\n"
    "<script>\n"
    "'use strict';\n"
    "const x = JSON.parse(document.getElementById('numbers').textContent);\n"
    "const get = id => document.getElementById(id);\n"
    "const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();\n"
    "const ms = t =>\n"
    "  t >= 100 ? t.toFixed(0) + ' ms' : t >= 1 ? t.toFixed(2) + ' ms' :\n"
    "  t > 0 ? (1000 * t).toFixed(1) + ' us' : '0 ms';\n"
    "const share = f => (100 * f).toFixed(1) + ' %';\n"
    "const grouped = n => n.toLocaleString('en');\n"
    "function row(table, cells, head) {\n"
    "  const tr = table.insertRow();\n"
    "  for (const cell of cells) {\n"
    "    const td = document.createElement(head ? 'th' : 'td');\n"
    "    td.textContent = cell;\n"
    "    tr.append(td);\n"
    "  }\n"
    "  return tr;\n"
    "}\n"
    "get('title').textContent = x.title;\n"
    "document.title = 'ragged: ' + x.title;\n"
    "// A canvas as wide as it may be and so high, in CSS pixels.\n"
    "function paper(canvas, height) {\n"
    "  const scale = window.devicePixelRatio || 1;\n"
    "  canvas.style.height = height + 'px';\n"
    "  canvas.width = canvas.clientWidth * scale;\n"
    "  canvas.height = height * scale;\n"
    "  const c = canvas.getContext('2d');\n"
    "  c.scale(scale, scale);\n"
    "  return c;\n"
    "}\n"
    "function always(draw) {\n"
    "  draw();\n"
    "  window.addEventListener('resize', draw);\n"
    "  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);\n"
    "}\n"
    "function tell(e, words) {\n"
    "  const tip = get('tip');\n"
    "  tip.style.display = words ? 'block' : 'none';\n"
    "  tip.textContent = words;\n"
    "  tip.style.left = Math.min(e.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + 'px';\n"
    "  tip.style.top = Math.min(e.clientY + 14, window.innerHeight - tip.offsetHeight - 8) + 'px';\n"
    "}\n";

const char page_end[] =
    "</script>\n"
    "</body>\n"
    "</html>\n";
// clang-format on

// ---- the page of a plan

// clang-format off
static const char page_head[] =
    "</style>\n"
    "</head>\n"
    "<body>\n"
    "<h1 id='title'></h1>\n"
    "<p id='about'></p>\n";

static const char page_head_rest[] =
    "<div class='wide'><table id='plans'></table></div>\n"
    "<div id='legend'></div>\n"
    "<div id='timelines'></div>\n"
    "<h2>What the makespan consists of</h2>\n"
    "<p>Along the ranks that end last.</p>\n"
    "<table id='terms'></table>\n"
    "<h2 id='searched'>Searches</h2>\n"
    "<p>A guess packs all documents to end before a target. Ranks: the narrowest group allowed.</p>\n"
    "<table id='tries'></table>\n";

static const char page_foot[] =
    "const kinds = ['local', 'ulysses', 'ring', 'ulysses x ring'];\n"
    "// Narrow groups blue, wide ones towards yellow and red; every doubling is a step.\n"
    "function colour(cpSize) {\n"
    "  const stops = [[68, 119, 170], [102, 190, 200], [60, 160, 90], [190, 190, 60], [236, 160, 50],\n"
    "    [214, 96, 77], [150, 50, 110]];\n"
    "  const at = Math.min(Math.log2(cpSize), stops.length - 1);\n"
    "  const i = Math.min(Math.floor(at), stops.length - 2), f = at - i;\n"
    "  return 'rgb(' + stops[i].map((c, j) => Math.round(c + f * (stops[i + 1][j] - c))).join(',') + ')';\n"
    "}\n"
    "const gap = x.l3 > 0 ? x.makespan / x.l3 - 1 : 0;\n"
    "get('about').textContent = x.ranks + ' ranks, ' + x.node + ' a node, ' + grouped(x.capacity) +\n"
    "  ' tokens a rank, cost model ' + (x.machine || 'of this machine') + '. Predicted makespan ' +\n"
    "  ms(x.makespan) + '; no plan of whole documents takes less than ' + ms(x.l3) + ': ' + share(gap) +\n"
    "  ' above. Work divided without limit: ' + ms(x.l1) + '; longest document: ' + ms(x.l2) + '.';\n"
    "const table = get('plans');\n"
    "row(table, ['plan', 'makespan', 'longer', 'idle', 'communication', 'micro-batches', 'planned in', ''], true);\n"
    "for (const p of x.plans) {\n"
    "  const longer = (p.makespan / x.plans[0].makespan).toFixed(2) + 'x';\n"
    "  const tr = row(table, [p.name, ms(p.makespan), longer, share(p.idle), share(p.communication),\n"
    "    grouped(p.micro_batches.length), ms(p.us / 1000), p.words]);\n"
    "  tr.lastChild.className = 'words';\n"
    "  if (p.chosen) tr.className = 'chosen';\n"
    "}\n"
    "const cpSizes = [...new Set(x.plans.flatMap(p => p.micro_batches.map(i => i[1])))].sort((a, b) => a - b);\n"
    "for (const d of cpSizes) {\n"
    "  const span = document.createElement('span'), box = document.createElement('i');\n"
    "  box.style.background = colour(d);\n"
    "  span.append(box, d + (d === 1 ? ' rank' : ' ranks'));\n"
    "  get('legend').append(span);\n"
    "}\n"
    "const note = document.createElement('span');\n"
    "note.textContent = 'light end of a bar: communication that shows; bars of half a height: in one pass; ' +\n"
    "  'grey: idle; red line: lower bound';\n"
    "get('legend').append(note);\n"
    "const longest = Math.max(...x.plans.map(p => p.makespan)) || 1;\n"
    "const left = 56, foot = 20;\n"
    "function draw(canvas, p) {\n"
    "  const width = canvas.clientWidth;\n"
    "  const height = Math.min(Math.max(x.ranks * 14, 40), 460), lane = height / x.ranks;\n"
    "  const c = paper(canvas, height + foot), across = t => left + t / longest * (width - left - 8);\n"
    "  c.fillStyle = css('--idle');\n"
    "  c.fillRect(left, 0, across(p.makespan) - left, height);\n"
    "  for (const [first, cpSize, , start, end, communication, , place, beside] of p.micro_batches) {\n"
    "    const a = across(start), b = across(end), from = across(end - communication);\n"
    "    const bars = beside > 1 ? cpSize : 1, tall = lane * cpSize / bars / beside;\n"
    "    const edge = Math.min(lane > 4 ? 1 : 0.25, tall / 4);\n"
    "    for (let i = 0; i < bars; i++) {\n"
    "      const top = (first + i + place / beside) * lane;\n"
    "      c.fillStyle = colour(cpSize);\n"
    "      c.fillRect(a, top, Math.max(b - a - 0.5, 0.5), tall - edge);\n"
    "      c.fillStyle = 'rgba(255,255,255,0.55)';\n"
    "      c.fillRect(from, top, Math.max(b - from - 0.5, 0), tall - edge);\n"
    "    }\n"
    "  }\n"
    "  c.strokeStyle = css('--line');\n"
    "  c.fillStyle = css('--soft');\n"
    "  c.font = '12px system-ui, sans-serif';\n"
    "  for (let r = 0; r <= x.ranks; r += x.node) {\n"
    "    c.beginPath(); c.moveTo(left - 6, r * lane); c.lineTo(left, r * lane); c.stroke();\n"
    "    if (r < x.ranks && (r / x.node) % Math.ceil(16 / (lane * x.node)) === 0) {\n"
    "      c.textAlign = 'right';\n"
    "      c.fillText(r ? r : 'rank 0', left - 9, r * lane + 11);\n"
    "    }\n"
    "  }\n"
    "  c.textAlign = 'center';\n"
    "  const step = Math.pow(10, Math.floor(Math.log10(longest / 4))), steps = longest / step;\n"
    "  const every = steps > 20 ? 5 * step : steps > 8 ? 2 * step : step;\n"
    "  for (let t = 0; t <= longest; t += every)\n"
    "    c.fillText(+t.toPrecision(6) + (t ? '' : ' ms'), across(t), height + 15);\n"
    "  c.strokeStyle = css('--best');\n"
    "  c.beginPath(); c.moveTo(across(x.l3), 0); c.lineTo(across(x.l3), height); c.stroke();\n"
    "  return { lane, across, height };\n"
    "}\n"
    "function describe(p, i) {\n"
    "  const [first, cpSize, kind, start, end, communication, docs, , beside] = i;\n"
    "  const tokens = docs.reduce((a, b) => a + b, 0);\n"
    "  const shown = [...docs].sort((a, b) => b - a).slice(0, 24).map(grouped).join(', ');\n"
    "  const ranks = cpSize === 1 ? 'rank ' + first : 'ranks ' + first + ' to ' + (first + cpSize - 1);\n"
    "  const pass = beside > 1 ? ', in one pass with other documents, whose attention hides its first exchange' : '';\n"
    "  return ranks + ', ' + kinds[kind] + pass + '\\n' + ms(start) + ' to ' + ms(end) + ', of it communication ' +\n"
    "    ms(communication) + '\\n' + grouped(tokens) + ' tokens in ' + docs.length +\n"
    "    (docs.length === 1 ? ' document: ' : ' documents: ') + shown + (docs.length > 24 ? ', ...' : '');\n"
    "}\n"
    "for (const p of x.plans) {\n"
    "  const h = document.createElement('h2'), words = document.createElement('p');\n"
    "  const canvas = document.createElement('canvas');\n"
    "  h.textContent = p.name + ': ' + ms(p.makespan);\n"
    "  words.textContent = p.words + (p.rounds ? ' (a barrier after every round)' : '');\n"
    "  canvas.setAttribute('role', 'img');\n"
    "  canvas.setAttribute('aria-label', 'timeline of all ranks under ' + p.name);\n"
    "  get('timelines').append(h, words, canvas);\n"
    "  let at;\n"
    "  always(() => { at = draw(canvas, p); });\n"
    "  canvas.addEventListener('mousemove', e => {\n"
    "    const box = canvas.getBoundingClientRect();\n"
    "    const y = (e.clientY - box.top) / at.lane, rank = Math.floor(y), px = e.clientX - box.left;\n"
    "    const i = p.micro_batches.find(([first, cpSize, , start, end, , , place, beside]) =>\n"
    "      rank >= first && rank < first + cpSize\n"
    "      && Math.floor((y - rank) * beside) === place && px >= at.across(start) && px < at.across(end));\n"
    "    tell(e, i ? describe(p, i) : '');\n"
    "  });\n"
    "  canvas.addEventListener('mouseleave', e => tell(e, ''));\n"
    "}\n"
    "const names = ['attention', 'linear layers', 'communication', 'fixed cost of micro-batches'];\n"
    "x.critical.forEach((t, i) =>\n"
    "  row(get('terms'), [names[i], ms(t), share(x.makespan > 0 ? t / x.makespan : 0)]));\n"
    "if (x.tries.length) {\n"
    "  row(get('tries'), ['ranks', 'target', 'came to', ''], true);\n"
    "  for (const [unit, name, target, came, chosen] of x.tries) {\n"
    "    const verdict = chosen ? 'chosen' : came ? 'rejected: longer' : 'rejected';\n"
    "    const tr = row(get('tries'), [name || unit, ms(target), came ? ms(came) : 'not all fit', verdict]);\n"
    "    if (chosen) tr.className = 'chosen';\n"
    "  }\n"
    "} else {\n"
    "  for (const part of [get('searched'), get('searched').nextElementSibling, get('tries')])\n"
    "    part.style.display = 'none';\n"
    "}\n";
// clang-format on

// [first rank, cp size, kind, start, end, communication, [lengths of its documents], place in the pass, how many there]
static void put_micro_batch(FILE* out, const Explained* x, const Shown* s, int i) {
    const MicroBatch* mb = &s->plan->micro_batches[i];
    fprintf(out, "%s[%d,%d,%d,%.6g,%.6g,%.6g,[", i ? ",\n" : "", mb->first_rank, mb->cp_size, (int)cp_kind(mb),
            s->timeline->start[i], s->timeline->end[i], s->timeline->communication[i]);
    for (int d = 0; d < mb->n_docs; d++)
        fprintf(out, "%s%d", d ? "," : "", x->lengths[s->plan->docs[mb->first_doc + d]]);
    fprintf(out, "],%d,%d]", s->timeline->place[i], s->timeline->beside[i]);
}

static void put_plan(FILE* out, const Explained* x, const Shown* s) {
    fputs("{\"name\":", out);
    page_string(out, s->name);
    fputs(",\"words\":", out);
    page_string(out, s->words ? s->words : "");
    fprintf(out,
            ",\"chosen\":%d,\"rounds\":%d,\"makespan\":%.8g,\"idle\":%.6g,\"communication\":%.6g,\"us\":%.6g,\"micro_"
            "batches\":[",
            s->chosen, s->rule && s->rule->in_rounds, s->timeline->makespan, s->timeline->idle,
            s->timeline->communication_share, s->plan_us);
    for (int i = 0; i < s->plan->n_micro_batches; i++) put_micro_batch(out, x, s, i);
    fputs("]}", out);
}

static void put_tries(FILE* out, const Prediction* f) {
    for (int i = 0; i < f->n_tries; i++)
        fprintf(out, "%s[%d,\"%s\",%.8g,%.8g,%d]", i ? "," : "", f->tries[i].unit, flex_try_names[f->tries[i].kind],
                f->tries[i].target, f->tries[i].micro_batches ? f->tries[i].makespan : 0, f->tries[i].chosen);
}

int explain_page(FILE* out, const Explained* x) {
    const Prediction* f = x->prediction;
    const PlanLimits* limits = &x->setting->limits;
    fputs(page_begin, out);
    fputs(page_head, out);
    fputs(page_stages_elements, out);
    fputs(page_head_rest, out);
    fputs(page_numbers, out);
    fputs("{\"title\":", out);
    page_string(out, x->title);
    fputs(",\"machine\":", out);
    page_string(out, x->setting->cost.name);
    fprintf(out, ",\"ranks\":%d,\"node\":%d,\"capacity\":%d,\"l1\":%.8g,\"l2\":%.8g,\"l3\":%.8g,\"makespan\":%.8g,",
            limits->ranks, limits->node_size, limits->capacity, f->bounds.l1, f->bounds.l2, f->bounds.l3, f->makespan);
    fprintf(out, "\"critical\":[%.8g,%.8g,%.8g,%.8g],\"tries\":[", f->critical.quadratic, f->critical.per_token,
            f->critical.communication, f->critical.micro_batch);
    put_tries(out, f);
    fputs("],\"stages\":", out);
    page_stages(out, &x->stages);
    fputs(",\"plans\":[\n", out);
    for (int i = 0; i < x->n_shown; i++) {
        if (i) fputs(",\n", out);
        put_plan(out, x, &x->shown[i]);
    }
    fputs("]}\n", out);
    fputs(page_functions, out);
    fputs(page_foot, out);
    fputs(page_stages_script, out);
    fputs(page_end, out);
    return ferror(out) ? -1 : 0;
}
