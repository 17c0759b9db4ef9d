// test_explain.c - the claims of plan/search/explain.h: the text says what was chosen and what was not, the page is one
// file whose numbers are those of the plan.
#include "plan/search/explain.h"
#include "plan/show/page.h"
#include "test/page_checks.h"
#include "test/settings.h"

// A flex plan of `n` documents and a static one beside it.
typedef struct Case {
    World world;
    int lengths[MOST_DOCS], n;
    Prediction prediction;
    Shown shown[2];
    Arena arena;
    char text[1 << 17];
    Explained x;
} Case;

static Case* open_case(int n, int same_length) {
    Case* c = (Case*)calloc(1, sizeof *c);
    char err[ERR_BYTES];
    c->n = n;
    named_world(&c->world, "a100-7b", 16, 8);
    const PlanLimits* limits = &c->world.setting.limits;
    for (int i = 0; i < n; i++)
        c->lengths[i] = same_length ? same_length : 200 + pick(7, (uint64_t)i, 0, 900) + (i % 19 == 5 ? 9000 : 0);
    for (int p = 0; p < 2; p++) {
        const Setting* s = &c->world.setting;
        Shown* shown = &c->shown[p];
        *shown = (Shown){.name = p ? "static" : "flex", .words = p ? "one cp size" : "groups", .chosen = p == 0};
        Arena* arena = &c->arena;
        int failed = p == 0 ? plan_flex(&shown->plan, &c->prediction, 3, c->lengths, n, s, arena, err)
                            : plan_static(&shown->plan, 3, c->lengths, n, limits, 8, CP_CHOICE_AUTO, arena, err);
        if (failed) printf("    %s\n", err), abort();
        if (timeline_play(&shown->timeline, &shown->plan, c->lengths, s, arena, err)) printf("    %s\n", err), abort();
    }
    c->x = (Explained){
        "a step </script><b>\"quoted\"", c->lengths, n, &c->world.setting, &c->prediction, c->shown, 2, {0}};
    return c;
}

static void close_case(Case* c) {
    arena_free(&c->arena);
    free(c);
}

// What `write` puts into a file.
static void capture(Case* c, int page) {
    FILE* file = tmpfile();
    if (!file) abort();
    if (page) CHECK(explain_page(file, &c->x) == 0);
    else explain_text(file, &c->x);
    rewind(file);
    size_t n = fread(c->text, 1, sizeof c->text - 1, file);
    c->text[n] = 0;
    CHECK(n > 0 && n < sizeof c->text - 1);
    fclose(file);
}

static int says(const Case* c, const char* words) {
    int found = strstr(c->text, words) != NULL;
    if (!found) printf("    not there: %s\n", words);
    return found;
}

CLAIM(the_text_has_the_plan_its_time_and_what_was_rejected) {
    Case* c = open_case(48, 0);
    char words[96];
    capture(c, 0);
    snprintf(words, sizeof words, "makespan %.2f ms, at least %.2f (beside): %.2f %% above", c->prediction.makespan,
             c->prediction.bounds.beside, 100 * (c->prediction.makespan / c->prediction.bounds.beside - 1));
    CHECK(says(c, words));
    snprintf(words, sizeof words, "work divided without limit (L1) %.2f ms", c->prediction.bounds.l1);
    CHECK(says(c, words));
    snprintf(words, sizeof words, "hidden for nothing (L3) %.2f ms", c->prediction.bounds.l3);
    CHECK(says(c, words));
    CHECK(says(c, "attention ") && says(c, "communication ") && says(c, ", chosen"));
    const char* row = strstr(c->text, "\n  static ");
    double ms = NAN;
    CHECK(row && sscanf(row, " static %lf", &ms) == 1);
    CHECK_CLOSE(ms, c->shown[1].timeline.makespan, 0.00501);
    close_case(c);
}

// Documents and tokens of the table's rows add up to those of the step.
CLAIM(the_groups_of_the_text_add_up) {
    Case* c = open_case(48, 0);
    int micro_batches = 0, docs = 0, lines = 0;
    long long tokens = 0, all = 0;
    capture(c, 0);
    char* line = strstr(c->text, "  kind ");
    CHECK(line != NULL);
    for (line = line ? strchr(line, '\n') : NULL; line; line = strchr(line + 1, '\n')) {
        int cp_size, of_group, of_docs;
        long long of_tokens;
        char kind[16];
        if (sscanf(line, " %15s %d %d %d %lld", kind, &cp_size, &of_group, &of_docs, &of_tokens) != 5) break;
        micro_batches += of_group, docs += of_docs, tokens += of_tokens, lines++;
    }
    for (int i = 0; i < c->n; i++) all += c->lengths[i];
    CHECK(lines > 1 && micro_batches == c->shown[0].plan.n_micro_batches && docs == c->n && tokens == all);
    close_case(c);
}

// Number i of a list in a page; with six digits at least.
static int has(const JsonValue* list, int i, double expected) {
    double x = NAN;
    return json_double(json_at(list, i), &x) == 0 && fabs(x - expected) <= 1e-5 * fabs(expected);
}

CLAIM(the_page_has_the_numbers_of_the_plan_and_needs_nothing_else) {
    Case* c = open_case(48, 0);
    Json json;
    char title[128];
    int64_t all = 0;
    for (int i = 0; i < c->n; i++) all += c->lengths[i];
    capture(c, 1);
    check_page_needs_nothing_else(c->text);
    CHECK(!strstr(c->text, "<b>"));  // of the title
    if (page_json(&json, c->text)) return;
    const JsonValue* root = json.values;
    CHECK(json_string(member(root, "title"), title) > 0);
    CHECK_STRING(title, c->x.title);
    // Eight digits are written.
    CHECK_CLOSE(number(root, "makespan"), c->prediction.makespan, 1e-7 * c->prediction.makespan);
    CHECK_CLOSE(number(root, "l3"), c->prediction.bounds.l3, 1e-7 * c->prediction.bounds.l3);
    CHECK_CLOSE(number(root, "beside"), c->prediction.bounds.beside, 1e-7 * c->prediction.bounds.beside);
    CHECK(count(c->text, "\n{\"name\":") == 2);
    for (int p = 0; p < 2; p++) {
        json_free(&json);
        if (page_line_json(&json, c->text, 1 + p)) return;
        const JsonValue* list = member(json.values, "micro_batches");
        int64_t tokens = 0;
        CHECK(list && list->n == c->shown[p].plan.n_micro_batches);
        for (int i = 0; i < c->shown[p].plan.n_micro_batches; i++) {
            const MicroBatch* mb = &c->shown[p].plan.micro_batches[i];
            const JsonValue *found = json_at(list, i), *docs = json_at(found, 6);
            CHECK(has(found, 0, mb->first_rank) && has(found, 4, c->shown[p].timeline.end[i]));
            CHECK(docs && docs->n == mb->n_docs);
            for (int d = 0; d < mb->n_docs; d++) {
                int length = c->lengths[c->shown[p].plan.docs[mb->first_doc + d]];
                CHECK(has(docs, d, length));
                tokens += length;
            }
        }
        CHECK(tokens == all);
    }
    json_free(&json);
    close_case(c);
}

// Every task with its times, and behind it the line of the log.
CLAIM(the_page_has_a_lane_for_each_stage) {
    enum { ROUNDS = 3 };
    double forward[2 * ROUNDS], backward[2 * ROUNDS];
    int slots[] = {2, 1};
    char err[ERR_BYTES];
    Case* c = open_case(20, 0);
    Json json;
    Schedule schedule;
    for (int i = 0; i < 2 * ROUNDS; i++) forward[i] = 1 + i, backward[i] = 2.5 + i;
    Pipeline pipeline = {2, ROUNDS, 1, slots, forward, backward, NULL};
    CHECK(schedule_tasks(&schedule, &pipeline, &c->arena, err) == 0);
    const int first_layer[] = {0, 5, 9};
    c->x.stages = (ShownStages){2, 2, &schedule, first_layer, "{\"step\": 17, \"plan\": \"<\"}"};
    capture(c, 1);
    CHECK(says(c, "\n{\"step\": 17, \"plan\": \"\\u003c\"}\n</script>"));
    if (page_json(&json, c->text)) return;
    CHECK_CLOSE(number(json.values, "schedule"), schedule.makespan, 1e-6 * schedule.makespan);
    CHECK(count(c->text, "\n{\"first_rank\":") == 2);
    for (int s = 0; s < 2; s++) {
        json_free(&json);
        if (page_line_json(&json, c->text, 3 + s)) return;
        const JsonValue *lane = json.values, *tasks = member(lane, "tasks");
        CHECK(tasks && tasks->n == schedule.stages[s].n);
        CHECK_CLOSE(number(lane, "busy"), schedule.stages[s].busy, 1e-4);
        for (int i = 0; i < schedule.stages[s].n; i++) {
            const Task* t = &schedule.stages[s].tasks[i];
            double values[] = {t->kind, t->backward, t->round, t->slot, t->start, t->end};
            for (int j = 0; j < COUNT(values); j++) CHECK(has(json_at(tasks, i), j, values[j]));
        }
        CHECK(number(lane, "first_rank") == 2 * s && number(lane, "ranks") == 2);
        CHECK(number(lane, "slots") == 2 - s && number(lane, "first_layer") == 5 * s);
        CHECK(number(lane, "end_layer") == (s ? 9 : 5));
    }
    json_free(&json);
    close_case(c);
}

CLAIM(one_document_and_equal_ones_can_be_shown) {
    Case *one = open_case(1, 3000), *equal = open_case(32, 1000);
    for (int page = 1; page >= 0; page--) {
        capture(one, page);
        CHECK(!strstr(one->text, "nan") && !strstr(one->text, "inf,"));
        capture(equal, page);
        CHECK(!strstr(equal->text, "nan") && !strstr(equal->text, "inf,"));
    }
    CHECK(says(one, "longest document (L2)") && says(one, ", of 3000 tokens"));
    close_case(one);
    close_case(equal);
}

CLAIM(names_from_files_are_shown_in_a_page_as_text) {
    char page[256] = "";
    FILE* out = fmemopen(page, sizeof page, "w");
    page_string(out, "\xc3\xa9\n\"</script>\\\x1b\xc2\x9b\xe2\x80\xae\xff\xe4\xb8");
    fclose(out);
    CHECK_STRING(page, "\"\xc3\xa9?\\u0022\\u003c/script>\\u005c?????\"");
}

int main(void) { return test_main(); }
