// stamps.cu - marks in the time of a step: an event on the stream for each, made when its mark is first given.
//
// An event is a few bytes of work for the device, and the host does not wait until marks are read. The driver gives the
// time between two events as fp32 milliseconds: a relative error of 6e-8, which is a microsecond after 16 s. So times
// are added up from mark to mark, in double, and what lies between two marks keeps its digits however long the step is.
#include "kernels/cuda/cuda.h"

static cudaEvent_t events[MOST_EVENTS];

void cuda_record_event(int i, Stream s) {
    if (i < 0 || i >= MOST_EVENTS) die("mark %d of at most %d", i, MOST_EVENTS);
    if (!events[i]) CUDA_CHECK(cudaEventCreateWithFlags(&events[i], 0));
    CUDA_CHECK(cudaEventRecord(events[i], cuda_stream(s)));
}

void cuda_read_events(double* seconds, int n) {
    for (int i = 0; i < n; i++) {
        float milliseconds = 0;
        if (!events[i]) die("mark %d was never given", i);
        CUDA_CHECK(cudaEventSynchronize(events[i]));
        if (i > 0) CUDA_CHECK(cudaEventElapsedTime(&milliseconds, events[i - 1], events[i]));
        seconds[i] = (i > 0 ? seconds[i - 1] : 0) + 1e-3 * (double)milliseconds;
    }
}

void cuda_events_close(void) {
    for (int i = 0; i < MOST_EVENTS; i++) {
        if (events[i]) CUDA_CHECK(cudaEventDestroy(events[i]));
        events[i] = NULL;
    }
}
