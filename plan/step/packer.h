// packer.h - one guess: can documents end before a target time, on ranks that run freely, or in one round, in which a
// rank has one pass? It is private to flex.c and rounds.c. packer.c and windows.c share its last part.
#pragma once
#include "plan/step/flex.h"

// A way to pack.
typedef struct PackWay {
    int least;     // every cp size is a multiple of this, so no group is narrower
    double price;  // in rounds: of a rank on which nothing has begun, in parts of the target
    int inside;    // 1: no group spans nodes
    int levels;    // 1: micro-batches open on the emptiest ranks; in rounds all open first, and then documents go where
                   // they end first
} PackWay;

typedef struct Bin Bin;
enum { LEAST_SIZES = 6 };

// A document, what it takes, and where a guess puts it.
typedef struct Document {
    int s;                              // tokens
    int least;                          // the place in Packer.sizes of the least cp size that holds it
    double seen;                        // seen_tokens
    double ms[LEAST_SIZES];             // by itself at the cp sizes from there on; infinite: it does not fit
    double tokens_before, work_before;  // sums of the documents before; work: ms of computing on one rank
    // in the guess
    Bin* bin;  // it is in this one, or beside it
    int rank;  // the rank that has it alone, beside the bin's shared ones; -1: it is shared
} Document;

// A cp size that planners use.
typedef struct CpSize {
    const GroupCost* g;
    int holds;     // most capacity of a window
    int64_t room;  // tokens of a ring rank of that window
    Bin** open;    // (ranks / cp size) bins that may take documents, the one that ends last first
    int n_open;
} CpSize;

// The work of a rank.
typedef struct Rank {
    double load;  // ms; it is free from then on
    Bin* last;    // the bin it runs last; NULL: none
    int ring_docs;
    double attention, linear;  // ms of local documents beside a shared micro-batch
    int64_t local_tokens;      // of these
} Rank;

typedef struct Node {
    double least, most;  // load of its ranks
    int free;            // ranks without a pass
} Node;

// A micro-batch under construction; in rounds also the local ones of its ranks in the same pass.
struct Bin {
    int first_rank, size;  // size: its cp size's place in Packer.sizes
    const GroupCost* g;
    int docs, next;             // next: the place of its next document in the plan
    int at;                     // its place in CpSize.open; -1: it takes no documents
    Bin* older;                 // the bin before on the same ranks, which may still take documents; NULL: none
    int64_t room, most_room;    // tokens of a ring rank; the most of its own and older bins'
    double pace;                // of its slowest rank
    double start, shared, end;  // ms; shared: the end of its own documents
    // in rounds
    int idlest;                // its rank with least local work
    int64_t kept;              // room that local documents of the fullest rank take
    double tokens, s2;         // of its documents
    double first[2];           // ms of their exchanges that others may hide, forward and backward
    double attention, linear;  // ms of local documents, each on the rank with most
};

// The state of all guesses, and of one.
typedef struct Packer {
    const Setting* setting;
    Document* docs;  // (n + 1) longest first; the last one has only sums
    CpSize* sizes;   // (ranks) ascending
    int n, n_sizes;
    int n_ranks, node_size;            // node_size: at most n_ranks
    double fastest, speeds, capacity;  // pace of the fastest rank; sum of all; tokens of all ranks
    int64_t placed;                    // documents placed by all guesses so far
    // the guess at hand
    int one_pass;  // 1: a rank has one pass, with local documents beside shared ones
    PackWay way;
    double target;  // ms
    double small;   // ms: less does not decide where documents go
    int joins;      // 1: a micro-batch costs more than that, so documents join an open one before one opens
    int shortest;   // tokens of the shortest document
    Rank* ranks;    // (n_ranks)
    Node* nodes;    // (n_ranks)
    Bin* bins;      // (n)
    int n_bins;
    Keyed* by_start;  // (n) bins
} Packer;

// A packer of documents. sorted (n): lengths, descending. The setting's limits have their squares. arena_check says
// whether there was memory.
Packer packer_open(const int* sorted, int n, const Setting* setting, Arena* arena);
// Packs documents docs (n), ascending, to end by `target`, freely or into one pass of each rank; fills bins.
// way.least divides ranks, and node_size if that is smaller. Returns the end of the last; infinite: not all fit.
double pack(Packer* x, const int* docs, int n, int one_pass, PackWay way, double target);
// Appends the packed bins to a plan by their start. order: as sort_longest_first.
void packer_write(const Packer* x, Plan* plan, const int* docs, int n, const int* order, int round);
// A lower bound of a round of these documents. tokens, work: sums.
double round_bound(const Packer* x, int longest, double tokens, double work);

// Makes a plan for rounds, with room for the packer's documents. Returns 1, and overwrites the plan, if its rounds take
// not much more than the `known` ms of the plan's step; 0 if they do; -1 without memory.
int plan_rounds(Plan* plan, Packer* packer, const int* order, double known, Arena* arena, Err err);

// ---- windows.c

// A document at some cp size.
typedef struct Task {
    Document* doc;
    const GroupCost* g;
    int size;        // its place in Packer.sizes
    double ms;       // at full speed, without a new micro-batch's own; infinite: it does not fit
    int64_t tokens;  // of a ring rank
} Task;

static inline double task_ms(const Task* task, double pace) {
    const Document* doc = task->doc;
    return document_ms_at(task->g, doc->s * doc->seen, doc->s, task->ms, pace);
}

// Contiguous ranks that are as many as a cp size.
typedef struct Window {
    int first;     // -1: none
    Bin* joined;   // the last bin there, if there are no lists and it has room; NULL: a new one
    double start;  // ms
    double waste;  // rank-ms at speed 1, up to the document's end, that are not its work
} Window;

// Finds the window where the document ends by the target and wastes least.
Window find_window(const Packer* x, const Task* task);
// The most capacity of a window where planners put a group of d ranks.
int widest_window(const Packer* x, int d);
// Returns 1 if the rings of ranks from `first` on take another document.
int has_ring_room(const Packer* x, const Task* task, int first);
