# make                      builds ./train and build/simulate; needs a C compiler and make, nothing else; with CUDA
#                           where there is a GPU
# make test                 everything that can be proved here; ends with "N passed, N failed"
# make test-long            the first law on 1,000 random plans
# make bench                speeds beside this machine's own limits, also to build/bench.jsonl
# make simulate             build/simulate alone: every planner on the same batches, in the cost model
# make test-gpu             the CUDA backend on this machine's GPU;  make bench-gpu: its speeds, to dev/results/
# make check                layering, line length, options: the house rules as greps
# make fuzz                 every reader under libFuzzer, a minute each (FUZZ_SECONDS=60); needs clang
# make config=debug         no optimisation;  make config=sanitize: AddressSanitizer and UBSan;  config=race: TSan
# make CUDA=yes             CUDA for a machine elsewhere, for CUDA_ARCHS="80 89 90 100 120"
# make EMU=yes              ./train --device emu: the CUDA code on an emulated GPU, for tests; needs a C++ compiler
#
# Detections are few, printed once, and can be overridden: make CC=clang OPENMP=no ISAS=no CUDA=no

CC      ?= cc
config  ?= release
build   := build/$(config)

# ---- detections

compiles = $(shell echo 'int main(void){return 0;}' | $(CC) -x c $(1) - -o /dev/null 2>/dev/null && echo yes || echo no)
machine := $(shell $(CC) -dumpmachine)

OPENMP  ?= $(if $(filter race,$(config)),no,$(call compiles,-fopenmp))
# Sanitizers watch the generic kernels only: every set once more would take minutes to compile.
ISAS    ?= $(if $(and $(findstring x86_64,$(machine)),$(filter-out sanitize race,$(config))),$(call $(\
             )compiles,-mavx512bf16),no)
AMX     ?= $(if $(filter yes,$(ISAS)),$(call compiles,-mamx-tile -mamx-bf16),no)
MPI     ?= $(if $(shell command -v mpicc 2>/dev/null),yes,no)
ifeq ($(MPI),yes)
# Open MPI's words, or those of MPICH and its kin.
mpi_flags    = $(shell mpicc --showme:$(1) 2>/dev/null || mpicc -$(1)-info)
MPI_COMPILE := -DHAVE_MPI $(filter -I%,$(call mpi_flags,compile))
MPI_LINK    := $(filter -L% -l%,$(call mpi_flags,link))
endif

# CUDA: the compiler, a GPU (without one CUDA is left out, unless asked for), and headers in the toolkit, the system's
# packages or a Python environment. Libraries other than the runtime are opened when the program needs them.
NVCC      ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc))
GPU       ?= $(if $(wildcard /dev/nvidia[0-9]* /dev/dxg),yes,no)
CUDA      ?= $(if $(NVCC),$(GPU),no)
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_INCLUDES := $(wildcard $(CUDA_HOME)/include $(VIRTUAL_ENV)/lib/python3*/site-packages/nvidia/*/include)
cuda_header = $(if $(wildcard $(addsuffix /$(1),$(CUDA_INCLUDES) /usr/include /usr/include/$(machine))),yes,no)
H := \#
ifndef CUDNN
CUDNN := $(if $(NVCC),$(shell printf '$(H)include <cudnn.h>\n$(H)if CUDNN_VERSION < 91100\n$(H)error\n$(H)endif\n' | \
  $(CXX) -x c++ -fsyntax-only $(CUDA_INCLUDES:%=-isystem %) - 2>/dev/null && echo yes || echo no),no)
endif
NCCL  ?= $(call cuda_header,nccl.h)
EMU   ?= no

ifeq ($(shell $(CC) --version 2>/dev/null | head -n 1),)
$(error the C compiler "$(CC)" does not run; install one (Debian: apt-get install gcc) or name it: make CC=...)
endif

# ---- flags

CFLAGS_release  := -O3 -g
CFLAGS_debug    := -O0 -g
CFLAGS_sanitize := -O1 -g -fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined
CFLAGS_race     := -O1 -g -fsanitize=thread
ifeq ($(CFLAGS_$(config)),)
$(error config=$(config) is unknown; expected release, debug, sanitize or race)
endif

# Warnings stop the build where they can be mended (continuous integration sets WERROR=-Werror), not elsewhere.
WERROR   ?=
WARNINGS := -Wall -Wextra $(WERROR)
COMMON   := -std=gnu11 $(CFLAGS_$(config)) $(WARNINGS) -I. -MMD -MP $(CFLAGS)
ifeq ($(OPENMP),yes)
COMMON += -fopenmp
else
COMMON += -Wno-unknown-pragmas -Ikernels/cpu/single
endif
# The planner must reach the same result with every compiler: no contraction of a * b + c.
PLAN_FLAGS   := -ffp-contract=off
KERNEL_FLAGS := -fno-math-errno

avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mprefer-vector-width=512
FLAGS_generic    :=
FLAGS_avx2       := -mavx2 -mfma
FLAGS_avx512     := $(avx512)
FLAGS_avx512bf16 := $(avx512) -mavx512bf16
FLAGS_amx        := $(avx512) -mavx512bf16 -mamx-tile -mamx-bf16

# The GPU of this machine where there is one; otherwise every kind, and code from which newer ones compile their own.
ifeq ($(origin CUDA_ARCHS)$(GPU),undefinedyes)
GENCODE := -arch=native
else
CUDA_ARCHS ?= 80 89 90 100 120
GENCODE = $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
  -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))
endif
NVCC_FLAGS = -std=c++17 -O3 -lineinfo $(GENCODE) --threads 0 -I. $(CUDA_INCLUDES:%=-isystem %) -MMD -MP \
  -Xcompiler "-Wall $(WERROR) $(filter -fsanitize% -fno-sanitize% -fno-omit%,$(CFLAGS_$(config)))" $(NVCC_EXTRA)

# ---- sources: the files of `families` are compiled once for each instruction set

families := matmul attention elementwise loss
sets     := generic $(if $(filter yes,$(ISAS)),avx2 avx512 avx512bf16)
mpi_files := $(if $(filter yes,$(MPI)),$(wildcard kernels/comm_mpi*.c),kernels/comm_no_mpi.c)
plain    := $(filter-out kernels/comm_mpi%.c kernels/comm_no_mpi.c,$(wildcard plan/*.c plan/rivals/*.c data/*.c \
  run/*.c kernels/*.c)) $(mpi_files) kernels/cpu/backend.c kernels/cpu/clock.c kernels/cpu/reference.c
objects  := $(plain:%.c=$(build)/%.o) $(foreach s,$(sets),$(families:%=$(build)/kernels/cpu/%.$(s).o))
ifeq ($(ISAS),yes)
ISA_DEFINE := -DHAVE_X86_ISAS
endif
ifeq ($(AMX),yes)
objects += $(build)/kernels/cpu/matmul_amx.amx.o
ISA_DEFINE += -DHAVE_AMX
endif

# ---- the CUDA sources, which nvcc compiles, or a C++ compiler for the emulator

cuda_files := backend elementwise columns optimizer classifier layernorm column_sum embedding matmul attention \
  attention_backward attention_plain stamps comm_self
nccl_files := $(patsubst kernels/cuda/%.cu,%,$(wildcard kernels/cuda/comm_nccl*.cu))
cuda_objects := $(patsubst %,$(build)/kernels/cuda/%.o,$(cuda_files) library \
  $(if $(filter yes,$(CUDNN)),attention_cudnn cudnn_plan,attention_no_cudnn) \
  $(if $(filter yes,$(NCCL)),$(nccl_files),comm_no_nccl))
emu_objects := $(patsubst %,$(build)/emu/%.o,$(cuda_files) attention_no_cudnn $(if $(filter yes,$(MPI)),$(nccl_files),\
  comm_no_nccl)) $(patsubst %,$(build)/emu/%.o,emulator cudart cublaslt linked_library $(if $(filter yes,$(MPI)),nccl))

LIBRARIES := $(MPI_LINK) -lpthread -lm -ldl
ifeq ($(CUDA),yes)
objects += $(cuda_objects)
DEVICES := -DHAVE_CUDA
# nvcc knows where its runtime lies; everything else is the C compiler's.
link = $(NVCC) -ccbin $(firstword $(CXX)) $(NVCC_FLAGS) $(if $(filter yes,$(OPENMP)),-Xcompiler -fopenmp) \
  $(1) -o $@ $(LIBRARIES)
else
link = $(CC) $(COMMON) $(1) -o $@ $(LIBRARIES)
endif
# The stand-ins for libraries are looked up in the program itself.
link_emu = $(CXX) $(filter-out -std=gnu11,$(COMMON)) $(1) -rdynamic -o $@ $(LIBRARIES)

# Programs that mpirun starts, each on several numbers of ranks. They call MPI themselves.
ranked       := $(filter $(patsubst test/test_%.c,%,$(wildcard test/test_*.c)),comm comm_failures group_attention \
  law resized)
ranks_of_comm            := 1 2 3 4 8
ranks_of_comm_failures   := 1 2 4
ranks_of_group_attention := 1 2 3 5 8
ranks_of_law             := 2 3 5 8
ranks_of_resized         := 2 4
ranked_tests := $(ranked:%=$(build)/test/test_%)
ranked_bench := $(build)/dev/bench_comm

benches := $(patsubst dev/%.c,$(build)/dev/%,$(filter-out %/bench_gpu.c,$(wildcard dev/bench_*.c)))
tests := $(patsubst test/%.c,$(build)/test/%,$(filter-out %/test_device.c,$(wildcard test/test_*.c)))
tests := $(filter-out $(ranked_tests),$(tests))
ifneq ($(MPI),yes)
benches := $(filter-out $(ranked_bench),$(benches))
ranked_tests :=
endif
ifneq ($(AMX),yes)
tests := $(filter-out %/test_matmul_amx,$(tests))  # the compiler does not know the tiles
endif

all: report train $(if $(wildcard dev/simulate.c),simulate)

# Compared, not dated: another config may have been here since.
train: $(build)/train$(if $(filter yes,$(EMU)),_emu) always
	@cmp -s $< $@ || { cp $< $@.tmp && mv $@.tmp $@; }

# Plans of every system on the same batches, in the cost model: build/simulate --help.
simulate: build/simulate
build/simulate: $(build)/dev/simulate always
	@mkdir -p $(@D)
	@cmp -s $< $@ || { cp $< $@.tmp && mv $@.tmp $@; }

# ---- what was found

cuda_built    = built in for $(if $(CUDA_ARCHS),sm $(CUDA_ARCHS),the GPU here); headers: cuDNN $(CUDNN)$(,) NCCL $(NCCL)
cuda_left_out = left out ($(if $(NVCC),nvcc found$(,) GPU: $(GPU)$(,) make CUDA=yes builds it,no nvcc))

report:
	@echo "compiler: $(CC) for $(machine), config $(config)"
	@echo "OpenMP:   $(if $(filter yes,$(OPENMP)),found,not found$(,) one thread only)"
	@echo "kernels:  $(sets)$(if $(filter yes,$(AMX)), amx), chosen by processor at run time"
	@echo "CUDA:     $(if $(filter yes,$(CUDA)),$(cuda_built),$(cuda_left_out))"
	@echo "emulator: $(if $(filter yes,$(EMU)),built in,left out)"
	@echo "MPI:      $(if $(filter yes,$(MPI)),found,not found$(,) one rank only on the CPU)"

, := ,

# ---- rules

# Everything is built anew when the compiler or a flag is another than last time.
command = $(CC) $(COMMON) $(ISA_DEFINE) $(sets) $(DEVICES) $(MPI) $(CXX) $(if $(DEVICES),$(NVCC_FLAGS))
$(build)/flags: always
	@mkdir -p $(@D)
	@echo '$(command)' | cmp -s - $@ || echo '$(command)' > $@
$(objects) $(emu_objects) $(build)/train_gpt.o $(build)/kernels/cpu/matmul_amx_emulated.o: $(build)/flags

$(build)/train: $(build)/train_gpt.o $(build)/ragged.a
	$(call link,$(filter %.o,$^) $(filter %.a,$^))

$(build)/train_emu: $(build)/train_gpt.o $(build)/emu/open.o $(emu_objects) $(build)/ragged.a
	$(call link_emu,$(filter %.o,$^) $(filter %.a,$^))

$(build)/ragged.a: $(objects)
	@rm -f $@
	ar rcs $@ $^

$(build)/train_gpt.o: train_gpt.cu
	@mkdir -p $(@D)
	$(CC) $(COMMON) -x c -c $< -o $@

$(build)/plan/%.o: plan/%.c
	@mkdir -p $(@D)
	$(CC) $(COMMON) $(PLAN_FLAGS) -c $< -o $@

$(mpi_files:%.c=$(build)/%.o): KERNEL_FLAGS += $(MPI_COMPILE)
$(build)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(COMMON) $(ISA_DEFINE) $(DEVICES) $(KERNEL_FLAGS) -c $< -o $@

$(build)/kernels/cuda/%.o: kernels/cuda/%.cu
	@mkdir -p $(@D)
	$(NVCC) -ccbin $(firstword $(CXX)) $(NVCC_FLAGS) -c $< -o $@

# The emulator's headers come first, so that they stand in for NVIDIA's. It runs fast enough at -O2 only.
EMU_FLAGS = -std=c++17 $(subst -O0,-O1,$(subst -O3,-O2,$(CFLAGS_$(config)))) $(WARNINGS) -Itest/emu -I. -MMD -MP \
  -fno-math-errno $(MPI_COMPILE)
# ThreadSanitizer must not watch the machine itself.
emu_machine := $(build)/emu/emulator.o $(build)/emu/cudart.o
ifeq ($(config),race)
$(emu_machine): EMU_FLAGS := $(filter-out -fsanitize=thread,$(EMU_FLAGS)) -DEMU_FOR_THREAD_SANITIZER
endif

$(build)/emu/%.o: kernels/cuda/%.cu
	@mkdir -p $(@D)
	$(CXX) $(EMU_FLAGS) -x c++ -c $< -o $@

$(build)/emu/%.o: test/emu/%.cc
	@mkdir -p $(@D)
	$(CXX) $(EMU_FLAGS) -c $< -o $@

$(build)/emu/open.o: kernels/open.c $(build)/flags
	@mkdir -p $(@D)
	$(CC) $(COMMON) $(ISA_DEFINE) -DHAVE_EMU -c $< -o $@

define family_rule
$(build)/kernels/cpu/%.$(1).o: kernels/cpu/%.c
	@mkdir -p $$(@D)
	$$(CC) $$(COMMON) $$(KERNEL_FLAGS) $$(FLAGS_$(1)) -DISA=$(1) -c $$< -o $$@
endef
$(foreach s,$(sets) amx,$(eval $(call family_rule,$(s))))

$(ranked_tests:%=%.o): KERNEL_FLAGS += $(MPI_COMPILE)
$(build)/test/%: $(build)/test/%.o $(build)/ragged.a
	$(call link,$(filter %.o,$^) $(filter %.a,$^))

# The tests of ops once more, for a device instead of the CPU's instruction sets.
device_tests := test_ops test_ops_parts test_attention test_attention_parts test_matmul

$(build)/test_on_emu/%.o: test/%.c $(build)/flags
	@mkdir -p $(@D)
	$(CC) $(COMMON) $(ISA_DEFINE) $(MPI_COMPILE) -DTEST_DEVICE='"emu"' -c $< -o $@

$(build)/test_on_emu/%: $(build)/test_on_emu/%.o $(build)/emu/open.o $(emu_objects) $(build)/ragged.a
	$(call link_emu,$(filter %.o,$^) $(filter %.a,$^))

# Tests in C++ include the backend's own header.
nccl_tests := $(if $(filter yes,$(MPI)),test_comm_nccl test_comm_nccl_worlds)
$(nccl_tests:%=$(build)/test_on_emu/%.o): $(build)/test_on_emu/%.o: test/%.cc $(build)/flags
	@mkdir -p $(@D)
	$(CXX) $(EMU_FLAGS) -c $< -o $@

$(nccl_tests:%=$(build)/test_on_gpu/%.o): $(build)/test_on_gpu/%.o: test/%.cc $(build)/flags
	@mkdir -p $(@D)
	$(NVCC) -ccbin $(firstword $(CXX)) $(NVCC_FLAGS) $(MPI_COMPILE) -x cu -c $< -o $@

$(nccl_files:%=$(build)/kernels/cuda/%.o): NVCC_EXTRA += $(MPI_COMPILE)

# Plans of cuDNN need its header, not a GPU. Without the header the test says so.
$(build)/test/test_cudnn_plans: test/test_cudnn_plans.cc $(build)/ragged.a $(if $(filter yes,$(CUDNN)),$(\
                                )kernels/cuda/cudnn_plan.cu kernels/cuda/library.cu)
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -O1 -g $(WARNINGS) -I. $(CUDA_INCLUDES:%=-isystem %) -x c++ $(filter %.cc %.cu,$^) -x none \
	  $(build)/ragged.a -o $@ $(LIBRARIES)

$(build)/test_on_gpu/%.o: test/%.c $(build)/flags
	@mkdir -p $(@D)
	$(CC) $(COMMON) $(ISA_DEFINE) -DTEST_DEVICE='"cuda"' -c $< -o $@

$(build)/test_on_gpu/%: $(build)/test_on_gpu/%.o $(build)/ragged.a
	$(call link,$(filter %.o,$^) $(filter %.a,$^))

# The AMX matmul on emulated tiles: the same source, for processors that have none.
$(build)/test/test_matmul_amx: $(build)/kernels/cpu/matmul_amx_emulated.o
$(build)/kernels/cpu/matmul_amx_emulated.o: kernels/cpu/matmul_amx.c
	@mkdir -p $(@D)
	$(CC) $(COMMON) $(KERNEL_FLAGS) $(FLAGS_amx) -DISA=amx -DTILES_EMULATED -c $< -o $@

# Benches stand beside oneDNN where it is installed, OpenBLAS (found when they run) and PyTorch (PYTHON=...).
$(build)/dev/%: dev/%.c $(build)/ragged.a
	@mkdir -p $(@D)
	$(CC) $(COMMON) $(ISA_DEFINE) $(MPI_COMPILE) $(if $(filter yes,$(ONEDNN)),-DHAVE_ONEDNN) -c $< -o $@.o
	$(call link,$@.o $(build)/ragged.a) $(if $(filter yes,$(ONEDNN)),-ldnnl)

simulate_objects := $(patsubst dev/%.c,$(build)/dev/%.o,$(wildcard dev/simulate*.c))
$(simulate_objects): $(build)/flags
$(build)/dev/simulate: $(simulate_objects) $(build)/ragged.a
	$(call link,$(filter %.o,$^) $(filter %.a,$^))

# ---- proofs

# Readers and planners run a second time under sanitizers; so do the CUDA kernels on the emulator, which has every
# operation of the device tests, whole runs, and the mistakes that it must find.
sanitized := $(addprefix build/sanitize/test/test_,json safetensors checkpoint checkpoint_damage tokenizer \
               tokenizer_files docs docs_tokens sampler pack config files rank_identity \
               checkpoint_ranks plan plan_check share cost machine lengths bound timeline step refine explain \
               balance balance_decide balance_moves keep kept speeds straggle ranks_page work timer)
# Ranks share this machine's cores: one thread each, bound to none.
mpirun     = env OMP_NUM_THREADS=1 mpirun --oversubscribe --bind-to none -n $(1)
suite_ranked = $(if $(filter yes,$(MPI)),$(foreach t,$(ranked),$(foreach n,$(ranks_of_$(t)),$(\
  )'$(call mpirun,$(n)) $(build)/test/test_$(t)')) \
  '$(call mpirun,3) $(build)/test/test_law --zero 2' '$(call mpirun,4) $(build)/test/test_law --zero 3' \
  $(foreach o,2_--tp_2 3_--tp_3 4_--tp_2_--zero_3 6_--tp_2 8_--tp_4_--zero_2,$(\
  )'$(call mpirun,$(firstword $(subst _, ,$(o)))) $(build)/test/test_law $(wordlist 2,9,$(subst _, ,$(o)))') \
  '$(call mpirun,4) $(build)/test/test_resized --tp 2' \
  'sh test/law_in_cluster.sh $(build)/test/test_law' dev/cluster/check.sh)

# The emulator's part of the suite needs a C++ compiler and an x86-64.
EMULATED ?= $(if $(and $(filter release,$(config)),$(findstring x86_64,$(machine)),$(shell command -v $(CXX))),yes,no)
emu-objects:
	@echo $(notdir $(emu_objects))

emulated := $(device_tests:%=$(build)/test_on_emu/%)
emulated_again := $(device_tests:%=build/sanitize/test_on_emu/%) $(device_tests:%=build/race/test_on_emu/%)
ifeq ($(EMULATED),yes)
# In every order of threads; races where one warp runs ahead.
suite_emulated = $(foreach o,0 1 2 3,$(emulated:%='env EMU_ORDER=$(o) %')) \
  $(emulated_again:%='env EMU_ORDER=2 %') '$(build)/test/test_golden@$(build)/train_emu --device emu' \
  '$(build)/test/test_device@$(build)/train_emu --device emu' test/emu/faults.sh test/cuda_compiles.sh \
  $(if $(filter yes,$(MPI)),$(foreach t,$(nccl_tests),'$(call mpirun,4) $(build)/test_on_emu/$(t)') \
  '$(call mpirun,3) env LAW_CASES=2 $(build)/test_on_emu/test_law --device emu' \
  '$(call mpirun,2) env LAW_CASES=2 $(build)/test_on_emu/test_law --device emu --tp 2') $(build)/test/test_cudnn_plans
endif

test: report
	@sh scripts/setup.sh
	@$(MAKE) --no-print-directory -s check
	@$(MAKE) --no-print-directory -s test-programs
	@$(MAKE) --no-print-directory -s run-tests

run-tests:
	@$(if $(filter yes,$(MPI)),:,echo "MPI is not here: exchanges between ranks were not tried")
	@sh test/run.sh $(build)/train $(filter-out %/test_simulate,$(tests)) \
	  '$(build)/test/test_simulate@$(build)/dev/simulate' $(suite_ranked) $(if $(filter release,$(config)),$(sanitized)) \
	  test/fuzz/smoke.sh $(suite_emulated)

test-programs: $(build)/train $(build)/dev/simulate $(tests) $(ranked_tests)
ifeq ($(config),release)
	@$(MAKE) --no-print-directory -s config=sanitize $(sanitized)
endif
ifeq ($(EMULATED),yes)
	@$(MAKE) --no-print-directory -s $(build)/train_emu $(emulated) $(build)/test/test_device \
	  $(if $(filter yes,$(MPI)),$(addprefix $(build)/test_on_emu/,$(nccl_tests) test_law)) $(build)/test/test_cudnn_plans
	@$(MAKE) --no-print-directory -s config=sanitize $(filter build/sanitize/%,$(emulated_again))
	@$(MAKE) --no-print-directory -s config=race $(filter build/race/%,$(emulated_again))
endif

# The first law on 1,000 random cases: some minutes.
test-long: report $(build)/test/test_law
	@$(foreach n,1 2 3 5 8,LAW_CASES=200 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 $(call mpirun,$(n)) \
	  $(build)/test/test_law > build/law-$(n).out 2>&1 || { tail -n 20 build/law-$(n).out; exit 1; }; \
	  echo "$(n) ranks, 200 cases:"; grep -E '^ +(ok|FAILED)|^[0-9]+ passed' build/law-$(n).out;)

# On a machine with a GPU: every operation against the CPU's tables, the whole program against PyTorch's numbers and
# across a kill, exchanges between several ranks on this one GPU, and memory checked where compute-sanitizer is.
gpu_tests := $(device_tests:%=$(build)/test_on_gpu/%)
sanitizer := $(shell command -v compute-sanitizer 2>/dev/null)
test-gpu: report
	@[ "$(CUDA)" = yes ] || { echo "test-gpu: no GPU or no nvcc here; make CUDA=yes test-gpu insists"; exit 1; }
	@$(MAKE) --no-print-directory -s $(build)/train $(gpu_tests) $(addprefix $(build)/test/test_,device golden resume) \
	  $(nccl_tests:%=$(build)/test_on_gpu/%)
	@sh test/run.sh $(build)/train $(gpu_tests) $(foreach t,golden device resume,'$(build)/test/test_$(t)@$(\
	  )$(build)/train --device cuda') $(foreach t,$(nccl_tests),'$(call mpirun,4) $(build)/test_on_gpu/$(t)') \
	  $(if $(sanitizer),'$(sanitizer) --error-exitcode 9 $(build)/test_on_gpu/test_attention')
	@$(if $(sanitizer),:,echo "compute-sanitizer is not here: global memory was not checked")
	@$(if $(filter yes,$(MPI)),:,echo "MPI is not here: exchanges between ranks were not tried")

bench-gpu: report $(build)/train $(build)/dev/bench_gpu
	@sh scripts/gpu_report.sh

bench: export OMPI_ALLOW_RUN_AS_ROOT = 1
bench: export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = 1
bench: ONEDNN := $(call compiles,-include dnnl.h -ldnnl)
bench: report $(build)/train $(benches)
	@rm -f build/bench.jsonl
	@for b in $(filter-out $(ranked_bench),$(benches)); do $$b || exit 1; done
	@$(if $(filter $(ranked_bench),$(benches)),$(call mpirun,2) $(ranked_bench),:)

# ---- fuzzing: every reader of bytes

fuzzers := $(patsubst test/fuzz/%.c,build/fuzz/%,$(wildcard test/fuzz/fuzz_*.c))
FUZZ_SECONDS ?= 60

build/fuzz/%: test/fuzz/%.c $(wildcard plan/*.c data/*.c data/*.h)
	@mkdir -p $(@D)
	clang -std=gnu11 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -I. $< \
	  $(wildcard plan/*.c data/*.c) -o $@ -lm

fuzz-programs: $(fuzzers)
fuzz: $(fuzzers)
	@for f in $(fuzzers); do echo $$f; $$f -max_total_time=$(FUZZ_SECONDS) -verbosity=0 || exit 1; done

check:
	@sh scripts/check.sh

clean:
	rm -rf build train

-include $(shell find build $(filter-out build/%,$(build)) -name '*.d' 2>/dev/null)
always:
.SECONDARY:
.PHONY: all always report simulate test test-long test-programs run-tests emu-objects test-gpu bench-gpu \
  bench check fuzz fuzz-programs clean
