// test_hf_files.c - files of a model as Hugging Face has them, for a model of each architecture. (That their names and
// layouts are Hugging Face's: test_golden.c. Half precision: test_safetensors.c.)
#include "data/checkpoint.h"
#include "data/model_files.h"
#include "test/program.h"
#include "test/readers.h"
#include "test/shapes.h"
#include "test/tensors.h"

static Shape models[N_ARCHS + 1];  // one of each architecture, and a GPT-2 with a head of its own

static void make_models(void) {
    Shape rotary = {.L = 2, .C = 24, .V = 70, .U = 20, .context = 10, .positions = 10, .eps = 1e-6, .theta = 1e6};
    Shape llama = rotary, qwen2 = rotary, qwen3 = rotary, gpt2 = shape_make(2, 24, 3, 70, 10);
    models[ARCH_GPT2] = gpt2;
    gpt2.features |= HAS_HEAD, gpt2.U = 40, gpt2.eps = 3e-5;
    models[N_ARCHS] = shape_whole(gpt2);
    llama.arch = ARCH_LLAMA, llama.features = HAS_HEAD, llama.NH = 4, llama.NKV = 2, llama.HS = 6;
    llama.scaling = (RopeScaling){8, 1, 4, 8192}, llama.eps = 1e-5, llama.theta = 1.0 / 3 + 500000;
    models[ARCH_LLAMA] = shape_whole(llama);
    qwen2.arch = ARCH_QWEN2, qwen2.features = arch_table[ARCH_QWEN2].features, qwen2.NH = 6, qwen2.NKV = 2,
    qwen2.HS = 4;
    models[ARCH_QWEN2] = shape_whole(qwen2);
    qwen3.arch = ARCH_QWEN3, qwen3.features = arch_table[ARCH_QWEN3].features, qwen3.NH = 4, qwen3.NKV = 1,
    qwen3.HS = 8;
    models[ARCH_QWEN3] = shape_whole(qwen3);
}

static char err[ERR_BYTES];
static Shape shape;                         // the model of the claim at work, of one rank of shape.shards
static float *weights, *masters, *staging;  // the latter of what the rank owns, in the place of the whole

static void free_model(void) { free(weights), free(masters), free(staging); }

static void use_model(int i, int ranks) {
    size_t largest = 0;
    free_model();
    shape = models[i];
    shape.shards = ranks;
    for (int t = 0; t < shape_tensors(&shape); t++) largest = MAX(largest, shape_tensor(&shape, t).elems);
    weights = (float*)calloc(shape_param_elems(&shape), sizeof(float));
    masters = (float*)calloc(shape_param_elems(&shape), sizeof(float));
    staging = (float*)malloc(largest * sizeof(float));  // a sanitizer sees what goes beyond
}

static void fetch(void* context, StateKind kind, const ParamTensor* tensor, float* value) {
    (void)context, (void)kind;
    memcpy(value, weights + tensor->offset, tensor->elems * sizeof(float));
}

static void put_weights(void* context, const ParamTensor* tensor, float* value) {
    (void)context;
    memcpy(weights + tensor->offset, value, tensor->elems * sizeof(float));
    memset(value, 0xff, tensor->elems * sizeof(float));  // as it may
}

static void put_owned(void* context, StateKind kind, const Segment* segment, const float* value) {
    (void)context;
    CHECK(kind == STATE_MASTER);
    memcpy(masters + segment->tensor.offset + segment->first, value, segment->n * sizeof(float));
}

static ModelState make_state(DType dt) {
    return (ModelState){.shape = &shape,
                        .dt = dt,
                        .staging = staging,
                        .fetch = fetch,
                        .put_weights = put_weights,
                        .put_owned = put_owned};
}

// Of element i of a tensor: exact in bf16; the padding rows of a vocabulary are zero.
static float value_of(const ParamTensor* t, size_t i) {
    int is_padding = param_table[t->id].rows == VOCABULARY && i >= (size_t)shape.V * shape.C;
    return is_padding ? 0 : (float)(hash64(t->offset + i) % 255) - 127;
}

static void fill_weights(void) {
    for (int t = 0; t < shape_tensors(&shape); t++) {
        ParamTensor tensor = shape_tensor(&shape, t);
        for (size_t i = 0; i < tensor.elems; i++) weights[tensor.offset + i] = value_of(&tensor, i);
    }
}

// The model in $W/model comes as it was filled in; masters, where they are asked for, begin at the weights, on the rank
// that owns them.
static void check_read(ModelState* state, int with_masters) {
    static const float none = -77;
    for (size_t i = 0; i < shape_param_elems(&shape); i++) weights[i] = masters[i] = none;
    CHECK(hf_read(state, with_masters, path_of("model"), err) == 0);
    for (int t = 0; t < shape_tensors(&shape); t++) {
        Segment s = shape_segment(&shape, t, state->rank);
        for (size_t i = 0; i < s.tensor.elems; i++) {
            int is_owned = with_masters && i >= s.first && i < s.first + s.n;
            float expected = value_of(&s.tensor, i);
            CHECK(weights[s.tensor.offset + i] == expected);
            CHECK(masters[s.tensor.offset + i] == (is_owned ? expected : none));
        }
    }
}

// The model of the claim in a directory that holds nothing else.
static void write_model(const ModelState* state, const char* dir) {
    CHECK_SH(0, "rm -rf $W/%s && mkdir $W/%s", dir, dir);
    fill_weights();
    CHECK(hf_write(state, STATE_WEIGHTS, NULL, 0, path_of(filled("%s/model.safetensors", dir)), err) == 0);
}

// ---- tensors

static SafeTensors file;  // model/model.safetensors, in memory

static void load_model(void) {
    static char* bytes;
    safetensors_close(&file);
    free(bytes);
    CHECK(tensors_load(&file, &bytes, path_of("model/model.safetensors"), err) == 0);
}

CLAIM(weights_go_to_every_rank_and_masters_to_their_owners) {
    for (int i = 0; i < 2 * COUNT(models); i++)
        for (int rank = 0, ranks = i % 2 ? 3 : 1; rank < ranks; rank++) {
            use_model(i / 2, ranks);
            ModelState state = make_state(i % 2 ? DT_BF16 : DT_F32);
            state.rank = rank;
            write_model(&state, "model");
            check_read(&state, 1);
        }
}

// A file with the names of an older export, without prefix, and a tensor that follows from the config.
CLAIM(names_without_the_prefix_and_derived_tensors_are_taken) {
    for (int i = 0; i < N_ARCHS; i++) {
        const char *prefix = i == ARCH_GPT2 ? "transformer." : "model.", *norm = i == ARCH_GPT2 ? "ln_f.bias" : "norm";
        use_model(i, 1);
        ModelState state = make_state(DT_F32);
        write_model(&state, "model");
        load_model();
        static const float mask[4] = {1, 2, 3, 4};
        SafeTensor tensors[64];
        int last = -1;
        for (int t = 0; t < file.n; t++) {
            SafeTensor* x = &tensors[t];
            *x = file.tensors[t];
            if (!strncmp(x->name, prefix, strlen(prefix)))
                memmove(x->name, x->name + strlen(prefix), strlen(x->name + strlen(prefix)) + 1);
            if (!strncmp(x->name, norm, strlen(norm))) last = t;
        }
        SafeTensor further = {"h.0.attn.bias", DT_F32, 1, {4}, mask, sizeof mask, 0};
        if (i != ARCH_GPT2) strcpy(further.name, "layers.0.self_attn.rotary_emb.inv_freq");
        tensors[file.n] = further;
        const char* path = path_of("model/model.safetensors");
        CHECK(safetensors_write(path, NULL, tensors, file.n + 1, NULL, NULL, err) == 0);
        check_read(&state, 0);
        tensors[last] = further;
        CHECK(safetensors_write(path, NULL, tensors, file.n, NULL, NULL, err) == 0);
        CHECK(hf_read(&state, 0, path_of("model"), err) < 0 && strstr(err, prefix) && strstr(err, norm));
        tensors[0].dims[0]--, tensors[0].bytes -= (size_t)shape.C * sizeof(float);
        CHECK(safetensors_write(path, NULL, tensors, file.n, NULL, NULL, err) == 0);
        CHECK(hf_read(&state, 0, path_of("model"), err) < 0 && strstr(err, "expected shape 70 x 24"));
    }
}

// The model with one tensor more, which has the values of tensor `like` but for its first element.
static int read_with(const char* name, int like, float first) {
    ModelState state = make_state(DT_F32);
    SafeTensor tensors[64];
    write_model(&state, "model");
    load_model();
    memcpy(tensors, file.tensors, (size_t)file.n * sizeof *tensors);
    SafeTensor* more = &tensors[file.n];
    *more = tensors[like];
    strcpy(more->name, name);
    float* values = (float*)malloc(more->bytes);
    memcpy(values, more->data, more->bytes);
    values[0] += first;
    more->data = values;
    CHECK(safetensors_write(path_of("model/model.safetensors"), NULL, tensors, file.n + 1, NULL, NULL, err) == 0);
    free(values);
    return hf_read(&state, 0, path_of("model"), err);
}

CLAIM(a_tensor_without_a_place_in_the_model_is_refused_by_name) {
    static const struct {
        int arch;
        const char* name;
    } cases[] = {{ARCH_GPT2, "transformer.h.2.ln_1.bias"},
                 {ARCH_GPT2, "transformer.h.0.rotary_emb.inv_freq"},
                 {ARCH_LLAMA, "model.layers.0.self_attn.q_proj.bias"},
                 {ARCH_LLAMA, "model.layers.0.attn.bias"},
                 {ARCH_LLAMA, "norm.weight"},  // a second one, without the prefix
                 {ARCH_QWEN2, "model.layers.1.self_attn.q_norm.weight"},
                 {ARCH_QWEN3, "score.weight"}};
    for (int i = 0; i < COUNT(cases); i++) {
        use_model(cases[i].arch, 1);
        weights[0] = -77;
        CHECK(read_with(cases[i].name, 1, 0) < 0 && strstr(err, cases[i].name) && strstr(err, "found 1 without"));
    }
    use_model(ARCH_LLAMA, 1);
    ModelState state = make_state(DT_F32);
    write_model(&state, "model");
    for (size_t i = 0; i < shape_param_elems(&shape); i++) weights[i] = -77;
    shape.L = 1;  // the second layer's nine tensors
    CHECK(hf_read(&state, 0, path_of("model"), err) < 0 && strstr(err, "found 9 without") && strstr(err, "layers.1."));
    CHECK(weights[0] == -77);
}

CLAIM(a_head_beside_a_tied_model_must_be_its_embedding) {
    for (int i = 0; i < N_ARCHS; i++) {
        use_model(i, 1);
        if (shape_has(&shape, HAS_HEAD)) continue;
        CHECK(read_with("lm_head.weight", 0, 0) == 0);
        CHECK(read_with("lm_head.weight", 0, 1) < 0 && strstr(err, "lm_head.weight") && strstr(err, "tied"));
    }
}

CLAIM(a_weight_that_is_not_finite_is_named_as_the_file_does) {
    static const struct {
        ParamId id;
        int row;
        const char* name;
    } cases[] = {{QKVW, 0, "q_proj.weight"},    {QKVW, 24, "k_proj.weight"}, {QKVW, 47, "v_proj.weight"},
                 {FCW, 19, "gate_proj.weight"}, {FCW, 20, "up_proj.weight"}, {LN2W, 0, "post_attention_layernorm"}};
    use_model(ARCH_LLAMA, 1);
    ModelState state = make_state(DT_F32);
    for (int i = 0; i < COUNT(cases); i++) {
        fill_weights();
        weights[shape_param(&shape, cases[i].id, 1).offset + (size_t)(cases[i].row * shape.C)] = NAN;
        CHECK(hf_write(&state, STATE_WEIGHTS, NULL, 0, path_of("bad"), err) < 0 && strstr(err, cases[i].name) &&
              strstr(err, "layers.1") && strstr(err, "finite"));
    }
}

// ---- several files

#define INDEX "model.safetensors.index.json"

// The model of the claim in three files, tensor t in number t % 3; the index as Hugging Face writes it.
static size_t write_shards(char* text, size_t room) {
    ModelState state = make_state(DT_F32);
    char name[64];
    write_model(&state, "model");
    load_model();
    size_t n = (size_t)snprintf(text, room, "{\n  \"metadata\": {\"total_size\": 1},\n  \"weight_map\": {");
    for (int f = 0; f < 3; f++) {
        SafeTensor part[64];
        int n_part = 0;
        snprintf(name, sizeof name, "model-%05d-of-00003.safetensors", f + 1);
        for (int t = f; t < file.n; t += 3) {
            part[n_part++] = file.tensors[t];
            n += (size_t)snprintf(text + n, room - n, "%s\n    \"%s\": \"%s\"", n > 60 ? "," : "", file.tensors[t].name,
                                  name);
        }
        CHECK(safetensors_write(path_of(filled("model/%s", name)), NULL, part, n_part, NULL, NULL, err) == 0);
    }
    n += (size_t)snprintf(text + n, room - n, "\n  }\n}\n");
    CHECK(unlink(path_of("model/model.safetensors")) == 0);
    write_text("model/" INDEX, text, n);
    return n;
}

CLAIM(a_model_in_several_files_is_read_by_its_index) {
    static char text[1 << 14];
    for (int i = 0; i < COUNT(models); i++) {
        use_model(i, 1);
        ModelState state = make_state(DT_F32);
        write_shards(text, sizeof text);
        check_read(&state, 1);
        CHECK(hf_has_model(path_of("model")) && !hf_has_model(work));
        CHECK(!checkpoint_is_foreign(path_of("model")));  // there is no config.json
        write_text("model/config.json", "{}", 2);
        CHECK(checkpoint_is_foreign(path_of("model")));
    }
}

// The first file holds a copy of every tensor, with other values; the index names it for its own alone.
CLAIM(a_tensor_in_two_files_is_read_from_the_one_that_the_index_names) {
    static char text[1 << 14];
    static float other[1 << 14];
    SafeTensor tensors[64];
    use_model(ARCH_LLAMA, 1);
    ModelState state = make_state(DT_F32);
    write_shards(text, sizeof text);
    for (int t = 0; t < file.n; t++) {
        tensors[t] = file.tensors[t];
        CHECK(tensors[t].bytes <= sizeof other);
        if (t % 3) tensors[t].data = other;
    }
    const char* first = path_of("model/model-00001-of-00003.safetensors");
    CHECK(safetensors_write(first, NULL, tensors, file.n, NULL, NULL, err) == 0);
    check_read(&state, 0);
}

CLAIM(one_file_beside_an_index_that_does_not_name_it_is_refused) {
    static char text[1 << 14];
    use_model(ARCH_LLAMA, 1);
    ModelState state = make_state(DT_F32);
    size_t n = write_shards(text, sizeof text);
    CHECK_SH(0, "cp $W/model/model-00001-of-00003.safetensors $W/model/model.safetensors");
    CHECK(hf_read(&state, 0, path_of("model"), err) < 0 && strstr(err, "found both"));
    write_model(&state, "model");
    for (char* at = text; (at = strstr(at, "model-0000")); n -= strlen("-00001-of-00003"))  // all are in one file
        memmove(at + 5, at + 20, strlen(at + 20) + 1);
    write_text("model/" INDEX, text, n);
    check_read(&state, 0);
}

static int read_index(const void* text, size_t n) {
    ModelState state = make_state(DT_F32);
    write_text("model/" INDEX, text, n);
    return hf_read(&state, 0, path_of("model"), err);
}

CLAIM(an_index_that_names_what_is_not_there_is_refused) {
    static char text[1 << 14];
    static const BadText bad[] = {
        {"[]", "weight_map"},
        {"{'weight_map': [1]}", "weight_map"},
        {"{'weight_map': {'lm_head.weight': 7}}", "lm_head.weight"},
        {"{'weight_map': {'a\\nb': 'c'}}", "names of a tensor"},
        {"{'weight_map': {'a': '../model/model-00001-of-00003.safetensors'}}", "in this directory"},
        {"{'weight_map': {'a': '/etc/passwd'}}", "in this directory"},
        {"{'weight_map': {'a': '..'}}", "another kind"},
        {"{'weight_map': {'a': 'model-00001-of-00003.safetensors'}}", "expected a tensor a, as " INDEX " says"},
        {"{'weight_map': {'model.norm.weight': 'model-00004-of-00003.safetensors'}}", "model-00004-of-00003"},
        {"{'weight_map': {}}", "model.embed_tokens.weight"},
    };
    use_model(ARCH_LLAMA, 1);
    size_t n = write_shards(text, sizeof text);
    CHECK_BAD_TEXTS(read_index, err, bad);
    check_prefixes(read_index, text, n, n - 1);
    CHECK(unlink(path_of("model/" INDEX)) == 0);
    ModelState state = make_state(DT_F32);
    CHECK(hf_read(&state, 0, path_of("model"), err) < 0 && strstr(err, "model.safetensors"));
}

static Shape found;
static int parse_config(const void* text, size_t n) { return hf_config_parse(&found, (const char*)text, n, err); }

// ---- config.json

CLAIM(a_config_comes_back_and_every_prefix_of_it_is_refused) {
    for (int i = 0; i < COUNT(models); i++) {
        size_t n;
        use_model(i, 1);
        if (i != ARCH_GPT2 && i != N_ARCHS) shape.context = shape.positions = 131072;
        char* text = hf_config_text(&shape, DT_BF16, 256, 257, &n);
        CHECK((shape.arch == ARCH_GPT2) == (strstr(text, "\"n_ctx\": ") != NULL));  // of llama.cpp's converter
        CHECK(text && n == strlen(text));
        check_prefixes(parse_config, text, n, (size_t)(strrchr(text, '}') - text) + 1);
        CHECK(shape_hash(&found) == shape_hash(&shape));
        free(text);
    }
}

// With ' for ".
static Shape shape_of(const char* text) {
    CHECK(parse_config(quoted(text), strlen(text)) == 0);
    return found;
}

// What their makers publish, and how many parameters they say it has.
CLAIM(configs_of_published_models_are_understood) {
    Shape s = shape_of(
        "{'architectures': ['LlamaForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0,"
        "'bos_token_id': 128000, 'eos_token_id': [128001, 128008], 'head_dim': 64,"
        "'hidden_act': 'silu', 'hidden_size': 2048, 'initializer_range': 0.02,"
        "'intermediate_size': 8192, 'max_position_embeddings': 131072, 'mlp_bias': false,"
        "'model_type': 'llama', 'num_attention_heads': 32, 'num_hidden_layers': 16,"
        "'num_key_value_heads': 8, 'pretraining_tp': 1, 'rms_norm_eps': 1e-05,"
        "'rope_scaling': {'factor': 32.0, 'high_freq_factor': 4.0, 'low_freq_factor': 1.0,"
        "'original_max_position_embeddings': 8192, 'rope_type': 'llama3'}, 'rope_theta': 500000.0,"
        "'tie_word_embeddings': true, 'torch_dtype': 'bfloat16', 'vocab_size': 128256}");
    CHECK(s.arch == ARCH_LLAMA && shape_param_count(&s) == 1235814400 && s.positions == 131072 && s.theta == 500000);
    CHECK(s.scaling.factor == 32 && s.scaling.low == 1 && s.scaling.high == 4 && s.scaling.original == 8192);
    CHECK(s.eps == 1e-5 && !shape_has(&s, HAS_HEAD) && s.context == 131072);
    s = shape_of(
        "{'architectures': ['Qwen2ForCausalLM'], 'attention_dropout': 0.0, 'hidden_act': 'silu',"
        "'hidden_size': 896, 'intermediate_size': 4864, 'max_position_embeddings': 32768,"
        "'max_window_layers': 24, 'model_type': 'qwen2', 'num_attention_heads': 14,"
        "'num_hidden_layers': 24, 'num_key_value_heads': 2, 'rms_norm_eps': 1e-06,"
        "'rope_theta': 1000000.0, 'sliding_window': 32768, 'tie_word_embeddings': true,"
        "'use_mrope': false, 'use_sliding_window': false, 'vocab_size': 151936}");
    CHECK(s.arch == ARCH_QWEN2 && shape_param_count(&s) == 494032768 && s.HS == 64 && s.theta == 1e6);
    s = shape_of(
        "{'architectures': ['Qwen3ForCausalLM'], 'attention_bias': false, 'head_dim': 128,"
        "'hidden_act': 'silu', 'hidden_size': 1024, 'intermediate_size': 3072,"
        "'max_position_embeddings': 40960, 'max_window_layers': 28, 'model_type': 'qwen3',"
        "'num_attention_heads': 16, 'num_hidden_layers': 28, 'num_key_value_heads': 8,"
        "'rms_norm_eps': 1e-06, 'rope_scaling': null, 'rope_theta': 1000000,"
        "'sliding_window': null, 'tie_word_embeddings': true, 'use_sliding_window': false,"
        "'vocab_size': 151936}");
    CHECK(s.arch == ARCH_QWEN3 && shape_param_count(&s) == 596049920 && s.NH * s.HS == 2048 && s.eps == 1e-6);
    s = shape_of(
        "{'activation_function': 'gelu_new', 'architectures': ['GPT2LMHeadModel'],"
        "'attn_pdrop': 0.1, 'layer_norm_epsilon': 1e-05, 'model_type': 'gpt2', 'n_ctx': 1024,"
        "'n_embd': 768, 'n_head': 12, 'n_layer': 12, 'n_positions': 1024, 'vocab_size': 50257}");
    Shape gpt2 = shape_make(12, 768, 12, 50257, 1024);
    CHECK(shape_hash(&s) == shape_hash(&gpt2) && shape_param_count(&s) == 124439808);
}

#define SIZES                                                                                         \
    "'hidden_size': 64, 'num_hidden_layers': 2, 'num_attention_heads': 64, 'intermediate_size': 48, " \
    "'vocab_size': 99"

// Of transformers 5: positions in one object.
CLAIM(both_forms_of_rotary_positions_are_understood) {
    Shape s;
    s = shape_of("{'model_type': 'llama', 'head_dim': 2, " SIZES
                 ", 'rope_parameters': {'rope_theta': 7e5, "
                 "'rope_type': 'default'}}");
    CHECK(s.theta == 7e5 && s.scaling.factor == 0);
    s = shape_of("{'model_type': 'qwen3', " SIZES
                 ", 'rope_theta': 5, 'rope_parameters': {'factor': 8, "
                 "'low_freq_factor': 1, 'high_freq_factor': 4.5, 'original_max_position_embeddings': 64, "
                 "'rope_theta': 7e5, 'rope_type': 'llama3', 'partial_rotary_factor': 1}}");
    CHECK(s.theta == 7e5 && s.scaling.factor == 8 && s.scaling.high == 4.5 && s.scaling.original == 64);
    s = shape_of("{'model_type': 'qwen3', " SIZES
                 ", 'rope_theta': 5, 'rope_scaling': {'type': 'default'}, "
                 "'rope_parameters': {'rope_theta': 7, 'rope_type': 'llama3'}}");
    CHECK(s.theta == 5 && s.scaling.factor == 0);  // the older form wins
}

CLAIM(members_that_are_left_out_are_as_in_hugging_faces_classes) {
    static const struct {
        const char* arch;
        int NKV, HS, positions;
    } cases[] = {{"llama", 64, 2, 2048}, {"qwen2", 32, 2, 32768}, {"qwen3", 32, 128, 32768}};
    Shape s;
    char text[512];
    for (int i = 0; i < COUNT(cases); i++) {
        snprintf(text, sizeof text, "{'model_type': '%s', " SIZES ", 'hidden_size': 128}", cases[i].arch);
        s = shape_of(text);
        CHECK(s.NH == 64 && s.NKV == cases[i].NKV && s.HS == cases[i].HS && s.positions == cases[i].positions);
        CHECK(s.eps == 1e-6 && s.theta == 10000 && shape_has(&s, HAS_HEAD) && s.scaling.factor == 0);
        snprintf(text, sizeof text, "{'model_type': '%s', " SIZES ", 'hidden_size': 128, 'num_key_value_heads': null}",
                 cases[i].arch);
        CHECK(shape_of(text).NKV == 64);
    }
}

CLAIM(what_is_not_computed_is_refused_by_name) {
    static const BadText bad[] = {
        {"{'hidden_size': 64}", "expected model_type gpt2, llama, qwen2 or qwen3, found none"},
        {"{'model_type': 'mistral'}", "expected model_type gpt2, llama, qwen2 or qwen3, found mistral"},
        {"[]", "object"},
        {"{'model_type': 'gpt2', 'n_layer': 2, 'n_embd': 30, 'n_head': 4, 'vocab_size': 9, 'n_positions': 8}",
         "n_embd 30 is not a multiple of n_head 4"},
        {"{'model_type': 'gpt2', 'n_layer': 0, 'n_embd': 32, 'n_head': 4, 'vocab_size': 9, 'n_positions': 8}",
         "expected n_layer from 1 to 1000, found 0"},
        {"{'model_type': 'gpt2', 'n_layer': 1, 'n_embd': 32, 'n_head': 4, 'vocab_size': 9, 'n_positions': 1e99}",
         "n_positions"},
        {"{'model_type': 'gpt2', 'n_layer': 1, 'n_embd': 32, 'n_head': 4, 'vocab_size': 9}", "n_positions"},
        {"{'model_type': 'gpt2', 'n_layer': 1, 'n_embd': 32, 'n_head': 4, 'vocab_size': 9, 'n_positions': 8, "
         "'n_inner': -1}",
         "n_inner"},
        {"{'model_type': 'gpt2', 'n_layer': 1, 'n_embd': 32, 'n_head': 4, 'vocab_size': 9, 'n_positions': 8, "
         "'layer_norm_epsilon': 0}",
         "layer_norm_epsilon"},
        {"{'model_type': 'gpt2', 'activation_function': 'relu'}", "\"gelu_new\", found relu"},
        {"{'model_type': 'gpt2', 'scale_attn_by_inverse_layer_idx': true}", "scale_attn_by_inverse_layer_idx false"},
        {"{'model_type': 'llama', 'hidden_act': 'gelu'}", "expected hidden_act \"silu\", found gelu"},
        {"{'model_type': 'llama', 'attention_bias': true}", "expected attention_bias false, found true"},
        {"{'model_type': 'llama', 'mlp_bias': true}", "expected mlp_bias false, found true"},
        {"{'model_type': 'qwen3', 'attention_bias': true}", "expected attention_bias false, found true"},
        {"{'model_type': 'qwen2', 'use_sliding_window': true}", "expected use_sliding_window false, found true"},
        {"{'model_type': 'qwen3', 'layer_types': ['full_attention', 'sliding_attention']}",
         "expected layer_types full_attention, found sliding_attention"},
        {"{'model_type': 'llama', 'partial_rotary_factor': 0.5}", "partial_rotary_factor 1.0, found 0.5"},
        {"{'model_type': 'llama', 'quantization_config': {\n'bits': 4}}", "quantization_config null, found {"},
        {"{'model_type': 'llama', 'tie_word_embeddings': 1}", "tie_word_embeddings true or false, found 1"},
        {"{'model_type': 'llama', 'num_key_value_heads': 48, " SIZES "}", "not a multiple of num_key_value_heads 48"},
        {"{'model_type': 'llama', 'head_dim': 0, " SIZES "}", "expected head_dim from 1 to 1024, found 0"},
        {"{'model_type': 'llama', 'head_dim': 3, " SIZES "}", "expected an even head_dim, found 3"},
        {"{'model_type': 'qwen3', 'rms_norm_eps': -1, " SIZES "}", "expected rms_norm_eps from"},
        {"{'model_type': 'qwen3', 'rope_theta': '7', " SIZES "}", "expected rope_theta from"},
        {"{'model_type': 'qwen3', 'rope_scaling': {'rope_type': 'yarn', 'factor': 4.0}, " SIZES "}",
         "expected rope_type default or llama3, found yarn"},
        {"{'model_type': 'qwen3', 'rope_scaling': {'type': 'linear', 'factor': 4.0}, " SIZES "}",
         "expected rope_type default or llama3, found linear"},
        {"{'model_type': 'qwen3', 'rope_parameters': {'full_attention': {'rope_type': 'default'}}, " SIZES "}",
         "expected rope_type default or llama3, found none"},
        {"{'model_type': 'qwen3', 'rope_scaling': {'rope_type': 'llama3', 'factor': 4.0}, " SIZES "}",
         "expected low_freq_factor from 1e-06 to 1e+06, found none"},
        {"{'model_type': 'qwen3', 'rope_scaling': {'rope_type': 'llama3', 'factor': 4, 'low_freq_factor': 4, "
         "'high_freq_factor': 4, 'original_max_position_embeddings': 64}, " SIZES "}",
         "expected low_freq_factor below high_freq_factor, found 4 and 4"},
        {"{'model_type': 'qwen3', 'rope_scaling': {'rope_type': 'llama3', 'factor': 4, 'low_freq_factor': 1, "
         "'high_freq_factor': 4, 'original_max_position_embeddings': 6.5}, " SIZES "}",
         "original_max_position_embeddings from 1"},
        {"{'model_type': 'qwen3', 'rope_scaling': {'rope_type': 'default', 'partial_rotary_factor': 0.25}, " SIZES "}",
         "partial_rotary_factor 1.0, found 0.25"},
    };
    CHECK_BAD_TEXTS(parse_config, err, bad);
}

int main(int argc, char** argv) {
    program_begin(argc, argv);
    make_models();
    run_claims();
    free_model();
    return program_end();
}
