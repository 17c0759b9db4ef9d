// config.c - the option table and what is derived from it: parser, range check, echo. See config.h.
#include "plan/config.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "plan/config_table.h"

const char* const config_groups[N_GROUPS][2] = {
    {"data", "text, tokenizer, run directory, resuming"},
    {"model", "layers, width, heads, context, vocabulary"},
    {"optimizer", "steps, learning rate, AdamW, seed"},
    {"rhythm", "how often to evaluate, to sample and to save"},
    {"sampling", "text from a trained model, and how good it is"},
    {"device", "processor or GPU, kernels, precision, memory"},
    {"ranks", "who shares which documents, ZeRO, tensor parallelism"},
    {"slow", "what to do about ranks that are slower than others"},
    {"inside", "looking inside: costs, plans, gradients, --verbose"},
};

#define AT(field) offsetof(Config, field)

// clang-format off
const Option config_options[] = {
    {"--data",          PATHS,  DATA,      RUN,   AT(data),          NULL,      0, 0,       "PATH...", "training text: directories (every text file below is a document), text files, *.jsonl (the string \"text\" of each line is a document; or \"prompt\" and \"completion\", or \"messages\", of which completions are learnt), both also as .gz or .zst, or token shards *.bin; NAME=WEIGHT:PATH gives a corpus a share of the tokens, as in code=0.3:src books=0.7:b.txt; shell patterns in quotes work; default: /usr/include, or this directory where there are no C headers", "text: directories, files, *.jsonl or token shards *.bin"},
    {"--val",           PATHS,  DATA,      RUN,   AT(val),           NULL,      0, 0,       "PATH...", "validation text; default: a twentieth of the training documents, chosen by a hash of their content, so that no copy of one is trained on; of a corpus too small for that, the end of its longest document", "validation text; default: a twentieth of --data"},
    {"--tokenizer",     TEXT,   DATA,      RUN,   AT(tokenizer),     NULL,      0, 0,       "FILE", "a Hugging Face tokenizer.json (byte-level BPE as of GPT-2, SmolLM2, Llama 3 and Qwen2 to 3), or llm.c's tokenizer file; default: what the checkpoint carries, or bytes (256 values and end-of-text)", "tokenizer.json or llm.c's file; default: bytes"},
    {"--tokenize",      TEXT,   DATA,      START, AT(tokenize),      NULL,      0, 0,       "DIR", "do not train: encode --data with --tokenizer into DIR, as a shard of llm.c's format with an index beside it; a run that encodes 1 MiB or more keeps the same in ~/.cache/ragged by itself, for all ranks and later runs", NULL},
    {"--out",           TEXT,   DATA,      START, AT(out),           NULL,      0, 0,       "DIR", "run directory, for the log and checkpoints; default: runs/<next free number>", "log and checkpoints; default: runs/<next free number>"},
    {"--resume",        FLAG,   DATA,      START, AT(resume),        NULL,      0, 0,       NULL, "continue the run in --out (default: the newest below runs/) with its own options; options given beside it win", "continue the run in --out, or the newest"},
    {"--resume-from",   TEXT,   DATA,      START, AT(resume_from),   NULL,      0, 0,       "STEP", "continue from this checkpoint of the run in --out, like step-000120, or from the path of one, instead of the newest; what came after it is superseded", NULL},
    {"--init",          TEXT,   DATA,      START, AT(init),          NULL,      0, 0,       "DIR", "start from the weights of a checkpoint, or of a Hugging Face directory of a GPT-2, Llama, Qwen2 or Qwen3", "start from a checkpoint or a Hugging Face directory"},

    {"--preset",        CHOICE, MODEL,     RUN,   AT(preset),        "tiny",    0, 0,       "tiny|llama-tiny|gpt2-124m|gpt2-350m|gpt2-774m|gpt2-1558m|smollm2-135m|llama-3.2-1b|llama-3.1-8b|qwen2.5-0.5b|qwen3-0.6b", "model dimensions: tiny, llama-tiny, gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1558m, smollm2-135m, llama-3.2-1b, llama-3.1-8b, qwen2.5-0.5b, qwen3-0.6b; tiny: a GPT-2 of 4 layers, width 128, 4 heads, context 256; llama-tiny: a Llama of that size with 2 key/value heads", "tiny, llama-tiny, gpt2-124m, llama-3.2-1b, ...: --help model"},
    {"--arch",          CHOICE, MODEL,     RUN,   AT(arch),          "preset",  0, 0,       "preset|gpt2|llama|qwen2|qwen3", "architecture: gpt2 has LayerNorm, learned positions and GELU; the others RMSNorm, rotary positions and SwiGLU, qwen2 a bias of queries, keys and values, qwen3 a norm of queries and keys", NULL},
    {"--layers",        INT,    MODEL,     RUN,   AT(layers),        "0",       0, 1000,    NULL, "transformer blocks; 0: by preset", NULL},
    {"--width",         INT,    MODEL,     RUN,   AT(width),         "0",       0, 65536,   NULL, "channels; 0: by preset", NULL},
    {"--heads",         INT,    MODEL,     RUN,   AT(heads),         "0",       0, 1024,    NULL, "attention heads; 0: by preset", NULL},
    {"--kv-heads",      INT,    MODEL,     RUN,   AT(kv_heads),      "0",       0, 1024,    NULL, "heads of keys and values, which must divide --heads; 0: by preset, or as many", NULL},
    {"--head-size",     INT,    MODEL,     RUN,   AT(head_size),     "0",       0, 256,     NULL, "channels of a head; 0: by preset, or width / heads", NULL},
    {"--hidden",        INT,    MODEL,     RUN,   AT(hidden),        "0",       0, 1 << 20, NULL, "hidden units of the MLP; 0: by preset, or 4 width, with SwiGLU 8/3 width rounded up to a multiple of 64", NULL},
    {"--rope-theta",    REAL,   MODEL,     RUN,   AT(rope_theta),    "0",       0, 1e9,     NULL, "base of rotary positions; 0: by preset, or 10000", NULL},
    {"--tie",           CHOICE, MODEL,     RUN,   AT(tie),           "preset",  0, 0,       "preset|yes|no", "whether the token embedding is the classifier too", NULL},
    {"--context",       INT,    MODEL,     RUN,   AT(context),       "0",       0, 1 << 20, NULL, "most tokens of a piece of a document: longer documents are cut into pieces; 0: by preset", "most tokens of a piece of a document; 0: by preset"},
    {"--vocab",         INT,    MODEL,     RUN,   AT(vocab),         "0",       0, 1 << 20, NULL, "vocabulary; 0: by preset, or the tokenizer's", NULL},

    {"--steps",         INT64,  OPTIMIZER, RUN,   AT(steps),         "3500",    0, 1e12,    NULL, "optimizer steps of the whole run; the learning rate's schedule ends there", "optimizer steps of the whole run"},
    {"--batch-tokens",  INT,    OPTIMIZER, RUN,   AT(batch_tokens),  "0",       0, 1 << 28, NULL, "most tokens of a step, on all ranks together: documents are taken while they fit; 0: by the size of the model (tiny 1024, from 50M parameters on 524288, with --init at most 32768, with --explain at least 16 contexts)", "most tokens of a step, on all ranks; 0: by model size"},
    {"--lr",            REAL,   OPTIMIZER, RUN,   AT(lr),            "0",       0, 10,      NULL, "peak learning rate; 0: by the size of the model (tiny 0.004, gpt2-124m 0.0006, less for larger ones; with --init a twentieth)", "peak learning rate; 0: by model size"},
    {"--schedule",      CHOICE, OPTIMIZER, RUN,   AT(schedule),      "cosine",  0, 0,       "cosine|linear|constant|wsd", "how the learning rate falls after its warm-up; wsd: constant, then a fall over the last fifth", NULL},
    {"--warmup",        INT,    OPTIMIZER, RUN,   AT(warmup),        "-1",     -1, 1e9,     NULL, "steps in which the learning rate rises linearly to its peak; -1: by the size of the model, at most a tenth of --steps or 100", NULL},
    {"--min-lr",        REAL,   OPTIMIZER, RUN,   AT(min_lr),        "0.1",     0, 1,       NULL, "final learning rate as a fraction of the peak", NULL},
    {"--weight-decay",  REAL,   OPTIMIZER, RUN,   AT(weight_decay),  "0.1",     0, 10,      NULL, "AdamW's decay of matrices and embeddings; biases and norms do not decay", NULL},
    {"--beta1",         REAL,   OPTIMIZER, RUN,   AT(beta1),         "0.9",     0, 0.9999,  NULL, "AdamW's decay of the first moment", NULL},
    {"--beta2",         REAL,   OPTIMIZER, RUN,   AT(beta2),         "0.95",    0, 0.99999, NULL, "AdamW's decay of the second moment", NULL},
    {"--clip",          REAL,   OPTIMIZER, RUN,   AT(clip),          "1",       0, 1e9,     NULL, "largest norm of all gradients together; 0: no limit", NULL},
    {"--seed",          INT64,  OPTIMIZER, RUN,   AT(seed),          "1",       0, 9e15,    NULL, "seed of weights, order of documents and samples", NULL},

    {"--eval-every",    INT,    RHYTHM,    RUN,   AT(eval_every),    "500",     0, 1e9,     NULL, "steps between evaluations; 0: never", NULL},
    {"--eval-tokens",   INT,    RHYTHM,    RUN,   AT(eval_tokens),   "131072",  1, 1 << 30, NULL, "most validation tokens of an evaluation", NULL},
    {"--sample-every",  INT,    RHYTHM,    RUN,   AT(sample_every),  "1000",    0, 1e9,     NULL, "steps between samples; 0: never", NULL},
    {"--save-every",    INT,    RHYTHM,    RUN,   AT(save_every),    "1000",    0, 1e9,     NULL, "steps between checkpoints; the last step is always saved; 0: never", NULL},
    {"--keep",          INT,    RHYTHM,    RUN,   AT(keep),          "2",       0, 1e9,     NULL, "how many of the newest checkpoints to keep; 0: all", NULL},

    {"--sample",        TEXT,   SAMPLING,  START, AT(sample),        NULL,      0, 0,       "\"PROMPT\"", "do not train: continue the prompt with the model in --init, or with the newest checkpoint of --out", "do not train: continue this text with the newest model"},
    {"--tokens",        INT,    SAMPLING,  RUN,   AT(tokens),        "256",     1, 1 << 20, NULL, "length of a sample in tokens", NULL},
    {"--eval",          FLAG,   SAMPLING,  START, AT(eval),          NULL,      0, 0,       NULL, "do not train: print the loss, the perplexity and the bits per byte of the model in --init, or of the newest checkpoint of --out, on all documents of --data; without --data on the run's own validation text", "do not train: loss and bits per byte of a model on --data"},
    {"--eval-choices",  TEXT,   SAMPLING,  START, AT(eval_choices),  NULL,      0, 0,       "FILE.jsonl", "do not train: of each line, {\"ctx\": \"...\", \"endings\": [\"...\", ...], \"label\": 0} as in HellaSwag, choose the ending with the highest mean log-likelihood of its tokens, and print how many are right", NULL},
    {"--temperature",   REAL,   SAMPLING,  RUN,   AT(temperature),   "0.8",     0, 100,     NULL, "logits are divided by it; 0: always the most likely token", NULL},
    {"--top-k",         INT,    SAMPLING,  RUN,   AT(top_k),         "0",       0, 1 << 20, NULL, "choose among the k most likely tokens; 0: among all", NULL},

    {"--device",        CHOICE, DEVICE,    START, AT(device),        "auto",    0, 0,       "auto|cpu|cuda|emu|virtual|virtual-cpu", "where to compute; auto: a GPU where there is one and this build has CUDA; emu: the CUDA code on an emulated GPU, very slow, for tests (make EMU=yes); virtual: nowhere, every rank only takes the time that --machine says (run/README.md); virtual-cpu: the same times, and the results of cpu", "auto, cpu, cuda"},
    {"--cpu-isa",       CHOICE, DEVICE,    START, AT(cpu_isa),       "auto",    0, 0,       "auto|reference|generic|avx2|avx512|avx512bf16|amx", "CPU kernels; auto: the best that this processor has", NULL},
    {"--dtype",         CHOICE, DEVICE,    RUN,   AT(dtype),         "auto",    0, 0,       "auto|bf16|fp32", "weights and activations; auto: bf16 where the device multiplies it much faster, else fp32", NULL},
    {"--rounding",      CHOICE, DEVICE,    RUN,   AT(rounding),      "nearest", 0, 0,       "nearest|stochastic", "how AdamW rounds its fp32 weights to bf16; stochastic keeps the expected value, and depends on nothing but seed, step and place", NULL},
    {"--threads",       INT,    DEVICE,    START, AT(threads),       "0",       0, 4096,    NULL, "CPU threads; 0: one for every core", NULL},
    {"--recompute",     CHOICE, DEVICE,    RUN,   AT(recompute),     "none",    0, 0,       "none|activation|block", "activations that the backward pass computes again instead of keeping them; the result has the same bits", NULL},
    {"--attention",     CHOICE, DEVICE,    RUN,   AT(attention),     "auto",    0, 0,       "auto|own|cudnn", "attention kernels on a CUDA device: this project's or cuDNN's; auto: what was measured to be faster", NULL},
    {"--deterministic", CHOICE, DEVICE,    RUN,   AT(deterministic), "yes",     0, 0,       "yes|no", "no: on a CUDA device the backward pass of attention may add in any order, which is faster, but two runs differ in their last bits", NULL},
    {"--epilogues",     CHOICE, DEVICE,    RUN,   AT(epilogues),     "dgelu",   0, 0,       "bias|dgelu|all", "what cuBLASLt computes in the same pass as a matmul: the bias; also the derivative of GELU; also GELU and bias gradients", NULL},
    {"--capacity",      INT,    DEVICE,    RUN,   AT(capacity),      "0",       0, 1 << 26, NULL, "most tokens of a packed row on a rank (a row is documents behind each other); several ranks may share a document that is longer; 0: as many as half of the free memory holds, at most 8192, on a GPU 32768", NULL},

    {"--tp",            INT,    RANKS,     RUN,   AT(tp),            "1",       1, 64,      NULL, "ranks of a tensor-parallel group, which divide heads, hidden units of the MLP and vocabulary among them, in any numbers up to the heads; neighbours in rank, best on one node. In plans and in --zero 'rank' then means such a group", NULL},
    {"--pp",            INT,    RANKS,     RUN,   AT(pp),            "1",       1, 64,      NULL, "stages of a pipeline, which divide the layers; the first ranks are the first stage. All ranks of a stage run micro-batches in the same rounds, of which as many as stages are under way at a time (1F1B)", NULL},
    {"--strategies",    TEXT,   RANKS,     RUN,   AT(strategies),    NULL,      0, 0,       "LIST|FILE", "ways to divide all ranks among pipelines, like \"tp4+2xtp2; tp2pp2+2xtp1pp2; 8xtp1\", or a file with one a line: every step takes the one that its documents make fastest, and its pipelines of unlike degrees work side by side; a rank of a group of N holds rows of N times --capacity; instead of --tp, --pp and --layout", NULL},
    {"--layout",        TEXT,   RANKS,     START, AT(layout),        NULL,      0, 0,       "FILE|auto|hydraulis", "auto: the fastest that fits --memory, by estimate; hydraulis: --strategies that suit the lengths of the documents; or a file with a line for every stage of the pipeline: \"stage layers 3 zero 1 recompute block\", below it perhaps lines for its layers: \"layers 2 tp 1 zero 3\", and \"tp 2\" for tensor-parallel groups; instead of --pp and --tp", NULL},
    {"--layout",        TEXT,   RANKS,     START, AT(layout),        NULL,      0, 0,       "FILE|auto", "auto: the fastest that fits --memory, by estimate; or a file with a line for every stage of the pipeline: \"stage layers 3 zero 1 recompute block\", below it perhaps lines for its layers: \"layers 2 tp 1 zero 3 recompute none\", and \"tp 2\" for tensor-parallel groups; instead of --pp and --tp", NULL},
