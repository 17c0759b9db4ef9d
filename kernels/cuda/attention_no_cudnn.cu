// attention_no_cudnn.cu - what stands in for attention_cudnn.cu where cuDNN's headers were missing when the program was
// built: every call falls to our own kernels.
#include "kernels/cuda/cuda.h"

static const char reason[] =
    "this program was built without cuDNN's headers; install cuDNN 9 for developers and build again, or use "
    "--device attention=own";

int cuda_cudnn_open(const KernelLimits*, Err err) { return fail(err, "%s", reason); }
void cuda_cudnn_close(void) {}
size_t cuda_cudnn_scratch_bytes(const KernelLimits*) { return 0; }
int cuda_cudnn_forward(void*, float*, const Attention*, DType, Stream) { return -1; }
int cuda_cudnn_backward(void*, void*, void*, const void*, const void*, const float*, const Attention*, DType, Stream) {
    return -1;
}
const char* cuda_cudnn_choice(void) { return reason; }
