// deadline.c - see deadline.h.
#define _GNU_SOURCE
#include "kernels/deadline.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "plan/base/base.h"

// The line is made beforehand: a signal handler must not.
static char line[2 * ERR_BYTES];
static struct sigaction before;

static void leave(int number) {
    (void)number;
    ssize_t written = write(STDERR_FILENO, line, strlen(line));
    _exit(written >= 0 ? 1 : 2);
}

static void set_alarm(double seconds) {
    struct itimerval t = {{0, 0}, {(time_t)seconds, (suseconds_t)(1e6 * (seconds - floor(seconds)))}};
    setitimer(ITIMER_REAL, &t, NULL);
}

void deadline_begin(double seconds, const char* format, ...) {
    struct sigaction action;
    sigset_t alarm_only;
    char call[ERR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(call, sizeof call, format, arguments);
    va_end(arguments);
    snprintf(line, sizeof line,
             "train: %s: not done after %g s (--timeout): a rank was not started, has ended, or has not come so far; "
             "see the first error among the ranks\n",
             call, seconds);
    memset(&action, 0, sizeof action);
    action.sa_handler = leave;
    sigaction(SIGALRM, &action, &before);
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &alarm_only, NULL);
    set_alarm(MAX(seconds, 1e-3));
}

void deadline_end(void) {
    set_alarm(0);
    sigaction(SIGALRM, &before, NULL);
}
