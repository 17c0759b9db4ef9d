// page_stages.c - a lane for every stage of a pipeline in plan.html: the passes of its rounds as played, messages, what
// it waits; below them a bar for each of its ranks, of a step that was measured.
#include <math.h>

#include "plan/explain.h"
#include "plan/page.h"

// clang-format off
const char page_stages_elements[] =
    "<div id='pipeline' style='display:none'>\n"
    "<h2>Stages</h2>\n"
    "<p id='pipelineAbout'></p>\n"
    "<div id='pipelineLegend' class='legend'></div>\n"
    "<canvas id='lanes' role='img' aria-label='what every stage of the pipeline does in the step'></canvas>\n"
    "</div>\n";

const char page_stages_script[] =
    "function showStages(p) {\n"
    "  const dark = () => window.matchMedia('(prefers-color-scheme: dark)').matches;\n"
    "  const paints = () => dark() ? ['#6f9fd0', '#d9825f', '#8f96a3'] : ['#4477aa', '#c8643c', '#5d6675'];\n"
    "  const words = ['forward', 'backward', 'message'], measured = p.measured_ms > 0;\n"
    "  get('pipeline').style.display = '';\n"
    "  get('pipelineAbout').textContent = p.lanes.length + ' stages, played in the cost model: ' + ms(p.makespan) +\n"
    "    ', of which stages wait ' + share(p.bubble) + '.' + (measured ? ' Step ' + p.step + ' of the run in this ' +\n"
    "    'directory took ' + ms(p.measured_ms) + '.' : ' Nothing was measured.');\n"
    "  const swatches = words.map((w, i) => {\n"
    "    const span = document.createElement('span'), box = document.createElement('i');\n"
    "    span.append(box, w + (i < 2 ? ' of a round' : ' to or from a neighbour'));\n"
    "    span.style.cssText = 'display:inline-block; margin-right:14px; color:var(--soft)';\n"
    "    box.style.cssText = 'display:inline-block; width:13px; height:13px; margin-right:5px; vertical-align:-2px';\n"
    "    get('pipelineLegend').append(span);\n"
    "    return box;\n"
    "  });\n"
    "  const note = document.createElement('span');\n"
    "  note.style.color = 'var(--soft)';\n"
    "  note.textContent = 'grey: waiting' +\n"
    "    (measured ? '; thin bars: what each rank computed and waited, as measured' : '');\n"
    "  get('pipelineLegend').append(note);\n"
    "  const left = 62, foot = 20, pass = 22, thin = 4, space = 8, scale = Math.max(p.makespan, p.measured_ms) || 1;\n"
    "  const tall = l => pass + 3 + (l.measured ? l.measured.length * (thin + 1) : 0);\n"
    "  const tops = [];\n"
    "  let height = 4;\n"
    "  for (const l of p.lanes) tops.push(height), height += tall(l) + space;\n"
    "  const canvas = get('lanes');\n"
    "  let across;\n"
    "  always(() => {\n"
    "    const c = paper(canvas, height + foot), width = canvas.clientWidth, colours = paints();\n"
    "    swatches.forEach((box, i) => { box.style.background = colours[i]; });\n"
    "    across = t => left + t / scale * (width - left - 8);\n"
    "    c.font = '12px system-ui, sans-serif';\n"
    "    p.lanes.forEach((l, s) => {\n"
    "      const top = tops[s];\n"
    "      c.textAlign = 'right';\n"
    "      c.fillStyle = css('--soft');\n"
    "      c.fillText('stage ' + s, left - 8, top + 15);\n"
    "      c.fillStyle = css('--idle');\n"
    "      c.fillRect(left, top, across(p.makespan) - left, pass);\n"
    "      for (const [kind, backward, round, , start, end] of l.tasks) {\n"
    "        const a = across(start), w = Math.max(across(end) - a - 0.5, 0.5), message = kind > 1;\n"
    "        c.fillStyle = message ? colours[2] : colours[kind];\n"
    "        c.fillRect(a, message ? top + pass : top, w, message ? 3 : pass - 1);\n"
    "        if (message || w < 16) continue;\n"
    "        c.fillStyle = '#ffffff';\n"
    "        c.textAlign = 'center';\n"
    "        c.fillText(round, a + w / 2, top + 15);\n"
    "      }\n"
    "      (l.measured || []).forEach(([compute, wait], i) => {\n"
    "        const y = top + pass + 3 + i * (thin + 1), b = across(compute);\n"
    "        c.fillStyle = css('--ink');\n"
    "        c.fillRect(left, y, b - left, thin);\n"
    "        c.fillStyle = css('--line');\n"
    "        c.fillRect(b, y, across(compute + wait) - b, thin);\n"
    "      });\n"
    "    });\n"
    "    c.fillStyle = css('--soft');\n"
    "    c.textAlign = 'center';\n"
    "    const step = Math.pow(10, Math.floor(Math.log10(scale / 4))), steps = scale / step;\n"
    "    const every = (steps > 20 ? 5 : steps > 8 ? 2 : 1) * step * (width < 600 ? 2 : 1);\n"
    "    for (let t = 0; t <= scale; t += every)\n"
    "      c.fillText(+t.toPrecision(6) + (t ? '' : ' ms'), across(t), height + 15);\n"
    "  });\n"
    "  function describe(l, s, task) {\n"
    "    const told = ['stage ' + s + ': ' + l.words];\n"
    "    if (task) {\n"
    "      const [kind, backward, round, slot, start, end] = task;\n"
    "      const does = kind < 2 ? words[kind] : (kind === 2 ? 'sends ' : 'receives ') +\n"
    "        (backward ? 'gradients' : 'activations');\n"
    "      told.push(does + ' of round ' + round + ', slot ' + slot, ms(start) + ' to ' + ms(end));\n"
    "    }\n"
    "    told.push('computes ' + ms(l.busy) + ' as played; at most ' + l.in_flight + ' rounds in flight');\n"
    "    if (l.measured) {\n"
    "      const most = Math.max(...l.measured.map(m => m[0]));\n"
    "      told.push('measured: ' + ms(most) + ' of its rank with most' + (most > 0 ? ', ' +\n"
    "        (l.busy / most).toFixed(2) + 'x of that as played' : ''));\n"
    "    }\n"
    "    return told.join('\\n');\n"
    "  }\n"
    "  canvas.addEventListener('mousemove', e => {\n"
    "    const box = canvas.getBoundingClientRect(), px = e.clientX - box.left, y = e.clientY - box.top;\n"
    "    const s = p.lanes.findIndex((l, i) => y >= tops[i] && y < tops[i] + tall(l));\n"
    "    const inPass = s >= 0 && y < tops[s] + pass;\n"
    "    const task = s < 0 ? null : p.lanes[s].tasks.find(([kind, , , , start, end]) =>\n"
    "      (kind < 2) === inPass && px >= across(start) && px < across(end));\n"
    "    tell(e, s < 0 ? '' : describe(p.lanes[s], s, task));\n"
    "  });\n"
    "  canvas.addEventListener('mouseleave', e => tell(e, ''));\n"
    "}\n"
    "if (x.stages) showStages(x.stages);\n";
// clang-format on

// {"words", "busy", "in_flight", "measured": [[compute, wait] of each rank] or null,
//  "tasks": [[kind, backward, round, slot, start, end]]}
static void put_lane(FILE* out, const ShownStage* s) {
    fprintf(out,
            "{\"words\":\"ranks %d to %d, layers %d to %d, %d slot%s\",\"busy\":%.6g,\"in_flight\":%d,\"measured\":",
            s->first_rank, s->first_rank + s->ranks - 1, s->first_layer, s->end_layer - 1, s->slots,
            s->slots > 1 ? "s" : "", s->list->busy, s->list->most_in_flight);
    for (int r = 0; r < s->ranks && s->compute_ms; r++)
        fprintf(out, "%s[%.6g,%.6g]", r ? "," : "[", s->compute_ms[r], s->wait_ms[r]);
    fputs(s->compute_ms ? "],\"tasks\":[" : "null,\"tasks\":[", out);
    for (int i = 0; i < s->list->n; i++) {
        const Task* t = &s->list->tasks[i];
        fprintf(out, "%s[%d,%d,%d,%d,%.6g,%.6g]", i ? "," : "", (int)t->kind, t->backward, t->round, t->slot, t->start,
                t->end);
    }
    fputs("]}", out);
}

void page_stages(FILE* out, const ShownStages* x) {
    if (x->n < 2) {
        fputs("null", out);
        return;
    }
    fprintf(out, "{\"makespan\":%.8g,\"bubble\":%.6g,\"step\":%lld,\"measured_ms\":%.8g,\"lanes\":[", x->makespan,
            x->bubble, (long long)x->step, x->measured_ms);
    for (int s = 0; s < x->n; s++) {
        if (s) fputs(",\n", out);
        put_lane(out, &x->stage[s]);
    }
    fputs("]}", out);
}
