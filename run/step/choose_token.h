// choose_token.h - the next token of a sample.
#pragma once

// Draws from softmax(logits / temperature) over the top_k largest logits (0: all V of them) with the uniform number u
// in [0, 1). Temperature 0 takes the largest, the first of equals. Reorders nothing; scratch has room for V floats.
int choose_token(const float* logits, int V, double temperature, int top_k, double u, float* scratch);
