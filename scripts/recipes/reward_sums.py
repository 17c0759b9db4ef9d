#!/usr/bin/env python3
# reward_sums.py - what rollouts to "3+4=" are worth: 1 where the model has ended the right sum, else 0.
#
#   reward_sums.py ROLLOUTS.jsonl TRAIN.jsonl      one line a prompt, as ./train --loss grpo reads it; prints the mean
#
# An answer's advantage is its reward less the mean of its prompt's, over their standard deviation; 0 where all are
# alike.
import json
import statistics
import sys


def reward(prompt, answer):
    a, b = prompt.rstrip("=").split("+")
    return float(answer["ended"] and answer["text"] == str(int(a) + int(b)))


total = n = 0
with open(sys.argv[1]) as rollouts, open(sys.argv[2], "w") as out:
    for line in rollouts:
        prompt, answers = (x := json.loads(line))["prompt"], x["answers"]
        rewards = [reward(prompt, a) for a in answers]
        mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)
        for answer, r in zip(answers, rewards):
            del answer["text"]  # its tokens count
            answer["advantage"] = (r - mean) / deviation if deviation else 0
        json.dump({"prompt": prompt, "answers": answers}, out)
        out.write("\n")
        total, n = total + sum(rewards), n + len(rewards)
print(f"{total / n:.3f}")
