#!/usr/bin/env python3
# reward_sums.py - what rollouts to "3+4=" are worth: 1 where the model has ended the right sum, else 0.
#
#   reward_sums.py ROLLOUTS.jsonl TRAIN.jsonl      one line a prompt, as ./train --loss grpo reads it; prints the mean
import json
import sys


def reward(prompt, answer):
    a, b = prompt.rstrip("=").split("+")
    return float(answer["ended"] and answer["text"] == str(int(a) + int(b)))


rewards = []
with open(sys.argv[1]) as rollouts, open(sys.argv[2], "w") as out:
    for line in map(json.loads, rollouts):
        for answer in line["answers"]:
            answer["reward"] = reward(line["prompt"], answer)
            rewards.append(answer["reward"])
            del answer["text"]  # its tokens count
        print(json.dumps(line), file=out)
print(f"{sum(rewards) / len(rewards):.3f}")
