"""The identity inside a language model that is training: what the paper leaves open (arXiv:2607.00152, Limitations)."""

# Written down before the first measurement, and kept as they were. b is the exponent in |g| ~ sigma^b among groups of one
# prompt: 1 if the length of the update is the disagreement, 0 if every mixed group moves the model equally far. What had
# been seen before: one prompt of the base model (lesson 6), where the signal had 44 to 72 % of |g|^2 at G = 8.
PREDICTIONS = {
    "identity": "Both sides agree in every group, script and group size: to 1e-4 in float32, to 1e-11 in float64.",
    "silent": "The silent share is the mean of p^G + q^G, all right and all wrong apart, at every G and checkpoint, "
    "if p comes from other answers. With k/G of the group itself put for p it comes out at least 5 points "
    "too high at G = 8.",
    "weight": "E[g] is w_G(p) times grad p: over all prompts the measured weight is within 10 % of the closed form at "
    "every G, and in no range of p above sqrt(G - 1) by more than its interval.",
    "start": "Before training, at G = 8, neither extreme holds: b of GRPO lies between .3 and .8.",
    "training": "Noise gains as the policy gets better: b is smaller at the end than at the start, in all three runs.",
    "group size": "b rises with G at every checkpoint. The signal passes half of |g|^2 between G = 2 and G = 16.",
    "length": "Dividing each score by its length, as GRPO's loss does, changes b by less than .15.",
    "mass": "Prompts with p below .1 or above .9 have a larger share of GRPO's update if it is measured as |g| than "
    "as sigma, at every checkpoint.",
    "staleness": "At the last of four minibatches at least 90 % of the identity survives, the clip takes away less than "
    "1 %, and the KL term turns the update more than the clip does.",
}
