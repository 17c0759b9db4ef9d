// explain_stages.c - --explain with a pipeline: what every stage does in the planned step, and beside it what its ranks
// took in the last step that the log in the run's directory knows, if there is one.
#define _GNU_SOURCE  // getline
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/json.h"
#include "plan/explain.h"
#include "run/run.h"

// A number for each rank of a line's "ranks"; where there is not one for each, none. Returns whether there is.
static int read_ranks(double* values, int n, const Json* json, const JsonValue* ranks, const char* name) {
    const JsonValue* list = json_get(json, ranks, name);
    if (!list || list->type != JSON_ARRAY || list->n != n) return 0;
    for (int r = 0; r < n; r++)
        if (json_double(json_at(json, list, r), &values[r])) return 0;
    return 1;
}

// The last step of a run with as many stages and ranks that was timed. times (2 ranks): computing, then waiting.
static void read_line(ShownStages* x, double* times, int ranks, const char* line, size_t n) {
    Json json;
    double ms, stages;
    int64_t step;
    if (json_parse(&json, line, n, NULL, 0)) return;
    const JsonValue *root = json.values, *of_ranks = json_get(&json, root, "ranks");
    double* found = (double*)malloc(2 * (size_t)ranks * sizeof *found);
    if (found && root->type == JSON_OBJECT && of_ranks && of_ranks->type == JSON_OBJECT &&
        !json_double(json_get(&json, root, "stages"), &stages) && stages == x->n &&
        !json_double(json_get(&json, root, "measured_ms"), &ms) && !json_int64(json_get(&json, root, "step"), &step) &&
        read_ranks(found, ranks, &json, of_ranks, "compute_ms") &&
        read_ranks(found + ranks, ranks, &json, of_ranks, "wait_ms")) {
        memcpy(times, found, 2 * (size_t)ranks * sizeof *times);
        x->step = step, x->measured_ms = ms;
    }
    free(found);
    json_free(&json);
}

static void read_log(ShownStages* x, double* times, const Run* run) {
    char path[CHECKPOINT_PATH], *line = NULL;
    size_t room = 0;
    ssize_t n;
    if (snprintf(path, sizeof path, "%s/log.jsonl", run->out) >= (int)sizeof path) return;
    FILE* file = fopen(path, "r");
    while (file && (n = getline(&line, &room, file)) > 0) read_line(x, times, run->model.world->size, line, (size_t)n);
    if (file) fclose(file);
    free(line);
}

void run_show_stages(ShownStages* x, const Run* run, Arena* arena) {
    const Model* m = &run->model;
    const Schedule* schedule = &run->batch.schedule;
    int P = m->stages, ranks = m->world->size, each = ranks / P;
    *x = (ShownStages){0};
    if (P == 1) return;
    ShownStage* stages = TAKE(arena, ShownStage, P);
    double* times = TAKE(arena, double, 2 * ranks);
    if (!stages || !times) die("--explain: no memory for %d stages", P);
    *x = (ShownStages){P, stages, schedule->makespan, schedule_bubble(schedule, P), 0, 0};
    if (run->config.out) read_log(x, times, run);
    for (int s = 0; s < P; s++) {
        const double* of_stage = x->measured_ms > 0 ? times + s * each : NULL;
        stages[s] = (ShownStage){&schedule->stages[s],
                                 s * each,
                                 each,
                                 layout_first(&m->layout, s),
                                 layout_first(&m->layout, s + 1),
                                 pipeline_slots(P, s),
                                 of_stage,
                                 of_stage ? of_stage + ranks : NULL};
    }
}
