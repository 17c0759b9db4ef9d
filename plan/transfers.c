// transfers.c - see transfers.h.
#include "plan/transfers.h"

enum { LAYERS = 32 };  // of a 7B model, where a published machine says nothing

TransferTimes transfer_times(const Machine* machine, const Shape* s, int elem_bytes, int node_size) {
    const Cost* cost = &machine->cost;
    double queries = s->NH * s->HS, keys = s->NKV * s->HS, elem = elem_bytes;
    TransferTimes t = {.cost = cost, .node_size = node_size};
    t.token_scale = cost->token_bytes / (2 * s->L * elem * (2 * queries + 2 * keys));
    t.stream_scale = t.token_scale * s->L / (machine->layers > 0 ? machine->layers : LAYERS);
    t.channel_scale = cost->elem_bytes * cost->channels / (elem * queries);
    t.key_scale = cost->elem_bytes * cost->kv_channels / (elem * keys);
    t.count = (double)cost->layers / s->L;
    double parameters = machine_parameters(machine);
    t.weight_scale = parameters > 0 ? parameters / (double)shape_param_count(s) : 1;
    return t;
}

// As plan/cost.c has it: between nodes as among more than a node has.
static double published(const TransferTimes* t, int ranks, int across, double bytes) {
    return t->cost->link_scale *
           published_ms(t->cost, across ? MAX(ranks, ranks_between(t->cost, t->node_size)) : ranks, bytes);
}

static double measured(const TransferTimes* t, int across, double bytes) {
    return t->cost->link_scale * link_ms(&t->cost->link[across ? LINK_ACROSS : LINK_INSIDE], bytes);
}

double transfer_ms(const TransferTimes* t, TransferKind kind, int ranks, int across, double sent, double whole) {
    int groups = t->cost->n_groups > 0;
    double scale = t->token_scale;
    switch (kind) {
        case TRANSFER_ULYSSES:
            if (groups) return published(t, ranks, across, scale * whole);
            return t->count * measured(t, across, t->channel_scale * sent);
        case TRANSFER_TENSOR:
            if (groups) return published(t, ranks, across, scale * sent);
            return t->count * measured(t, across, t->channel_scale * sent);
        case TRANSFER_RING:
            if (groups) return published(t, ranks, across, scale * sent);
            return t->count * measured(t, across, t->key_scale * sent);
        case TRANSFER_STREAM:
            if (groups) return published(t, ranks, across, t->stream_scale * sent);
            return measured(t, across, t->channel_scale * sent);
        case TRANSFER_WEIGHTS: break;
    }
    if (groups) return published(t, ranks, across, t->weight_scale * sent);
    return measured(t, across, t->weight_scale * sent);
}
