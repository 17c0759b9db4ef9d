// ranks_page.c - what every rank did over a run. Steps are kept in columns of equally many; when there is no room for
// another column, every two neighbours become one that holds the mean of both, weighted by how many values are known:
// m = (n1 m1 + n2 m2) / (n1 + n2). The numbers stand in the page as JSON; the script of the page draws them.
#define _POSIX_C_SOURCE 200809L
#include "run/ranks_page.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "data/disk.h"
#include "plan/page.h"

// Of values that are finite.
typedef struct Sum {
    double sum;
    int64_t n;
} Sum;

typedef struct Mean {
    float mean;  // unknown when n is 0
    uint32_t n;
} Mean;

struct History {
    int ranks, n;  // n: full columns
    int64_t span;  // steps of a full column
    int64_t open;  // steps of the last column, which is filled now; 0: there is none
    int64_t steps;
    int64_t first[MOST_COLUMNS], last[MOST_COLUMNS];  // steps of a column
    Mean* columns;                                    // (MOST_COLUMNS, ranks, RANK_FIELDS), full ones
    Sum *filling, *total;                             // (ranks, RANK_FIELDS) of the last column; of all steps
};

static size_t values(const History* h) { return (size_t)h->ranks * RANK_FIELDS; }

History* history_open(int ranks) {
    History* h = (History*)calloc(1, sizeof *h);
    if (!h) return NULL;
    h->ranks = ranks;
    h->span = 1;
    h->columns = (Mean*)calloc(MOST_COLUMNS * values(h), sizeof *h->columns);
    h->filling = (Sum*)calloc(values(h), sizeof *h->filling);
    h->total = (Sum*)calloc(values(h), sizeof *h->total);
    if (h->columns && h->filling && h->total) return h;
    history_close(h);
    return NULL;
}

void history_close(History* h) {
    if (!h) return;
    free(h->columns);
    free(h->filling);
    free(h->total);
    free(h);
}

// ---- columns

static double mean_of(const Sum* s) { return s->n ? s->sum / (double)s->n : NAN; }

static Mean merged(Mean a, Mean b) {
    Mean both = {0, a.n + b.n};
    if (both.n) both.mean = (float)(((double)a.mean * a.n + (double)b.mean * b.n) / both.n);
    return both;
}

static void halve(History* h) {
    h->n /= 2;
    h->span *= 2;
    for (int c = 0; c < h->n; c++) {
        const Mean *a = h->columns + 2 * (size_t)c * values(h), *b = a + values(h);
        Mean* to = h->columns + (size_t)c * values(h);
        h->first[c] = h->first[2 * c];
        h->last[c] = h->last[2 * c + 1];
        for (size_t i = 0; i < values(h); i++) to[i] = merged(a[i], b[i]);
    }
}

static void add(Sum* s, double x) {
    if (!isfinite(x)) return;
    s->sum += x;
    s->n++;
}

static void close_column(History* h) {
    Mean* to = h->columns + (size_t)h->n * values(h);
    for (size_t i = 0; i < values(h); i++) {
        const Sum* s = &h->filling[i];
        to[i] = (Mean){s->n ? (float)mean_of(s) : 0, (uint32_t)s->n};
    }
    memset(h->filling, 0, values(h) * sizeof *h->filling);
    h->open = 0;
    h->n++;
}

void history_add(History* h, int64_t step, const RankStep* ranks) {
    if (h->n == MOST_COLUMNS) halve(h);
    if (h->open == 0) h->first[h->n] = step;
    h->last[h->n] = step;
    h->open++;
    h->steps++;
    for (int r = 0; r < h->ranks; r++)
        for (int f = 0; f < RANK_FIELDS; f++) {
            size_t i = (size_t)r * RANK_FIELDS + (size_t)f;
            add(&h->filling[i], rank_field(&ranks[r], f));
            add(&h->total[i], rank_field(&ranks[r], f));
        }
    if (h->open == h->span) close_column(h);
}

// ---- the page: a lane for each rank, in it a bar for each column of steps (computing below, waiting above), bands for
// work that was left out or moved, and the speed of the rank

// clang-format off
static const char ranks_page_head[] =
    ":root { --compute: #4477aa; --wait: #e6bd6a; --gamma: #a03a80; --sent: #d2553f; --taken: #159090; }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "  :root { --compute: #6f9fd0; --wait: #9a7838; --gamma: #e08fc6; --sent: #f0806a; --taken: #45c4c0; }\n"
    "}\n"
    "#lanes { position: relative; margin: 10px 0 0; font-variant-numeric: tabular-nums; }\n"
    ".lane { display: grid; grid-template-columns: 3.6em minmax(0, 1fr) 4.6em; gap: 0 8px; align-items: center;\n"
    "  color: var(--soft); font-size: 13px; line-height: 1; margin-bottom: var(--gap); }\n"
    ".lane :first-child { text-align: right; }\n"
    "#cursor { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--ink); opacity: 0.55;\n"
    "  pointer-events: none; display: none; }\n"
    "@media (max-width: 620px) {\n"
    "  body { padding: 14px 12px 40px; }\n"
    "  .lane { grid-template-columns: 2em minmax(0, 1fr) 3.4em; font-size: 12px; }\n"
    "}\n"
    "</style>\n"
    "</head>\n"
    "<body>\n"
    "<h1 id='title'></h1>\n"
    "<p id='about'></p>\n"
    "<div id='legend'></div>\n"
    "<div id='lanes'><div id='cursor'></div></div>\n"
    "<h2>Means of all steps</h2>\n"
    "<p>Bold: the rank that computes longest.</p>\n"
    "<div class='wide'><table id='means'></table></div>\n";

static const char ranks_page_foot[] =
    "const n = x.columns.length;\n"
    "const known = (v, show) => v === null ? 'unknown' : show(v);\n"
    "const short = v => grouped(+v.toPrecision(4));\n"
    "const speed = v => v >= 1000 ? short(Math.round(v)) : String(+v.toPrecision(3));\n"
    "const most = name => x.ranks.reduce((m, r) => r[name].reduce((a, b) => Math.max(a, b), m), 0);\n"
    "function mean(name) {\n"
    "  const all = x.ranks.map(r => r.mean[name]).filter(v => v !== null);\n"
    "  return all.reduce((a, b) => a + b, 0) / Math.max(all.length, 1);\n"
    "}\n"
    "const waits = r => r.wait_ms + r.compute_ms > 0 ? r.wait_ms / (r.wait_ms + r.compute_ms) : 0;\n"
    "const slowest = i => x.ranks.reduce((a, b) => b.compute_ms[i] > a.compute_ms[i] ? b : a);\n"
    "// The bars' scale. A few outliers must not flatten all others; the first step, which opens everything, is one.\n"
    "const heightsFrom = from => x.ranks.flatMap(r =>\n"
    "  r.compute_ms.map((c, i) => c + r.wait_ms[i]).slice(from)).sort((a, b) => a - b);\n"
    "const heights = heightsFrom(n > 1 ? 1 : 0), highest = heightsFrom(0).pop() || 0;\n"
    "const usual = 1.1 * heights[Math.ceil(0.97 * (heights.length - 1))];\n"
    "const full = Math.min(highest, usual) || 1, cut = highest > full;\n"
    "// One colour for each; the more of it, the stronger. Bands that would stay empty are left out.\n"
    "const greatest = { gamma: most('gamma'), sent: most('sent'), taken: most('taken') };\n"
    "const bands = [['sent', 'taken'], ['gamma']].filter(names => names.some(name => greatest[name] > 0));\n"
    "\n"
    "function legend(colour, words) {\n"
    "  const span = document.createElement('span');\n"
    "  if (colour) {\n"
    "    const box = document.createElement('i');\n"
    "    box.style.background = 'var(' + colour + ')';\n"
    "    span.append(box);\n"
    "  }\n"
    "  span.append(words);\n"
    "  get('legend').append(span);\n"
    "}\n"
    "const each = n ? x.columns[0][1] - x.columns[0][0] + 1 : 1;\n"
    "get('about').textContent = n === 0 ? 'No step is known.' :\n"
    "  x.ranks.length + ' ranks, ' + (x.steps > 1 ? 'steps ' + grouped(x.columns[0][0]) + ' to ' : 'step ') +\n"
    "  grouped(x.columns[n - 1][1]) +\n"
    "  (each > 1 ? ', a column is the mean of ' + each : '') + '. A step has ' + ms(mean('compute_ms')) +\n"
    "  ' of computing and ' + ms(mean('wait_ms')) + ' of waiting on a rank: ' +\n"
    "  share(waits({ compute_ms: mean('compute_ms'), wait_ms: mean('wait_ms') })) + ' of its time is waiting.';\n"
    "legend('--compute', 'computing');\n"
    "legend('--wait', 'waiting for others');\n"
    "if (greatest.gamma > 0) legend('--gamma', 'left out of its matmuls, at most ' + share(greatest.gamma));\n"
    "if (greatest.sent > 0) legend('--sent', 'slices given away, at most ' + short(greatest.sent));\n"
    "if (greatest.taken > 0) legend('--taken', 'taken over, at most ' + short(greatest.taken));\n"
    "legend('', 'full height: ' + ms(full) + (cut ? ', longer ones are cut off' : '') +\n"
    "  '; right: speed now, slices/ms');\n"
    "\n"
    "const tall = Math.round(Math.min(Math.max(680 / x.ranks.length, 22), 80));\n"
    "const between = tall >= 40 ? 8 : 4, band = tall >= 60 ? 8 : tall >= 30 ? 5 : 3;\n"
    "get('lanes').style.setProperty('--gap', between + 'px');\n"
    "// Left end and width of column i.\n"
    "function place(i, width) {\n"
    "  const a = Math.round(i * width / n), b = Math.round((i + 1) * width / n);\n"
    "  return [a, Math.max(b - a - (width / n >= 6 ? 1 : 0), 1)];\n"
    "}\n"
    "function drawBars(c, r, width, bars) {\n"
    "  const [idle, compute, wait] = ['--idle', '--compute', '--wait'].map(css);\n"
    "  const high = t => Math.min(t / full, 1) * bars;\n"
    "  c.fillStyle = idle;\n"
    "  c.fillRect(0, 0, width, bars);\n"
    "  for (let i = 0; i < n; i++) {\n"
    "    const [at, wide] = place(i, width);\n"
    "    const part = high(r.compute_ms[i]), all = high(r.compute_ms[i] + r.wait_ms[i]);\n"
    "    c.fillStyle = compute;\n"
    "    c.fillRect(at, bars - part, wide, part);\n"
    "    c.fillStyle = wait;\n"
    "    c.fillRect(at, bars - all, wide, all - part);\n"
    "  }\n"
    "}\n"
    "function drawBand(c, r, names, width, y) {\n"
    "  const colours = names.map(name => css('--' + name));\n"
    "  for (let i = 0; i < n; i++) {\n"
    "    const [at, wide] = place(i, width), there = names.filter(name => r[name][i] > 0);\n"
    "    const part = band / there.length;\n"
    "    there.forEach((name, k) => {\n"
    "      c.fillStyle = colours[names.indexOf(name)];\n"
    "      c.globalAlpha = 0.2 + 0.8 * r[name][i] / greatest[name];\n"
    "      c.fillRect(at, y + k * part, wide, part);\n"
    "    });\n"
    "  }\n"
    "}\n"
    "function draw(canvas, r) {\n"
    "  const c = paper(canvas, tall), width = canvas.clientWidth, bars = tall - bands.length * (band + 1);\n"
    "  drawBars(c, r, width, bars);\n"
    "  bands.forEach((names, b) => drawBand(c, r, names, width, bars + 1 + b * (band + 1)));\n"
    "}\n"
    "function steps(i) {\n"
    "  const [first, last] = x.columns[i];\n"
    "  return first === last ? 'step ' + grouped(first) : 'mean of steps ' + grouped(first) + ' to ' + grouped(last);\n"
    "}\n"
    "function describe(r, i) {\n"
    "  const worst = slowest(i);\n"
    "  return 'rank ' + r.rank + ', ' + steps(i) + '\\ncomputing ' + known(r.compute_ms[i], ms) + ', waiting ' +\n"
    "    known(r.wait_ms[i], ms) + '\\nleft out of its matmuls: ' + known(r.gamma[i], share) +\n"
    "    '\\nslices given away: ' + known(r.sent[i], short) + ', taken over: ' + known(r.taken[i], short) +\n"
    "    '\\nspeed: ' + known(r.speed[i], speed) + ' slices/ms\\ncomputes longest: rank ' + worst.rank + ', ' +\n"
    "    known(worst.compute_ms[i], ms);\n"
    "}\n"
    "function hover(canvas, r, e) {\n"
    "  const box = canvas.getBoundingClientRect(), lanes = get('lanes').getBoundingClientRect();\n"
    "  const i = Math.min(Math.max(Math.floor((e.clientX - box.left) / box.width * n), 0), n - 1);\n"
    "  const [at, wide] = place(i, box.width);\n"
    "  get('cursor').style.display = 'block';\n"
    "  get('cursor').style.left = box.left - lanes.left + at + wide / 2 + 'px';\n"
    "  tell(e, describe(r, i));\n"
    "}\n"
    "function lane(before, canvas, after) {\n"
    "  const div = document.createElement('div');\n"
    "  div.className = 'lane';\n"
    "  for (const words of [before, after]) {\n"
    "    const part = document.createElement('span');\n"
    "    part.textContent = words;\n"
    "    div.append(part);\n"
    "  }\n"
    "  div.insertBefore(canvas, div.lastChild);\n"
    "  get('lanes').append(div);\n"
    "}\n"
    "function showRank(r) {\n"
    "  const canvas = document.createElement('canvas'), now = r.speed[n - 1];\n"
    "  canvas.setAttribute('role', 'img');\n"
    "  canvas.setAttribute('aria-label', 'rank ' + r.rank + ' over all steps');\n"
    "  lane(r.rank, canvas, now === null ? '' : speed(now));\n"
    "  always(() => draw(canvas, r));\n"
    "  canvas.addEventListener('mousemove', e => hover(canvas, r, e));\n"
    "  canvas.addEventListener('mouseleave', e => {\n"
    "    get('cursor').style.display = 'none';\n"
    "    tell(e, '');\n"
    "  });\n"
    "}\n"
    "// Where a step is across the lanes, and as many round steps below them as have room.\n"
    "function across(step, width) {\n"
    "  const i = x.columns.findIndex(([, last]) => step <= last), [first, last] = x.columns[i];\n"
    "  return (i + (step - first + 0.5) / (last - first + 1)) * width / n;\n"
    "}\n"
    "function ticks(canvas) {\n"
    "  const c = paper(canvas, 20), width = canvas.clientWidth;\n"
    "  const first = x.columns[0][0], last = x.columns[n - 1][1], least = (last - first + 1) * 64 / width;\n"
    "  const ten = Math.pow(10, Math.floor(Math.log10(Math.max(least, 1))));\n"
    "  const every = [1, 2, 5, 10].map(m => m * ten).find(m => m >= least);\n"
    "  c.fillStyle = css('--soft');\n"
    "  c.strokeStyle = css('--line');\n"
    "  c.font = '12px system-ui, sans-serif';\n"
    "  c.textAlign = 'center';\n"
    "  for (let s = Math.ceil(first / every) * every; s <= last; s += every) {\n"
    "    const at = across(s, width), half = c.measureText(grouped(s)).width / 2;\n"
    "    c.beginPath(); c.moveTo(at, 0); c.lineTo(at, 4); c.stroke();\n"
    "    c.fillText(grouped(s), Math.min(Math.max(at, half), width - half), 16);\n"
    "  }\n"
    "}\n"
    "function axis() {\n"
    "  const canvas = document.createElement('canvas');\n"
    "  lane('step', canvas, '');\n"
    "  always(() => ticks(canvas));\n"
    "}\n"
    "if (n) {\n"
    "  if (x.ranks.length > 16) axis();\n"
    "  x.ranks.forEach(showRank);\n"
    "  axis();\n"
    "}\n"
    "\n"
    "row(get('means'), ['rank', 'computing', 'waiting', 'waiting share', 'left out', 'given away', 'taken over',\n"
    "  'slices/ms'], true);\n"
    "const longest = Math.max(...x.ranks.map(r => r.mean.compute_ms));\n"
    "for (const { rank, mean } of x.ranks) {\n"
    "  const tr = row(get('means'), [rank, known(mean.compute_ms, ms), known(mean.wait_ms, ms),\n"
    "    known(mean.compute_ms, () => share(waits(mean))),\n"
    "    known(mean.gamma, share), known(mean.sent, short), known(mean.taken, short), known(mean.speed, speed)]);\n"
    "  if (mean.compute_ms === longest) tr.className = 'chosen';\n"
    "}\n";
// clang-format on

static void put_number(FILE* out, double x) {
    char text[32];
    fputs(runlog_number(x, 4, text), out);
}

// {"rank": 3, "compute_ms": [of each column], ..., "mean": {"compute_ms": of all steps, ...}}
static void put_rank(FILE* out, const History* h, int rank) {
    fprintf(out, "{\"rank\":%d", rank);
    for (int f = 0; f < RANK_FIELDS; f++) {
        size_t i = (size_t)rank * RANK_FIELDS + (size_t)f;
        fprintf(out, ",\"%s\":[", rank_field_names[f]);
        for (int c = 0; c < h->n; c++) {
            const Mean* m = &h->columns[(size_t)c * values(h) + i];
            if (c) fputc(',', out);
            put_number(out, m->n ? m->mean : NAN);
        }
        if (h->open) {
            if (h->n) fputc(',', out);
            put_number(out, mean_of(&h->filling[i]));
        }
        fputc(']', out);
    }
    fputs(",\"mean\":{", out);
    for (int f = 0; f < RANK_FIELDS; f++) {
        fprintf(out, "%s\"%s\":", f ? "," : "", rank_field_names[f]);
        put_number(out, mean_of(&h->total[(size_t)rank * RANK_FIELDS + (size_t)f]));
    }
    fputs("}}", out);
}

static void put_history(FILE* out, const History* h, const char* title) {
    fputs("{\"title\":", out);
    page_string(out, title);
    fprintf(out, ",\"steps\":%" PRId64 ",\"columns\":[", h->steps);
    for (int c = 0; c < h->n + (h->open > 0); c++)
        fprintf(out, "%s[%" PRId64 ",%" PRId64 "]", c ? "," : "", h->first[c], h->last[c]);
    fputs("],\n\"ranks\":[\n", out);
    for (int r = 0; r < h->ranks; r++) {
        if (r) fputs(",\n", out);
        put_rank(out, h, r);
    }
    fputs("]}\n", out);
}

int history_write(const History* h, const char* path, const char* title, char* err, size_t errlen) {
    char* text = NULL;
    size_t n = 0;
    FILE* out = open_memstream(&text, &n);
    if (!out) return fail(err, errlen, "%s: no memory for this page: %s", path, strerror(errno));
    fputs(page_begin, out);
    fputs(ranks_page_head, out);
    fputs(page_numbers, out);
    put_history(out, h, title);
    fputs(page_functions, out);
    fputs(ranks_page_foot, out);
    fputs(page_end, out);
    int torn = ferror(out), failed = fclose(out) || torn;
    failed = failed ? fail(err, errlen, "%s: no memory for this page", path) : disk_replace(path, text, n, err, errlen);
    free(text);
    return failed;
}
