// token_loss.h - the loss of one labelled token, where labels do not count alike. One function for all backends.
//
// With p the model's probability of the label, w its weight, A its advantage, and the log-probabilities that the policy
// which drew the text and a reference gave it:
//
//   LOSS_NLL    w (-log p)
//   LOSS_GRPO   w (-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) + kl (exp(d) - d - 1)),
//               r = p / exp(old), d = reference - log p
//   LOSS_GIVEN  the loss is known: old; its slope is w
//
// Group relative policy optimization: Shao et al. 2024 (arXiv 2402.03300), equations 3 and 4; two clips, and the mean
// over all tokens instead of over answers: Yu et al. 2025 (arXiv 2503.14476), equation 8. The ratio: Schulman et al.
// 2017 (arXiv 1707.06347), equation 7. Exponents stop at 60, so that a label of weight or advantage 0 costs nothing
// however unlike the policies are: 0 times infinity would be no number.
#pragma once
#include <math.h>
#include <stddef.h>

#ifdef __CUDACC__
#define ON_ALL_SIDES __host__ __device__
#else
#define ON_ALL_SIDES
#endif

typedef enum TokenLossKind { LOSS_NLL, LOSS_GRPO, LOSS_GIVEN } TokenLossKind;

typedef struct TokenLoss {
    TokenLossKind kind;
    const float *weight, *old, *reference, *advantage;  // (N) of the tokens at hand; NLL looks at weights alone,
    float clip_low, clip_high, kl;                      // kl 0 not at `reference`
} TokenLoss;

// Returns the TokenLoss of the tokens from n on.
ON_ALL_SIDES static inline TokenLoss token_loss_from(TokenLoss t, int n) {
    if (t.weight) t.weight += n, t.old += n, t.reference += n, t.advantage += n;
    return t;
}

// token_exp is e^x with x at most 60, so that it stays finite; NaN stays NaN.
ON_ALL_SIDES static inline float token_exp(float x) { return expf(x > 60 ? 60 : x); }

// Returns the loss of labelled token n, of which nll = -log p; *slope = its derivative by nll.
ON_ALL_SIDES static inline float token_loss(const TokenLoss* t, size_t n, float nll, float* slope) {
    float weight = t->weight[n], ratio = 0, above = 0, advantage = 0;
    *slope = weight;
    if (t->kind == LOSS_NLL) return weight * nll;
    if (t->kind == LOSS_GIVEN) return t->old[n];
    advantage = t->advantage[n];
    ratio = token_exp(-nll - t->old[n]);
    float clipped = fminf(fmaxf(ratio, 1 - t->clip_low), 1 + t->clip_high);
    int is_clipped = clipped * advantage < ratio * advantage;
    if (t->kl > 0) above = t->reference[n] + nll;
    *slope = weight * ((is_clipped ? 0 : ratio * advantage) + t->kl * (token_exp(above) - 1));
    return weight * (t->kl * (token_exp(above) - above - 1) - (is_clipped ? clipped : ratio) * advantage);
}
