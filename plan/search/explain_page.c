// explain_page.c - a plan as the data of a page: lines, whose lists of numbers explain.js knows by position. The first
// line holds for all plans; a line for each plan, one for each stage and the log's stand behind it.
#include "plan/search/explain.h"
#include "plan/show/page.h"

extern const char plan_search_explain_js[];

// Writes [first rank, cp size, kind, start, end, communication, [documents' lengths], place in the pass, number there].
static void put_micro_batch(FILE* out, const Explained* x, const Shown* s, int i) {
    const MicroBatch* mb = &s->plan.micro_batches[i];
    fprintf(out, "%s[%d,%d,%d,%.6g,%.6g,%.6g,[", i ? "," : "", mb->first_rank, mb->cp_size, (int)cp_kind(mb),
            s->timeline.start[i], s->timeline.end[i], s->timeline.communication[i]);
    for (int d = 0; d < mb->n_docs; d++)
        fprintf(out, "%s%d", d ? "," : "", x->lengths[s->plan.docs[mb->first_doc + d]]);
    fprintf(out, "],%d,%d]", s->timeline.place[i], s->timeline.beside[i]);
}

static void put_plan(FILE* out, const Explained* x, const Shown* s) {
    fputs("{\"name\":", out);
    page_string(out, s->name);
    fputs(",\"words\":", out);
    page_string(out, s->words ? s->words : "");
    fprintf(out, ",\"chosen\":%d,\"rounds\":%d,\"makespan\":%.8g,\"step\":%.8g,\"idle\":%.6g,\"communication\":%.6g,",
            s->chosen, x->setting->rounds || s->plan.has_barriers, s->timeline.makespan, s->timeline.step,
            s->timeline.idle, s->timeline.communication_share);
    fprintf(out, "\"us\":%.6g,\"micro_batches\":[", s->plan_us);
    for (int i = 0; i < s->plan.n_micro_batches; i++) put_micro_batch(out, x, s, i);
    fputs("]}\n", out);
}

// tasks: [kind, backward, round, slot, start, end]
static void put_stage(FILE* out, const ShownStages* x, int s) {
    const TaskList* list = &x->schedule->stages[s];
    fprintf(out, "{\"first_rank\":%d,\"ranks\":%d,\"first_layer\":%d,\"end_layer\":%d,\"slots\":%d,\"busy\":%.6g,",
            s * x->ranks, x->ranks, x->first_layer[s], x->first_layer[s + 1], pipeline_slots(x->n, s), list->busy);
    fprintf(out, "\"in_flight\":%d,\"tasks\":[", list->most_in_flight);
    for (int i = 0; i < list->n; i++) {
        const Task* t = &list->tasks[i];
        fprintf(out, "%s[%d,%d,%d,%d,%.6g,%.6g]", i ? "," : "", (int)t->kind, t->backward, t->round, t->slot, t->start,
                t->end);
    }
    fputs("]}\n", out);
}

int explain_page(FILE* out, const Explained* x) {
    const Prediction* f = x->prediction;
    const PlanLimits* limits = &x->setting->limits;
    page_begin(out, "");
    fputs("{\"title\":", out);
    page_string(out, x->title);
    fputs(",\"machine\":", out);
    page_string(out, x->setting->cost.name);
    fprintf(out, ",\"ranks\":%d,\"node\":%d,\"least\":%d,\"capacity\":%d,", limits->ranks, limits->node_size,
            limits->capacity, widest_capacity(limits, 1));
    fprintf(out, "\"l1\":%.8g,\"l2\":%.8g,\"l3\":%.8g,\"beside\":%.8g,\"makespan\":%.8g,", f->bounds.l1, f->bounds.l2,
            f->bounds.l3, f->bounds.beside, f->makespan);
    if (x->setting->weights.layers > 0) fprintf(out, "\"step\":%.8g,\"step_bound\":%.8g,", f->step, f->bounds.step);
    if (x->stages.n) fprintf(out, "\"schedule\":%.8g,", x->stages.schedule->makespan);
    fprintf(out, "\"critical\":[%.8g,%.8g,%.8g,%.8g],\"tries\":[", f->critical.quadratic, f->critical.per_token,
            f->critical.communication, f->critical.micro_batch);
    for (int i = 0; i < f->n_tries; i++)
        fprintf(out, "%s[%d,\"%s\",%.8g,%.8g,%d]", i ? "," : "", f->tries[i].unit, flex_try_names[f->tries[i].kind],
                f->tries[i].target, f->tries[i].micro_batches ? f->tries[i].makespan : 0, f->tries[i].chosen);
    fputs("]}\n", out);
    for (int i = 0; i < x->n_shown; i++) put_plan(out, x, &x->shown[i]);
    for (int s = 0; s < x->stages.n; s++) put_stage(out, &x->stages, s);
    if (x->stages.logged) page_line(out, x->stages.logged, strlen(x->stages.logged));
    page_end(out, plan_search_explain_js);
    return ferror(out) ? -1 : 0;
}
