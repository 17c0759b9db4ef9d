// choices.h - questions with several endings, as in HellaSwag: a line of JSON each,
//
//   {"ctx": "She takes a pan", "endings": ["and sings.", "and fries an egg."], "label": 1}
//
// "context" is understood beside "ctx", and a label in quotes. Other members are passed over.
#pragma once
#include <stddef.h>

#include "plan/base/base.h"

typedef struct Choice {
    char* context;
    char** endings;  // (n)
    int n, label;
    char* text;  // in which they lie
} Choice;

// 0, or -1 with a message. Strings may hold no NUL.
int choice_parse(Choice* choice, const char* line, size_t n, Err err);
void choice_free(Choice* choice);
