# detect.mk - what this machine has, found once for each make and printed by `make report`. Each answer is a variable
# that can be given instead: make CC=clang ISAS=no AMX=no OPENMP=no MPI=no CUDA=no CUDNN=no NCCL=no EMULATED=no

ifeq ($(shell $(CC) --version 2>/dev/null | head -n 1),)
$(error the C compiler "$(CC)" does not run; install one (Debian: apt-get install gcc) or name it: make CC=...)
endif

compiles = $(shell echo 'int main(void){return 0;}' | $(CC) -x c $(1) - -o /dev/null 2>/dev/null && echo yes || echo no)
machine := $(shell $(CC) -dumpmachine)
x86     := $(findstring x86_64,$(machine))

# ---- the C compiler. Sanitizers watch the generic kernels only: every set once more would take minutes to compile.

ISAS   ?= $(if $(and $(x86),$(filter-out sanitize race,$(config))),$(call compiles,-mavx512bf16),no)
AMX    ?= $(if $(filter yes,$(ISAS)),$(call compiles,-mamx-tile -mamx-bf16),no)

# ---- OpenMP, threads of the CPU kernels: gcc's library linked statically where that is there (kernels/cpu/team.c
# says why), clang's where it is installed. ThreadSanitizer does not understand either.

openmp_files := $(if $(findstring clang,$(shell $(CC) --version)),libomp.so,libgomp.a libgomp.so)
OPENMP_LINK  := $(firstword $(filter /%,$(foreach f,$(openmp_files),$(shell $(CC) -print-file-name=$f))))
OPENMP ?= $(if $(and $(OPENMP_LINK),$(filter-out race,$(config))),$(call compiles,-fopenmp),no)

# ---- MPI: Open MPI's words, or those of MPICH and its kin

MPI ?= $(if $(shell command -v mpicc 2>/dev/null),yes,no)
ifeq ($(MPI),yes)
mpi_flags    = $(shell mpicc --showme:$(1) 2>/dev/null || mpicc -$(1)-info)
MPI_COMPILE := -DHAVE_MPI $(filter -I%,$(call mpi_flags,compile))
MPI_LINK    := $(filter -L% -l%,$(call mpi_flags,link))
endif

# ---- CUDA: the compiler, a GPU (without one CUDA is left out, unless asked for), and headers in the toolkit, the
# system's packages or Python's wheels. Libraries other than the runtime are opened when the program needs them.

NVCC      ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc))
GPU       ?= $(if $(wildcard /dev/nvidia[0-9]* /dev/dxg),yes,no)
CUDA      ?= $(if $(NVCC),$(GPU),no)
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
PYTHON    ?= $(firstword $(wildcard $(VIRTUAL_ENV)/bin/python3) python3)
WHEELS    ?= $(if $(NVCC),$(shell $(PYTHON) -c 'import site, sys; \
  print(*dict.fromkeys(site.getsitepackages() + [site.getusersitepackages()] + sys.path))' 2>/dev/null))
CUDA_INCLUDES := $(wildcard $(CUDA_HOME)/include $(WHEELS:%=%/nvidia/*/include)) \
  $(patsubst %/cudnn_frontend.h,%,$(wildcard $(patsubst %,%/include/cudnn_frontend.h,$(WHEELS) build/tools)))
cores := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
ifndef CUDNN
CUDNN := $(if $(NVCC),$(shell echo 'static_assert(CUDNN_VERSION >= 91100 && CUDNN_FRONTEND_VERSION >= 12200);' | \
  $(CXX) -std=c++17 -x c++ -include cudnn.h -include cudnn_frontend_version.h -fsyntax-only \
  $(CUDA_INCLUDES:%=-isystem %) - 2>/dev/null && echo yes || echo no),no)
endif
NCCL ?= $(if $(wildcard $(addsuffix /nccl.h,$(CUDA_INCLUDES) /usr/include /usr/include/$(machine))),yes,no)

# The GPU of this machine where there is one; otherwise every kind, and code from which newer ones compile their own.
ifeq ($(origin CUDA_ARCHS)$(GPU),undefinedyes)
GENCODE := -arch=native
else
CUDA_ARCHS ?= 80 89 90 100 120
newest  := $(lastword $(CUDA_ARCHS))
GENCODE := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
  -gencode arch=compute_$(newest),code=compute_$(newest)
endif

# ---- the emulated GPU: in ./train only when asked for; its part of the suite needs a C++ compiler and an x86-64

EMU      ?= no
EMULATED ?= $(if $(and $(x86),$(shell command -v $(firstword $(CXX)) 2>/dev/null)),yes,no)

# ---- what was found

, := ,
mpi_missing   = not found: --ranks N starts ranks on this machine's CPU; more machines, or GPUs, need it
cuda_built    = built in for $(if $(CUDA_ARCHS),sm $(CUDA_ARCHS),the GPU here); $(cuda_headers)
cuda_headers  = headers: cuDNN with cudnn-frontend $(CUDNN)$(,) NCCL $(NCCL)
cuda_left_out = left out ($(if $(NVCC),nvcc found$(,) GPU: $(GPU)$(,) make CUDA=yes builds it,no nvcc))

report:
	@echo "compiler: $(CC) for $(machine), config $(config)"
	@echo "kernels:  $(sets)$(if $(filter yes,$(AMX)), amx), chosen by processor at run time"
	@echo "threads:  $(if $(filter yes,$(OPENMP)),OpenMP,one only$(,) without OpenMP)"
	@echo "CUDA:     $(if $(filter yes,$(CUDA)),$(cuda_built),$(cuda_left_out))"
	@echo "emulator: $(if $(filter yes,$(EMU)),built in,left out)"
	@echo "MPI:      $(if $(filter yes,$(MPI)),found,$(mpi_missing))"
