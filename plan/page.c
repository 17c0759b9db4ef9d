// page.c - a plan as one HTML file that needs nothing else: the timeline of every rank, one for each planner, on one
// scale of time. The numbers stand in the page as JSON; page_text.c has the page around them, which draws.
#include "plan/explain.h"
#include "plan/page_parts.h"
#include "plan/page_text.h"

// [first rank, degree, kind, start, end, exchange, [lengths of its documents]]
static void put_item(FILE* out, const Explained* x, const Shown* s, int i) {
    const Item* item = &s->plan->items[i];
    fprintf(out, "%s[%d,%d,%d,%.6g,%.6g,%.6g,[", i ? ",\n" : "", item->first_rank, item->degree, (int)item_kind(item),
            s->timeline->start[i], s->timeline->end[i], s->timeline->exchange[i]);
    for (int d = 0; d < item->n_docs; d++)
        fprintf(out, "%s%d", d ? "," : "", x->lengths[s->plan->docs[item->first_doc + d]]);
    fputs("]]", out);
}

static void put_plan(FILE* out, const Explained* x, const Shown* s) {
    fputs("{\"name\":", out);
    page_string(out, s->name);
    fputs(",\"words\":", out);
    page_string(out, s->words ? s->words : "");
    fprintf(
        out,
        ",\"chosen\":%d,\"rounds\":%d,\"makespan\":%.8g,\"idle\":%.6g,\"communication\":%.6g,\"us\":%.6g,\"items\":[",
        s->chosen, s->rule && s->rule->in_rounds, s->timeline->makespan, s->timeline->idle, s->timeline->communication,
        s->plan_us);
    for (int i = 0; i < s->plan->n_items; i++) put_item(out, x, s, i);
    fputs("]}", out);
}

static void put_tries(FILE* out, const Forecast* f) {
    for (int i = 0; i < f->n_tries; i++)
        fprintf(out, "%s[%d,%.8g,%.8g,%d]", i ? "," : "", f->tries[i].adaptive ? 0 : f->tries[i].unit,
                f->tries[i].target, f->tries[i].items ? f->tries[i].makespan : 0, f->tries[i].chosen);
}

int explain_page(FILE* out, const Explained* x) {
    const Forecast* f = x->forecast;
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
            f->critical.exchange, f->critical.item);
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
