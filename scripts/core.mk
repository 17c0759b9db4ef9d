# core.mk - build/core: one rank trains by the reference kernels, from the trainer's own files and few stubs.
#
# make core           builds it
# make core-files     the files to read, in order, with their lines;  make core-plumbing: what they stand on
# make core-seams     tables of functions, NULL here, by which others hang on them: to be read when their turn comes

core_files := data/docs.h data/docs.c data/sampler.h data/sampler.c plan/value/pack.h plan/value/pack.c \
  plan/model/shape.h plan/model/shape.c kernels/kernels.h kernels/cpu/reference.c run/model/model.h run/model/model.c \
  train_gpt.cu run/core.h run/core.c
core_plumbing := plan/base/base.h plan/base/base.c plan/base/text.h plan/base/text.c plan/base/many_files.h \
  plan/base/many_files.c plan/base/random.c plan/base/fields.h plan/base/fields.c plan/options/config.h \
  plan/options/config.c plan/options/presets.c kernels/memory.h kernels/timer.h
core_seams := data/docs_formats.h run/model/many_ranks.h run/core_ranks.h
core_stubs := run/core_stubs.c
core_rest :=
core_most := 3266

core_sources := $(core_files) $(core_plumbing) $(core_seams) $(core_stubs) $(core_rest)
$(build)/core: $(build)/train_gpt.o $(patsubst %.c,$(build)/%.o,$(filter %.c,$(core_sources)))
	$(call linked,$(CC) $(COMMON))
core: $(build)/core
	@cp $< build/core

core-files:
	@wc -l $(core_files)
core-plumbing:
	@wc -l $(core_plumbing)
core-seams:
	@wc -l $(core_seams)
core-stubs:
	@wc -l $(core_stubs)
core-rest: # what else it needs: nothing
	@echo $(core_rest)
core-most: # lines of core-files so far; they are to be 3000
	@echo $(core_most)
.PHONY: core core-files core-plumbing core-seams core-stubs core-rest core-most
