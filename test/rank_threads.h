// rank_threads.h - ranks of a group as threads of one process: a Comm whose collectives are copies. One thread runs at
// a time, from collective to collective, so that any backend may be used.
#pragma once
#include <pthread.h>
#include <time.h>

#include "kernels/comm.h"
#include "kernels/comm_transport.h"
#include "test/test.h"

enum { MOST_THREADS = 8, MOST_MAIL = 16, PATIENCE = 10 };  // seconds until a message is given up

typedef struct Mail {
    void* data;
    size_t bytes;
} Mail;

typedef struct RankThreads {
    pthread_mutex_t turn;
    pthread_cond_t posted;
    const Kernels* k;
    Comm comms[MOST_THREADS];
    int node[MOST_THREADS];
    Mail mail[MOST_THREADS][MOST_THREADS][MOST_MAIL];  // from, to: those that were sent and not received, in order
    int n_mail[MOST_THREADS][MOST_THREADS];
    int failed;  // a message did not come, or was of another size
    void (*body)(int rank, void* data);
    void* data;
} RankThreads;

static void threads_send(RankThreads* t, int from, const Transfer* message) {
    if (message->bytes == 0) return;
    int n = t->n_mail[from][message->peer]++;
    if (n >= MOST_MAIL) die("%d messages on their way", n);
    Mail mail = {malloc(message->bytes), message->bytes};
    t->k->download(mail.data, message->data, message->bytes, NULL);
    t->mail[from][message->peer][n] = mail;
    pthread_cond_broadcast(&t->posted);
}

static void threads_receive(RankThreads* t, int to, const Transfer* message) {
    int* n = &t->n_mail[message->peer][to];
    Mail* mail = t->mail[message->peer][to];
    struct timespec until;
    if (message->bytes == 0) return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE;
    while (*n == 0 && !t->failed)
        if (pthread_cond_timedwait(&t->posted, &t->turn, &until)) t->failed = 1;
    if (t->failed || mail[0].bytes != message->bytes) {
        t->failed = 1;
        pthread_cond_broadcast(&t->posted);
        return;
    }
    t->k->upload(message->data, mail[0].data, message->bytes, NULL);
    t->k->synchronize(NULL);
    free(mail[0].data);
    memmove(mail, mail + 1, (size_t)-- * n * sizeof *mail);
}

static Request threads_send_receive(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives,
                                    int n_receives, Stream s) {
    RankThreads* t = (RankThreads*)c->state;
    (void)s;
    comm_count_send_receive(c, sends, n_sends);
    for (int i = 0; i < n_sends; i++) threads_send(t, c->rank, &sends[i]);
    for (int i = 0; i < n_receives; i++) threads_receive(t, c->rank, &receives[i]);
    return 0;
}

static void threads_end(Comm* c, Request request, Stream s) { (void)c, (void)request, (void)s; }

static const CommTable threads_table = {
    .name = "threads", .begin_send_receive = threads_send_receive, .end = threads_end};

// The Comm of `rank` is comms[rank].
static void threads_open(RankThreads* t, const Kernels* k, int ranks) {
    memset(t, 0, sizeof *t);
    t->k = k;
    pthread_mutex_init(&t->turn, NULL);
    pthread_cond_init(&t->posted, NULL);
    for (int rank = 0; rank < ranks; rank++)
        t->comms[rank] = (Comm){.table = &threads_table, .rank = rank, .size = ranks, .node = t->node, .state = t};
}

typedef struct ThreadOfRank {
    RankThreads* threads;
    int rank;
} ThreadOfRank;

static void* thread_of_rank(void* data) {
    ThreadOfRank* me = (ThreadOfRank*)data;
    pthread_mutex_lock(&me->threads->turn);
    me->threads->body(me->rank, me->threads->data);
    pthread_mutex_unlock(&me->threads->turn);
    return NULL;
}

// body(rank, data) on all ranks. 0; -1 where messages did not match, or some were never received.
static int threads_run(RankThreads* t, int ranks, void (*body)(int, void*), void* data) {
    pthread_t threads[MOST_THREADS];
    ThreadOfRank of[MOST_THREADS];
    int left = 0;
    t->body = body, t->data = data;
    for (int rank = 0; rank < ranks; rank++) {
        of[rank] = (ThreadOfRank){t, rank};
        if (pthread_create(&threads[rank], NULL, thread_of_rank, &of[rank])) die("no thread for rank %d", rank);
    }
    for (int rank = 0; rank < ranks; rank++) pthread_join(threads[rank], NULL);
    for (int from = 0; from < ranks; from++)
        for (int to = 0; to < ranks; to++)
            for (; t->n_mail[from][to] > 0; left++) free(t->mail[from][to][--t->n_mail[from][to]].data);
    return t->failed || left ? -1 : 0;
}
