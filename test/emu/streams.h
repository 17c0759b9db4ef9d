// streams.h - work on the emulator's streams: behind cuda_runtime.h, and for libraries that put work on a stream.
//
// Copies, events and collectives wait in their stream's queue; a kernel lets its stream finish everything before it and
// then runs at once. Usually the queue is emptied with every call, as far as it goes without waiting for other ranks.
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

}  // namespace emu
