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
    {"--data",          PATHS,  DATA,      RUN,   AT(data),          NULL,      0, 0,       "PATH...", "training text: directories (every text file below is a document), text files, *.jsonl (the string \"text\" of each line is a document; or instructions, of which completions are learnt: \"prompt\" and \"completion\", \"messages\", \"instruction\" and \"output\" as in Alpaca, \"conversations\" as in ShareGPT), both also as .gz or .zst, or token shards *.bin; NAME=WEIGHT:PATH gives a corpus a share of the tokens, as in code=0.3:src books=0.7:b.txt; shell patterns in quotes work; default: /usr/include, or this directory where there are no C headers", "text: directories, files, *.jsonl or token shards *.bin"},
    {"--val",           PATHS,  DATA,      RUN,   AT(val),           NULL,      0, 0,       "PATH...", "validation text; default: a twentieth of the training documents, chosen by a hash of their content, so that no copy of one is trained on; of a corpus too small for that, the end of its longest document", "validation text; default: a twentieth of --data"},
    {"--document-separator", TEXT, DATA,   RUN,   AT(separator),     "<|endoftext|>", 0, 0,  "TEXT|none", "what stands between the documents of a text file, with the line breaks behind it; none: every text file is one document", NULL},
    {"--text-key",      TEXT,   DATA,      RUN,   AT(text_key),      "text",    0, 0,       "NAME", "the member of each line of *.jsonl that is its document", NULL},
    {"--tokenizer",     TEXT,   DATA,      RUN,   AT(tokenizer),     NULL,      0, 0,       "FILE", "a Hugging Face tokenizer.json (byte-level BPE as of GPT-2, SmolLM2, Llama 3 and Qwen2 to 3), or llm.c's tokenizer file; default: what the checkpoint carries, or bytes (256 values and end-of-text)", "tokenizer.json or llm.c's file; default: bytes"},
    {"--tokenize",      TEXT,   DATA,      START, AT(tokenize),      NULL,      0, 0,       "DIR", "do not train: encode --data with --tokenizer into DIR, as a shard of llm.c's format with an index beside it; a run that encodes 1 MiB or more keeps the same in ~/.cache/ragged by itself, for all ranks and later runs", NULL},
    {"--out",           TEXT,   DATA,      START, AT(out),           NULL,      0, 0,       "DIR", "run directory, for the log and checkpoints; default: runs/<next free number>", "log and checkpoints; default: runs/<next free number>"},
    {"--resume",        FLAG,   DATA,      START, AT(resume),        NULL,      0, 0,       NULL, "continue the run in --out (default: the newest below runs/) with its own options; options given beside it win", "continue the run in --out, or the newest"},
    {"--resume-from",   TEXT,   DATA,      START, AT(resume_from),   NULL,      0, 0,       "STEP", "continue from this checkpoint of the run in --out, like step-000120, or from the path of one, instead of the newest; what came after it is superseded; with --sample or --eval: the model of that checkpoint", NULL},
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
    {"--lr",            REAL,   OPTIMIZER, RUN,   AT(lr),            "0",       0, 10,      NULL, "peak learning rate; 0: by the size of the model (0.004 up to 1M parameters, 0.001 at 10M, 0.0006 at 125M, 0.0002 at 1.3B, between them interpolated; with --init a twentieth)", "peak learning rate; 0: by model size"},
    {"--schedule",      CHOICE, OPTIMIZER, RUN,   AT(schedule),      "cosine",  0, 0,       "cosine|linear|constant|wsd", "how the learning rate falls after its warm-up; wsd: constant, then a fall over the last fifth", NULL},
    {"--warmup",        INT,    OPTIMIZER, RUN,   AT(warmup),        "-1",     -1, 1e9,     NULL, "steps in which the learning rate rises linearly to its peak; -1: by the size of the model, at most a tenth of --steps", NULL},
    {"--min-lr",        REAL,   OPTIMIZER, RUN,   AT(min_lr),        "0.1",     0, 1,       NULL, "final learning rate as a fraction of the peak", NULL},
    {"--weight-decay",  REAL,   OPTIMIZER, RUN,   AT(weight_decay),  "0.1",     0, 10,      NULL, "AdamW's decay of matrices and embeddings; biases and norms do not decay", NULL},
    {"--beta1",         REAL,   OPTIMIZER, RUN,   AT(beta1),         "0.9",     0, 0.9999,  NULL, "AdamW's decay of the first moment", NULL},
    {"--beta2",         REAL,   OPTIMIZER, RUN,   AT(beta2),         "0.95",    0, 0.99999, NULL, "AdamW's decay of the second moment", NULL},
    {"--clip",          REAL,   OPTIMIZER, RUN,   AT(clip),          "1",       0, 1e9,     NULL, "largest norm of all gradients together; 0: no limit", NULL},
    {"--seed",          INT64,  OPTIMIZER, RUN,   AT(seed),          "1",       0, 9e15,    NULL, "seed of weights, order of documents and samples", NULL},

    {"--eval-every",    INT,    RHYTHM,    RUN,   AT(eval_every),    "500",     0, 1e9,     NULL, "steps between evaluations; 0: never", NULL},
    {"--eval-tokens",   INT,    RHYTHM,    RUN,   AT(eval_tokens),   "0",       0, 1 << 30, NULL, "most validation tokens of an evaluation; 0: by the size of the model (32768 up to 20M parameters, else 131072)", NULL},
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
    {"--rounding",      CHOICE, DEVICE,    RUN,   AT(rounding),      "nearest", 0, 0,       "nearest|stochastic", "how AdamW rounds its fp32 weights to bf16; stochastic keeps the expected value, and depends on nothing but seed, step and place in the whole model, whichever ranks have it", NULL},
    {"--threads",       INT,    DEVICE,    START, AT(threads),       "0",       0, 4096,    NULL, "CPU threads; 0: one for every core", NULL},
    {"--recompute",     CHOICE, DEVICE,    RUN,   AT(recompute),     "none",    0, 0,       "none|activation|block", "activations that the backward pass computes again instead of keeping them; the result has the same bits", NULL},
    {"--attention",     CHOICE, DEVICE,    RUN,   AT(attention),     "auto",    0, 0,       "auto|own|cudnn", "attention kernels on a CUDA device: this project's or cuDNN's; auto: what was measured to be faster", NULL},
    {"--deterministic", CHOICE, DEVICE,    RUN,   AT(deterministic), "yes",     0, 0,       "yes|no", "no: on a CUDA device the backward pass of attention may add in any order, which is faster, but two runs differ in their last bits", NULL},
    {"--epilogues",     CHOICE, DEVICE,    RUN,   AT(epilogues),     "dgelu",   0, 0,       "bias|dgelu|all", "what cuBLASLt computes in the same pass as a matmul: the bias; also the derivative of GELU; also GELU and bias gradients", NULL},
    {"--capacity",      INT,    DEVICE,    RUN,   AT(capacity),      "0",       0, 1 << 26, NULL, "most tokens of a packed row on a rank (a row is documents behind each other); several ranks may share a document that is longer; 0: as many as half of the free memory holds, at most 8192, on a GPU 32768", NULL},

    {"--tp",            INT,    RANKS,     RUN,   AT(tp),            "1",       1, 64,      NULL, "ranks of a tensor-parallel group, which divide heads, hidden units of the MLP and vocabulary among them, in any numbers up to the heads; neighbours in rank, best on one node. In plans and in --zero 'rank' then means such a group", NULL},
    {"--pp",            INT,    RANKS,     RUN,   AT(pp),            "1",       1, 64,      NULL, "stages of a pipeline, which divide the layers; the first ranks are the first stage. All ranks of a stage run micro-batches in the same rounds, of which as many as stages are under way at a time (1F1B)", NULL},
    {"--strategies",    TEXT,   RANKS,     RUN,   AT(strategies),    NULL,      0, 0,       "LIST|FILE|none", "ways to divide all ranks among pipelines, like \"tp4+2xtp2; tp2pp2+2xtp1pp2; 8xtp1\", or a file with one a line: every step takes the one that its documents make fastest, and its pipelines of unlike degrees work side by side; a rank of a group of N holds rows of N times --capacity; instead of --tp, --pp and --layout", NULL},
    {"--layout",        TEXT,   RANKS,     RUN,   AT(layout),        NULL,      0, 0,       "FILE|auto|hydraulis", "auto: the fastest that fits --memory, by estimate; hydraulis: --strategies that suit the lengths of the documents; or a file with a line for every stage of the pipeline: \"stage layers 3 zero 1 recompute block\", below it perhaps lines for its layers: \"layers 2 tp 1 zero 3\", and \"tp 2\" for tensor-parallel groups; or these lines themselves, with ; between them, as a run saves them; instead of --pp and --tp", NULL},
    {"--memory",        TEXT,   RANKS,     RUN,   AT(memory),        NULL,      0, 0,       "SIZE", "most memory of a rank, as 64M or 24G: for --layout auto, and a limit for the memory table", NULL},
    {"--check-layout",  FLAG,   RANKS,     START, AT(check_layout),  NULL,      0, 0,       NULL, "do not train: say what every stage holds, and what memory it takes", NULL},
    {"--zero",          INT,    RANKS,     RUN,   AT(zero),          "1",       1, 3,       NULL, "what ranks divide among them. 1: optimizer state; 2: also gradients; 3: also weights. With 2 and 3 all ranks go through a step in the same rounds, because all join in each reduction", NULL},
    {"--grad-dtype",    CHOICE, RANKS,     RUN,   AT(grad_dtype),    "fp32",    0, 0,       "fp32|bf16", "how gradients travel between ranks; the CPU still adds them in fp32, NCCL may round in between", NULL},
    {"--overlap",       CHOICE, RANKS,     START, AT(overlap),       "yes",     0, 0,       "yes|no", "communicate while computing goes on", NULL},
    {"--plan",          CHOICE, RANKS,     RUN,   AT(plan),          "flex",    0, 0,       "flex|adaptive|static|flexsp|hydraulis|zeppelin|megatron|fixed|random", "which ranks share which documents. flex: groups of unlike sizes, chosen for each step by their cost; adaptive: groups of one size, the best for each step; static: groups of one size in all steps; other systems' planners, rebuilt (plan/README.md): flexsp and megatron with a barrier after each of their rounds, hydraulis, zeppelin, whose routing and remapping are --route and --remap; fixed: full rows, dealt in turn; random: any valid plan, for tests", NULL},
    {"--remap",         CHOICE, RANKS,     RUN,   AT(remap),         "no",      0, 0,       "no|yes|auto", "tokens of documents that one rank attends to lie on other ranks of its node, so that linear layers have even work. yes: wherever tokens are uneven; auto: where the cost model says that the step gets shorter", NULL},
    {"--route",         CHOICE, RANKS,     RUN,   AT(route),         "no",      0, 0,       "no|yes|auto", "messages of a ring that go to another node travel in parts, by way of the NICs of other ranks. auto: those so long that the cost model says that it pays", NULL},
    {"--machine",       TEXT,   RANKS,     RUN,   AT(machine),       NULL,      0, 0,       "FILE|NAME", "plan with the constants of a machine file or of a machine known by name (flexsp-7b, a100-7b, h200-8b, ...), and learn nothing: the same plans in every run; default: what --probe measured, else an estimate, and both are calibrated while training goes on", NULL},
    {"--refresh",       INT,    RANKS,     RUN,   AT(refresh),       "20",      0, 1e9,     NULL, "steps between updates of what plans know: the cost model, speeds of ranks, what slow ranks give away; 0: never", NULL},
    {"--cp",            INT,    RANKS,     RUN,   AT(cp_size),       "0",       0, 1 << 20, NULL, "context-parallel ranks: how many share a document; means --plan static; 0: with that plan the fewest that --capacity allows", NULL},
    {"--cp-kind",       CHOICE, RANKS,     RUN,   AT(kind),          "auto",    0, 0,       "auto|ulysses|ring", "how ranks that share a document divide its attention: ulysses by heads, ring by keys and values that travel around; auto: what costs least; with --plan static: heads inside a node, rings across nodes", NULL},
    {"--node-size",     INT,    RANKS,     START, AT(node_size),     "0",       0, 1 << 20, NULL, "ranks of a node, as plans see them; 0: detected", NULL},
    {"--timeout",       REAL,   RANKS,     START, AT(timeout),       "600",     1, 1e6,     NULL, "seconds without a sign of another rank after which a run gives up", NULL},

    {"--balance",       CHOICE, SLOW,      RUN,   AT(balance),       "off",     0, 0,       "off|resize|migrate|semi", "all but off: plans give slow ranks less, which loses nothing. In a tensor-parallel group also: with resize a slow rank leaves out a part of its matmuls, which is lossy; with migrate other ranks compute a part of its heads and hidden units, which is exact; semi does both, weighed by --semi-lambda", NULL},
    {"--semi-lambda",   REAL,   SLOW,      RUN,   AT(semi_lambda),   "4",       0, 1e9,     NULL, "lambda of --balance semi, which chooses the step time T and the left-out fraction g of the group's work with the least T (1 + lambda g); 0: only time counts; large: nothing is left out", NULL},
    {"--moves",         CHOICE, SLOW,      RUN,   AT(moves),         "step",    0, 0,       "step|keep", "how work migrates. step: anew in each step, weights go out and gradients come back; keep: for good, with the optimizer's state, so that a step costs nothing more", NULL},
    {"--experiment",    KEYS,   SLOW,      RUN,   0,                 NULL,      0, 0,       "KEY=VALUE,...", "variants of resizing, only for comparison:", NULL},
    {"--experiment shed",     CHOICE, KEY, RUN,   AT(shed),          "columns", 0, 0,       "columns|slices", "what is left out: columns of the matmuls' inputs, as published; or whole heads and hidden units", NULL},
    {"--experiment fill",     CHOICE, KEY, RUN,   AT(fill),          "zero",    0, 0,       "zero|average|same", "gradients that were not computed: 0, and AdamW leaves their weights and moments alone; the mean of their row; those of the step before (harmful)", NULL},
    {"--experiment priority", CHOICE, KEY, RUN,   AT(priority),      "change",  0, 0,       "change|random|inverse", "what is computed still: what changes most; any; what changes least (which starves the rest)", NULL},
    {"--experiment ratios",   CHOICE, KEY, RUN,   AT(ratios),        "equal",   0, 0,       "equal|layers", "as much is left out of every layer; or more of layers that change less", NULL},
    {"--straggle",      TEXT,   SLOW,      START, AT(straggle),      NULL,      0, 0,       "SPEC", "slow ranks down for a test: \"rank=1,x=4,from=20,to=80\" makes the matmuls of rank 1 take 4 times as long in these steps, with \",whole\" all that it computes; several with ; between them", NULL},

    {"--probe",         FLAG,   INSIDE,    START, AT(probe),         NULL,      0, 0,       NULL, "do not train: measure what a micro-batch, a token and a message cost on these ranks, keep it in ~/.cache/ragged for plans, and print it beside rows that it was not fitted to", NULL},
    {"--explain",       FLAG,   INSIDE,    START, AT(explain),       NULL,      0, 0,       NULL, "do not train: print the plan of the next step, its cost, its bounds and what other planners would do; with timelines also as a page, plan.html (in --out, if given)", NULL},
    {"--check-plan",    FLAG,   INSIDE,    RUN,   AT(check_plan),    NULL,      0, 0,       NULL, "prove every plan before it runs", NULL},
    {"--overfit",       FLAG,   INSIDE,    RUN,   AT(overfit),       NULL,      0, 0,       NULL, "train on the first batch only: its loss must go to zero", NULL},
    {"--dump-grads",    TEXT,   INSIDE,    START, AT(dump_grads),    NULL,      0, 0,       "FILE", "write gradients and logits (up to 256 MiB of them) of the next step as safetensors, print its loss, and stop", NULL},
    {"--report",        PATHS,  INSIDE,    START, AT(report),        NULL,      0, 0,       "RUN...", "do not train: make report.html of these runs side by side (in --out, if given; of one run in its directory), and print their results and the options in which they differ", "report.html of several runs side by side"},
    {"--verbose",       FLAG,   INSIDE,    START, AT(verbose),       NULL,      0, 0,       NULL, "say at the start all that was understood: every option, memory by kind, kernels, cost model; at the end what planning and communication took", "say all that was understood: options, memory, kernels"},
    {"--version",       FLAG,   INSIDE,    START, AT(version),       NULL,      0, 0,       NULL, "print the version and what this build has, and stop", NULL},
    {"--help",          TOPIC,  INSIDE,    START, AT(help),          NULL,      0, 0,       "[all|GROUP]", "the options that a person needs first; all options; or one group of them", "this list; all options; or one group of them"},
};
// clang-format on
const int n_config_options = COUNT(config_options);
_Static_assert(sizeof config_options / sizeof *config_options <= 128, "Config.given has 128 bits");

// Names and values of the version before this one: understood, but in no help.
static const char* const old_names[][2] = {
    {"-h", "--help"},
    {"--degree", "--cp"},
    {"--kind", "--cp-kind"},
    {"--reduce", "--grad-dtype"},
    {"--exchange-rate", "--semi-lambda"},
    {"--shed", "--experiment shed"},
    {"--fill", "--experiment fill"},
    {"--priority", "--experiment priority"},
    {"--ratios", "--experiment ratios"},
};
static const char* const old_values[][3] = {{"--cp-kind", "heads", "ulysses"}, {"--recompute", "gelu", "activation"}};

// What others call it, or what people look for: not understood, but answered with the name.
static const char* const other_words[][2] = {
    {"--learning-rate", "--lr"},
    {"--max-lr", "--lr"},
    {"--batch-size", "--batch-tokens"},
    {"--micro-batch-size", "--capacity"},
    {"--total-batch-size", "--batch-tokens"},
    {"--grad-accum", "--batch-tokens"},
    {"--gradient-accumulation-steps", "--batch-tokens"},
    {"--epochs", "--steps"},
    {"--num-train-epochs", "--steps"},
    {"--iters", "--steps"},
    {"--max-iters", "--steps"},
    {"--max-steps", "--steps"},
    {"--num-iterations", "--steps"},
    {"--block-size", "--context"},
    {"--seq-len", "--context"},
    {"--sequence-length", "--context"},
    {"--max-seq-len", "--context"},
    {"--n-layer", "--layers"},
    {"--num-layers", "--layers"},
    {"--depth", "--layers"},
    {"--n-embd", "--width"},
    {"--hidden-size", "--width"},
    {"--n-head", "--heads"},
    {"--num-heads", "--heads"},
    {"--vocab-size", "--vocab"},
    {"--dataset", "--data"},
    {"--train", "--data"},
    {"--train-data", "--data"},
    {"--input-bin", "--data"},
    {"--input-val-bin", "--val"},
    {"--valid", "--val"},
    {"--output-dir", "--out"},
    {"--output", "--out"},
    {"--out-dir", "--out"},
    {"--model", "--preset"},
    {"--pretrained", "--init"},
    {"--init-from", "--init"},
    {"--load", "--init"},
    {"--checkpoint", "--init"},
    {"--prompt", "--sample"},
    {"--generate", "--sample"},
    {"--max-new-tokens", "--tokens"},
    {"--precision", "--dtype"},
    {"--bf16", "--dtype"},
    {"--fp16", "--dtype"},
    {"--gpu", "--device"},
    {"--gpus", "--device"},
    {"--grad-clip", "--clip"},
    {"--max-grad-norm", "--clip"},
    {"--wd", "--weight-decay"},
    {"--warmup-steps", "--warmup"},
    {"--warmup-iters", "--warmup"},
    {"--lr-scheduler", "--schedule"},
    {"--decay", "--schedule"},
    {"--eval-interval", "--eval-every"},
    {"--val-every", "--eval-every"},
    {"--save-interval", "--save-every"},
    {"--save-steps", "--save-every"},
    {"--eval-steps", "--eval-every"},
    {"--gradient-checkpointing", "--recompute"},
    {"--tensor-parallel", "--tp"},
    {"--context-parallel", "--cp"},
    {"--nproc", "--threads"},
    {"--log-dir", "--out"},
    {"--from-scratch", "--preset"},
    {"--continue", "--resume"},
};

// What people look for and is not here, with all that begins so: answered with what is.
static const char* const not_here[][2] = {
    {"--lora", "--init trains all weights; --recompute block, --dtype bf16 and --zero 3 take less memory"},
    {"--wandb", "log.jsonl and report.html have every step, scripts/log_to.py makes CSV or TensorBoard of them"},
    {"--tensorboard", "scripts/log_to.py tensorboard makes its files of log.jsonl"},
    {"--config", "options are all there is, and --resume keeps those of a run"},
    {"--dropout", "--weight-decay regularizes, and more --data does"},
};

static uint64_t given_bit(const Option* o) { return (uint64_t)1 << (o - config_options) % 64; }
static uint64_t* given_word(Config* config, const Option* o) { return &config->given[(o - config_options) / 64]; }
static int was_given(const Config* config, const Option* o) {
    return (config->given[(o - config_options) / 64] & given_bit(o)) != 0;
}

typedef struct Preset {
    const char* name;
    Arch arch;
    int layers, width, heads, kv_heads, head_size, hidden, context,
        vocab;  // 0: as options say; vocab 0: the tokenizer's
    int tied;
    double theta;
    RopeScaling scaling;
} Preset;

// The models of others as their config.json says, with a context that a step holds; a checkpoint of one, given by
// --init, knows its own dimensions.
// clang-format off
static const Preset presets[] = {
    {"tiny",         ARCH_GPT2,   4,  128,  4,  4,  0,    0,  256,      0, 1,      0, {0, 0, 0, 0}},
    {"llama-tiny",   ARCH_LLAMA,  4,  128,  4,  2,  0,    0,  256,      0, 1,    1e4, {0, 0, 0, 0}},
    {"gpt2-124m",    ARCH_GPT2,  12,  768, 12, 12,  0,    0, 1024,  50257, 1,      0, {0, 0, 0, 0}},
    {"gpt2-350m",    ARCH_GPT2,  24, 1024, 16, 16,  0,    0, 1024,  50257, 1,      0, {0, 0, 0, 0}},
    {"gpt2-774m",    ARCH_GPT2,  36, 1280, 20, 20,  0,    0, 1024,  50257, 1,      0, {0, 0, 0, 0}},
    {"gpt2-1558m",   ARCH_GPT2,  48, 1600, 25, 25,  0,    0, 1024,  50257, 1,      0, {0, 0, 0, 0}},
    {"smollm2-135m", ARCH_LLAMA, 30,  576,  9,  3, 64, 1536, 2048,  49152, 1,    1e5, {0, 0, 0, 0}},
    {"llama-3.2-1b", ARCH_LLAMA, 16, 2048, 32,  8, 64, 8192, 4096, 128256, 1,    5e5, {32, 1, 4, 8192}},
    {"llama-3.1-8b", ARCH_LLAMA, 32, 4096, 32,  8, 128, 14336, 4096, 128256, 0,  5e5, {8, 1, 4, 8192}},
    {"qwen2.5-0.5b", ARCH_QWEN2, 24,  896, 14,  2, 64, 4864, 4096, 151936, 1,    1e6, {0, 0, 0, 0}},
    {"qwen3-0.6b",   ARCH_QWEN3, 28, 1024, 16,  8, 128, 3072, 4096, 151936, 1,   1e6, {0, 0, 0, 0}},
};
// clang-format on

// ---- values

static void* place(const Config* config, const Option* o) { return (char*)config + o->at; }

static const Option* find(const char* name) {
    for (int i = 0; i < COUNT(old_names); i++)
        if (!strcmp(name, old_names[i][0])) name = old_names[i][1];
    for (int i = 0; i < COUNT(config_options); i++)
        if (!strcmp(config_options[i].name, name)) return &config_options[i];
    return NULL;
}

static void append(char* text, size_t bytes, const char* separator, const char* more) {
    size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s%s", used ? separator : "", more);
}

// saved: the text is of a checkpoint. The dimensions of its model were found to go together when it began, also where
// they follow from others and no option takes them (a vocabulary of a tokenizer), and config.json has them too.
static double greatest_of(const Option* o, int saved) {
    return !saved || o->group != MODEL ? o->greatest : o->type == REAL ? 1e300 : INT_MAX;
}

static int parse_number(double* out, const Option* o, const char* text, int saved, char* err, size_t errlen) {
    char* end = NULL;
    double greatest = greatest_of(o, saved);
    errno = 0;
    double x = strtod(text, &end);
    int whole = o->type == REAL || x == floor(x);
    const char* units = "kKmMgG";
    const char* unit = end > text && *end && !end[1] ? strchr(units, *end) : NULL;
    if (unit && o->type != REAL) {
        int power = 1 + (int)(unit - units) / 2;
        return fail(err, errlen, "%s expects a whole number, found \"%s\"; try %.0f or %.0f", o->name, text,
                    x * pow(1000, power), x * pow(1024, power));
    }
    if (end == text || *end || errno || !isfinite(x) || !whole)
        return fail(err, errlen, "%s expects %s number, found \"%s\"", o->name, o->type == REAL ? "a" : "a whole",
                    text);
    if (x < o->least || x > greatest)
        return fail(err, errlen, "%s expects %.15g to %.15g, found %s", o->name, o->least, greatest, text);
    *out = x;
    return 0;
}

static int is_choice(const char* choices, const char* text) {
    size_t n = strlen(text);
    if (strchr(text, '|')) return 0;
    for (const char* p = choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (n > 0 && !strncmp(p, text, n) && (p[n] == '|' || !p[n])) return 1;
    return 0;
}

static int check_topic(const char* text, char* err, size_t errlen) {
    char topics[128] = "all";
    for (int g = 0; g < N_GROUPS; g++) append(topics, sizeof topics, "|", config_groups[g][0]);
    // The latter for make install.
    if (!text[0] || is_choice(topics, text) || is_choice("man|bash|zsh|fish", text)) return 0;
    return fail(err, errlen, "--help stands alone or before %s, found \"%s\"", topics, text);
}

static int set(Config* config, const Option* o, const char* text, int saved, char* err, size_t errlen) {
    double x = 0;
    for (int i = 0; i < COUNT(old_values); i++)
        if (!strcmp(o->name, old_values[i][0]) && !strcmp(text, old_values[i][1])) text = old_values[i][2];
    if (is_number(o) && parse_number(&x, o, text, saved, err, errlen)) return -1;
    if (o->type == TOPIC && check_topic(text, err, errlen)) return -1;
    if (o->type == CHOICE && !is_choice(o->choices, text))
        return fail(err, errlen, "%s expects %s, found \"%s\"", o->name, o->choices, text);
    PathList* list = (PathList*)place(config, o);
    switch (o->type) {
        case FLAG: *(int*)place(config, o) = strcmp(text, "0") != 0; break;
        case INT: *(int*)place(config, o) = (int)x; break;
        case INT64: *(int64_t*)place(config, o) = (int64_t)x; break;
        case REAL: *(double*)place(config, o) = x; break;
        case TEXT:
        case TOPIC:
        case CHOICE: *(const char**)place(config, o) = text; break;
        case PATHS:
            if (list->n == MAX_PATHS)
                return fail(err, errlen, "%s takes at most %d paths; try a pattern in quotes", o->name, MAX_PATHS);
            list->paths[list->n++] = text;
            break;
        case KEYS: break;  // set_keys
    }
    return 0;
}

// "KEY=VALUE,KEY=VALUE", each key an option of its own. saved: the text is of a checkpoint, where keys of another
// version are passed over, and so are those that were given.
static int set_keys(Config* config, const char* text, int saved, char* err, size_t errlen) {
    char name[64], keys[128] = "";
    for (size_t n; text; text = text[n] ? text + n + 1 : NULL) {
        n = strcspn(text, ",");
        size_t n_key = strcspn(text, "=,");
        snprintf(name, sizeof name, "--experiment %.*s", (int)MIN(n_key, sizeof name), text);
        const Option* o = n_key < n ? find(name) : NULL;
        if (saved && (!o || was_given(config, o))) continue;
        for (int i = 0; i < COUNT(config_options) && !o; i++)
            if (config_options[i].group == KEY) append(keys, sizeof keys, "|", key_of(&config_options[i]));
        if (!o)
            return fail(err, errlen, "--experiment expects KEY=VALUE with KEY %s, found \"%.*s\"", keys, (int)n, text);
        if (!saved) *given_word(config, o) |= given_bit(o);
        char* value = config_string(config, n - n_key);
        if (!value) return fail(err, errlen, "out of memory for options");
        snprintf(value, n - n_key, "%s", text + n_key + 1);
        if (set(config, o, value, saved, err, errlen)) return -1;
    }
    return 0;
}

// The value as it could be typed; paths are joined by a blank. Empty when unset.
static void format(const Config* config, const Option* o, char* text, size_t bytes) {
    const PathList* list = (const PathList*)place(config, o);
    const char* string = o->type == TEXT || o->type == CHOICE ? *(const char**)place(config, o) : NULL;
    text[0] = 0;
    switch (o->type) {
        case FLAG:
        case INT: snprintf(text, bytes, "%d", *(int*)place(config, o)); break;
        case INT64: snprintf(text, bytes, "%lld", (long long)*(int64_t*)place(config, o)); break;
        case REAL:
            // 15 digits read best; 17 are needed where those do not read back to the same double
            snprintf(text, bytes, "%.15g", *(double*)place(config, o));
            if (strtod(text, NULL) != *(double*)place(config, o))
                snprintf(text, bytes, "%.17g", *(double*)place(config, o));
            break;
        case TEXT:
        case CHOICE: snprintf(text, bytes, "%s", string ? string : ""); break;
        case PATHS:
            for (int i = 0; i < list->n; i++) append(text, bytes, " ", list->paths[i]);
            break;
        case KEYS:
            for (int i = 0; i < COUNT(config_options); i++)
                if (config_options[i].group == KEY) {
                    append(text, bytes, ",", key_of(&config_options[i]));
                    append(text, bytes, "=", *(const char**)place(config, &config_options[i]));
                }
            break;
        case TOPIC: break;
    }
}

// ---- the command line

// Levenshtein distance, two rows of its table at a time.
static int edit_distance(const char* a, const char* b) {
    int row[2][64], n = (int)MIN(strlen(b), (size_t)63);
    for (int j = 0; j <= n; j++) row[0][j] = j;
    int i = 0;
    for (; a[i]; i++) {
        int *last = row[i & 1], *next = row[(i + 1) & 1];
        next[0] = i + 1;
        for (int j = 0; j < n; j++) {
            int change = last[j] + (a[i] != b[j]), cheaper = MIN(last[j + 1], next[j]) + 1;
            next[j + 1] = MIN(change, cheaper);
        }
    }
    return row[i & 1][n];
}

// The option whose name, or what others call it, is nearest; NULL: none is near.
static const char* nearest_name(const char* name) {
    const char* meant = NULL;
    int least = 1 << 20;
    for (int i = 0; i < COUNT(config_options) + COUNT(other_words); i++) {
        int is_option = i < COUNT(config_options);
        const char* known = is_option ? config_options[i].name : other_words[i - COUNT(config_options)][0];
        int distance = edit_distance(name, known);
        if (distance >= least || 3 * distance >= (int)strlen(known)) continue;
        least = distance;
        meant = is_option ? known : other_words[i - COUNT(config_options)][1];
    }
    return meant;
}

static int unknown_option(const char* name, char* err, size_t errlen) {
    char plain[128];
    snprintf(plain, sizeof plain, "%s", name);
    for (char* c = plain; *c; c++)
        if (*c == '_') *c = '-';
    for (int i = 0; i < COUNT(not_here); i++) {
        size_t n = strlen(not_here[i][0]);
        if (!strncmp(plain, not_here[i][0], n) && (!plain[n] || plain[n] == '-'))
            return fail(err, errlen, "unknown option %s: that is not here; %s", name, not_here[i][1]);
    }
    const char* meant = nearest_name(plain);
    return fail(err, errlen, "unknown option %s; %s%s", name, meant ? "did you mean " : "try ",
                meant ? meant : "--help all");
}

// The value of an option: behind its '=', or the next word. NULL with a message when there is none.
static const char* value_of(const Option* o, const char* equals, const char* next, char* err, size_t errlen) {
    // A value may begin with a dash (a prompt, a path); an option's name in its place is a forgotten value.
    if (equals) return equals + 1;
    if (next && !(find(next) && o->type != TOPIC)) return next;
    if (o->type == TOPIC) return "";
    fail(err, errlen, "%s expects a value, found %s", o->name, next ? next : "the end of the line");
    return NULL;
}

int config_parse(Config* config, int argc, char** argv, char* err, size_t errlen) {
    memset(config, 0, sizeof *config);
    for (int i = 0; i < COUNT(config_options); i++)
        if (config_options[i].standard && set(config, &config_options[i], config_options[i].standard, 0, err, errlen))
            return -1;
    for (int i = 1; i < argc;) {
        char name[128];
        const char* equals = strchr(argv[i], '=');
        snprintf(name, sizeof name, "%.*s", (int)(equals ? equals - argv[i] : (long)MIN(strlen(argv[i]), sizeof name)),
                 argv[i]);
        if (strncmp(name, "--", 2) != 0 && !find(name))
            return fail(err, errlen, "expected an option, found \"%s\"; a value follows its option, as in --data PATH",
                        argv[i]);
        const Option* o = find(name);
        if (!o) return unknown_option(name, err, errlen);
        if (o->type == PATHS && was_given(config, o)) config->twice = o->name;
        *given_word(config, o) |= given_bit(o);
        if (o->type == PATHS) ((PathList*)place(config, o))->n = 0;
        i++;
        if (o->type == FLAG) {
            if (equals) return fail(err, errlen, "%s takes no value, found \"%s\"", name, equals + 1);
            *(int*)place(config, o) = 1;
            continue;
        }
        const char* value = value_of(o, equals, i < argc ? argv[i] : NULL, err, errlen);
        if (!value) return -1;
        i += !equals && i < argc;
        if (o->type == KEYS ? set_keys(config, value, 0, err, errlen) : set(config, o, value, 0, err, errlen))
            return -1;
        while (o->type == PATHS && i < argc && strncmp(argv[i], "--", 2) != 0)
            if (set(config, o, argv[i++], 0, err, errlen)) return -1;
    }
    return 0;
}

// Ways to divide ranks: one that is given now takes the place of what was saved of the others.
static int is_overruled(const Config* c, const Option* o) {
    int list = config_was_given(c, "--strategies") && c->strategies && strcmp(c->strategies, "none") != 0;
    int file = config_was_given(c, "--layout"), single = config_was_given(c, "--tp") || config_was_given(c, "--pp");
    if (o->at == AT(layout))
        return list || single || config_was_given(c, "--zero") || config_was_given(c, "--recompute");
    if (o->at == AT(strategies)) return file || single;
    if (o->at == AT(zero)) return list;
    return (o->at == AT(tp) || o->at == AT(pp)) && (list || file);
}

int config_restore(Config* config, const char* name, const char* value, char* err, size_t errlen) {
    const Option* o = find(name);
    if (!o || o->lifetime == START) return 0;
    if (o->type == KEYS) return set_keys(config, value, 1, err, errlen);
    if (was_given(config, o)) return 0;
    if (!is_overruled(config, o)) return set(config, o, value, 1, err, errlen);
    if (o->type == TEXT) config->overruled = o->name;
    return 0;
}

char* config_string(Config* config, size_t n) {
    void** block = (void**)malloc(sizeof(void*) + n);
    if (!block) return NULL;
    *block = config->strings;
    config->strings = block;
    return (char*)(block + 1);
}

void config_free(Config* config) {
    while (config->strings) {
        void** block = (void**)config->strings;
        config->strings = *block;
        free(block);
    }
}

int config_was_given(const Config* config, const char* name) {
    const Option* o = find(name);
    return o && was_given(config, o);
}

void config_visit(const Config* config, void (*visit)(void* context, const char* name, const char* value),
                  void* context) {
    static char value[1 << 17];  // layouts have a line a layer
    for (int i = 0; i < COUNT(config_options); i++) {
        const Option* o = &config_options[i];
        if (o->lifetime == START || o->group == KEY) continue;
        const PathList* list = (const PathList*)place(config, o);
        if (o->type == PATHS) {
            for (int p = 0; p < list->n; p++) visit(context, o->name, list->paths[p]);
            continue;
        }
        format(config, o, value, sizeof value);
        if (value[0]) visit(context, o->name, value);
    }
}

int config_choice(const char* value, const char* choices) {
    size_t n = strlen(value);
    for (int i = 0;; i++) {
        size_t length = strcspn(choices, "|");
        if (!choices[length] || (length == n && !strncmp(choices, value, n))) return i;
        choices += length + 1;
    }
}

// ---- what goes together

// Only the static planner is told a cp size; the others choose it.
static int settle_plan(Config* config, char* err, size_t errlen) {
    if (config->cp_size == 0 || !strcmp(config->plan, "static")) return 0;
    if (config_was_given(config, "--plan"))
        return fail(err, errlen, "--plan %s chooses cp sizes by itself, found --cp %d; try --plan static or --cp 0",
                    config->plan, config->cp_size);
    config->plan = "static";
    return 0;
}

static int arch_of(const Config* config) {
    int arch = 0;
    while (arch < N_ARCHS - 1 && strcmp(arch_table[arch].name, config->arch) != 0) arch++;
    return arch;
}

static const Preset* preset_of(const Config* config) {
    const Preset* preset = presets;
    while (strcmp(preset->name, config->preset) != 0) preset++;  // CHOICE has checked the name
    return preset;
}

// config.json of a GPT-2 has no members for key/value heads and the size of a head: as many as heads, width / heads.
static int settle_heads(Config* c, const Preset* preset, int is_preset, char* err, size_t errlen) {
    int is_gpt2 = arch_of(c) == ARCH_GPT2;
    if (is_gpt2) is_preset = 0;
    if (!c->kv_heads) c->kv_heads = is_preset ? preset->kv_heads : c->heads;
    if (!c->head_size && is_preset) c->head_size = preset->head_size;
    if (!c->head_size && c->width % c->heads)
        return fail(err, errlen, "--width %d is not a multiple of --heads %d; try --width %d%s", c->width, c->heads,
                    ROUND_UP(c->width, c->heads), is_gpt2 ? "" : ", or --head-size");
    if (!c->head_size) c->head_size = c->width / c->heads;
    if (is_gpt2 && c->kv_heads != c->heads)
        return fail(err, errlen,
                    "--kv-heads %d: a GPT-2 has as many as --heads %d, no file of it could say otherwise; leave "
                    "--kv-heads out, or try --arch llama",
                    c->kv_heads, c->heads);
    if (is_gpt2 && (int64_t)c->head_size * c->heads != c->width)
        return fail(err, errlen,
                    "--head-size %d: a GPT-2's is --width %d / --heads %d, no file of it could say otherwise; leave "
                    "--head-size out, or try --arch llama",
                    c->head_size, c->width, c->heads);
    if (c->heads % c->kv_heads)
        return fail(err, errlen, "--kv-heads %d does not divide --heads %d; try --kv-heads %d", c->kv_heads, c->heads,
                    c->heads);
    if (!is_gpt2 && c->head_size % 2)
        return fail(err, errlen, "--head-size %d: rotary positions turn pairs of channels; try --head-size %d",
                    c->head_size, c->head_size + 1);
    return 0;
}

// What a preset or another dimension says where an option does not.
static int settle_model(Config* c, const Preset* preset, int tokenizer_vocab, char* err, size_t errlen) {
    if (!strcmp(c->arch, "preset")) c->arch = arch_table[preset->arch].name;
    const ArchRow* arch = &arch_table[arch_of(c)];
    int is_preset = !c->width && !c->heads, same_mlp = arch->act == arch_table[preset->arch].act;
    if (!c->layers) c->layers = preset->layers;
    if (!c->width) c->width = preset->width;
    if (!c->heads) c->heads = preset->heads;
    if (settle_heads(c, preset, is_preset, err, errlen)) return -1;
    if (!c->hidden && is_preset && same_mlp) c->hidden = preset->hidden;
    if (!c->hidden) c->hidden = act_runs(arch->act) == 2 ? ROUND_UP(CEIL_DIV(8 * c->width, 3), 64) : 4 * c->width;
    if (!c->context) c->context = preset->context;
    if (c->rope_theta == 0) c->rope_theta = preset->theta > 0 ? preset->theta : 1e4;
    if (!strcmp(c->tie, "preset")) c->tie = preset->tied ? "yes" : "no";
    if (!c->vocab) c->vocab = preset->vocab ? preset->vocab : tokenizer_vocab;
    return 0;
}

Shape config_shape(const Config* c) {
    const ArchRow* arch = &arch_table[arch_of(c)];
    const Preset* preset = preset_of(c);
    Shape s = {.arch = (Arch)arch_of(c), .L = c->layers, .C = c->width, .NH = c->heads, .V = c->vocab};
    s.features = arch->features | (strcmp(c->tie, "no") ? 0 : HAS_HEAD);
    s.NKV = c->kv_heads, s.HS = c->head_size, s.U = c->hidden;
    s.context = s.positions = c->context;
    s.eps = arch->eps;
    if (shape_has(&s, HAS_POSITIONS)) return shape_whole(s);
    s.theta = c->rope_theta;
    if (s.theta == preset->theta) s.scaling = preset->scaling;
    return shape_whole(s);
}

// What a model of so many parameters trains with where options do not say. From 50M on Brown et al. 2020, table 2.1
// (batch) and its appendix B (a linear warm-up over the first 375M tokens); below what this program's own tiny models
// do well with, and a step between both. An evaluation of a tiny model on more tokens takes longer than it is worth.
static const struct Recipe {
    double parameters;  // at most
    int batch_tokens, warmup, eval_tokens;
} recipes[] = {
    {2e7, 1024, 100, 32768},     {5e7, 65536, 200, 131072},     {1e9, 524288, 715, 131072},
    {5e9, 1048576, 358, 131072}, {1e300, 2097152, 179, 131072},
};

// Peak learning rates: the default run's, what models of 9M parameters do well with, then Brown et al. 2020, table 2.1.
static const struct Rate {
    double parameters, lr;
} rates[] = {
    {1e6, 4e-3},   {1e7, 1e-3},     {1.25e8, 6e-4},  {3.5e8, 3e-4},  {7.6e8, 2.5e-4},
    {1.3e9, 2e-4}, {2.7e9, 1.6e-4}, {6.7e9, 1.2e-4}, {1.3e10, 1e-4},
};

// Between two sizes on a straight line of the logarithms of both, in two digits; beyond the ends as there.
static double default_lr(double parameters) {
    char text[32];
    int i = 0;
    while (i < COUNT(rates) - 2 && parameters > rates[i + 1].parameters) i++;
    const struct Rate *a = &rates[i], *b = &rates[i + 1];
    double x = log(parameters / a->parameters) / log(b->parameters / a->parameters);
    snprintf(text, sizeof text, "%.1e", a->lr * pow(b->lr / a->lr, x < 0 ? 0 : x > 1 ? 1 : x));
    return strtod(text, NULL);
}

// Weights that are trained already want a smaller step, as nanoGPT's config/finetune_shakespeare.py takes for GPT-2:
// 3e-5, a twentieth, with 32768 tokens and next to no warm-up.
static void settle_recipe(Config* c) {
    enum { TUNED = 20, TUNED_BATCH = 32768, TUNED_WARMUP = 20, SHOWN = 16 };  // SHOWN: enough to be worth a plan
    Shape shape = config_shape(c);
    int i = 0, tunes = c->init != NULL;
    while (shape_param_count(&shape) > recipes[i].parameters) i++;
    int batch = tunes ? MIN(recipes[i].batch_tokens, TUNED_BATCH) : recipes[i].batch_tokens;
    if (c->explain) batch = MAX(batch, SHOWN * c->context);
    if (!c->batch_tokens) c->batch_tokens = MAX(batch, c->context);
    if (c->lr == 0) c->lr = default_lr((double)shape_param_count(&shape)) / (tunes ? TUNED : 1);
    if (!c->eval_tokens) c->eval_tokens = recipes[i].eval_tokens;
    if (c->warmup >= 0) return;
    c->warmup = (int)MIN((int64_t)recipes[i].warmup, c->steps / 10);
    if (tunes) c->warmup = MIN(c->warmup, TUNED_WARMUP);
}

int config_complete(Config* config, int tokenizer_vocab, char* err, size_t errlen) {
    const Preset* preset = preset_of(config);
    if (settle_plan(config, err, errlen) || settle_model(config, preset, tokenizer_vocab, err, errlen)) return -1;
    settle_recipe(config);
    if (config->vocab < tokenizer_vocab)
        return fail(err, errlen, "--vocab %d is smaller than the tokenizer's %d ids; leave --vocab out", config->vocab,
                    tokenizer_vocab);
    if (config->batch_tokens < config->context)
        return fail(err, errlen,
                    "--batch-tokens %d cannot hold one document of up to --context %d tokens; try --batch-tokens %d",
                    config->batch_tokens, config->context, config->context);
    if (config->capacity && config->capacity < config->context && !config->several_ranks)
        return fail(
            err, errlen,
            "--capacity %d cannot hold one document of up to --context %d tokens on one rank; try --capacity %d, a "
            "smaller --context, or %d ranks that share it: mpirun -n %d",
            config->capacity, config->context, config->context, CEIL_DIV(config->context, config->capacity),
            CEIL_DIV(config->context, config->capacity));
    return 0;
}

double config_bytes(const char* text) {
    const char* units = "KMG";
    char* end;
    double bytes = strtod(text, &end);
    const char* unit = *end ? strchr(units, *end) : NULL;
    for (const char* u = units; unit && u <= unit; u++) bytes *= 1024;
    return end == text || !(bytes >= 1) || bytes > 1e18 || (*end && (!unit || end[1])) ? -1 : bytes;
}

// ---- the learning rate

// How much of the way from lr down to min_lr * lr has been gone: 0 .. 1.
static double descent(const Config* config, int64_t t) {
    double after = (double)MAX(config->steps - config->warmup, (int64_t)1);
    double x = (double)(t - config->warmup) / after;
    x = x < 0 ? 0 : x > 1 ? 1 : x;
    if (!strcmp(config->schedule, "linear")) return x;
    if (!strcmp(config->schedule, "cosine")) return 0.5 * (1 - cos(3.141592653589793 * x));
    if (!strcmp(config->schedule, "wsd")) {
        double fall = 0.2 * (double)config->steps, y = ((double)t - ((double)config->steps - fall)) / MAX(fall, 1);
        return y <= 0 ? 0 : sqrt(MIN(y, 1));
    }
    return 0;
}

double schedule_lr(const Config* config, int64_t t) {
    if (t < config->warmup) return config->lr * (double)t / config->warmup;
    return config->lr * (1 - (1 - config->min_lr) * descent(config, t));
}
