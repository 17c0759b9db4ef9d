// holding.c - see holding.h.
#include "plan/holding.h"

#include <stdlib.h>

Shape part_shape(const Shape* whole, const Part* part) {
    Shape of_rank = split_shape(whole, part->split, part->tp_rank);
    Shape shape = shape_stage(&of_rank, part->first_layer, part->end_layer);
    shape.shards = 1;
    return shape;
}

// ---- lists

static int open_list(Holdings* h, const Shape* whole, size_t most, Arena* arena, char* err, size_t errlen) {
    h->tensors = shape_tensors(whole);
    h->first = TAKE(arena, int, h->tensors + 1);
    h->list = TAKE(arena, Holding, most);
    if (arena_check(arena, err, errlen)) return -1;
    h->first[0] = 0;
    return 0;
}

// A run of n elements of a tensor from element `first` on, as boxes: the end of a row, whole rows, the start of one.
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

int holdings_of_pieces(Holdings* h, const Shape* whole, Arena* arena, char* err, size_t errlen) {
    int ranks = whole->shards;
    if (open_list(h, whole, (size_t)shape_tensors(whole) * (size_t)ranks * 3, arena, err, errlen)) return -1;
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

int holdings_of_parts(Holdings* h, const Shape* whole, const Part* parts, int ranks, Arena* arena, char* err,
                      size_t errlen) {
    if (open_list(h, whole, (size_t)shape_tensors(whole) * (size_t)ranks * MOST_RUNS, arena, err, errlen)) return -1;
    Shape* shapes = TAKE(arena, Shape, ranks);
    if (arena_check(arena, err, errlen)) return -1;
    for (int r = 0; r < ranks; r++) shapes[r] = part_shape(whole, &parts[r]);
    for (int i = 0, n = 0; i < h->tensors; h->first[++i] = n) {
        ParamTensor t = shape_tensor(whole, i);
        for (int r = 0; r < ranks; r++) {
            int layer = param_is_per_layer(t.id) ? t.layer - parts[r].first_layer : 0;
            if (layer < 0 || layer >= shapes[r].L) continue;
            ParamTensor own = shape_param(&shapes[r], t.id, layer);
            Box boxes[MOST_RUNS];
            int count = own.elems ? split_boxes(boxes, whole, parts[r].split, parts[r].tp_rank, t.id) : 0;
            for (int j = 0; j < count; j++) {
                if (boxes[j].rows * boxes[j].cols > 0) h->list[n++] = (Holding){r, boxes[j], own.offset, boxes[j].cols};
                own.offset += (size_t)boxes[j].rows * (size_t)boxes[j].cols;
            }
        }
    }
    return 0;
}

// Boxes of a part stand below one another; those of a vector beside one another.
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

// ---- boxes

static size_t elems_of(const Box* box) { return (size_t)box->rows * (size_t)box->cols; }

// What is left of `box` without `part`, which lies in it: above, below, left and right of it. Returns how many.
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

// One box on its way, as this rank sees it.
typedef struct Travel {
    int peer, order;
    Slice slice;
} Travel;

typedef struct TravelList {
    Travel* list;
    int n, room;
} TravelList;

typedef struct Search {
    const int* node;
    int rank, ranks, missing;
    size_t* sent;  // (ranks)
    TravelList sends, receives;
    OnTravel on_travel;  // NULL: nobody is told
    void* context;
    int wave;
} Search;

static void add_travel(Search* s, TravelList* to, int peer, Slice slice) {
    if (to->n == to->room) {
        to->room = MAX(2 * to->room, 64);
        Travel* list = (Travel*)realloc(to->list, sizeof *list * (size_t)to->room);
        if (!list) {
            s->missing = 1;
            to->room = to->n;
            return;
        }
        to->list = list;
    }
    to->list[to->n] = (Travel){peer, to->n, slice};
    to->n++;
}

static void add_box(Search* s, const Holding* from, const Holding* to, const Box* box) {
    if (from->rank != to->rank) s->sent[from->rank] += elems_of(box);
    if (from->rank != to->rank && s->on_travel)
        s->on_travel(s->context, s->wave, from->rank, to->rank, elems_of(box));
    if (from->rank == s->rank) add_travel(s, &s->sends, to->rank, slice_in(from, box));
    if (to->rank == s->rank) add_travel(s, &s->receives, from->rank, slice_in(to, box));
}

// 0: this rank itself, 1: one of its node, 2: any other.
static int distance(const Search* s, int from, int to) { return from == to ? 0 : s->node[from] == s->node[to] ? 1 : 2; }

// The rank that is to send what `box` and its holding have in common; NULL where nobody has anything of it.
static const Holding* choose(const Search* s, const Holding* from, int n, int to, const Box* box) {
    const Holding* best = NULL;
    for (const Holding* h = from; h < from + n; h++) {
        if (!common(&h->box, box).rows) continue;
        int nearer = best ? distance(s, h->rank, to) - distance(s, best->rank, to) : -1;
        if (nearer < 0 || (nearer == 0 && s->sent[h->rank] < s->sent[best->rank])) best = h;
    }
    return best;
}

// Every element of `to` from one rank. What a choice leaves of a box is looked for again. 0, or -1: nobody has it.
static int copy_to(Search* s, const Holding* from, int n, const Holding* to) {
    enum { OPEN = 64 };
    Box open[OPEN + 4] = {to->box};
    for (int left = 1; left > 0;) {
        Box box = open[--left];
        const Holding* h = choose(s, from, n, to->rank, &box);
        if (!h || left > OPEN) return -1;
        Box part = common(&h->box, &box);
        add_box(s, h, to, &part);
        left += without(open + left, &box, &part);
    }
    return 0;
}

static void sum_to(Search* s, const Holding* from, int n, const Holding* to) {
    for (const Holding* h = from; h < from + n; h++) {
        Box part = common(&h->box, &to->box);
        if (part.rows) add_box(s, h, to, &part);
    }
}

static int by_peer(const void* a, const void* b) {
    const Travel *x = (const Travel*)a, *y = (const Travel*)b;
    return x->peer != y->peer ? x->peer - y->peer : x->order - y->order;
}

// The boxes of a wave as one message a peer, in the arena. Returns elements to or from others; *slices: where they go.
static size_t pack(Message** messages, int* n, TravelList* list, const Search* s, Slice* slices, int* n_slices,
                   Arena* arena) {
    size_t others = 0;
    if (list->n > 1) qsort(list->list, (size_t)list->n, sizeof *list->list, by_peer);
    *messages = TAKE(arena, Message, MIN(list->n, s->ranks));
    *n = 0;
    for (int i = 0; i < list->n && *messages; i++) {
        const Travel* t = &list->list[i];
        if (*n == 0 || (*messages)[*n - 1].peer != t->peer) (*messages)[(*n)++] = (Message){t->peer, *n_slices, 0, 0};
        Message* m = &(*messages)[*n - 1];
        size_t elems = (size_t)t->slice.rows * (size_t)t->slice.cols;
        slices[(*n_slices)++] = t->slice;
        m->n++, m->elems += elems;
        others += t->peer != s->rank ? elems : 0;
    }
    return others;
}

// Where the boxes of every wave end in the two lists.
typedef struct WaveEnd {
    int sends, receives;
} WaveEnd;

static int find_travels(Search* s, WaveEnd* ends, const Shape* whole, const Holdings* from, const Holdings* to,
                        ReshardKind kind, char* err, size_t errlen) {
    for (int i = 0; i < to->tensors; i++) {
        ParamTensor t = shape_tensor(whole, i);
        const Holding* of = from->list + from->first[i];
        int n = from->first[i + 1] - from->first[i];
        s->wave = shape_bucket_of(&t, whole);
        for (int j = to->first[i]; j < to->first[i + 1]; j++) {
            if (kind == RESHARD_SUM) sum_to(s, of, n, &to->list[j]);
            else if (copy_to(s, of, n, &to->list[j]))
                return fail(err, errlen, "nobody has all of %s of layer %d, which rank %d needs",
                            param_table[t.id].name, t.layer, to->list[j].rank);
        }
        ends[s->wave] = (WaveEnd){s->sends.n, s->receives.n};
    }
    return 0;
}

static int pack_waves(Transfers* t, Search* s, const WaveEnd* ends, Arena* arena, char* err, size_t errlen) {
    WaveEnd at = {0, 0};
    int n = 0;
    t->slices = TAKE(arena, Slice, s->sends.n + s->receives.n + 1);
    if (arena_check(arena, err, errlen)) return -1;
    for (int w = 0; w < t->waves; w++) {
        Wave* wave = &t->wave[w];
        TravelList sends = {s->sends.list + at.sends, ends[w].sends - at.sends, 0},
                   receives = {s->receives.list + at.receives, ends[w].receives - at.receives, 0};
        wave->send_elems = pack(&wave->sends, &wave->n_sends, &sends, s, t->slices, &n, arena);
        wave->receive_elems = pack(&wave->receives, &wave->n_receives, &receives, s, t->slices, &n, arena);
        t->most_send = MAX(t->most_send, wave->send_elems);
        t->most_receive = MAX(t->most_receive, wave->receive_elems);
        at = ends[w];
    }
    for (int i = 0; i < n; i++)
        t->most_slice = MAX(t->most_slice, (size_t)t->slices[i].rows * (size_t)t->slices[i].cols);
    return arena_check(arena, err, errlen);
}

int reshard_visit(const Shape* whole, const Holdings* from, const Holdings* to, ReshardKind kind, int ranks,
                  const int* node, OnTravel on_travel, void* context, Arena* arena, char* err, size_t errlen) {
    ArenaMark mark = arena_mark(arena);
    Search s = {.node = node, .rank = -1, .ranks = ranks, .on_travel = on_travel, .context = context};
    WaveEnd* ends = TAKE(arena, WaveEnd, shape_buckets(whole));
    s.sent = TAKE(arena, size_t, ranks);
    if (arena_check(arena, err, errlen)) return -1;
    memset(s.sent, 0, sizeof *s.sent * (size_t)ranks);
    int failed = find_travels(&s, ends, whole, from, to, kind, err, errlen);
    arena_reset(arena, mark);
    return failed;
}

int reshard(Transfers* t, const Shape* whole, const Holdings* from, const Holdings* to, ReshardKind kind, int rank,
            int ranks, const int* node, Arena* arena, char* err, size_t errlen) {
    *t = (Transfers){.waves = shape_buckets(whole)};
    t->wave = TAKE(arena, Wave, t->waves);
    t->sent = TAKE(arena, size_t, ranks);
    WaveEnd* ends = TAKE(arena, WaveEnd, t->waves);
    if (arena_check(arena, err, errlen)) return -1;
    memset(t->wave, 0, sizeof *t->wave * (size_t)t->waves);
    memset(t->sent, 0, sizeof *t->sent * (size_t)ranks);
    memset(ends, 0, sizeof *ends * (size_t)t->waves);
    Search s = {.node = node, .rank = rank, .ranks = ranks, .sent = t->sent};
    int failed = find_travels(&s, ends, whole, from, to, kind, err, errlen);
    for (int w = 1; w < t->waves; w++)  // a bucket without tensors
        ends[w] = (WaveEnd){MAX(ends[w].sends, ends[w - 1].sends), MAX(ends[w].receives, ends[w - 1].receives)};
    if (!failed && s.missing) failed = fail(err, errlen, "no memory for the transfers of %d ranks", ranks);
    if (!failed) failed = pack_waves(t, &s, ends, arena, err, errlen);
    free(s.sends.list);
    free(s.receives.list);
    return failed;
}
