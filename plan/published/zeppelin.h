// zeppelin.h - the parts of Zeppelin (arXiv 2509.21841, EuroSys 2026) that can be proven by themselves; see zeppelin.c.
// No code of it is public; what is a reconstruction of ours says so.
#pragma once
#include "plan/published/published.h"

// Time of a transfer between nodes through `proxies` ranks on each side: dispatch, transfer, combine. In units of a
// direct transfer; inside: that of a byte inside a node in the same units.
double zeppelin_routed(int proxies, int nics, double inside);

// ---- partition

// Documents shorter than `inside` tokens stay on a rank, from `across` on they may be cut across nodes, those between
// are cut inside one. inside <= across.
typedef struct ZeppelinZones {
    int inside, across;
} ZeppelinZones;

// Routed over direct time of communication across nodes, at the best number of proxies; 1 on one node.
double zeppelin_across_scale(const Setting* setting);
// Where the cost curves of the setting cross: see zeppelin.c.
ZeppelinZones zeppelin_zones(const Setting* setting, double across_scale);

typedef enum ZeppelinQueue { QUEUE_ACROSS, QUEUE_INSIDE, QUEUE_LOCAL, N_QUEUES } ZeppelinQueue;

typedef struct ZeppelinWindow {
    int first_rank, cp_size;
    ZeppelinQueue queue;  // in the order in which a rank works on them
} ZeppelinWindow;

// The ranks of every document: windows (n) for documents (n), the longest first, and their lengths, sorted. zones fall
// where ranks overflow: they come back as they were in the end. 0, or -1 with a message (a document is too long for all
// ranks, no memory).
int zeppelin_partition(ZeppelinWindow* windows, ZeppelinZones* zones, const int* documents, const int* sorted, int n,
                       const PlanLimits* limits, Arena* arena, Err err);
