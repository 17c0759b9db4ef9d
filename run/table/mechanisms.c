// mechanisms.c - the work around a step, and around all steps, beside training itself: ranks and files are opened, the
// next step is planned, slow ranks are measured and relieved, strategies change, records are filled and written.
//
// The table at the foot has a row for each; train_gpt.cu calls them in their order at the moments of Mechanism.
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "run/files/adapter.h"
#include "run/files/close.h"
#include "data/tokenizer_files.h"
#include "run/model/fp8.h"
#include "run/step/labels.h"
#include "run/files/chats.h"
#include "run/rl/rollouts.h"
#include "run/rl/talk.h"
#include "run/strategies/strategies.h"
#include "run/slow/balance.h"
#include "run/files/saving.h"
#include "run/setup/ask.h"
#include "run/setup/setup.h"
#include "run/show/show.h"
#include "run/step/probe.h"
#include "run/table/table.h"

// ---- the rows

static void begin_record(Run* run) {
    run->cluster->sent_before = run_sent(run);
    run->cluster->timing.step_began = run_seconds(run);
    if (run->state.step == run->books->first_step) run->books->steps_began = now_seconds();
    if (run->model.k->on_host) run->cluster->timing.processor_before = host_processor_seconds();
}

// Takes the batch that was planned ahead.
void run_next_batch(Run* run) {
    Batch swapped = run->batch;
    run->batch = run->ahead;
    run->ahead = swapped;
}

static void plan_next(Run* run) {
    const BatchPlan* now = run->batch.planned;
    const Prediction* p = &now->made.prediction;
    StepRecord* r = &run->books->record;
    ahead_plan_next(run);
    r->plan_ms = now->made.predicted ? p->makespan : NAN;
    // The terms follow the learnt constants; the part of weights and gradients that shows was predicted beside them.
    double shown = p->step - p->makespan - run->clock->setting.weights.update;
    r->predicted_ms =
        now->made.predicted ? calibration_predict(&run->cluster->timing.calibration, now->made.terms) + shown : NAN;
    r->plan_stall_us = 0;
}

static void give_back_pieces(Run* run) { plan_once_give_back(&run->batch); }

// Proves that all ranks have the same plan in `ahead`, or none; else the run ends. The update will send weights to
// where its strategy has them, bucket by bucket.
static void agree_on_strategy(Run* run) {
    if (!run->strategies) return;
    run->books->record.plan_stall_us += 1e6 * ahead_wait(run);
    if (!run_agree_on_plan(run, &run->ahead, run->cluster->why[0] != 0)) ahead_none(run);
    run->model.ranks->next = &run_under(run, run->ahead.planned->strategy)->model;
    run->books->record.moving_ms = run->batch.planned->moving_ms;
    run->books->record.predicted_ms = run->batch.planned->expected_ms;
}

void run_agree(Run* run) {
    balance_measure(run, &run->cluster->report);
    run->books->record.plan_stall_us += 1e6 * ahead_wait(run);
    ahead_agree(run, &run->cluster->report, balance_state_hash(run), balance_explains_step(run));
    if (!run->left) balance_hear(run, &run->books->record);
    if (!run->strategies) zero_gather(&run->model);
    else if (run->left) strategies_turn(run, run->ahead.planned->strategy);
    if (run->left) pace_say_left(run);
}

static void turn(Run* run) { strategies_turn(run, run->ahead.planned->strategy); }

void run_tell(Run* run) {
    give_up_hear(run);
    run->books->record.loss_hash = run->state.loss_hash;
    double done = (double)(run->state.step - run->books->first_step), spent = now_seconds() - run->books->steps_began;
    run->books->record.seconds_left = spent / done * (double)(run->config.steps - run->state.step);
    int tells = run->model.world->rank == 0;  // the others' words go nowhere, and take time
    if (tells && runlog_step(&run->books->log, &run->books->record)) interrupted = SIGTERM;
    pace_see_signals(run);
}

void run_keep(Run* run) {
    if (run->config.eval_every > 0 && run->state.step % run->config.eval_every == 0) run_write_report(run);
    if (run->books->saving.all_written & WRITTEN_FAR) run_save_end(run);
    if (run->books->saving.all_written & WRITTEN_CLOSE) close_end(run);
    if (run->state.step < run->config.steps && run_save_is_due(run)) run_save(run);
    if (close_is_due(run)) close_begin(run);
    pace_see_signals(run);
}

// ---- before the first step and after the last one

static void start(Run* run) {
    char err[ERR_BYTES];
    const Config* c = &run->config;
    int tells = c->eval_every && sampler_pieces(run->data.val, SPLIT_VAL) && run->model.world->rank == 0;
    run->books->unigram_loss = run->books->val_bytes = NAN;
    if (tells) run_unigram_loss(run);
    run_catch_signals(run);
    references_find(run);  // before the first step is read, since it has them
    ahead_plan_now(run, balance_state_hash(run));
    run->books->log.fd = -1;
    if (run->model.world->rank == 0 && runlog_open(&run->books->log, run->books->out, c->resume, run->state.step, err))
        die("%s", err);
    run_open_report(run);
    run_log_start(run);
    close_start(run);
    run_write_report(run);
    run_tell_of_long_steps(run);
    // Launchers give ranks a terminal that nobody looks at.
    if (strcmp(run->cluster->identity.source, "alone") != 0) run->books->log.is_terminal = 0;
    run->books->first_step = run->state.step;
    run->books->saving.done = c->resume ? run->state.step : -1;
    run->books->saving.begun = now_seconds();
    pace_see_signals(run);
}

static void finish(Run* run) {
    int ends_early = run->stopped_by || run->cluster->unplanned || run->cluster->given_up;
    int has_learnt = run->state.step > run->books->first_step;
    int saves = ends_early ? has_learnt && !run->model.k->no_results : run->config.save_every != 0;
    run_save_end(run);
    close_end(run);
    if (saves && run->books->saving.done != run->state.step) run_save_last(run);
    close_finish(run);
    run_print_end(run);
    run_write_report(run);
    run->books->failed |= runlog_close(&run->books->log) != 0;
    if (run->cluster->unplanned) run_end_unplanned(run);
}

static void plan_only(Run* run) {
    ahead_plan_now(run, balance_state_hash(run));
    run_next_batch(run);
    if (run->config.dump_grads) run_dump(run);
    else run_explain(run);
}

// ---- before training, or other work

static void sample_only(Run* run) {
    if (run_ends_turns(run)) warn("this model answers by turns: --chat talks with it");
    sample_print(run, run->config.sample, run->config.tokens, (uint64_t)run->config.seed, NULL);
}

// Chooses the work that the run does in place of training.
static void choose_work(Run* run) {
    const Config* c = &run->config;
    if (c->explain || c->dump_grads) run->instead = plan_only;
    if (c->check_layout) run->instead = run_explain;
    if (c->probe) run->instead = run_probe;
    if (c->eval_choices) run->instead = run_choices;
    if (c->eval) run->instead = run_eval;
    if (c->score) run->instead = run_score;
    if (c->rollouts) run->instead = run_rollouts;
    if (c->sample) run->instead = sample_only;
    if (c->chat) run->instead = run_talk;
    if (c->merge) run->instead = adapter_merge;
}

// Plans the memory and takes it, and fills in the weights. Training also measures the device's peak, prints the run
// before anything is taken, and finds the machine that planners know.
static void prepare(Run* run) {
    fp8_check(run);
    MemoryPlan plan = run_plan_memory(run);
    if (run->training) {
        run_measure_limit(run);
        if (!run->books->uses_model) run_print(run, &plan);
        fflush(stdout);
    }
    run_take_memory(run, &plan);
    const char* choices = run->model.k->choices();
    if (run->training && choices[0] && !run_is_brief(run)) printf("kernels %s\n", choices);
    run_load_weights(run);
    if (run->model.ranks->zero.stage == 3 && !run->strategies) zero_gather(&run->model);
    if (run->model.ranks->frozen && run->model.ranks->frozen->ranks->zero.stage == 3)
        zero_gather(run->model.ranks->frozen);
    if (run->training) run_find_cost(run), balance_ready(run), run_check_documents(run);
}

// ---- the end

void run_close(Run* run) {
    char err[ERR_BYTES];
    Model* m = &run->model;
    ahead_close(run);
    if (m->world->table->wait(m->world, m->s, err)) run_lost(run, err);
    if (run->data.val != run->data.train) sampler_close(run->data.val);
    sampler_close(run->data.train);
    docs_close(run->data.val_docs);
    docs_close(run->data.docs);
    tokenizer_close(run->data.tokenizer);
    run->model.k->close();
    if (!run->strategies) work_close(m->ranks->work);
    balance_close(run->balance);
    if (run->strategies) strategies_close(run);
    else run_leave_job(run);
    m->world->table->close(m->world);
    arena_free(&run->batch.arena);
    arena_free(&run->ahead.arena);
    run_dir_release(&run->books->dir);
    free(m->timer);  // Comms tell it until they are closed
    free(run->cluster->agreed);
    config_free(&run->config);
    if (run->stopped_by != SIGPIPE && run->stopped_by != SIGHUP) end_output();  // these have closed the output
    // A launcher takes any other status of a rank for a failure, and kills the ranks that are still on their way out.
    int tells = run->stopped_by && run->cluster->identity.size == 1;
    int gives_up = run->cluster->given_up && run->cluster->identity.rank == 0;
    run->status = run->books->failed ? 1 : tells ? 128 + run->stopped_by : gives_up ? GIVEN_UP : 0;
}

// Close copies fork ranks earlier, because each rank looks for its own part, and makes room for a partner's.
static void find_origin(Run* run) {
    if (run->config.close_copy) run_fork_ranks(run);
    run_find_origin(run);
}

static void find_ranks(Run* run) {
    run->ranks = &run_ranks;
    run_find_ranks(run);
}

// ---- the table: first the phases that open a run

const Mechanism mechanisms[] = {
    {"ranks", .open = find_ranks},
    {"options", .open = run_read_options},
    {"what if", .open = run_say_what_if},
    {"other runs", .open = run_show_others},
    {"communication", .open = run_open_ranks},
    {"origin", .open = find_origin},
    {"data", .open = run_open_data},
    {"model", .open = run_settle_model},
    {"forked ranks", .open = run_fork_ranks},
    {"layout", .open = run_settle_layout},
    {"groups", .open = run_join_ranks},
    {"saving", .open = run_check_saving},
    {"virtual device", .open = run_open_virtual},
    {"slow ranks", .open = balance_open, .start = give_up_open},
    {"strategies, slow ranks", .open = strategies_balance},
    {"memory and weights", .open = prepare, .start = start},
    {"work", .open = choose_work},
    {"record", .begin = begin_record, .end = run_end_record},
    {"slow ranks, decisions", .begin = balance_change},
    {"planner", .begin = plan_next, .end = give_back_pieces},
    {"slow ranks, work", .begin = balance_begin},
    {"fp8", .begin = fp8_begin, .end = fp8_end},
    {"preferences", .begin = labels_prefer},
    {"strategies", .before_update = agree_on_strategy, .end = turn},
    {"files", .finish = finish, .close = run_close},
    {NULL},
};
