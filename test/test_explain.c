// test_explain.c - the claims of plan/explain.h: the text says what was chosen and what was not, the page is one file
// whose numbers are those of the plan.
#include "plan/explain.h"
#include "plan/page.h"
#include "test/page_checks.h"
#include "test/settings.h"

// A flex plan of `n` documents and a static one beside it.
typedef struct Case {
    World world;
    int lengths[MOST_DOCS], n;
    Plan plans[2];
    Prediction prediction;
    Timeline timelines[2];
    Shown shown[2];
    PlayRule rule;
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
        Arena* arena = &c->arena;
        int failed =
            p == 0 ? plan_flex(&c->plans[p], &c->prediction, 3, c->lengths, n, s, arena, err, sizeof err)
                   : plan_static(&c->plans[p], 3, c->lengths, n, limits, 8, CP_CHOICE_AUTO, arena, err, sizeof err);
        if (failed) printf("    %s\n", err), abort();
        if (timeline_play(&c->timelines[p], &c->plans[p], c->lengths, s, &c->rule, arena, err, sizeof err))
            printf("    %s\n", err), abort();
        c->shown[p] = (Shown){
            p ? "static" : "flex", p ? "one cp size" : "groups", &c->plans[p], &c->timelines[p], &c->rule, 42, p == 0};
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

static void the_text_has_the_plan_its_time_and_what_was_rejected(void) {
    Case* c = open_case(48, 0);
    char words[96];
    capture(c, 0);
    snprintf(words, sizeof words, "makespan %.2f ms, at least %.2f (L3)", c->prediction.makespan,
             c->prediction.bounds.l3);
    CHECK(says(c, words));
    snprintf(words, sizeof words, "work divided without limit (L1) %.2f ms", c->prediction.bounds.l1);
    CHECK(says(c, words));
    CHECK(says(c, "attention ") && says(c, "communication ") && says(c, ", chosen"));
    snprintf(words, sizeof words, "static     %8.2f", c->timelines[1].makespan);
    CHECK(says(c, words));
    close_case(c);
}

static void the_longest_document_may_be_the_first(void) {
    Case* c = open_case(1, 3000);
    capture(c, 0);
    CHECK(says(c, "longest document (L2)") && says(c, ", of 3000 tokens"));
    close_case(c);
}

// Documents and tokens of the table's rows add up to those of the step.
static void the_groups_of_the_text_add_up(void) {
    Case* c = open_case(48, 0);
    int micro_batches = 0, docs = 0, lines = 0;
    long long tokens = 0, all = 0;
    capture(c, 0);
    char* line = strstr(c->text, "  ranks  kind");
    CHECK(line != NULL);
    for (line = line ? strchr(line, '\n') : NULL; line; line = strchr(line + 1, '\n')) {
        int cp_size, of_group, of_docs;
        long long of_tokens;
        char kind[16];
        if (sscanf(line, " %d %15s %d %d %lld", &cp_size, kind, &of_group, &of_docs, &of_tokens) != 5) break;
        micro_batches += of_group, docs += of_docs, tokens += of_tokens, lines++;
    }
    for (int i = 0; i < c->n; i++) all += c->lengths[i];
    CHECK(lines > 1 && micro_batches == c->plans[0].n_micro_batches && docs == c->n && tokens == all);
    close_case(c);
}

static void the_page_has_the_numbers_of_the_plan(void) {
    Case* c = open_case(48, 0);
    Json json;
    char title[128];
    capture(c, 1);
    if (!page_json(&json, c->text)) {
        const JsonValue* root = json.values;
        CHECK(json_string(member(&json, root, "title"), title) > 0);
        CHECK_STRING(title, c->x.title);
        // Eight digits are written.
        CHECK_CLOSE(number(&json, root, "makespan"), c->prediction.makespan, 1e-7 * c->prediction.makespan);
        CHECK_CLOSE(number(&json, root, "l3"), c->prediction.bounds.l3, 1e-7 * c->prediction.bounds.l3);
        const JsonValue* plans = member(&json, root, "plans");
        CHECK(plans && plans->n == 2);
        for (int p = 0; p < 2; p++) {
            const JsonValue* micro_batches = member(&json, json_at(&json, plans, p), "micro_batches");
            double tokens = 0, all = 0, value = 0;
            CHECK(micro_batches && micro_batches->n == c->plans[p].n_micro_batches);
            for (int i = 0; i < c->plans[p].n_micro_batches; i++) {
                const JsonValue *mb = json_at(&json, micro_batches, i), *docs = json_at(&json, mb, 6);
                CHECK(json_double(json_at(&json, mb, 0), &value) == 0 &&
                      value == c->plans[p].micro_batches[i].first_rank);
                CHECK(docs && docs->n == c->plans[p].micro_batches[i].n_docs);
                CHECK(json_double(json_at(&json, mb, 4), &value) == 0);
                CHECK_CLOSE(value, c->timelines[p].end[i], 1e-5 * value);  // six digits
                for (int d = 0; d < docs->n; d++)
                    if (json_double(json_at(&json, docs, d), &value) == 0) tokens += value;
            }
            for (int i = 0; i < c->n; i++) all += c->lengths[i];
            CHECK(tokens == all);
        }
        json_free(&json);
    }
    close_case(c);
}

// Every task with its times, and what ranks of the second stage took.
static void the_page_has_a_lane_for_each_stage(void) {
    enum { ROUNDS = 3 };
    double forward[2 * ROUNDS], backward[2 * ROUNDS], measured[] = {7, 8, 1, 2};
    int slots[] = {2, 1};
    char err[ERR_BYTES];
    Case* c = open_case(20, 0);
    Json json;
    Schedule schedule;
    for (int i = 0; i < 2 * ROUNDS; i++) forward[i] = 1 + i, backward[i] = 2.5 + i;
    Pipeline pipeline = {2, ROUNDS, 1, slots, forward, backward, NULL};
    CHECK(schedule_tasks(&schedule, &pipeline, &c->arena, err, sizeof err) == 0);
    ShownStage stages[] = {{&schedule.stages[0], 0, 2, 0, 5, 2, NULL, NULL},
                           {&schedule.stages[1], 2, 2, 5, 9, 1, measured, measured + 2}};
    c->x.stages = (ShownStages){2, stages, schedule.makespan, 0.25, 17, 99.5};
    capture(c, 1);
    if (!page_json(&json, c->text)) {
        const JsonValue *shown = member(&json, json.values, "stages"), *lanes = member(&json, shown, "lanes");
        CHECK_CLOSE(number(&json, shown, "makespan"), schedule.makespan, 1e-6 * schedule.makespan);
        CHECK(number(&json, shown, "step") == 17 && number(&json, shown, "measured_ms") == 99.5);
        CHECK(lanes && lanes->n == 2);
        for (int s = 0; s < 2; s++) {
            const JsonValue *lane = json_at(&json, lanes, s), *tasks = member(&json, lane, "tasks"),
                            *took = member(&json, lane, "measured");
            CHECK(tasks && tasks->n == schedule.stages[s].n);
            CHECK_CLOSE(number(&json, lane, "busy"), schedule.stages[s].busy, 1e-4);
            for (int i = 0; i < schedule.stages[s].n; i++) {
                const Task* task = &schedule.stages[s].tasks[i];
                double values[6],
                    expected[] = {task->kind, task->backward, task->round, task->slot, task->start, task->end};
                for (int j = 0; j < 6; j++) {
                    CHECK(json_double(json_at(&json, json_at(&json, tasks, i), j), &values[j]) == 0);
                    CHECK_CLOSE(values[j], expected[j], 1e-4);
                }
            }
            CHECK(took && (s ? took->n == 2 : took->type == JSON_NULL));
            double waited = 0;
            CHECK(s == 0 || (!json_double(json_at(&json, json_at(&json, took, 1), 1), &waited) && waited == 2));
        }
        json_free(&json);
    }
    close_case(c);
}

static void the_page_needs_nothing_else_and_no_text_escapes_into_it(void) {
    Case* c = open_case(20, 0);
    capture(c, 1);
    check_page_needs_nothing_else(c->text);
    CHECK(!strstr(c->text, "<b>"));  // of the title
    close_case(c);
}

static void one_document_and_equal_ones_can_be_shown(void) {
    Case *one = open_case(1, 3000), *equal = open_case(32, 1000);
    for (int page = 0; page < 2; page++) {
        capture(one, page);
        CHECK(!strstr(one->text, "nan") && !strstr(one->text, "inf,"));
        capture(equal, page);
        CHECK(!strstr(equal->text, "nan") && !strstr(equal->text, "inf,"));
    }
    close_case(one);
    close_case(equal);
}

static void names_from_files_are_shown_in_a_page_as_text(void) {
    char page[256] = "";
    FILE* out = fmemopen(page, sizeof page, "w");
    page_string(out, "\xc3\xa9\n\"</script>\\\x1b\xc2\x9b\xe2\x80\xae\xff\xe4\xb8");
    fclose(out);
    CHECK_STRING(page, "\"\xc3\xa9?\\u0022\\u003c/script>\\u005c?????\"");
}

int main(void) {
    RUN(the_text_has_the_plan_its_time_and_what_was_rejected);
    RUN(the_longest_document_may_be_the_first);
    RUN(the_groups_of_the_text_add_up);
    RUN(the_page_has_the_numbers_of_the_plan);
    RUN(the_page_has_a_lane_for_each_stage);
    RUN(the_page_needs_nothing_else_and_no_text_escapes_into_it);
    RUN(names_from_files_are_shown_in_a_page_as_text);
    RUN(one_document_and_equal_ones_can_be_shown);
    return test_done();
}
