# make                      builds ./train; needs a C compiler and make, nothing else
# make test                 everything that can be proved here; ends with "N passed, N failed"
# make bench                speeds beside this machine's own limits, also to build/bench.jsonl
# make check                layering, line length, options: the house rules as greps
# make fuzz                 every reader under libFuzzer, a minute each (FUZZ_SECONDS=60); needs clang
# make config=debug         no optimisation;  make config=sanitize: AddressSanitizer and UBSan
#
# Detections are few, printed once, and can be overridden: make CC=clang OPENMP=no ISAS=no

CC      ?= cc
config  ?= release
build   := build/$(config)

# ---- detections

compiles = $(shell echo 'int main(void){return 0;}' | $(CC) -x c $(1) - -o /dev/null 2>/dev/null && echo yes || echo no)
machine := $(shell $(CC) -dumpmachine)

OPENMP  ?= $(call compiles,-fopenmp)
ISAS    ?= $(if $(findstring x86_64,$(machine)),$(call compiles,-mavx512bf16),no)
AMX     ?= $(if $(filter yes,$(ISAS)),$(call compiles,-mamx-tile -mamx-bf16),no)
MPI     ?= $(if $(shell command -v mpicc 2>/dev/null),found,not found)
NVCC    ?= $(if $(shell command -v nvcc 2>/dev/null),found,not found)

ifeq ($(shell $(CC) --version 2>/dev/null | head -n 1),)
$(error the C compiler "$(CC)" does not run; install one (Debian: apt-get install gcc) or name it: make CC=...)
endif

# ---- flags

CFLAGS_release  := -O3 -g
CFLAGS_debug    := -O0 -g
CFLAGS_sanitize := -O1 -g -fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined
ifeq ($(CFLAGS_$(config)),)
$(error config=$(config) is unknown; expected release, debug or sanitize)
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

# ---- sources: the files of `families` are compiled once for each instruction set

families := matmul attention elementwise loss
sets     := generic $(if $(filter yes,$(ISAS)),avx2 avx512 avx512bf16)
plain    := $(wildcard plan/*.c data/*.c run/*.c kernels/*.c) kernels/cpu/backend.c kernels/cpu/reference.c
objects  := $(plain:%.c=$(build)/%.o) $(foreach s,$(sets),$(families:%=$(build)/kernels/cpu/%.$(s).o))
ifeq ($(ISAS),yes)
ISA_DEFINE := -DHAVE_X86_ISAS
endif
ifeq ($(AMX),yes)
objects += $(build)/kernels/cpu/matmul_amx.amx.o
ISA_DEFINE += -DHAVE_AMX
endif

benches := $(patsubst dev/%.c,$(build)/dev/%,$(wildcard dev/bench_*.c))
tests := $(patsubst test/%.c,$(build)/test/%,$(wildcard test/test_*.c))
ifneq ($(AMX),yes)
tests := $(filter-out %/test_matmul_amx,$(tests))  # the compiler does not know the tiles
endif

all: report train

# Compared, not dated: another config may have been here since.
train: $(build)/train always
	@cmp -s $< $@ || { cp $< $@.tmp && mv $@.tmp $@; }

# ---- what was found

report:
	@echo "compiler: $(CC) for $(machine), config $(config)"
	@echo "OpenMP:   $(if $(filter yes,$(OPENMP)),found,not found$(,) one thread only)"
	@echo "kernels:  $(sets)$(if $(filter yes,$(AMX)), amx), chosen by processor at run time"
	@echo "CUDA:     $(NVCC), this version computes on the CPU only"
	@echo "MPI:      $(MPI), one rank only"

, := ,

# ---- rules

# Everything is built anew when the compiler or a flag is another than last time.
command := $(CC) $(COMMON) $(ISA_DEFINE) $(sets)
$(build)/flags: always
	@mkdir -p $(@D)
	@echo '$(command)' | cmp -s - $@ || echo '$(command)' > $@
$(objects) $(build)/train_gpt.o $(build)/kernels/cpu/matmul_amx_emulated.o: $(build)/flags

$(build)/train: $(build)/train_gpt.o $(build)/ragged.a
	$(CC) $(COMMON) $^ -o $@ -lm

$(build)/ragged.a: $(objects)
	@rm -f $@
	ar rcs $@ $^

$(build)/train_gpt.o: train_gpt.cu
	@mkdir -p $(@D)
	$(CC) $(COMMON) -x c -c $< -o $@

$(build)/plan/%.o: plan/%.c
	@mkdir -p $(@D)
	$(CC) $(COMMON) $(PLAN_FLAGS) -c $< -o $@

$(build)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(COMMON) $(ISA_DEFINE) $(KERNEL_FLAGS) -c $< -o $@

define family_rule
$(build)/kernels/cpu/%.$(1).o: kernels/cpu/%.c
	@mkdir -p $$(@D)
	$$(CC) $$(COMMON) $$(KERNEL_FLAGS) $$(FLAGS_$(1)) -DISA=$(1) -c $$< -o $$@
endef
$(foreach s,$(sets) amx,$(eval $(call family_rule,$(s))))

$(build)/test/%: test/%.c $(build)/ragged.a
	@mkdir -p $(@D)
	$(CC) $(COMMON) $(ISA_DEFINE) $(filter %.c %.o,$^) $(build)/ragged.a -o $@ -lm

# The AMX matmul on emulated tiles: the same source, for processors that have none.
$(build)/test/test_matmul_amx: $(build)/kernels/cpu/matmul_amx_emulated.o
$(build)/kernels/cpu/matmul_amx_emulated.o: kernels/cpu/matmul_amx.c
	@mkdir -p $(@D)
	$(CC) $(COMMON) $(KERNEL_FLAGS) $(FLAGS_amx) -DISA=amx -DTILES_EMULATED -c $< -o $@

# Benches stand beside oneDNN where it is installed, OpenBLAS (found when they run) and PyTorch (PYTHON=...).
$(build)/dev/%: dev/%.c $(build)/ragged.a
	@mkdir -p $(@D)
	$(CC) $(COMMON) $(ISA_DEFINE) $(if $(filter yes,$(ONEDNN)),-DHAVE_ONEDNN) $< $(build)/ragged.a -o $@ -lm -ldl \
	  $(if $(filter yes,$(ONEDNN)),-ldnnl)

# ---- proofs

# Readers and planners run a second time under sanitizers; kernels and whole runs once, at full speed.
sanitized := $(addprefix build/sanitize/test/test_,json safetensors checkpoint checkpoint_damage tokenizer \
               tokenizer_files docs docs_tokens sampler pack config files)

test: report
	@sh scripts/setup.sh
	@$(MAKE) --no-print-directory -s check
	@$(MAKE) --no-print-directory -s test-programs
	@sh test/run.sh $(build)/train $(tests) $(if $(filter release,$(config)),$(sanitized)) test/fuzz/smoke.sh

test-programs: $(build)/train $(tests)
ifeq ($(config),release)
	@$(MAKE) --no-print-directory -s config=sanitize $(sanitized)
endif

bench: ONEDNN := $(call compiles,-include dnnl.h -ldnnl)
bench: report $(build)/train $(benches)
	@rm -f build/bench.jsonl
	@for b in $(benches); do $$b || exit 1; done

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

-include $(shell find build -name '*.d' 2>/dev/null)
always:
.PHONY: all always report test test-programs bench check fuzz fuzz-programs clean
