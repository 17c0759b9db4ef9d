// test_holding.c - transfers between layouts of the model: every element arrives where it is wanted, once, from whom it
// should; played in memory for random models, ranks and ways to divide them among pipelines.
#include "plan/base/base.h"
#include "plan/model/holding.h"
#include "plan/layout/strategy_moves.h"
#include "test/shapes.h"
#include "test/test.h"

enum { MOST_RANKS = 9, CASES = 60 };

static char err[ERR_BYTES];
static TpSplit splits[MOST_RANKS + 1];
static int node[MOST_RANKS];

static int draw(uint64_t seed, uint64_t i, int n) { return (int)(random_uniform(seed, i) * n); }

// ---- layouts of one model over some ranks

typedef struct Case {
    Shape whole;
    int ranks;
    Arena arena;
    RankStrategy strategy[2];
    Part parts[2][MOST_RANKS];
    char divided[2][MOST_LAYERS];  // layers of which ranks with the same part hold pieces
    Holdings pieces, held[2];
} Case;

// Any pipelines for all ranks: as many as there is room for, each of any degrees that fit.
static RankStrategy draw_strategy(const Shape* whole, int ranks, uint64_t seed) {
    RankStrategy s = {0};
    for (uint64_t i = 0; ranks > 0; i += 3) {
        int tp = 1 + draw(seed, i, MIN(ranks, MIN(whole->NH, 4))),
            pp = 1 + draw(seed, i + 1, MIN(ranks / tp, whole->L)), known = 0;
        int copies = s.n == MOST_PIPELINE_GROUPS - 1 ? 0 : 1 + draw(seed, i + 2, ranks / (tp * pp));
        for (int g = 0; g < s.n; g++) known |= s.group[g].tp == tp && s.group[g].pp == pp;
        if (known && i < 60) continue;
        if (known || !copies) tp = pp = 1, copies = ranks;
        s.group[s.n++] = (PipelineGroup){copies, tp, pp};
        ranks -= copies * tp * pp;
    }
    return s;
}

static void divide(Case* c, int which) {
    RankStrategy* s = &c->strategy[which];
    for (int r = 0; r < c->ranks; r++) {
        int place;
        const PipelineGroup* g = &s->group[strategy_group(s, r, &place)];
        Layout layout = layout_even(&c->whole, g->tp, g->pp, 1, RECOMPUTE_NONE);
        int ranks = g->copies * g->tp, stage = place / ranks;
        c->parts[which][r] =
            (Part){&splits[g->tp], place % g->tp,        layout_first(&layout, stage), layout_first(&layout, stage + 1),
                   g->copies,      place % ranks / g->tp};
    }
    CHECK(holdings_of_parts(&c->held[which], &c->whole, c->parts[which], c->ranks, c->divided[which], &c->arena, err) ==
          0);
}

static void open_case(Case* c, uint64_t seed) {
    memset(c, 0, sizeof *c);
    int heads = 1 + draw(seed, 1000, 5);
    c->whole = shape_like((Arch)draw(seed, 1001, N_ARCHS), 1 + draw(seed, 1002, 5), 8 * heads, heads,
                          257 + draw(seed, 1003, 200), 16);
    c->ranks = 1 + draw(seed, 1004, MOST_RANKS);
    c->whole.shards = c->ranks;
    for (int r = 0; r < c->ranks; r++) node[r] = r / (1 + draw(seed, 1005, 4));
    for (int tp = 1; tp <= MIN(4, c->whole.NH); tp++) splits[tp] = split_even(&c->whole, tp);
    for (int i = 0; i < 2; i++) {
        c->strategy[i] = draw_strategy(&c->whole, c->ranks, seed + (uint64_t)i * 77);
        CHECK(strategy_ranks(&c->strategy[i]) == c->ranks);
        for (int l = 0; l < c->whole.L && seed % 2; l++) c->divided[i][l] = (char)draw(seed, 1010 + (uint64_t)l, 2);
        divide(c, i);
    }
    CHECK(holdings_of_pieces(&c->pieces, &c->whole, &c->arena, err) == 0);
}

// ---- memory of all ranks

typedef struct Memory {
    size_t elems;
    double* of[MOST_RANKS];
} Memory;

static Memory take_memory(const Case* c) {
    Memory m = {.elems = shape_param_elems(&c->whole) + ((size_t)c->whole.L + 2) * 64 * MOST_RANKS};
    for (int r = 0; r < c->ranks; r++) m.of[r] = (double*)calloc(m.elems, sizeof(double));
    return m;
}

static void free_memory(Memory* m) {
    for (int r = 0; r < MOST_RANKS; r++) free(m->of[r]);
}

// Of every element of a list: its holding x, tensor t, and place i, j in it.
#define FOR_ELEMENTS(h)                                                                            \
    for (int t = 0; t < (h)->tensors; t++)                                                         \
        for (const Holding* x = (h)->list + (h)->first[t]; x < (h)->list + (h)->first[t + 1]; x++) \
            for (int i = 0; i < x->box.rows; i++)                                                  \
                for (int j = 0; j < x->box.cols; j++)

static double value_of(int tensor, int row, int col) { return 1 + tensor + 1e3 * row + 1e-3 * col; }

typedef double (*ValueOf)(int rank, int tensor, int row, int col);
static double same_everywhere(int rank, int tensor, int row, int col) {
    (void)rank;
    return value_of(tensor, row, col);
}
static double by_rank(int rank, int tensor, int row, int col) { return (rank + 1) * value_of(tensor, row, col); }

// Fills what is held; returns elements of each rank in counts.
static void fill(const Memory* m, const Holdings* h, ValueOf value) {
    FOR_ELEMENTS(h)
    m->of[x->rank][x->at + (size_t)i * (size_t)x->stride + (size_t)j] =
        value(x->rank, t, x->box.row + i, x->box.col + j);
}

// Elements that two lists share on the same rank, and those of the second one.
static int holds(const Holdings* h, int rank, int t, int row, int col) {
    int n = 0;
    for (const Holding* x = h->list + h->first[t]; x < h->list + h->first[t + 1]; x++)
        n += x->rank == rank && row >= x->box.row && row < x->box.row + x->box.rows && col >= x->box.col &&
             col < x->box.col + x->box.cols;
    return n;
}

// ---- transfers played

typedef struct Played {
    Transfers of[MOST_RANKS];
    size_t sent, sent_by[MOST_RANKS];  // to others
} Played;

static const Message* message_to(const Messages* messages, int peer) {
    for (const Message* m = messages->list; m < messages->list + messages->n; m++)
        if (m->peer == peer) return m;
    return NULL;
}

// One message: slices of both sides go through in the same order.
static void carry(const Transfers* a, const Message* sent, const double* from, const Transfers* b, const Message* got,
                  double* to, int sums) {
    CHECK(sent->n == got->n && sent->elems == got->elems);
    for (int i = 0; i < MIN(sent->n, got->n); i++) {
        const Slice *x = &a->slices[sent->first + i], *y = &b->slices[got->first + i];
        CHECK(x->rows == y->rows && x->cols == y->cols);
        for (int r = 0; r < MIN(x->rows, y->rows); r++)
            for (int k = 0; k < MIN(x->cols, y->cols); k++) {
                double v = from[x->at + (size_t)(r * x->stride + k)], *z = &to[y->at + (size_t)(r * y->stride + k)];
                *z = sums ? *z + v : v;
            }
    }
}

// Takes what travels from what was said to: nothing is left.
static size_t left[64][MOST_RANKS][MOST_RANKS];
static void add_left(void* context, int wave, const Holding* from, const Holding* to, const Box* box) {
    size_t elems = (size_t)box->rows * (size_t)box->cols;
    if (from->rank == to->rank) return;
    left[wave][from->rank][to->rank] += elems, ((Played*)context)->sent_by[from->rank] += elems;
}

static void play(Played* p, Case* c, const Holdings* from, const Holdings* to, ReshardKind kind, const Memory* source,
                 const Memory* target) {
    memset(p, 0, sizeof *p);
    for (int r = 0; r < c->ranks; r++) {
        int failed = reshard(&p->of[r], &c->whole, from, to, kind, r, c->ranks, node, &c->arena, err);
        if (failed) printf("    %s\n", err);
        CHECK(!failed);
        if (failed) return;
    }
    memset(left, 0, sizeof left);
    CHECK(p->of[0].waves <= COUNT(left) &&
          reshard_visit(&c->whole, from, to, kind, c->ranks, node, add_left, p, &c->arena, err) == 0);
    for (int w = 0; w < p->of[0].waves; w++)
        for (int r = 0; r < c->ranks; r++) {
            const Wave* here = &p->of[r].wave[w];
            size_t elems = 0;
            for (const Message* got = here->receives.list; got < here->receives.list + here->receives.n; got++) {
                const Wave* there = &p->of[got->peer].wave[w];
                const Message* sent = message_to(&there->sends, r);
                CHECK(sent != NULL);
                if (sent)
                    carry(&p->of[got->peer], sent, source->of[got->peer], &p->of[r], got, target->of[r],
                          kind != RESHARD_COPY);
                if (got->peer != r) elems += got->elems, left[w][got->peer][r] -= got->elems;
            }
            for (int from_rank = 0; from_rank < c->ranks; from_rank++) CHECK(left[w][from_rank][r] == 0);
            CHECK(elems == here->receives.elems && elems <= p->of[r].most_receive);
            p->sent += elems;
        }
}

// ---- claims

typedef struct Moved {
    Case c;
    Played p;
    Memory from, to, wanted;
} Moved;

// From one list of a case to another, whose memory is then as wanted where it is a copy.
static void move(Moved* m, const Holdings* from, const Holdings* to, ReshardKind kind) {
    m->from = take_memory(&m->c), m->to = take_memory(&m->c), m->wanted = take_memory(&m->c);
    fill(&m->from, from, kind == RESHARD_SUM ? by_rank : same_everywhere);
    fill(&m->wanted, to, same_everywhere);
    play(&m->p, &m->c, from, to, kind, &m->from, &m->to);
    for (int r = 0; r < m->c.ranks && kind == RESHARD_COPY; r++)
        CHECK(!memcmp(m->to.of[r], m->wanted.of[r], m->to.elems * sizeof(double)));
}

static void end_move(Moved* m) {
    free_memory(&m->from), free_memory(&m->to), free_memory(&m->wanted);
    arena_free(&m->c.arena);
}

// What a rank owns of its part stays at home; all else is sent once.
CLAIM(weights_arrive_at_every_rank_of_every_pipeline) {
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        Moved m;
        size_t expected = 0;
        open_case(&m.c, seed);
        move(&m, &m.c.pieces, &m.c.held[0], RESHARD_COPY);
        FOR_ELEMENTS(&m.c.held[0]) expected += !holds(&m.c.pieces, x->rank, t, x->box.row + i, x->box.col + j);
        CHECK(m.p.sent == expected);
        end_move(&m);
    }
}

// Where all are whole, the part; where a layer is divided, each element of it on one of those with the part, at the
// place of its piece behind what stands before.
CLAIM(parts_hold_every_element_once_and_pieces_lie_one_behind_another) {
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        Case c;
        size_t kept[MOST_RANKS] = {0};
        open_case(&c, seed);
        Memory m = take_memory(&c);
        for (int r = 0; r < c.ranks; r++) {
            Shape shape = part_shape(&c.whole, &c.parts[0][r]);
            for (int b = 0; b < shape_buckets(&shape); b++) {
                Bucket bucket = shape_bucket(&shape, b);
                int is_piece = b > 0 && b <= shape.L && c.divided[0][c.parts[0][r].first_layer + b - 1];
                kept[r] += is_piece ? bucket.piece : bucket.elems;
            }
        }
        FOR_ELEMENTS(&c.held[0]) {
            size_t at = x->at + (size_t)i * (size_t)x->stride + (size_t)j;
            const Part* part = &c.parts[0][x->rank];
            ParamTensor tensor = shape_tensor(&c.whole, t);
            int holders = 0, place, group = strategy_group(&c.strategy[0], x->rank, &place),
                is_piece = param_is_per_layer(tensor.id) && c.divided[0][tensor.layer];
            CHECK(at < kept[x->rank] && m.of[x->rank][at] == 0);
            m.of[x->rank][at] = 1;
            for (int r = 0; r < c.ranks; r++) {
                const Part* other = &c.parts[0][r];
                int is_like = strategy_group(&c.strategy[0], r, &place) == group && other->tp_rank == part->tp_rank &&
                              other->first_layer == part->first_layer;
                holders += is_like && holds(&c.held[0], r, t, x->box.row + i, x->box.col + j);
            }
            CHECK(holders == (is_piece ? 1 : MAX(part->shards, 1)));
        }
        free_memory(&m);
        arena_free(&c.arena);
    }
}

CLAIM(gradients_of_all_copies_are_summed_once_at_their_owner) {
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        Moved m;
        open_case(&m.c, seed + 1000);
        move(&m, &m.c.held[1], &m.c.pieces, RESHARD_SUM);
        FOR_ELEMENTS(&m.c.pieces) {
            int row = x->box.row + i, col = x->box.col + j, copies = 0;
            double sum = 0;
            for (int r = 0; r < m.c.ranks; r++)
                if (holds(&m.c.held[1], r, t, row, col)) copies++, sum += by_rank(r, t, row, col);
            CHECK(copies > 0);
            CHECK_CLOSE(m.to.of[x->rank][x->at + (size_t)(i * x->stride + j)], sum, 1e-9 * sum);
        }
        end_move(&m);
    }
}

// In two moves: with owners, and inside nodes. Every element arrives, or is summed, as in one; where several ranks of a
// node have a box it crosses once for all of them.
CLAIM(nodes_share_what_crosses_between_them) {
    int fewer = 0;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        Case c;
        Played p[N_MOVE_HOPS], whole;
        NodeHoldings nodes;
        size_t crosses[2] = {0};
        open_case(&c, seed + 4000);
        const Holdings* held = &c.held[0];
        Memory used = take_memory(&c), owned = take_memory(&c), wanted = take_memory(&c);
        CHECK(holdings_of_nodes(&nodes, held, &c.pieces, node, &c.arena, err) == 0);
        fill(&owned, &c.pieces, same_everywhere), fill(&wanted, held, same_everywhere);
        for (int hop = MOVE_OWNERS; hop >= MOVE_INSIDE; hop--) {
            MoveHop h = holdings_hop(&c.pieces, &nodes, RESHARD_COPY, hop);
            play(&p[hop], &c, h.from, h.to, h.kind, hop == MOVE_OWNERS ? &owned : &used, &used);
        }
        for (int r = 0; r < c.ranks; r++) CHECK(!memcmp(used.of[r], wanted.of[r], used.elems * sizeof(double)));
        play(&whole, &c, &c.pieces, held, RESHARD_COPY, &owned, &wanted);
        for (int r = 0; r < c.ranks; r++) crosses[0] += p[MOVE_OWNERS].sent_by[r], crosses[1] += whole.sent_by[r];
        CHECK(crosses[0] <= crosses[1] && p[MOVE_INSIDE].sent + crosses[0] == crosses[1]);
        fewer += crosses[0] < crosses[1];
        free_memory(&owned), owned = take_memory(&c);
        fill(&used, held, by_rank);
        for (int hop = MOVE_INSIDE; hop <= MOVE_OWNERS; hop++) {
            MoveHop h = holdings_hop(&c.pieces, &nodes, RESHARD_SUM, hop);
            play(&p[hop], &c, h.from, h.to, h.kind, &used, hop == MOVE_OWNERS ? &owned : &used);
        }
        FOR_ELEMENTS(&c.pieces) {
            int row = x->box.row + i, col = x->box.col + j;
            double sum = 0;
            for (int r = 0; r < c.ranks; r++) sum += holds(held, r, t, row, col) ? by_rank(r, t, row, col) : 0;
            CHECK_CLOSE(owned.of[x->rank][x->at + (size_t)(i * x->stride + j)], sum, 1e-9 * sum);
        }
        free_memory(&used), free_memory(&owned), free_memory(&wanted);
        arena_free(&c.arena);
    }
    CHECK(fewer >= 10);
}

// The lowest rank that has a row sends it, as a program without a choice would have it.
static size_t lowest_rank_sends(const Case* c, const Holdings* from, const Holdings* to) {
    size_t sent[MOST_RANKS] = {0}, most = 0;
    FOR_ELEMENTS(to) {
        int row = x->box.row + i, col = x->box.col + j, r = 0;
        if (holds(from, x->rank, t, row, col)) continue;
        while (!holds(from, r, t, row, col)) r++;
        sent[r]++;
    }
    for (int r = 0; r < c->ranks; r++) most = MAX(most, sent[r]);
    return most;
}

CLAIM(copies_come_from_home_then_from_the_node_and_spread_over_those_who_have_them) {
    int spread = 0, compared = 0;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        Moved m;
        size_t most = 0, expected = 0;
        open_case(&m.c, seed + 2000);
        const Holdings *from = &m.c.held[0], *to = &m.c.held[1];
        if (seed % 2) memset(node, 0, sizeof node);
        move(&m, from, to, RESHARD_COPY);
        for (int r = 0; r < m.c.ranks; r++) most = MAX(most, m.p.sent_by[r]);
        FOR_ELEMENTS(to) expected += !holds(from, x->rank, t, x->box.row + i, x->box.col + j);
        CHECK(m.p.sent == expected);
        size_t lowest = lowest_rank_sends(&m.c, from, to);
        if (node[m.c.ranks - 1] == 0 && lowest > 0) {
            CHECK(most <= lowest);
            compared++, spread += most < lowest;
        }
        end_move(&m);
    }
    CHECK(compared >= 10 && spread >= 5);
}

// With links of 1 ms an element and no latency: no sooner than the rank that has most to send or receive, no later than
// if all waited for the slowest of every wave.
CLAIM(a_move_takes_between_its_busiest_rank_and_its_busiest_waves) {
    static const int one_node[MOST_RANKS] = {0};
    const Cost cost = {.link_scale = 1, .link[LINK_INSIDE] = {.n = 2, .bytes = {0, 1e6}, .ms = {0, 1e6}}};
    for (uint64_t seed = 0; seed < 40; seed++) {
        Case c;
        double over[MOST_RANKS], now[MOST_RANKS] = {0}, busiest = 0, waves = 0, of_rank[MOST_RANKS] = {0}, last = 0;
        RankClock clock[MOST_RANKS];
        MoveTable table;
        open_case(&c, seed);
        MoveTime t = {{.cost = &cost, .scale = {[TRANSFER_WEIGHTS] = 1}}, c.ranks, one_node, seed % 2};
        ReshardKind kind = seed % 3 ? RESHARD_COPY : RESHARD_SUM;
        const Holdings *from = kind == RESHARD_SUM ? &c.held[0] : &c.pieces,
                       *to = kind == RESHARD_SUM ? &c.pieces : &c.held[0];
        CHECK(move_table(&table, &t, &c.whole, from, to, kind, 1, &c.arena, err) == 0);
        for (int r = 0; r < c.ranks; r++) clock[r] = (RankClock){.overlap = t.overlap};
        for (int w = 0; w < table.waves; w++) {
            move_play(over, clock, &table, w, now);
            for (int r = 0; r < c.ranks; r++) last = MAX(last, over[r]);
        }
        Transfers of[MOST_RANKS];
        for (int r = 0; r < c.ranks; r++)
            CHECK(!reshard(&of[r], &c.whole, from, to, kind, r, c.ranks, one_node, &c.arena, err));
        for (int w = 0; w < of[0].waves; w++) {
            double most = 0;
            for (int r = 0; r < c.ranks; r++) {
                double ms = (double)MAX(of[r].wave[w].sends.elems, of[r].wave[w].receives.elems);
                of_rank[r] += ms, most = MAX(most, ms);
            }
            waves += most;
        }
        for (int r = 0; r < c.ranks; r++) busiest = MAX(busiest, of_rank[r]);
        CHECK(last >= busiest * (1 - 1e-12) && last <= waves * (1 + 1e-12));
        arena_free(&c.arena);
    }
}

// Three ranks have the gradients of one layer, through which the first two go together. Sums inside the node hold up
// rank 0 by 25 ms, of which computing hides 10. Rank 1 or rank 2 then sends for 7 ms.
CLAIM(a_rank_that_waits_for_its_node_holds_up_those_that_compute_with_it_and_no_other) {
    enum { WAVES = 3, RANKS = 3 };
    static RankWave inside[WAVES * RANKS], owners[WAVES * RANKS];
    static int nobody[WAVES * RANKS + 1];
    Arena arena = {0};
    double late[RANKS];
    int is_inside;
    MoveTime times = {.ranks = RANKS, .overlap = 1};
    StrategyMoves moves = {.times = &times};
    MoveTables tables = {.gradients = {[MOVE_INSIDE] = {WAVES, RANKS, 0, inside, nobody, nobody},
                                       [MOVE_OWNERS] = {WAVES, RANKS, 0, owners, nobody, nobody}}};
    inside[2 * RANKS].ms = 25;
    for (int sender = 1; sender < RANKS; sender++) {
        MoveWindow window[RANKS];
        for (int r = 0; r < RANKS; r++)
            window[r] = (MoveWindow){.end = 100, .backward = 10, .layers = 1, .together = r / 2, .hides = 1};
        owners[2 * RANKS + sender] = (RankWave){7, 1};
        CHECK_CLOSE(strategy_play(late, &is_inside, &tables, &moves, window, &arena), sender == 1 ? 15 + 7 : 15, 1e-12);
        owners[2 * RANKS + sender] = (RankWave){0, 0};
    }
    arena_free(&arena);
}

static void count_elems(void* context, int wave, const Holding* from, const Holding* to, const Box* box) {
    (void)wave, (void)from;
    ((size_t*)context)[to->rank] += (size_t)box->rows * (size_t)box->cols;
}

// Of thousands of owners, each of a run of elements that begins and ends inside a row: those that have sent least yet
// are anywhere in what is wanted.
CLAIM(ranks_get_the_whole_model_from_thousands) {
    enum { RANKS = 4000, TO = 40 };
    static int node[RANKS];
    static Part parts[TO];
    static size_t got[TO];
    size_t all = 0;
    Shape whole = shape_whole((Shape){.arch = ARCH_LLAMA,
                                      .features = HAS_HEAD,
                                      .V = 512,
                                      .C = 48,
                                      .L = 2,
                                      .NH = 4,
                                      .NKV = 4,
                                      .HS = 12,
                                      .U = 96,
                                      .context = 64,
                                      .positions = 64});
    Arena arena = {0};
    Holdings pieces, held;
    whole.shards = RANKS, splits[1] = split_even(&whole, 1), splits[2] = split_even(&whole, 2);
    for (int r = 0; r < RANKS; r++) node[r] = (7 * r) % 500;
    for (int r = 0; r < TO; r++) parts[r] = (Part){&splits[1 + r % 2], r / 2 % (1 + r % 2), 0, 2, 1, 0};
    CHECK(holdings_of_pieces(&pieces, &whole, &arena, err) == 0);
    CHECK(holdings_of_parts(&held, &whole, parts, TO, NULL, &arena, err) == 0);
    CHECK(reshard_visit(&whole, &pieces, &held, RESHARD_COPY, RANKS, node, count_elems, got, &arena, err) == 0);
    for (int i = 0; i < shape_tensors(&whole); i++) all += shape_tensor(&whole, i).elems;
    for (int r = 0; r < TO; r += 2) CHECK(got[r] == all);
    arena_free(&arena);
}

CLAIM(what_nobody_has_is_an_error) {
    Case c;
    Transfers t;
    open_case(&c, 7);
    Holdings none = c.pieces;
    none.first = (int*)calloc((size_t)none.tensors + 1, sizeof(int));
    CHECK(reshard(&t, &c.whole, &none, &c.held[0], RESHARD_COPY, 0, c.ranks, node, &c.arena, err) == -1);
    CHECK(strstr(err, "nobody has all of wte") != NULL);
    free(none.first);
    arena_free(&c.arena);
}

CLAIM(strategies_are_read_and_printed) {
    static const char text[] = "tp4+2xtp2; # unlike\n  tp2pp2 + 2xtp1pp2\n\n8xtp1 ;2xpp4";
    static const char* const printed[] = {"tp4+2xtp2", "tp2pp2+2xtp1pp2", "8xtp1", "2xtp1pp4"};
    StrategyList list = {0};
    char one[STRATEGY_TEXT];
    CHECK(strategies_parse(&list, text, strlen(text), err) == 0 && list.n == COUNT(printed));
    for (int i = 0; i < COUNT(printed); i++) CHECK(strategy_ranks(&list.strategy[i]) == 8);
    for (int i = 0; i < COUNT(printed); i++) CHECK_STRING(strategy_print(&list.strategy[i], one), printed[i]);
    Shape shape = shape_make(3, 32, 4, 300, 16);
    list.n = 3;
    CHECK(strategies_check(&list, &shape, 8, err) == 0 && strategies_check(&list, &shape, 6, err) == -1);
    CHECK_STRING(err, "tp4+2xtp2: expected pipelines for all 6 ranks, found some for 8");
}

int main(void) { return test_main(); }
