# make                      builds ./train and build/simulate; needs a C compiler and make, nothing else; with CUDA
#                           where there is a GPU. V=1 shows the commands
# make test                 every family of claims at its smallest, within 5 minutes; ends with "N passed, N failed"
# make test-all             everything that can be proved here, within half an hour; the list of both: test/suite
# make test-long            the first law on 1,000 random plans;  make tiers="quick all long" run-tests: all three
# make test-mutants         faults put into a copy of the tree, each of which a quick test must find: test/mutants/
# make test-faults          calls that fail, kills, races, full disks: a quarter of an hour
# make bench                speeds beside this machine's own limits, also to build/bench.jsonl
# make core                 build/core: one rank on the reference kernels, 15 files; make core-files lists them
# make simulate             build/simulate alone: every planner on the same batches, in the cost model
# make test-gpu             the CUDA backend on this machine's GPU;  make bench-gpu: all facts of twelve minutes there
# make size SINCE=COMMIT    lines and files by room, and the difference to a commit or tag
# make check                layering, line length, lists that must be complete: the house rules as greps
# make check-examples       runs the documents' examples whose digits repeat, and compares the digits: a minute
# make install PREFIX=DIR     DIR/bin/ragged, its man page and completions (/usr/local)
# make fuzz                 every reader under libFuzzer, a minute each (FUZZ_SECONDS=60); needs clang
# make config=debug         no optimisation;  make config=sanitize: AddressSanitizer and UBSan;  config=race: TSan
# make CUDA=yes             CUDA for a machine elsewhere, for CUDA_ARCHS="80 89 90 100 120"
# make EMU=yes              ./train --device emu: the CUDA code on an emulated GPU, for tests; needs a C++ compiler
#
# Detections are few, printed once, and can be overridden (scripts/detect.mk): make CC=clang ISAS=no CUDA=no

CC     ?= cc
config ?= release
build  := build/$(config)
all:
include scripts/detect.mk

# As many jobs as cores, unless -j says otherwise.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(cores) --no-print-directory
endif

# A step is one short line, or with V=1 its command: $(call step,CC plan/cost/cost.c,cc -c ...).
define step
@mkdir -p $(@D)
@$(if $(V),:,echo '$(1)')
$(if $(V),,@)$(2)
endef

# ---- flags

CFLAGS_release  := -O3 -g
CFLAGS_debug    := -O0 -g
CFLAGS_sanitize := -O1 -g -fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined
CFLAGS_race     := -O1 -g -fsanitize=thread
CFLAGS_fuzz     := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
ifeq ($(CFLAGS_$(config)),)
$(error config=$(config) is unknown; expected release, debug, sanitize or race)
endif

# Warnings stop the build where they can be mended (continuous integration sets WERROR=-Werror), not elsewhere.
WERROR   ?=
# But a table that lacks an entry, and a switch that lacks a case, are errors.
WARNINGS := -Wall -Wextra -Werror=switch -Werror=missing-field-initializers $(WERROR)
# The planner must reach the same result with every compiler, in functions of its headers too: no contraction of
# a * b + c but in the kernels that are compiled for each instruction set.
COMMON   := -std=gnu11 $(CFLAGS_$(config)) $(WARNINGS) -I. -MMD -MP -ffp-contract=off $(CFLAGS)
KERNEL_FLAGS := -fno-math-errno
FAMILY_FLAGS := $(KERNEL_FLAGS) -ffp-contract=fast
DEFINES      := $(if $(filter yes,$(ISAS)),-DHAVE_X86_ISAS) $(if $(filter yes,$(AMX)),-DHAVE_AMX) \
  $(if $(filter yes,$(CUDA)),-DHAVE_CUDA) $(if $(filter yes,$(OPENMP)),-DHAVE_OPENMP)

avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mprefer-vector-width=512
FLAGS_avx2       := -mavx2 -mfma
FLAGS_avx512     := $(avx512)
FLAGS_avx512bf16 := $(avx512) -mavx512bf16
FLAGS_amx        := $(avx512) -mavx512bf16 -mamx-tile -mamx-bf16

NVCC_FLAGS := -std=c++17 -O3 -lineinfo $(GENCODE) --threads 0 -I. $(CUDA_INCLUDES:%=-isystem %) -MMD -MP \
  -Xcompiler "-Wall -Werror=switch $(WERROR) $(filter -fsanitize% -fno-sanitize% -fno-omit%,$(CFLAGS_$(config)))" \
  $(MPI_COMPILE) $(if $(filter yes,$(CUDNN)),-DHAVE_CUDNN) $(if $(filter yes,$(NCCL)),-DHAVE_NCCL)
# The emulator's headers come first, so that they stand in for NVIDIA's. It runs fast enough at -O2 only.
EMU_FLAGS := -std=c++17 $(subst -O0,-O1,$(subst -O3,-O2,$(CFLAGS_$(config)))) $(WARNINGS) -Wno-psabi -Itest/emu -I. \
  -MMD -MP -fno-math-errno $(MPI_COMPILE) $(if $(filter yes,$(MPI)),-DHAVE_NCCL)

LIBRARIES = $(if $(filter yes,$(OPENMP)),$(OPENMP_LINK)) $(MPI_LINK) -lpthread -lm -ldl
ifeq ($(CUDA),yes)
# nvcc knows where its runtime lies; everything else is the C compiler's.
link = $(NVCC) -ccbin $(firstword $(CXX)) $(NVCC_FLAGS)
else
link = $(CC) $(COMMON)
endif
link_emu = $(CXX) $(filter-out -std=gnu11,$(COMMON)) -rdynamic # the stand-ins for libraries are looked up in itself
link_fuzz = $(CC) -fsanitize=fuzzer,address,undefined
linked = $(call step,LINK $@,$(1) $(filter %.o,$^) $(filter %.a,$^) -o $@ $(LIBRARIES) $(2))

# ---- sources: the files of `families` are compiled once for each instruction set

drawn    := $(wildcard plan/*/*.css plan/*/*.js run/*/*.css run/*/*.js)
families := matmul attention norm elementwise loss sample
sets     := generic $(if $(filter yes,$(ISAS)),avx2 avx512 avx512bf16)
left_out := run/core_stubs.c $(if $(filter yes,$(MPI)),,kernels/comm/comm_mpi.c)
searched := $(wildcard plan/search/*.c run/search/*.c)
beside   := plan/search/% run/search/%
plain    := $(filter-out $(left_out) $(searched),$(wildcard plan/*/*.c data/*.c run/*.c run/*/*.c kernels/*.c \
  $(patsubst %,kernels/%/*.c,comm table virtual))) $(patsubst %,kernels/cpu/%.c,backend team reference reference_ranks)
objects  := $(plain:%.c=$(build)/%.o) $(foreach s,$(sets),$(families:%=$(build)/kernels/cpu/%.$(s).o)) \
  $(if $(filter yes,$(ISAS)),$(build)/kernels/cpu/attention_pairs.avx512bf16.o) \
  $(if $(filter yes,$(AMX)),$(patsubst %,$(build)/kernels/cpu/%.amx.o,matmul_amx attention_pairs)) \
  $(patsubst %,$(build)/%.o,$(filter-out $(beside),$(drawn)))
searches := $(searched:%.c=$(build)/%.o) $(patsubst %,$(build)/%.o,$(filter $(beside),$(drawn)))

# The CUDA sources, which nvcc compiles, or a C++ compiler for the emulator.
cuda_files := $(filter-out library cudnn_plan,$(patsubst kernels/cuda/%.cu,%,$(wildcard kernels/cuda/*.cu)))
ifeq ($(CUDA),yes)
objects += $(patsubst %,$(build)/kernels/cuda/%.o,$(cuda_files) library $(if $(filter yes,$(CUDNN)),cudnn_plan))
endif
emu_objects := $(patsubst %,$(build)/emu/%.o,emulator $(cuda_files) cudart cublaslt linked_library \
  $(if $(filter yes,$(MPI)),nccl))

all: report train $(if $(wildcard dev/simulate.c),simulate)
	@echo 'next:     ./train       trains a small model;  ./train --help;  make test'

# Compared, not dated: another config may have been here since.
train: $(build)/train$(if $(filter yes,$(EMU)),_emu)
build/simulate: $(build)/dev/simulate
train build/simulate: always
	@cmp -s $(filter-out always,$^) $@ || { cp $(filter-out always,$^) $@.tmp && mv $@.tmp $@; }
simulate: build/simulate # plans of every system on the same batches, in the cost model: build/simulate --help

# ---- rules

# Everything is built anew when the compiler or a flag is another than last time.
command = $(CC) $(COMMON) $(DEFINES) $(sets) $(OPENMP) $(MPI) $(CXX) $(if $(filter yes,$(CUDA)),$(NVCC_FLAGS))
$(build)/flags: always
	@mkdir -p $(@D)
	@echo '$(command)' | cmp -s - $@ || echo '$(command)' > $@

$(build)/train: $(build)/train_gpt.o $(build)/ragged.a
	$(call linked,$(link))

$(build)/train_emu: $(build)/train_gpt.o $(build)/emu/open.o $(emu_objects) $(build)/ragged.a
	$(call linked,$(link_emu))

# The program that searches stands beside it.
$(build)/train $(build)/train_emu $(build)/train_checked: | $(if $(wildcard dev/simulate.c),$(build)/dev/simulate)

# ./train that proves every plan before it runs, and with --plan random runs any plan.
$(build)/train_checked: $(build)/test/train_gpt.o $(build)/test/checked.o $(build)/checked.a $(build)/ragged.a
	$(call linked,$(link))

# ./train in which single calls for memory, files and threads can be made to fail.
# Calls of OpenMP's library are not ours.
$(build)/train_faults $(build)/test/test_comm_failures: OPENMP_LINK := $(OPENMP_LINK:%.a=%.so)
$(build)/train_faults: wrapped = $(shell \
  sed -n 's/^CALL[A-Z_]*.\([a-z_]*\),.*/-Xlinker --wrap=\1/p' test/faults/inject.c)
$(build)/train_faults: $(build)/train_gpt.o $(build)/test/faults/inject.o $(build)/ragged.a
	$(call linked,$(link) $(wrapped))

$(build)/ragged.a: $(objects)
	$(call step,AR $@,rm -f $@ && ar rcs $@ $^)

# What build/simulate has beside the trainer, which links without it.
$(build)/search.a: $(searches)
	$(call step,AR $@,rm -f $@ && ar rcs $@ $^)

$(build)/train_gpt.o: train_gpt.cu $(build)/flags
	$(call step,CC $<,$(CC) $(COMMON) -x c -c $< -o $@)

$(build)/plan/%.o: plan/%.c $(build)/flags
	$(call step,CC $<,$(CC) $(COMMON) -c $< -o $@)

# A square root that may set errno is no vector's.
$(build)/plan/base/random.o: plan/base/random.c $(build)/flags
	$(call step,CC $<,$(CC) $(COMMON) $(KERNEL_FLAGS) -c $< -o $@)

$(build)/%.o: %.c $(build)/flags
	$(call step,CC $<,$(CC) $(COMMON) $(DEFINES) $(KERNEL_FLAGS) $(MPI_COMPILE) -c $< -o $@)

$(build)/kernels/cpu/team.o: KERNEL_FLAGS += $(if $(filter yes,$(OPENMP)),-fopenmp)

# Styles and scripts of pages become strings of C: plan/show/page.js is plan_show_page_js.
$(drawn:%=$(build)/%.o): $(build)/%.o: % $(build)/flags
	$(call step,CC $<,{ echo 'const char $(subst .,_,$(subst /,_,$<))[] ='; sed 's/[\\"]/\\&/g; s/.*/"&\\n"/' $<; \
	  echo ';'; } | $(CC) $(CFLAGS_$(config)) $(CFLAGS) -x c -c - -o $@)

$(build)/kernels/cuda/%.o: kernels/cuda/%.cu $(build)/flags
	$(call step,NVCC $<,$(NVCC) -ccbin $(firstword $(CXX)) $(NVCC_FLAGS) -c $< -o $@)
# There are no kernels in it, and large headers: once is enough.
$(build)/kernels/cuda/cudnn_plan.o: private NVCC_FLAGS += -x c++
# Hopper's own instructions are compiled for it alone, whatever else is asked for; other GPUs never come there.
$(patsubst %,$(build)/kernels/cuda/%.o,$(filter attention_sm90%,$(cuda_files))): private NVCC_FLAGS := \
  $(subst $(GENCODE),-gencode arch=compute_90a$(,)code=sm_90a,$(NVCC_FLAGS))

define family_rule
$(build)/kernels/cpu/%.$(1).o: kernels/cpu/%.c $(build)/flags
	$$(call step,CC $$< $(1),$$(CC) $$(COMMON) $$(FAMILY_FLAGS) $$(FLAGS_$(1)) -DISA=$(1) -c $$< -o $$@)
endef
$(foreach s,$(sets) amx,$(eval $(call family_rule,$(s))))

# ThreadSanitizer must not watch the emulated machine itself.
$(build)/emu/emulator.o $(build)/emu/cudart.o: EMU_FLAGS := $(if $(filter race,$(config)),\
  $(filter-out -fsanitize=thread,$(EMU_FLAGS)) -DEMU_FOR_THREAD_SANITIZER,$(EMU_FLAGS))
$(build)/emu/%.o: kernels/cuda/%.cu $(build)/flags
	$(call step,EMU $<,$(CXX) $(EMU_FLAGS) -x c++ -c $< -o $@)

$(build)/emu/%.o: test/emu/%.cc $(build)/flags
	$(call step,CXX $<,$(CXX) $(EMU_FLAGS) -c $< -o $@)

$(build)/emu/open.o: kernels/table/open.c $(build)/flags
	$(call step,CC $< for the emulator,$(CC) $(COMMON) $(DEFINES) $(MPI_COMPILE) -DHAVE_EMU -c $< -o $@)

include scripts/core.mk

# ---- test programs: on the CPU, and those of ops once more on the emulated GPU (test_on_emu) and a GPU (test_on_gpu)

$(build)/test/%: $(build)/test/%.o $(build)/checked.a $(build)/compared.a $(build)/search.a $(build)/ragged.a
	$(call linked,$(link))

$(build)/test_on_emu/%.o: test/%.c $(build)/flags
	$(call step,CC $< for the emulator,$(CC) $(COMMON) $(DEFINES) $(MPI_COMPILE) -DTEST_DEVICE='"emu"' -c $< -o $@)

$(build)/test_on_emu/%.o: test/%.cc $(build)/flags
	$(call step,CXX $<,$(CXX) $(EMU_FLAGS) -c $< -o $@)

$(build)/test_on_emu/%: $(build)/test_on_emu/%.o $(build)/emu/open.o $(emu_objects) $(build)/checked.a $(build)/ragged.a
	$(call linked,$(link_emu))

$(build)/test_on_gpu/%.o: test/%.c $(build)/flags
	$(call step,CC $< for the GPU,$(CC) $(COMMON) $(DEFINES) -DTEST_DEVICE='"cuda"' -c $< -o $@)

$(build)/test_on_gpu/%.o: test/%.cc $(build)/flags
	$(call step,NVCC $<,$(NVCC) -ccbin $(firstword $(CXX)) $(NVCC_FLAGS) -x cu -c $< -o $@)

$(build)/test_on_gpu/%: $(build)/test_on_gpu/%.o $(build)/checked.a $(build)/ragged.a
	$(call linked,$(link))

# Tests that have the trainer inside, by a header of run/ but those of run/model, link it without its main.
inside   := "(test/(trainer|resized_plans)|run/(core|run|[a-ln-z][a-z]+/[a-z_]+)).h
trainers := $(patsubst test/%.c,%,$(shell grep -lE '$(inside)' test/*.c))
$(foreach d,test test_on_emu test_on_gpu,$(trainers:%=$(build)/$d/%)): $(build)/test/train_gpt.o
$(build)/test/train_gpt.o: train_gpt.cu $(build)/flags
	$(call step,CC $< without main,$(CC) $(COMMON) -Dmain=train_main -x c -c $< -o $@)

# A test that lets allocations of ours fail.
$(build)/test/test_comm_failures: LIBRARIES += -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc

# Plans of cuDNN need its headers, not a GPU. Without them the test says so.
cudnn_sources := test/test_cudnn_plans.cc \
  $(if $(filter yes,$(CUDNN)),kernels/cuda/cudnn_plan.cu kernels/cuda/library.cu)
$(build)/test/test_cudnn_plans: $(cudnn_sources) $(build)/ragged.a
	$(call step,CXX $<,$(CXX) -std=c++17 -g $(WARNINGS) -I. $(CUDA_INCLUDES:%=-isystem %) \
	  $(if $(filter yes,$(CUDNN)),-DHAVE_CUDNN) -x c++ $(cudnn_sources) -x none $(build)/ragged.a -o $@ $(LIBRARIES))

$(build)/test/test_library: test/test_library.cc kernels/cuda/library.cu $(build)/ragged.a
	$(call step,CXX $<,$(CXX) -std=c++17 -O1 -g $(WARNINGS) -I. -x c++ $(filter-out %.a,$^) -x none $(build)/ragged.a \
	  -o $@ $(LIBRARIES))

# What uses AMX on emulated tiles: the same sources, for processors that have none.
$(build)/test/test_matmul_amx: $(build)/kernels/cpu/matmul_amx_emulated.o
$(build)/test/test_attention_amx: $(build)/kernels/cpu/attention_pairs_emulated.o
$(build)/kernels/cpu/%_emulated.o: kernels/cpu/%.c $(build)/flags
	$(call step,CC $< emulated,$(CC) $(COMMON) $(FAMILY_FLAGS) $(FLAGS_amx) -DISA=amx -include test/emulated_tiles.h \
	  -c $< -o $@)

# Benches stand beside oneDNN where it is installed, OpenBLAS (found when they run) and PyTorch (PYTHON=...).
$(build)/dev/%: $(build)/dev/%.o $(build)/checked.a $(build)/compared.a $(build)/search.a $(build)/ragged.a
	$(call linked,$(link),$(if $(filter yes,$(ONEDNN)),-ldnnl))
$(build)/dev/bench_%.o: KERNEL_FLAGS += $(if $(filter yes,$(ONEDNN)),-DHAVE_ONEDNN)
$(build)/dev/simulate: $(build)/test/train_gpt.o $(patsubst dev/%.c,$(build)/dev/%.o,$(wildcard dev/simulate*.c))
# What planners and searches are compared with, in tests and tools: lengths of documents, other bounds and formulas.
$(build)/compared.a: $(patsubst %,$(build)/dev/%.o,lengths bound_shares balanced galvatron)
	$(call step,AR $@,rm -f $@ && ar rcs $@ $^)
# Proofs of plans, and any plan: test/checks.h.
$(build)/checked.a: $(patsubst %,$(build)/test/%.o,plan_check plan_random schedule_check)
	$(call step,AR $@,rm -f $@ && ar rcs $@ $^)

# Fuzzers: every reader of bytes, which clang must compile, with what it reads for (config=fuzz).
build/fuzz/fuzz_%: LIBRARIES := -lm
build/fuzz/fuzz_log: build/fuzz/run/show/run_page.o
build/fuzz/fuzz_%: build/fuzz/test/fuzz/fuzz_%.o $(patsubst %.c,build/fuzz/%.o,$(wildcard plan/*/*.c data/*.c)) \
  $(drawn:%=build/fuzz/%.o)
	$(call linked,$(link_fuzz))

# ---- proofs

# The suite is test/suite, a command a line. A program in it is any word that begins with build/; every config builds
# its own. What cannot be built here is not asked for, and test/run.sh says which lines that skips.
suite         := config=$(config) CXX=$(firstword $(CXX)) MPI=$(MPI) EMULATED=$(EMULATED) AMX=$(AMX) sh test/run.sh
programs      := $(if $(tiers),$(shell $(suite) --programs $(tiers)))
other_configs := $(filter-out $(config),release sanitize race fuzz)

test: report
	@sh scripts/setup.sh
	@$(MAKE) -s check
	@$(MAKE) -s tiers="$(or $(tiers),quick)" run-tests

test-all:
	@$(MAKE) -s tiers="quick all" test

test-long: report
	@$(MAKE) -s tiers=long run-tests

# Every call of a tiny run for memory, files and threads fails once, and so on: test/faults/.
test-faults: report
	@$(MAKE) -s tiers=faults run-tests

# Some of them alone: MUTANTS="NAME ...".
test-mutants: report
	@MPI=$(MPI) EMULATED=$(EMULATED) sh test/mutants.sh $(MUTANTS)

# On a machine with a GPU: every operation against the CPU's tables, the whole program against PyTorch's numbers and
# across a kill, collectives between several ranks on this one GPU, and memory checked where compute-sanitizer is.
test-gpu: report
	@[ "$(CUDA)" = yes ] || { echo "test-gpu: no GPU or no nvcc here; make CUDA=yes test-gpu insists"; exit 1; }
	@$(MAKE) -s tiers=gpu run-tests

test-programs: $(filter $(build)/%,$(programs))
	@$(foreach c,$(other_configs),$(if $(filter build/$(c)/%,$(programs)),$(MAKE) -s config=$(c) \
	  $(if $(filter fuzz,$(c)),CC=clang) $(filter build/$(c)/%,$(programs)) &&)) :

run-tests: test-programs
	@$(suite) $(tiers)

object-names: # for test/layers.sh
	@echo $(build)/train_gpt.o $(objects)
emu-objects: # for test/emu/faults.sh, which links with one of them replaced
	@echo $(notdir $(emu_objects))
emu-libraries:
	@echo $(LIBRARIES)

fuzzers = $(patsubst test/fuzz/%.c,build/fuzz/%,$(wildcard test/fuzz/fuzz_*.c))
FUZZ_SECONDS ?= 60
fuzz:
	@$(MAKE) -s config=fuzz CC=clang $(fuzzers)
	@for f in $(fuzzers); do echo $$f; $$f -max_total_time=$(FUZZ_SECONDS) -verbosity=0 || exit 1; done

# Benches, the one between ranks by mpirun.
benches := $(filter-out %/bench_gpu %/bench_comm,$(patsubst dev/%.c,$(build)/dev/%,$(wildcard dev/bench_*.c)))
ranked_bench := $(if $(filter yes,$(MPI)),$(build)/dev/bench_comm)
bench: export OMPI_ALLOW_RUN_AS_ROOT = 1
bench: export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = 1
bench: ONEDNN := $(call compiles,-include dnnl.h -ldnnl)
bench: report $(build)/train $(benches) $(ranked_bench)
	@rm -f build/bench.jsonl
	@for b in $(benches); do $$b || exit 1; done
	@$(if $(ranked_bench),sh test/ranks.sh 2 $(ranked_bench),:)

bench-gpu: report
	@sh scripts/gpu_oneshot.sh

check:
	@sh scripts/check.sh

# Lines of what ./train links, at most: a new idea pays with an old one. They are to be 46000.
size_most := 54452
size: # a table by room; SINCE=COMMIT: with the difference to it
	@sh scripts/size.sh $(SINCE)
size-most:
	@echo $(size_most)

examples := $(patsubst %,build/release/%,train dev/simulate dev/bench_plan dev/ladder)
check-examples: $(examples)
	@scripts/check_examples.py

clean:
	rm -rf build train

# PREFIX/bin/ragged, the program that searches, a man page and what bash completes, both made from the option table.
PREFIX ?= /usr/local
share   = $(DESTDIR)$(PREFIX)/share
install: train build/simulate
	@mkdir -p $(DESTDIR)$(PREFIX)/bin $(share)/man/man1 $(share)/bash-completion/completions
	@cp train $(DESTDIR)$(PREFIX)/bin/ragged
	@cp build/simulate $(DESTDIR)$(PREFIX)/bin/ragged-simulate
	@scripts/help_to.sh man ./train > $(share)/man/man1/ragged.1
	@scripts/help_to.sh bash ./train > $(share)/bash-completion/completions/ragged
	@echo "installed $(DESTDIR)$(PREFIX)/bin/ragged; try: ragged --help, man ragged"

-include $(shell find $(wildcard $(build)) -name '*.d' 2>/dev/null)
always:
.SECONDARY:
.PHONY: all always report simulate test test-all test-long test-faults test-gpu test-programs run-tests emu-objects \
  object-names bench bench-gpu check size size-most check-examples fuzz clean install
