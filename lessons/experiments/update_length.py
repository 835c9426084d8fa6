"""How long is a group's update, on two tasks, trained at four group sizes? What lesson 13 is made from.

    python lessons/experiments/update_length.py              GRPO and Dr. GRPO at G = 4, 8, 16 and 64, 3 seeds
    python lessons/experiments/update_length.py --quick      1 seed, 4 prompts, G = 8 alone
    python lessons/experiments/update_length.py --publish    also writes update_length.npz here

The runs are the scripts' own `train`, 256 completions a step. At three steps each held-out prompt gets many answers.
From one half come p, the class variances v+ and v-, and |dm|^2, hence the predicted E|g|^2 of a group with k of G
right; of the other half groups are formed, with every k and as they were drawn. The score of every different answer is
computed exactly, and lengths follow from inner products. What is finished is not made again.
"""

# Written down before the first measurement, and before the code that makes it.
PREDICTIONS = {
    "formula": "Lengths predicted from the other half of a prompt's answers are within 10 % of the measured ones (median "
    "over prompts) at every G and k, on both tasks, at every stage.",
    "arithmetic": "v- is several times v+ at every stage, so that at G = 4 one wrong answer of four moves the model "
    "further than an even split, and at G = 64 less far.",
    "expressions": "Before training v- is at most v+ on most prompts, and the profile leans the other way: at G = 4 one "
    "right answer of four moves the model further than an even split, and one wrong one does not.",
    "training": "On expressions training turns it round: what is still wrong at step 60 are miscalculations, no longer "
    "the repeated number, and v-/v+ is above 1 on most prompts. On arithmetic it stays above 4.",
    "noise": "At every stage of both tasks an even split has as much signal as noise at a G between 4 and 64.",
    "trained at": "The G that a policy was trained at shows in its accuracy alone: at G = 8 the profiles of policies "
    "trained at 4 and at 64 differ less than those of steps 20 and 60.",
    "silent": "At every G and stage the silent share is the mean of p^G + q^G, p from other answers, within 2 points.",
    "mass": "On arithmetic prompts with p up to .1 or above .9 have a larger share of the summed |g| than of the summed "
    "sigma, at every G; on expressions, before training, they have not.",
}
