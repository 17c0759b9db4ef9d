// test_talk.c - a model that is taught chats, from the tokenizer's files to a conversation: its template and its end of
// turn come into checkpoints, --chat and --rollouts go by them, and preferences need no references of one's own.
#include "test/program.h"

#define QUIET "--eval-every 0 --sample-every 0 --dtype fp32 --threads 1 "
#define TINY "--layers 2 --width 64 --heads 4 --context 96 --batch-tokens 768 --lr 0.004 --arch qwen3 " QUIET

// A template that is known, as any file may have it: ChatML that adds a system message.
#define TEMPLATE                                                                                                 \
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"                       \
    "{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + " \
    "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"                      \
    "{{ '<|im_start|>assistant\\n' }}{% endif %}"

// The numbers in the list of a score.
static int json_numbers(const char* text) {
    const char* list = strstr(text, "\"logprobs\": [");
    int n = list != NULL;
    for (; list && *list != ']'; list++) n += *list == ',';
    return n;
}

static void put_file(const char* name, const char* text) { write_text(name, text, strlen(text)); }

static void before(void) {
    static char chats[1 << 15], config[4096];
    size_t n = 0;
    CHECK_SH(0,
             "mkdir $W/tok $W/odd && cp test/golden/tokenizers/qwen3.json $W/tok/tokenizer.json && "
             "cp test/golden/tokenizers/qwen3.json $W/odd/tokenizer.json");
    size_t at = (size_t)snprintf(config, sizeof config, "{\"eos_token\": \"<|endoftext|>\", \"chat_template\": ");
    at += json_quote(config + at, TEMPLATE, strlen(TEMPLATE));
    snprintf(config + at, sizeof config - at, "}");
    put_file("tok/tokenizer_config.json", config);
    put_file("odd/chat_template.jinja", "{% for m in messages %}[INST] {{ m }} [/INST]{% endfor %}");
    put_file("tok/generation_config.json", "{\"eos_token_id\": 3, \"temperature\": 0.7, \"note\": \"a \\\"b\\\"\"}");
    for (int i = 0; i < 60; i++)
        n += (size_t)snprintf(chats + n, sizeof chats - n,
                              "{\"messages\": [{\"role\": \"user\", \"content\": \"double %d\"}, {\"role\": "
                              "\"assistant\", \"content\": \"%d\"}, {\"role\": \"user\", \"content\": \"thanks\"}, "
                              "{\"role\": \"assistant\", \"content\": \"welcome\"}]}\n",
                              i, 2 * i);
    put_file("chats.jsonl", chats);
    CHECK_SH(0, "$P --tokenizer $W/tok --data $W/chats.jsonl " TINY "--steps 160 --save-every 160 --out $W/run");
    CHECK_SAID("use it:   ./train --out & --chat");
}

CLAIM(a_checkpoint_keeps_the_template_and_ends_at_a_turn) {
    CHECK_SH(0,
             "cat $W/run/step-000160/tokenizer_config.json $W/run/step-000160/generation_config.json "
             "$W/run/step-000160/config.json");
    CHECK_SAID(
        "Be kind.<|im_end|> & \"eos_token\": \"<|im_end|>\" & \"eos_token_id\": [1158, 1156] & "
        "\"temperature\": 0.7 & \"note\": \"a \\\"b\\\"\" & \"eos_token_id\": 1158");
    CHECK_SH(0, "$P --init $W/run/step-000160 --data $W/chats.jsonl " QUIET
                "--steps 0 --out $W/again && cmp "
                "$W/run/step-000160/tokenizer_config.json $W/again/step-000000/tokenizer_config.json");
}

CLAIM(transformers_reads_the_template_and_the_ends) {
    if (sh("cd $W && python3 -c 'import transformers'")) SKIP("transformers is not here");
    CHECK_SH(0,
             "cd $W && python3 -c 'import sys, transformers as t\n"
             "tokenizer = t.AutoTokenizer.from_pretrained(sys.argv[1])\n"
             "print(repr(tokenizer.apply_chat_template([{\"role\": \"user\", \"content\": \"hi\"}], tokenize=False, "
             "add_generation_prompt=True)))\n"
             "print(tokenizer.eos_token, t.GenerationConfig.from_pretrained(sys.argv[1]).eos_token_id)' "
             "$W/run/step-000160");
    CHECK_SAID(
        "'<|im_start|>system\\nBe kind.<|im_end|>\\n<|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\n' & "
        "<|im_end|> [1158, 1156]");
}

CLAIM(gguf_reads_the_template_and_the_end) {
    if (sh("cd $W && python3 -c 'import gguf'")) SKIP("gguf, which llama.cpp's converter reads a vocabulary with");
    CHECK_SH(0,
             "cd $W && python3 -c 'import sys, gguf.vocab as g\n"
             "read = g.SpecialVocab(sys.argv[1])\n"
             "print(read.special_token_ids[\"eos\"], \"Be kind.\" in read.chat_template)' $W/run/step-000160");
    CHECK_STRING(output, "1158 True\n");
}

CLAIM(a_conversation_goes_by_the_template_on_any_ranks) {
    static char alone[sizeof output];
    CHECK_SH(0,
             "printf 'double 7\\nthanks\\n/again\\n/help\\n\\n/quit\\nnever\\n' | "
             "$P --chat --temperature 0 --out $W/run 2> $W/said");
    CHECK_STRING(output, "14\nwelcome\nwelcome\n/again answers anew, /quit or Ctrl-D ends\n");
    strcpy(alone, output);
    CHECK_SH(
        0, "printf 'double 7\\nthanks\\n/again\\n/help\\n' | $P --chat --temperature 0 --ranks 2 --tp 2 --out $W/run");
    CHECK_STRING(output, alone);
    CHECK_SH(0, "printf 'double 21' | $P --chat --temperature 0 --system 'Be kind.' --init $W/run/step-000160");
    CHECK_STRING(output, "42\n");
    CHECK_SH(0, "$P --sample 'double 7' --tokens 4 --out $W/run");
    CHECK_SAID("--chat talks with it");
}

// Old turns are left out where the context is full; what does not fit alone is said.
CLAIM(a_conversation_outgrows_the_context) {
    CHECK_SH(0,
             "i=0; while [ $i -lt 9 ]; do echo double $i; echo thanks; i=$((i + 1)); done | "
             "$P --chat --temperature 0 --out $W/run | tail -n 2");
    CHECK_STRING(output, "16\nwelcome\n");
    CHECK_SH(0,
             "{ head -c 3000 /dev/zero | tr '\\0' 'x'; echo; echo double 4; } | "
             "$P --chat --temperature 0 --out $W/run");
    CHECK_SAID("more than the context of 96 tokens & 8");
    CHECK_SH(0,
             "{ echo double 4; head -c 3000 /dev/zero | tr '\\0' 'x'; echo; echo /again; } | "
             "$P --chat --temperature 0 --out $W/run");
    CHECK_STRING(output, "8\nthat is more than the context of 96 tokens holds\n8\n");
    CHECK_REFUSED("--system: more than the context",
                  "echo hi | $P --chat --out $W/run --system \"$(head -c 3000 /dev/zero | tr '\\0' 'x')\"");
}

// A byte of 0 is part of a line; ranks that wait for a person see that rank 0 lives.
CLAIM(a_person_types_odd_bytes_and_thinks_for_long) {
    CHECK_SH(0, "printf 'a\\0b\\ndouble 7\\n' | $P --chat --temperature 0 --out $W/run | wc -l");
    CHECK_STRING(output, "2\n");
    CHECK_SH(0,
             "{ echo double 7; sleep 3; echo thanks; } | $P --chat --temperature 0 --ranks 2 --timeout 1 --out $W/run");
    CHECK_STRING(output, "14\nwelcome\n");
}

CLAIM(an_unknown_template_is_said_where_messages_are) {
    CHECK_REFUSED("chats.jsonl:1: & odd has a chat template that is none of & chats.py",
                  "$P --tokenizer $W/odd --data $W/chats.jsonl " TINY "--steps 1 --out $W/refused");
    CHECK_SH(0, "$P --tokenizer $W/odd --data plan/base " TINY "--steps 1 --save-every 1 --out $W/plain");
    CHECK_REFUSED("--sample and --chat: expected one of them", "$P --chat --sample x --out $W/run");
    CHECK_REFUSED("--chat: & odd has a chat template", "echo hi | $P --chat --tokenizer $W/odd --out $W/plain");
}

CLAIM(rollouts_answer_messages_and_are_learnt_as_such) {
    put_file("ask.jsonl",
             "{\"messages\": [{\"role\": \"user\", \"content\": \"double 5\"}], \"id\": 3}\n"
             "{\"prompt\": [{\"role\": \"user\", \"content\": \"double 6\"}]}\n");
    CHECK_SH(0,
             "$P --out $W/run --data $W/ask.jsonl --answers 2 --temperature 0 --rollouts $W/rolled.jsonl && "
             "cat $W/rolled.jsonl");
    CHECK_SAID(
        "\"content\": \"double 5\"}], \"id\": 3, \"answers\": [{\"text\": \"10\" & \"text\": \"12\" & \"ended\": true");
    CHECK_SH(0, "$P --init $W/run/step-000160 --data $W/rolled.jsonl --score $W/scores.jsonl && cat $W/scores.jsonl");
    CHECK_SAID("\"document\": 1");
}

// As scripts/recipes/chats.py writes them: ids as they are.
CLAIM(tokens_of_a_prompt_and_its_completion_stay_as_they_are) {
    put_file("ids.jsonl", "{\"prompt\": [1157, 400, 198], \"completion\": [52, 1158]}\n");
    CHECK_SH(0, "$P --init $W/run/step-000160 --data $W/ids.jsonl --score $W/ids.scores && cat $W/ids.scores");
    CHECK(json_numbers(output) == 2);
    put_file("ids.jsonl", "{\"prompt\": [1157, 400], \"completion\": [9999]}\n");
    CHECK_REFUSED("ids.jsonl:1: & number 0 of the tokens",
                  "$P --init $W/run/step-000160 --data $W/ids.jsonl --score $W/no");
}

// ---- preferences

#define PAIR(prompt, chosen, rejected) "{\"prompt\": " prompt ", \"chosen\": " chosen ", \"rejected\": " rejected "}\n"
#define USER "[{\"role\": \"user\", \"content\": \"double 4\"}"
#define SAYS(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"

static void prefer(const char* name, const char* options) {
    CHECK_SH(0,
             "$P --init $W/run/step-000160 --loss dpo " QUIET
             "--steps 4 --lr 1e-4 --save-every 2 --keep 0 %s --out $W/%s",
             options, name);
}

// References that come with the data, made by --score, are those that the starting model finds.
CLAIM(references_are_found_kept_and_resumed) {
    put_file("pairs.jsonl", PAIR(USER "]", "\"8\"", "\"9\"") PAIR("\"2+2=\"", "\"4\"", "\"5\"")
                                PAIR(USER "]", "[" SAYS("8") "]", "[" SAYS("7") "]"));
    prefer("found", "--data $W/pairs.jsonl");
    CHECK_SAID("references of & labels, in");
    char hash[17];
    snprintf(hash, sizeof hash, "%s", loss_hash_or_none());
    CHECK_SH(0, "rm -r $W/found/step-000004 && $P --resume --out $W/found");
    CHECK(!strcmp(hash, loss_hash_or_none()));
    CHECK_SH(0,
             "$P --init $W/run/step-000160 --data $W/pairs.jsonl --dtype fp32 --score $W/pairs.scores && "
             "python3 -c 'import json, sys\n"
             "for pair, found in zip(open(sys.argv[1]), open(sys.argv[2])):\n"
             "    pair, found = json.loads(pair), json.loads(found)[\"logprobs\"]\n"
             "    for name, terms in zip((\"chosen\", \"rejected\"), found):\n"
             "        pair[name] = {\"text\": pair[name], \"reference\": terms}\n"
             "    print(json.dumps(pair))' $W/pairs.jsonl $W/pairs.scores > $W/given.jsonl");
    prefer("given", "--data $W/given.jsonl");
    CHECK_SAID("!references of");
    CHECK_LOSSES("given", "found", 4, 1e-6);
    prefer("ranks", "--data $W/pairs.jsonl --ranks 3 --zero 2");
    CHECK_LOSSES("ranks", "found", 4, 1e-5);
    CHECK_SH(0,
             "rm -r $W/found/step-000004 && printf damaged | dd of=$W/found/references.bin bs=1 seek=200 "
             "conv=notrunc 2> /dev/null");
    CHECK_REFUSED("--resume & references.bin, found none that are whole", "$P --resume --out $W/found");
    CHECK_SH(0, "rm $W/found/references.bin");
    CHECK_REFUSED("--resume & references of the starting model & references.bin", "$P --resume --out $W/found");
}

// Before the first step the model is the reference, so that its distance is 0.
CLAIM(rewarded_answers_stay_near_a_model_that_is_found) {
    put_file("rewarded.jsonl",
             "{\"prompt\": \"2+2=\", \"answers\": [{\"text\": \"4\", \"reward\": 1, \"logprobs\": [-3, -3]}, "
             "{\"text\": \"5\", \"reward\": 0, \"logprobs\": [-3, -3]}]}\n");
    static const char* const runs[][2] = {{"first", "--kl 0.5 --steps 1"},
                                          {"free", "--kl 0 --steps 1"},
                                          {"near", "--kl 0.5 --steps 4"},
                                          {"two", "--kl 0.5 --steps 4 --ranks 2"}};
    for (int i = 0; i < COUNT(runs); i++)
        CHECK_SH(0,
                 "$P --init $W/run/step-000160 --loss grpo --data $W/rewarded.jsonl --lr 0.001 " QUIET "%s --out $W/%s",
                 runs[i][1], runs[i][0]);
    CHECK_LOSSES("first", "free", 1, 1e-6);
    CHECK_LOSSES("two", "near", 4, 1e-5);
}

// Preferences as people have them: whole chats, and dialogs in one text.
CLAIM(pairs_without_a_prompt_begin_alike) {
    put_file("one.jsonl", PAIR(USER "]", "\"8\"", "\"9\""));
    put_file("whole.jsonl", "{\"chosen\": " USER ", " SAYS("8") "], \"rejected\": " USER ", " SAYS("9") "]}\n");
    prefer("one", "--data $W/one.jsonl");
    prefer("whole", "--data $W/whole.jsonl");
    CHECK_LOSSES("whole", "one", 4, 1e-12);
    put_file("asked.jsonl", "{\"prompt\": \"2*4\", \"messages\": " USER "], \"chosen\": " USER
                            ", " SAYS("8") "], \"rejected\": " USER ", " SAYS("9") "]}\n");
    prefer("asked", "--data $W/asked.jsonl");
    CHECK_LOSSES("asked", "one", 4, 1e-12);
    put_file("split.jsonl", PAIR("\"\\n\\nHuman: 2+2\\n\\nAssistant:\"", "\" 4\"", "\" 5\""));
    put_file("hh.jsonl",
             "{\"chosen\": \"\\n\\nHuman: 2+2\\n\\nAssistant: 4\", \"rejected\": "
             "\"\\n\\nHuman: 2+2\\n\\nAssistant: 5\"}\n");
    prefer("split", "--data $W/split.jsonl");
    prefer("hh", "--data $W/hh.jsonl");
    CHECK_LOSSES("hh", "split", 4, 1e-12);
    static const char* const rows[][2] = {
        {"{\"chosen\": \"a\", \"rejected\": \"b\"}", "bad.jsonl:1: & Assistant:"},
        {"{\"chosen\": [" SAYS("a") "], \"rejected\": " USER ", " SAYS("b") "]}", "alike up to their last messages"},
        {"{\"chosen\": " USER "], \"rejected\": " USER "]}", "end with an assistant's message, found user's"},
        {"{\"prompt\": " USER "], \"chosen\": " USER ", " SAYS("a") "], \"rejected\": \"b\"}", "found 2 messages"},
    };
    for (int i = 0; i < COUNT(rows); i++) {
        put_file("bad.jsonl", rows[i][0]);
        CHECK_REFUSED(rows[i][1],
                      "$P --init $W/run/step-000160 --loss dpo --data $W/bad.jsonl --steps 1 --out $W/refused");
    }
}

// A line of a corpus is read into as much memory as it has bytes.
CLAIM(a_long_answer_of_a_pair_is_read_once) {
    CHECK_SH(0,
             "python3 -c 'import json\n"
             "for c in \"abcd\":\n"
             "    a, b = ([{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": x}] "
             "for x in (5000 * c, \"y\"))\n"
             "    print(json.dumps({\"chosen\": a, \"rejected\": b}))' > $W/long.jsonl");
    CHECK_SH(0,
             "$P --data $W/long.jsonl --loss dpo --layers 1 --width 16 --heads 2 --context 8192 --batch-tokens 8192 "
             "--steps 1 --out $W/long " QUIET);
}

PROGRAM_TEST { before(); }
