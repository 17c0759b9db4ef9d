#!/bin/sh
# setup.sh - installs what the whole test suite uses: a C and a C++ compiler, make, clang with its fuzzer, and Open MPI;
# where there is nvcc also cuobjdump and the headers of cudnn-frontend, into build/tools.
# Training itself needs only gcc and make. Where it may not install anything it prints the one line to run, and goes on.
packages=""
need() { # need COMMAND PACKAGE...
    command -v "$1" > /dev/null 2>&1 && return
    shift
    packages="$packages $*"
}
need cc gcc libc6-dev
need g++ g++
need make make
need clang clang
need mpicxx openmpi-bin libopenmpi-dev
# clang needs its runtime library for -fsanitize=fuzzer
if command -v clang > /dev/null 2>&1; then
    runtime=$(clang -print-file-name=libclang_rt.fuzzer-x86_64.a)
    version=$(clang --version | sed -n 's/.*version \([0-9]*\).*/\1/p' | head -n 1)
    [ -e "$runtime" ] || packages="$packages libclang-rt-$version-dev"
elif [ -n "$packages" ]; then
    packages="$packages libclang-rt-dev"
fi
# what shows the machine code of CUDA kernels, where CUDA came without it, and the headers that describe graphs to cuDNN
if command -v nvcc > /dev/null 2>&1 && [ ! -e build/tools/include/cudnn_frontend.h ]; then
    wheels=nvidia-cudnn-frontend==1.32.0
    command -v cuobjdump > /dev/null 2>&1 ||
        wheels="$wheels nvidia-cuda-cuobjdump==13.3.73 nvidia-cuda-nvdisasm==13.3.73"
    line="python3 -m pip install --no-deps --target build/tools $wheels"
    echo "setup: $line"
    $line > /dev/null 2>&1 || echo "setup: that failed: tests of CUDA machine code, or of cuDNN, are skipped"
fi
[ -z "$packages" ] && exit 0
line="apt-get update && apt-get install -y --no-install-recommends$packages"
if ! command -v apt-get > /dev/null 2>&1; then
    echo "setup: this system has no apt-get; the suite would also use:$packages"
elif [ "$(id -u)" = 0 ]; then
    echo "setup: $line"
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    (apt-get update && apt-get install -y --no-install-recommends $packages) > "$log" 2>&1 ||
        { tail -n 3 "$log"; echo "setup: that failed; tests that need these packages are skipped"; }
    rm -f "$log"
else
    echo "setup: for the whole suite run: sudo sh -c '$line'"
fi
exit 0
