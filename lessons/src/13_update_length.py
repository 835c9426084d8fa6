# %% [markdown]
# # 13 · How long is an update?
#
# The paper behind the identity says of GRPO's update that its "length […] is exactly the group reward standard deviation",
# "for any policy in any dimension". What is exact ([lesson 6](06_identity.ipynb)) is that σ *multiplies* the contrast
# $\bar s_+ - \bar s_-$. A prompt with one parameter has a contrast of length 1. That of a language model is a difference of two
# noisy means, and the mean of one answer's score is noisier than that of four.
#
# **How does the length of the update depend on $k$, the number of right answers among G?** We measure it inside language models
# that are training: on two tasks, at four group sizes.
#
# | symbol | meaning |
# |---|---|
# | $G,\ k$ | answers in a group, all to one prompt; how many of them are right |
# | $p,\ q$ | the probability that an answer is right; $q = 1 - p$ |
# | $\sigma$ | the standard deviation of the group's rewards, $\sqrt{k(G-k)}/G$; **silent**: $\sigma = 0$; otherwise **mixed** |
# | $s_i$ | the score of answer $i$: $\nabla_\theta \log \pi_\theta(y_i)$, summed over its tokens |
# | $\bar s_\pm$ | the mean score of a group's right (+) or wrong (−) answers |
# | $m_\pm,\ v_\pm$ | expectation and variance (summed over all parameters) of the score of one such answer; $\Delta m = m_+ - m_-$ |
# | $g$ | the update of one group: $\frac1G \sum_i A_i s_i$ |
#
# ## One formula
#
# The mean of $k$ independent scores has the variance $v_+/k$, that of $G-k$ the variance $v_-/(G-k)$. So the contrast has the mean
# square $\|\Delta m\|^2 + v_+/k + v_-/(G-k)$, and with $\sigma^2 = k(G-k)/G^2$ in front of it GRPO's update has
#
# $$\mathbb E\,\|g\|^2 = \underbrace{\sigma^2\,\|\Delta m\|^2}_{\text{signal}} + \underbrace{\frac{(G-k)\,v_+ + k\,v_-}{G^2}}_{\text{noise}}$$
#
# (Dr. GRPO's is $\sigma^2$ times that.) The signal is symmetric in $k$. The noise is a straight line, and **which way it leans is a
# matter of $v_-/v_+$**: where wrong answers vary more, groups of many right and few wrong answers make long updates, because the few
# wrong ones have large advantages. How much noise there is beside the signal is a matter of G.
#
# ## Two tasks
#
# *Arithmetic* has one right answer and few ways to work it out, and many ways to be wrong. In *expressions*, `39?` asks for any
# expression with that value, `#12+27` or `#50-11`: right answers are diverse, and the usual wrong one just repeats the number, `#39`.

# %%
import numpy as np

from lessons import identity
from lessons.experiments import update_length_tables as tables
from lessons.experiments.update_length import EVERY_TOKEN, GROUP_SIZES, KS, MEAN, PREDICTIONS, SCRIPTS, STEPS, TRAINED_AT
from lessons.kit import BLUE, GREEN, GREY, ORANGE, check, knob, label_line, new_figure, say, show

results = tables.load()
stages = {key: tables.stage(results, *key) for key in tables.stages_of(results)}
ARITHMETIC, EXPRESSIONS = bases = [("arithmetic", "", 0, 0), ("expressions", "", 0, 0)]
of_task = {task: [key for key in stages if key[0] == task] for task in ("arithmetic", "expressions")}
NAMES = {script: name for name, script in SCRIPTS.items()}
