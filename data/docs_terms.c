// docs_terms.c - how much labels of answers count (kernels/token_loss.h): members of an answer that is an object.
//
//   {"text": "..."} or {"tokens": [...]}       its tokens; "tokens" stay as they are, and no end is put after them
//   "weight": x                                of each of its labels; 1 where it is not there
//   "logprobs": [...], "reference": [...]      log-probabilities of its labels, one each, none above 0, of the policy
//                                              that drew the answer, and of the one that training is to stay near
//   "advantage": x, or "reward": x             a reward becomes (reward - mean) / (standard deviation + 1e-6), of all n
//                                              answers to the prompt
//   "rank": n                                  a lower one is preferred
//
// The paper (arXiv 2402.03300, section 4.1.2) leaves open which deviation that is. Ours is that of verl
// (compute_grpo_outcome_advantage): n - 1 below, as torch.std has it, and 1e-6; TRL's has 1e-4 instead. So an answer
// alone, or answers that are alike, have advantage 0.
#include <math.h>

#include "data/docs_making.h"

static const LabelTerms nothing_said = {1, NAN, NAN, NAN};

LabelTerms* docs_terms_to(DocsMore* d, int64_t n, Err err) {
    if (reserve(&d->terms, &d->terms_capacity, d->n_terms, MAX(n - d->n_terms, (int64_t)0), sizeof *d->terms, err))
        return NULL;
    while (d->n_terms < n) d->terms[d->n_terms++] = nothing_said;
    return d->terms;
}

// ---- one member

// Reads a member that is a number, finite in fp32, too. 1: it is there and becomes *x; 0: it is not; -1 with a message.
static int find_number(Making* m, const JsonValue* answer, const char* name, double* x) {
    const JsonValue* found = json_get(answer, name);
    if (!found) return 0;
    if (json_double(found, x) || !isfinite((float)*x))
        return fail(m->err, "expected \"%s\" of an answer as a finite number", name);
    return 1;
}

// Reads a list of n log-probabilities in the same way; member: offset of the one of *terms that they go to.
static int find_list(Making* m, const JsonValue* answer, const char* name, LabelTerms* terms, size_t member, int n) {
    const JsonValue* list = json_get(answer, name);
    double value;
    if (!list) return 0;
    if (list->type != JSON_ARRAY || list->n != n)
        return fail(m->err, "expected \"%s\" of an answer as %d numbers, one for each token that it learns, found %d",
                    name, n, list->type == JSON_ARRAY ? list->n : 0);
    int i = 0;
    for (const JsonValue* at = json_elements(list); at; at = json_next(at), i++) {
        if (json_double(at, &value) || !isfinite((float)value) || value > 0)
            return fail(m->err, "expected number %d of \"%s\" of an answer, a log-probability, as finite and at most 0",
                        i, name);
        *(float*)((char*)&terms[i] + member) = (float)value;
    }
    return 1;
}

// ---- an answer

int making_tokens(Making* m, const JsonValue* list) {
    int64_t token;
    if (list->type != JSON_ARRAY || list->n == 0) return fail(m->err, "expected tokens as an array that is not empty");
    int i = 0;
    for (const JsonValue* at = json_elements(list); at; at = json_next(at), i++) {
        if (json_int64(at, &token) || token < 0 || token >= m->docs->tokenizer->vocab)
            return fail(m->err, "expected number %d of the tokens from 0 to %d", i, m->docs->tokenizer->vocab - 1);
        if (making_token(m, (int)token)) return -1;
    }
    return 0;
}

static int check_members(Making* m, const JsonValue* answer) {
    static const char* const known[] = {"text",      "tokens", "weight", "logprobs", "reference",
                                        "advantage", "reward", "rank",   "ended"};
    for (const JsonValue* at = json_members(answer); at; at = json_next(at)) {
        int is_known = 0;
        for (int j = 0; j < COUNT(known); j++) is_known |= json_is(at, known[j]);
        if (!is_known)
            return fail(m->err,
                        "an answer has a member \"%.*s\", expected text or tokens, and weight, logprobs, "
                        "reference, advantage or reward, rank, ended",
                        (int)MIN(at->length, 40), at->text);
    }
    return 0;
}

int making_rewards(Making* m, const JsonValue* answers, Rewards* rewards) {
    double origin = 0, sum = 0, squares = 0, x;  // sums of differences from the first: rewards may be large
    int n = 0;
    for (const JsonValue* at = json_elements(answers); at; at = json_next(at)) {
        int found = at->type == JSON_OBJECT ? find_number(m, at, "reward", &x) : 0;
        if (found < 0) return -1;
        if (found && !n++) origin = x;
        if (found) sum += x - origin, squares += (x - origin) * (x - origin);
    }
    if (n != 0 && n != answers->n)
        return fail(m->err, "expected \"reward\" of all %d answers or of none, found it of %d", answers->n, n);
    rewards->mean = n ? origin + sum / n : 0;
    rewards->deviation = n > 1 ? sqrt(fmax(0, squares - sum * sum / n) / (n - 1)) : 0;
    return 0;
}

void making_judges(Making* m, const JsonValue* object) {
    static const char* const names[] = {"chosen", "rejected", "rank", "reward", "rewards", "advantage", "label"};
    const char** judges = &m->docs->more->judges;
    for (int i = 0; i < COUNT(names) && !*judges; i++) {
        const JsonValue* value = json_get(object, names[i]);
        int is_verdict = value && (value->type == JSON_TRUE || value->type == JSON_FALSE);
        if (value && (is_verdict || strcmp(names[i], "label") != 0)) *judges = names[i];
    }
}

int making_terms(Making* m, const JsonValue* answer, int64_t from, const Rewards* rewards, DocsSegment* segment) {
    DocsMore* d = m->docs->more;
    int n = (int)(d->n_encoded - from), failed = check_members(m, answer);
    double weight = 1, advantage = NAN, reward = 0, place = -1;
    LabelTerms* terms = failed ? NULL : docs_terms_to(d, d->n_encoded, m->err);
    making_judges(m, answer);
    if (terms) terms += from;
    if (!terms || find_number(m, answer, "weight", &weight) < 0) return -1;
    int is_given = find_number(m, answer, "advantage", &advantage),
        is_rewarded = find_number(m, answer, "reward", &reward);
    if (is_given < 0 || is_rewarded < 0 || find_number(m, answer, "rank", &place) < 0) return -1;
    if (is_given && is_rewarded)
        return fail(m->err, "an answer has \"advantage\" and \"reward\", expected one of them");
    if (weight < 0) return fail(m->err, "expected \"weight\" of an answer from 0 on, found %g", weight);
    if (is_rewarded) advantage = (reward - rewards->mean) / (rewards->deviation + 1e-6);
    for (int i = 0; i < n; i++) terms[i].weight = (float)weight, terms[i].advantage = (float)advantage;
    if (find_list(m, answer, "logprobs", terms, offsetof(LabelTerms, old), n) < 0) return -1;
    if (find_list(m, answer, "reference", terms, offsetof(LabelTerms, reference), n) < 0) return -1;
    if (place != -1 && (place < 0 || place > 1e6 || place != floor(place)))
        return fail(m->err, "expected \"rank\" of an answer as a whole number from 0 on, found %g", place);
    if (place >= 0) segment->rank = (int)place;
    if (is_rewarded) segment->reward = (float)reward;
    docs_hash_content(m->docs, terms, (size_t)n * sizeof *terms);
    docs_hash_content(m->docs, &(float){(float)place}, sizeof(float));
    docs_hash_content(m->docs, &segment->reward, sizeof segment->reward);
    return 0;
}

// ---- what is asked later

void docs_terms(const Docs* docs, int64_t doc, int64_t first, int n, LabelTerms* terms) {
    const DocsMore* d = docs->more;
    int64_t place = docs_place(docs, doc), at = place + first;
    for (int i = 0; i < n; i++) terms[i] = place >= 0 && at + i < d->n_terms ? d->terms[at + i] : nothing_said;
}

int docs_lack_references(const Docs* docs) {
    const DocsMore* d = docs->more;
    for (int64_t i = 0; i < d->n_terms; i++)
        if (!isnan(d->terms[i].reference)) return 0;
    return 1;
}

int docs_set_references(Docs* docs, const float* all, Err err) {
    LabelTerms* terms = docs_terms_to(docs->more, docs->more->n_encoded, err);
    if (!terms) return -1;
    for (int64_t doc = 0; doc < docs->n; doc++) {
        int64_t place = docs_place(docs, doc), n = docs_length(docs, doc);
        for (int64_t i = 0; i < n && place >= 0; i++) terms[place + i].reference = -all[docs->list[doc].start + i];
    }
    return 0;
}

double docs_weight(const Docs* docs, int64_t doc, int64_t first, int n) {
    double sum = 0;
    int targets[256];
    LabelTerms terms[COUNT(targets)];
    for (int i = 0, part; i < n; i += part) {
        part = MIN(n - i, COUNT(targets));
        memset(targets, 0, sizeof targets);
        docs_learnt(docs, doc, first + i, part, targets);
        docs_terms(docs, doc, first + i, part, terms);
        for (int j = 0; j < part; j++) sum += targets[j] < 0 ? 0 : terms[j].weight;
    }
    return sum;
}

static int check_label(const LabelTerms* t, const LabelNeeds* needs, const char** missing) {
    if (needs->old && isnan(t->old)) *missing = "\"logprobs\" (--rollouts writes them)";
    else if (needs->reference && isnan(t->reference)) *missing = "\"reference\"";
    else if (needs->advantage && isnan(t->advantage)) *missing = "\"advantage\" or \"reward\"";
    else if (needs->pairs && t->weight != 1) *missing = "no \"weight\"";
    else return 0;
    return -1;
}

int docs_check_labels(const Docs* docs, const LabelNeeds* needs, Err err) {
    for (int64_t doc = 0; doc < docs->n; doc++) {
        int64_t n = docs_length(docs, doc);
        for (int64_t t = 1; t < n; t++) {
            int target = 0;
            LabelTerms terms;
            const char* missing;
            docs_learnt(docs, doc, t, 1, &target);
            if (target < 0) continue;
            docs_terms(docs, doc, t, 1, &terms);
            if (check_label(&terms, needs, &missing))
                return fail(err,
                            "document %lld: --loss %s wants %s of every answer (data/README.md, Answers that do not "
                            "count alike)",
                            (long long)doc, needs->loss, missing);
        }
        if (needs->pairs && docs_pairs(docs, doc, 0, 0) == 0)
            return fail(err,
                        "document %lld: --loss %s wants answers of two ranks at least, as \"chosen\" and \"rejected\"",
                        (long long)doc, needs->loss);
    }
    return 0;
}
