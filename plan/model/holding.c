// holding.c - see holding.h.
#include "plan/model/holding.h"

#include <stdlib.h>

Shape part_shape(const Shape* whole, const Part* part) {
    Shape of_rank = split_shape(whole, part->split, part->tp_rank);
    Shape shape = shape_stage(&of_rank, part->first_layer, part->end_layer);
    shape.shards = MAX(part->shards, 1);
    return shape;
}

// ---- lists

static int open_list(Holdings* h, const Shape* whole, size_t most, Arena* arena, Err err) {
    h->tensors = shape_tensors(whole);
    h->first = TAKE(arena, int, h->tensors + 1);
    h->list = TAKE(arena, Holding, most);
    if (arena_check(arena, err)) return -1;
    h->first[0] = 0;
    return 0;
}

// Cuts n elements of a tensor from element `first` on into boxes: the end of a row, whole rows, the start of one.
static int boxes_of_run(Box boxes[3], const ParamTensor* t, size_t first, size_t n) {
    int count = 0;
    for (size_t width = (size_t)t->cols; n > 0;) {
        int row = (int)(first / width), col = (int)(first % width);
        int rows = col > 0 || n < width ? 1 : (int)(n / width);
        int cols = rows > 1 ? t->cols : (int)MIN(n, width - (size_t)col);
        boxes[count++] = (Box){row, col, rows, cols};
        first += (size_t)rows * (size_t)cols, n -= (size_t)rows * (size_t)cols;
    }
    return count;
}

static Box common(const Box* a, const Box* b) {
    int row = MAX(a->row, b->row), col = MAX(a->col, b->col);
    int rows = MIN(a->row + a->rows, b->row + b->rows) - row, cols = MIN(a->col + a->cols, b->col + b->cols) - col;
    return rows > 0 && cols > 0 ? (Box){row, col, rows, cols} : (Box){0};
}

int holdings_of_pieces(Holdings* h, const Shape* whole, Arena* arena, Err err) {
    int ranks = whole->shards;
    if (open_list(h, whole, (size_t)shape_tensors(whole) * (size_t)ranks * 3, arena, err)) return -1;
    for (int i = 0, n = 0; i < h->tensors; h->first[++i] = n)
        for (int r = 0; r < ranks; r++) {
            Segment s = shape_segment(whole, i, r);
            Box boxes[3];
            int count = s.n > 0 ? boxes_of_run(boxes, &s.tensor, s.first, s.n) : 0;
            for (int j = 0; j < count; s.at += (size_t)boxes[j].rows * (size_t)boxes[j].cols, j++)
                h->list[n++] = (Holding){r, boxes[j], s.at, boxes[j].cols};
        }
    return 0;
}

// Boxes of a part lie below one another; those of a vector side by side.
int holdings_of_run(Holding out[MOST_RUN_HOLDINGS], int rank, const ParamTensor* part, const Box* boxes, int n_boxes,
                    size_t first, size_t n, size_t at) {
    Box runs[3];
    int count = 0, n_runs = boxes_of_run(runs, part, first, n), is_vector = !param_is_matrix(part->id);
    for (int i = 0; i < n_runs; i++)
        for (int j = 0, row = 0, col = 0; j < n_boxes; row += is_vector ? 0 : boxes[j].rows, col += boxes[j++].cols) {
            Box place = {row, is_vector ? col : 0, boxes[j].rows, boxes[j].cols}, both = common(&runs[i], &place);
            if (!both.rows) continue;
            size_t in_part = (size_t)both.row * (size_t)part->cols + (size_t)both.col;
            both.row += boxes[j].row - place.row, both.col += boxes[j].col - place.col;
            out[count++] = (Holding){rank, both, at + in_part - first, part->cols};
        }
    return count;
}

// The elements that a rank keeps of a tensor of its part, and their place, if it holds pieces of some layers.
static Segment kept_segment(const Shape* shape, const Part* part, const ParamTensor* own, const char* divided) {
    int b = own->bucket, shard = part->shards ? part->shard : 0;
    int layers = MIN(b - 1, shape->L), pieces = 0, is_layer = b > 0 && b <= shape->L;
    Bucket layer = shape_bucket(shape, 1);
    for (int l = 0; l < layers && divided; l++) pieces += divided[part->first_layer + l];
    size_t gone = (size_t)pieces * (layer.elems - layer.piece);
    if (!is_layer || !divided || !divided[part->first_layer + b - 1])
        return (Segment){*own, 0, own->elems, own->offset - gone};
    Segment s = shape_segment(shape, own->index, shard);
    Bucket bucket = shape_bucket(shape, b);
    s.at = s.at - bucket.at + bucket.offset - gone;
    return s;
}

static int held_of_part(Holding out[MOST_RUN_HOLDINGS], const Shape* whole, const Shape* shape, const Part* part,
                        int rank, const ParamTensor* t, const char* divided) {
    int layer = param_is_per_layer(t->id) ? t->layer - part->first_layer : 0;
    Box boxes[MOST_RUNS];
    if (layer < 0 || layer >= shape->L) return 0;
    ParamTensor own = shape_param(shape, t->id, layer);
    int n = own.elems ? split_boxes(boxes, whole, part->split, part->tp_rank, t->id) : 0;
    Segment kept = kept_segment(shape, part, &own, divided);
    return n && kept.n ? holdings_of_run(out, rank, &own, boxes, n, kept.first, kept.n, kept.at) : 0;
}

int holdings_of_parts(Holdings* h, const Shape* whole, const Part* parts, int ranks, const char* divided, Arena* arena,
                      Err err) {
    size_t each = divided ? MOST_RUN_HOLDINGS : MOST_RUNS;  // whole parts have no cut rows
    if (open_list(h, whole, (size_t)shape_tensors(whole) * (size_t)ranks * each + MOST_RUN_HOLDINGS, arena, err))
        return -1;
    Shape* shapes = TAKE(arena, Shape, ranks);
    if (arena_check(arena, err)) return -1;
    for (int r = 0; r < ranks; r++) shapes[r] = part_shape(whole, &parts[r]);
    for (int i = 0, n = 0; i < h->tensors; h->first[++i] = n) {
        ParamTensor t = shape_tensor(whole, i);
        for (int r = 0; r < ranks; r++) n += held_of_part(h->list + n, whole, &shapes[r], &parts[r], r, &t, divided);
    }
    return 0;
}

// ---- leaders of a node

// The number of a tensor's holdings in the node with the box of list[i], and its place; (1, 0) if another box cuts it.
typedef struct Peers {
    int n, place;
} Peers;

static Peers peers_of(const Holding* list, int n, int i, const int* node) {
    Peers peers = {0, 0};
    for (int j = 0; j < n; j++) {
        if (node[list[j].rank] != node[list[i].rank] || !common(&list[i].box, &list[j].box).rows) continue;
        if (memcmp(&list[i].box, &list[j].box, sizeof(Box)) != 0) return (Peers){1, 0};
        peers.n++, peers.place += j < i;
    }
    return peers;
}

static void add_holding(Holdings* h, const Holding* part, const Box* box) {
    size_t at =
        part->at + (size_t)(box->row - part->box.row) * (size_t)part->stride + (size_t)(box->col - part->box.col);
    if (h->list) h->list[h->first[h->tensors]] = (Holding){part->rank, *box, at, part->stride};
    h->first[h->tensors]++;
}

// Adds the holdings of tensor i; while lists are NULL it only counts them, after the last tensor.
static void add_of_tensor(NodeHoldings* x, const Holdings* parts, const Holdings* pieces, int i, const int* node) {
    const Holding* of = parts->list + parts->first[i];
    for (int a = 0, n = parts->first[i + 1] - parts->first[i]; a < n; a++) {
        Peers peers = peers_of(of, n, a, node);
        for (int j = pieces->first[i]; j < pieces->first[i + 1]; j++) {
            const Holding* piece = &pieces->list[j];
            Box both = common(&of[a].box, &piece->box);
            int shares = peers.n > 1 && node[piece->rank] != node[of[a].rank];
            int leads = piece->rank % MAX(peers.n, 1) == peers.place;
            if (!both.rows) continue;
            if (!shares || leads) add_holding(&x->doors, &of[a], &both);
            if (shares) add_holding(leads ? &x->leaders : &x->followers, &of[a], &both);
        }
    }
}

int holdings_of_nodes(NodeHoldings* x, const Holdings* parts, const Holdings* pieces, const int* node, Arena* arena,
                      Err err) {
    Holdings* lists[] = {&x->doors, &x->leaders, &x->followers};
    for (int k = 0; k < COUNT(lists); k++)
        *lists[k] = (Holdings){parts->tensors, TAKE(arena, int, parts->tensors + 1), NULL};
    if (arena_check(arena, err)) return -1;
    for (int k = 0; k < COUNT(lists); k++) lists[k]->first[parts->tensors] = 0;
    for (int i = 0; i < parts->tensors; i++) add_of_tensor(x, parts, pieces, i, node);
    for (int k = 0; k < COUNT(lists); k++)
        lists[k]->list = TAKE(arena, Holding, lists[k]->first[parts->tensors] + 1), lists[k]->first[parts->tensors] = 0;
    if (arena_check(arena, err)) return -1;
    for (int i = 0; i < parts->tensors; i++) {
        for (int k = 0; k < COUNT(lists); k++) lists[k]->first[i] = lists[k]->first[parts->tensors];
        add_of_tensor(x, parts, pieces, i, node);
    }
    return 0;
}

// ---- boxes

static size_t elems_of(const Box* box) { return (size_t)box->rows * (size_t)box->cols; }

// Cuts `box` without `part`, which lies in it, into boxes above, below, left and right of it. Returns how many.
static int without(Box rest[4], const Box* box, const Box* part) {
    int n = 0, below = part->row + part->rows, right = part->col + part->cols;
    if (part->row > box->row) rest[n++] = (Box){box->row, box->col, part->row - box->row, box->cols};
    if (below < box->row + box->rows) rest[n++] = (Box){below, box->col, box->row + box->rows - below, box->cols};
    if (part->col > box->col) rest[n++] = (Box){part->row, box->col, part->rows, part->col - box->col};
    if (right < box->col + box->cols) rest[n++] = (Box){part->row, right, part->rows, box->col + box->cols - right};
    return n;
}

static Slice slice_in(const Holding* h, const Box* box) {
    size_t at = h->at + (size_t)(box->row - h->box.row) * (size_t)h->stride + (size_t)(box->col - h->box.col);
    return (Slice){at, box->rows, box->cols, h->stride};
}

// ---- transfers

MoveHop holdings_hop(const Holdings* pieces, const NodeHoldings* parts, ReshardKind kind, int hop) {
    const Holdings *owners = hop == MOVE_OWNERS ? pieces : &parts->leaders,
                   *users = hop == MOVE_OWNERS ? &parts->doors : &parts->followers;
    if (kind == RESHARD_COPY) return (MoveHop){owners, users, RESHARD_COPY};
    return (MoveHop){users, owners, hop == MOVE_OWNERS ? RESHARD_SUM : RESHARD_SUM_INSIDE};
}

// The rows that a block of holdings spans. Lists are long, and most blocks have nothing of a box.
typedef struct Rows {
    int first, end;
} Rows;
enum { BLOCK = 16 };

typedef struct Search {
    const int* node;
    int ranks, wave;
    int inside;    // holdings of other nodes do not count
    size_t* sent;  // (ranks) elements that each sends
    Rows* blocks;  // the rows of each BLOCK holdings of the tensor's `from`
    Box* open;     // (most_open + 4) the boxes that a rank still lacks of a holding
    int most_open;
    OnTravel on_travel;
    void* context;
} Search;

static void add_box(Search* s, const Holding* from, const Holding* to, const Box* box) {
    if (from->rank != to->rank) s->sent[from->rank] += elems_of(box);
    s->on_travel(s->context, s->wave, from, to, box);
}

// 0: this rank itself, 1: one of its node, 2: any other.
static int distance(const Search* s, int from, int to) { return from == to ? 0 : s->node[from] == s->node[to] ? 1 : 2; }

static void find_blocks(const Search* s, const Holding* from, int n) {
    for (int i = 0; i < n; i++) {
        Rows* block = &s->blocks[i / BLOCK];
        int end = from[i].box.row + from[i].box.rows;
        if (i % BLOCK == 0) *block = (Rows){from[i].box.row, end};
        block->first = MIN(block->first, from[i].box.row), block->end = MAX(block->end, end);
    }
}

// Returns the first holding from i on that has something of the box; n: none.
static int next_of(const Search* s, const Holding* from, int n, int i, const Box* box) {
    for (; i < n; i++) {
        const Rows* block = &s->blocks[i / BLOCK];
        if (block->first >= box->row + box->rows || block->end <= box->row) i = (i / BLOCK + 1) * BLOCK - 1;
        else if (common(&from[i].box, box).rows) return i;
    }
    return n;
}

// Chooses the holding that is to send what it has of `box`; NULL if nobody has anything of it.
static const Holding* choose(const Search* s, const Holding* from, int n, int to, const Box* box) {
    const Holding* best = NULL;
    for (int i = next_of(s, from, n, 0, box); i < n; i = next_of(s, from, n, i + 1, box)) {
        const Holding* h = &from[i];
        int nearer = best ? distance(s, h->rank, to) - distance(s, best->rank, to) : -1;
        if (nearer < 0 || (nearer == 0 && s->sent[h->rank] < s->sent[best->rank])) best = h;
    }
    return best;
}

// Finds one sender for every element of `to`, and again for what a choice leaves of a box. 0, or -1: nobody has it.
static int copy_to(Search* s, const Holding* from, int n, const Holding* to) {
    s->open[0] = to->box;
    for (int left = 1; left > 0;) {
        Box box = s->open[--left];
        const Holding* h = choose(s, from, n, to->rank, &box);
        if (!h || left > s->most_open) return -1;
        Box part = common(&h->box, &box);
        add_box(s, h, to, &part);
        left += without(s->open + left, &box, &part);
    }
    return 0;
}

static void sum_to(Search* s, const Holding* from, int n, const Holding* to) {
    for (int i = next_of(s, from, n, 0, &to->box); i < n; i = next_of(s, from, n, i + 1, &to->box)) {
        const Holding* h = &from[i];
        Box part = common(&h->box, &to->box);
        if (!s->inside || s->node[h->rank] == s->node[to->rank]) add_box(s, h, to, &part);
    }
}

int reshard_visit(const Shape* whole, const Holdings* from, const Holdings* to, ReshardKind kind, int ranks,
                  const int* node, OnTravel on_travel, void* context, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    int most = 0;
    for (int i = 0; i < from->tensors; i++) most = MAX(most, from->first[i + 1] - from->first[i]);
    int blocks = most / BLOCK + 1;
    most = 4 * most + 64;  // a choice leaves few boxes of each holding
    Search s = {.node = node, .ranks = ranks, .inside = kind == RESHARD_SUM_INSIDE, .most_open = most};
    s.sent = TAKE(arena, size_t, ranks), s.open = TAKE(arena, Box, most + 4);
    s.blocks = TAKE(arena, Rows, blocks), s.on_travel = on_travel, s.context = context;
    int failed = arena_check(arena, err);
    if (!failed) memset(s.sent, 0, sizeof *s.sent * (size_t)ranks);
    for (int i = 0; i < to->tensors && !failed; i++) {
        ParamTensor t = shape_tensor(whole, i);
        const Holding* of = from->list + from->first[i];
        int n = from->first[i + 1] - from->first[i];
        s.wave = t.bucket;
        find_blocks(&s, of, n);
        for (int j = to->first[i]; j < to->first[i + 1] && !failed; j++) {
            if (kind != RESHARD_COPY) sum_to(&s, of, n, &to->list[j]);
            else if (copy_to(&s, of, n, &to->list[j]))
                failed = fail(err, "nobody has all of %s of layer %d, which rank %d needs", param_table[t.id].name,
                              t.layer, to->list[j].rank);
        }
    }
    arena_reset(arena, mark);
    return failed;
}

// ---- one rank's part of them

// A box on its way, as this rank sees it.
typedef struct Travel {
    int wave, peer, order;
    Slice slice;
} Travel;

typedef struct TravelList {
    Travel* list;
    int64_t n, room;
} TravelList;

typedef struct Packing {
    int rank, missing;
    TravelList sends, receives;
} Packing;

static void add_travel(Packing* p, TravelList* to, int wave, int peer, Slice slice) {
    p->missing |= reserve(&to->list, &to->room, to->n, 1, sizeof *to->list, NULL);
    if (!p->missing) to->list[to->n] = (Travel){wave, peer, (int)to->n, slice}, to->n++;
}

static void note_travel(void* context, int wave, const Holding* from, const Holding* to, const Box* box) {
    Packing* p = (Packing*)context;
    if (from->rank == p->rank) add_travel(p, &p->sends, wave, to->rank, slice_in(from, box));
    if (to->rank == p->rank) add_travel(p, &p->receives, wave, from->rank, slice_in(to, box));
}

static int by_wave_and_peer(const void* a, const void* b) {
    const Travel *x = (const Travel*)a, *y = (const Travel*)b;
    if (x->wave != y->wave) return x->wave - y->wave;
    return x->peer != y->peer ? x->peer - y->peer : x->order - y->order;
}

// Packs the boxes of every wave as one message a peer. Returns the most elements to or from others of any wave.
static size_t pack(Transfers* t, TravelList* travels, int receives, Message* message, Slice* slices, int rank) {
    size_t most = 0;
    if (travels->n > 1) qsort(travels->list, (size_t)travels->n, sizeof *travels->list, by_wave_and_peer);
    for (const Travel* x = travels->list; x < travels->list + travels->n; x++) {
        Messages* of = receives ? &t->wave[x->wave].receives : &t->wave[x->wave].sends;
        size_t elems = (size_t)x->slice.rows * (size_t)x->slice.cols;
        if (of->n == 0) of->list = message;
        if (of->n == 0 || message[-1].peer != x->peer) {
            *message++ = (Message){x->peer, (int)(slices - t->slices), 0, 0};
            of->n++;
        }
        *slices++ = x->slice;
        message[-1].n++, message[-1].elems += elems;
        of->elems += x->peer != rank ? elems : 0;
        most = MAX(most, of->elems), t->most_slice = MAX(t->most_slice, elems);
    }
    return most;
}

int reshard(Transfers* t, const Shape* whole, const Holdings* from, const Holdings* to, ReshardKind kind, int rank,
            int ranks, const int* node, Arena* arena, Err err) {
    Packing p = {.rank = rank};
    *t = (Transfers){.waves = shape_buckets(whole)};
    int failed = reshard_visit(whole, from, to, kind, ranks, node, note_travel, &p, arena, err);
    int n = (int)(p.sends.n + p.receives.n);
    if (!failed && p.missing) failed = fail(err, "no memory for the transfers of %d ranks", ranks);
    t->wave = TAKE(arena, Wave, t->waves), t->slices = TAKE(arena, Slice, n + 1);
    Message* messages = TAKE(arena, Message, n + 1);
    if (!failed) failed = arena_check(arena, err);
    if (!failed) {
        memset(t->wave, 0, sizeof *t->wave * (size_t)t->waves);
        t->most_send = pack(t, &p.sends, 0, messages, t->slices, rank);
        t->most_receive = pack(t, &p.receives, 1, messages + p.sends.n, t->slices + p.sends.n, rank);
    }
    free(p.sends.list);
    free(p.receives.list);
    return failed;
}
