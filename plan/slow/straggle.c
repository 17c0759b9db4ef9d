// straggle.c - the text of --straggle to a list of slow ranks, see straggle.h.
//
// With F_r(t) the pieces that name rank r and hold step t:  slowness = product over F_r(t) of x, apart for the pieces
// that say `whole` and those that do not. A factor for a rank and an interval of steps is how Wang et al. (2024, arXiv
// 2401.11469) make their stragglers too, where a matmul is repeated.
#include "plan/slow/straggle.h"

#include "plan/base/words.h"

enum { RANK, X, FROM, TO, WHOLE, N_KEYS };
#define AT(field) offsetof(Straggler, field)
static const Field keys[N_KEYS] = {
    [RANK] = {"rank", INT, AT(rank), 0, 0, NULL},  // most: depends on their number
    [X] = {"x", REAL, AT(x), 1, 1000, NULL},
    [FROM] = {"from", INT64, AT(from), 1, 1e12, NULL},  // steps as --steps
    [TO] = {"to", INT64, AT(to), 1, 1e12, NULL},
    [WHOLE] = {"whole", FLAG, AT(whole), 0, 1, NULL},
};

static int read_key(Straggler* s, const Words* piece, Word name, int ranks, unsigned* given) {
    char wanted[WANTED];
    Word value = name;
    int has_value = word_cut(&name, '=', &value);
    const Field* known = field_find(keys, N_KEYS, name);
    if (!known) return words_refuse(piece, name, "expected rank=N, x=F, from=N, to=N or whole");
    Field key = *known;
    if (known == &keys[RANK]) key.most = ranks - 1;
    if (has_value != (key.type != FLAG))
        return words_refuse(piece, name, "expected %s%s", key.name, has_value ? " without a value" : "= and a number");
    if (*given & 1u << (known - keys)) return words_refuse(piece, name, "expected %s once", key.name);
    *given |= 1u << (known - keys);
    return field_set(&key, s, value, wanted) ? words_refuse(piece, value, "expected %s", wanted) : 0;
}

static int read_piece(Straggler* s, Words* piece, int ranks) {
    unsigned given = 0;
    Word word;
    *s = (Straggler){.from = 1, .to = INT64_MAX};
    while (words_next(piece, ',', &word))
        if (read_key(s, piece, word, ranks, &given)) return -1;
    if (~given & (1u << RANK | 1u << X)) return words_refuse(piece, (Word){NULL, 0}, "expected both rank= and x=");
    if (s->to >= s->from) return 0;
    return words_refuse(piece, (Word){NULL, 0}, "expected to= of at least from=");
}

int straggle_parse(Straggler* list, int* n, const char* spec, int ranks, Err err) {
    char why[ERR_BYTES];
    Words text = words_of(spec ? spec : "", spec ? strlen(spec) : 0, why), piece;
    int found = 0, failed = 0;
    *n = 0;
    while (!failed && words_statement(&text, &piece)) {
        if (found == MOST_STRAGGLERS)
            failed = words_refuse(&piece, piece.all, "expected at most %d pieces", MOST_STRAGGLERS);
        else failed = read_piece(&list[found++], &piece, ranks);
    }
    if (failed) return fail(err, "--straggle: %s; example: \"rank=0,x=4,from=20,to=80,whole\"", why);
    *n = found;
    return 0;
}

Slowness straggle_at(const Straggler* list, int n, int rank, int64_t step) {
    Slowness slow = {1, 1};
    for (int i = 0; i < n; i++) {
        const Straggler* s = &list[i];
        if (s->rank != rank || step < s->from || step > s->to) continue;
        if (s->whole) slow.whole *= s->x;
        else slow.linear *= s->x;
    }
    return slow;
}
