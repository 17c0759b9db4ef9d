// streams.h - work on the emulator's streams: behind cuda_runtime.h, and for libraries that put work on a stream.
//
// Copies, events, collectives and kernels wait in their stream's queue. Usually it is emptied with every call, as far
// as it goes without waiting for other ranks: behind a collective that a rank does not come to, work stays there while
// the host goes on, until it finds the queue full or waits for a stream or an event, where it blocks as with a GPU.
// With EMU_STREAMS=late a stream does nothing before it must: because a kernel comes, somebody synchronizes or asks for
// an event, or another stream waits for one, and then no more than up to that event. Both are orders that a GPU may
// take, the two ends of what it may take. So a wait that was forgotten, and memory that is used again too early, give
// wrong numbers in one of them, every time.
#pragma once
#include <functional>

#include "cuda_runtime.h"

namespace emu {

// Does some of its work, without waiting: true when all of it is done. It is called again until then, never after.
using Work = std::function<bool()>;

void put_on_stream(cudaStream_t stream, Work work);

// Does what can be done without waiting: for a host that waits for something else.
void advance_streams();

}  // namespace emu
