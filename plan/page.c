// page.c - a plan as one HTML file that needs nothing else: the timeline of every rank, one for each planner, on one
// scale of time. The numbers stand in the page as JSON; page_text.c has the page around them, which draws.
#include "plan/explain.h"
#include "plan/page_parts.h"
#include "plan/page_text.h"

// [first rank, cp size, kind, start, end, exchange, [lengths of its documents]]
static void put_micro_batch(FILE* out, const Explained* x, const Shown* s, int i) {
    const MicroBatch* mb = &s->plan->micro_batches[i];
    fprintf(out, "%s[%d,%d,%d,%.6g,%.6g,%.6g,[", i ? ",\n" : "", mb->first_rank, mb->cp_size, (int)cp_kind(mb),
            s->timeline->start[i], s->timeline->end[i], s->timeline->communication[i]);
    for (int d = 0; d < mb->n_docs; d++)
        fprintf(out, "%s%d", d ? "," : "", x->lengths[s->plan->docs[mb->first_doc + d]]);
    fputs("]]", out);
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
        fprintf(out, "%s[%d,%.8g,%.8g,%d]", i ? "," : "", f->tries[i].adaptive ? 0 : f->tries[i].unit,
                f->tries[i].target, f->tries[i].micro_batches ? f->tries[i].makespan : 0, f->tries[i].chosen);
}

int explain_page(FILE* out, const Explained* x) {
    const Prediction* f = x->prediction;
    const PlanLimits* limits = &x->setting->limits;
    fputs(page_begin, out);
    fputs(page_head, out);
    fputs(page_numbers, out);
    fputs("{\"title\":", out);
    page_string(out, x->title);
    fputs(",\"machine\":", out);
    page_string(out, x->setting->cost.name);
    fprintf(out, ",\"ranks\":%d,\"node\":%d,\"capacity\":%d,\"l1\":%.8g,\"l2\":%.8g,\"l3\":%.8g,\"makespan\":%.8g,",
            limits->ranks, limits->node_size, limits->capacity, f->bounds.l1, f->bounds.l2, f->bounds.l3, f->makespan);
    fprintf(out, "\"critical\":[%.8g,%.8g,%.8g,%.8g],\"tries\":[", f->critical.quadratic, f->critical.linear,
            f->critical.communication, f->critical.micro_batch);
    put_tries(out, f);
    fputs("],\"plans\":[\n", out);
    for (int i = 0; i < x->n_shown; i++) {
        if (i) fputs(",\n", out);
        put_plan(out, x, &x->shown[i]);
    }
    fputs("]}\n", out);
    fputs(page_functions, out);
    fputs(page_foot, out);
    fputs(page_end, out);
    return ferror(out) ? -1 : 0;
}
