# %% [markdown] 40 minutes, without the second reading
# # 14 · The policy has moved, or was rounded: what weight?
#
# The policy that is trained is often not the one that wrote the completions: it has made updates since, or another engine sampled, in another
# precision. How much should each token count then?
#
# > **As long as the policy that is trained is the one that sampled, published losses have one gradient, given the advantages and the
# > averaging over tokens; after that each weights tokens, stops tokens, or does both.**

# %% [fold]
import numpy as np

from lessons import identity
from lessons.experiments import staleness
from lessons.experiments.harness.grid import change, load_runs, markdown, short
from lessons.experiments.harness.paired import difference
from lessons.experiments.precision import CORRECTIONS
from lessons.experiments.staleness import CISPO, CLIP, LENGTHS, OLD, U_4, UNWEIGHTED, gap, select
from lessons.workshop.companions import lesson_14
from lessons.workshop.notebook import check, show, trains

show(lesson_14.factor_picture())

# %% [markdown]
# *What a loss multiplies a token's push $A\,\nabla\ell$ by. At ratio 1 all lines meet.*
#
# Let $\ell$ be a token's log-probability. Its *ratio* $\rho = e^{\ell - \ell^{old}}$ is its probability now, over its probability when it was
# sampled. Since $\nabla\rho = \rho\,\nabla\ell$, each of these losses pushes a token along
#
# $$f(\rho)\,A\,\nabla\ell, \qquad f(1) = 1$$
#
# GRPO's loss, $-\min\big(\rho A,\ \mathrm{clip}(\rho, .8, 1.2)\,A\big)$, does *both*: its $f$ is $\rho$, the **weight**, until the token has left the
# clip's range on the side to which $A$ pushes. Then $f$ is 0, the **bound**. CISPO has the weight alone. The bound alone is nobody's method; we add
# it to tell the two apart.
#
# **The weight grows with the token's probability.** A token that is pushed up speeds up, one that is pushed down slows. The bound stops a token one
# step late, because it looks at the ratio before a step.
#
# **1. By hand.** In a completion of two tokens the first has become 1.35 times as likely, the second .6 times. What is $f$ of each?
#
# | | $A > 0$: first | second | $A < 0$: first | second |
# |---|---|---|---|---|
# | neither | 1 | 1 | 1 | 1 |
# | GRPO | 0 | .6 | 1.35 | 0 |
#
# Give the rows of CISPO, of the bound alone, and of GSPO: GRPO with one ratio $\bar\rho$ for all tokens of a completion, their geometric
# mean, clipped to [.991, 1.012] here.

# %% [exercise]
table = ...  # three rows of four numbers

# %% [check]
check("14.1", table)

# %% [hint]
# The geometric mean is $\sqrt{1.35 \cdot .6} = .9$, below the range. Which sign of $A$ pushes further down?

# %% [solution]
table = [[1.35, 0.6, 1.35, 0.6], [0, 1, 1, 0], [0.9, 0.9, 0, 0]]

# %% [markdown]
# ## Weight or bound? The policy has moved
#
# Does it matter? We train our small model with each of the four: neither, weight, bound, both. A batch of 256 completions is used in four
# epochs of 8 updates. Every optimizer step of a run has one length, so that only the steps' directions differ.
#
# *At which of three lengths, .008, .016 or .032, does the weight alone fall behind? Guess, then open the output (…).*

# %% [fold] guess
runs = load_runs(staleness.RESULTS)
steps = [{"epochs": 4, "step_length": length} for length in LENGTHS]
adamw, late = {"epochs": 4}, {"staleness": 32}
three = (UNWEIGHTED, CISPO), (UNWEIGHTED, CLIP), (CLIP, CISPO)

def compare(arm, other, step, other_step=None):
    return gap(runs, {"arm": arm} | step, {"arm": other} | (other_step or step))

def ahead(*which):
    """By how many points the first arm is above the second, "1.2 [−0.3, 2.7]"."""
    return change(compare(*which)).replace("+", "")

def limit(pairs, step):
    """How many points apart the arms of a pair may still be, by their intervals."""
    return 100 * np.abs([compare(*pair, step)["interval"] for pair in pairs]).max()

def ends(arm, when=-1, **step):
    return [run["accuracy"][when] for run in select(runs, arm=arm, **step)]

rows = [[short(step["step_length"]),
         *(short(np.mean(ends(arm, **step)), 2) for arm, *_ in lesson_14.ARMS.values()),
         *(ahead(*pair, step) for pair in ((CLIP, OLD), *three[:2]))] for step in steps]
measured = markdown(["step", *lesson_14.ARMS, "both − neither", "bound − weight", "bound − both"], rows)
early = difference(*(ends(arm, 0, **steps[1]) for arm in (CISPO, CLIP)))
early = change(early).replace("+", "")
repeats = [run["accuracy"][-1] for run in runs if run["repeat"]]
show(lesson_14.ends_picture(runs))

# %% [text]
# {=measured}
#
# *Ten seeds. Bands and brackets: 95 % intervals; differences: points, not corrected for their number.*
#
# - **Doing neither loses at every length.**
# - **Weight or bound?** At .008 the intervals exclude a difference above {=limit(three, steps[0]):.1f} points among weight, bound and both. At .016 it is undecided, up to {=limit(three, steps[1]):.0f}
#   points. At .032 the bound is needed.
# - **None of the four makes up for a long step.** From .008 to .032 the bound alone, highest on average, loses {=ahead(UNWEIGHTED, UNWEIGHTED, steps[0], steps[2])} points.
#
# So far: at the end no bound was seen to cost anything; early one did (second reading). What if the policy has not moved at all?
#
# ## Another engine: the policy was rounded
#
# Often the engine that samples rounds differently. Each token's probability is a little off, and over a completion the differences multiply. Take the
# text *aa*, of three tokens:
#
# | | a | a | end | the whole text |
# |---|---|---|---|---|
# | sampler, $\pi_{sampler}$ | .5 | .4 | .2 | .04 |
# | trainer, before any update, $\pi_{old}$ | .4 | .4 | .5 | .08 |
# | weight, $w = \pi_{old}/\pi_{sampler}$ | .8 | 1 | 2.5 | 2 |
#
# Of 100 completions the sampler writes *aa* 4 times, the trainer would write it 8 times. So each of the four must count twice, *in all its
# tokens*. By the tokens' own weights the first a counts .8 times.
#
# Let $s(y)$ be a completion's score, the sum of its tokens' $\nabla\ell$. Weighted by $w(y)$, the sampler's mean becomes the trainer's:
#
# $$\sum_y \pi_{sampler}(y)\, w(y)\,A\,s(y) = \sum_y \pi_{old}(y)\,A\,s(y)$$
#
# **2. Write the weight** of whole completions, with a cap. You get the log-probabilities of the tokens of some texts, 0 after a text's end. Your
# function then trains, uncapped, a policy of 15 texts whose sampler is far off. It should gain reward and stay near its start: the curve is the reward minus half
# the KL, at best .77.

# %% [exercise]
def weight(old, sampled, C):
    """old, sampled: (texts, tokens), log-probabilities. Returns (texts, 1), at most C."""
    return ...


# %% [check]
check("14.2", weight)
trains("14.2", weight)  # mean updates, C = ∞

# %% [hint]
# A product of probabilities is a sum of logarithms. The cap comes after the product.


# %% [solution]
def weight(old, sampled, C):
    return (old - sampled).sum(dim=1, keepdim=True).exp().clamp(max=C)


# %% [fold]
p_sampler, p = (lesson_14.solve_rate(lesson_14.LOGITS + x) for x in (lesson_14.NOISE, 0))
w = {G: identity.weight("GRPO", np.array([p_sampler, p, 0, 0.5]), G) for G in (8, 64)}


def spread(of, sampler):
    return np.mean([run[f"spread of {of}"] for run in select(runs, **U_4, sampler=sampler, correction="none")])


def excluded(sampler):
    """The largest loss, in points, that an interval of the sampler's arms holds."""
    chosen = [U_4 | {"sampler": sampler, "correction": each} for each in CORRECTIONS[sampler]]
    return -100 * min(gap(runs, arm, U_4)["interval"][0] for arm in chosen)


d = {sampler: spread("tokens", sampler) for sampler in CORRECTIONS}
rows = [[sampler, f"{x:.4f}", *(f"{100 * np.exp(-T * x**2):.0f} %" for T in (20, 1000, 9000))]
        for sampler, x in d.items()]
left = markdown(["sampler", "$d$", "left of a batch, $T$ = 20", "1,000", "9,000"], rows)

# %% [text]
# <details><summary>After the exercise</summary>
#
# Without a weight the policy gets better, then worse. With the reward alone all four curves end at {=min(lesson_14.values(way, 0)[-1] for way in (lesson_14.of_completions, *lesson_14.TRAINED["14.2"]["mistakes"].values())):.2f} or above: a wrong mean shows where two
# forces must balance.
#
# </details>
#
# At the start the mean update is {=lesson_14.off(lesson_14.unweighted):.2f} of its length off without a weight, {=lesson_14.off(lesson_14.of_tokens):.2f} with each token's own, and right with that of whole completions, on four
# conditions:
#
# - **No cap binds.** Capped at 3, the weights leave it {=lesson_14.off(lesson_14.capped):.2f} off: a cap trades noise for a wrong mean.
# - **The sampler can write all that the trainer can.** With top-p or top-k it cannot, and no weight brings back what is never sampled.
# - **The update sums scores**, as in Dr. GRPO, RLOO and REINFORCE. Weighted scores have mean 0, so the mean reward in $A$ drops out, though it is the
#   sampler's. With GRPO's ÷ length they have not: the mean is {=lesson_14.off(lesson_14.of_completions, lesson_14.N_TOKENS):.2f} off, without the weight {=lesson_14.off(lesson_14.unweighted, lesson_14.N_TOKENS):.2f}.
# - **Nothing divides by the group's σ or mean**, which are the sampler's. With ÷ σ a prompt's mean update keeps its direction but has the sampler's
#   weight, $w_G(p_{sampler})\,\nabla p$ ([lesson 9](09_objective.ipynb)). Here it is {=w[8][0] / w[8][1] - 1:.0%} too long in groups of 8 (at most {=w[8][2] / w[8][3] - 1:.0%}, for
#   other policies), {=w[64][0] / w[64][1] - 1:.0%} in groups of 64.
#
# ## How many tokens until it matters?
#
# Let the $\log w$ of each of $T$ tokens be independent and normal, with standard deviation $d$. Then $n$ weighted completions are worth only
# $n\,(\mathbb E w)^2 / \mathbb E w^2 = n\,e^{-Td^2}$ unweighted ones. We sampled with copies of our policy in bfloat16, and with parameters in float8:
#
# {=left}
#
# **Length decides.** On our completions of 20 tokens we trained with either sampler, with no weight or one capped at 2 (five seeds). No difference was seen;
# the intervals exclude losses above {=excluded("bfloat16"):.1f} points with bfloat16 and {=excluded("float8"):.1f} with float8. We trained nothing longer.
#
# ## One table
#
# $\rho$: the trainer's policy now, over the trainer's before the first update. $w$: the latter, over the sampler's.
#
# | method | weight | stops | unit | TRL 1.16 | verl 0.9.1 |
# |---|---|---|---|---|---|
# | GRPO | $\rho$ | outside [.8, 1.2] | token | `loss_type=grpo` | `loss_mode=vanilla` |
# | DAPO's clip-higher | $\rho$ | outside [.8, 1.28] | token | `epsilon_high=.28` | `clip_ratio_high=.28` |
# | GSPO | $\bar\rho$ | outside [.9997, 1.0004] | completion | `importance_sampling_level=sequence` | `loss_mode=gspo` |
# | GMPO | $\bar\rho$ of bounded ratios | outside [.67, 1.49] | weight: completion; bound: token | `experimental.gmpo` | `loss_mode=geo_mean` |
# | CISPO | $\rho$, capped | nothing | token | `loss_type=cispo` | `loss_mode=cispo` |
# | SAPO | smooth, at most 1.57 | nothing | token | `loss_type=sapo` | `loss_mode=sapo` |
# | IPO (prime-rl) | $\rho\,w$ | a probability changed by over .3 | token | – | – |
# | IcePop | $w$ | outside [.5, 5] | token | `token_mask`, with `clip_min` | `rollout_is=token`, `rollout_is_threshold=0.5_5.0` |
# | truncated importance sampling | $w$, capped | nothing | either | `token_truncate`, `sequence_truncate` | `rollout_is=token`, `=sequence` |
# | TRL's default | $w$ | above 3 | completion | `sequence_mask` | – |
#
# The first four stop only what $A$ pushes further out; IPO and IcePop stop either way. TRL's last names are values of
# `vllm_importance_sampling_mode`. DPPO stopped a token once its own push had changed its probability too far; TRL removed it in July 2026, prime-rl
# in August.
#
# ## What to do
#
# - **One update a batch, one engine:** there is nothing to choose, except how to average over tokens ([lesson 5](05_length.ipynb)).
# - **Several updates:** take a rule with a bound; which, we could not tell. Shorten the step before you tune it.
# - **Two engines:** log the mean and the variance of the completions' $\log w$. If the engines only round, the variance is about $Td^2$ and the mean minus half of it. Any
#   other mean says that something else differs: temperature, top-p, a bug.
# - **Which weight?** By the formula, untested: below a variance of .05 none; up to 1 that of whole completions, with a cap that few reach; above 1 mend the engines.
#
# ## For a second reading (5 minutes)
#
# **Why one gradient.** At ratio 1 no bound binds, and $\nabla(\rho A) = A\,\nabla\ell$; CISPO's loss $-\mathrm{sg}[\rho]\,A\,\ell$ has this gradient directly
# ($\mathrm{sg}$, stop-gradient, makes a constant). One ratio for $|y|$ tokens gives $\nabla(\bar\rho A) = \bar\rho A\,\frac1{|y|}\sum_t\nabla\ell_t$: the same,
# averaged. SAPO's loss is $-\frac4\tau\,\mathrm{sigmoid}(\tau(\rho - 1))\,A$. The sigmoid's slope at 0 is ¼, so its factor is 1 for every $\tau$. ∎
#
# **Half the step, or the best rule?** Doing neither at half the length, less the bound alone at the full one, gives {=ahead(OLD, UNWEIGHTED, steps[0], steps[1])} points for
# .016 and {=ahead(OLD, UNWEIGHTED, steps[1], steps[2])} for .032. That is undecided, not equal.
#
# **Equal rates are not equal steps.** In four epochs at a rate of 2e-4, with AdamW's own steps, the weight alone ends {=ahead(CLIP, CISPO, adamw)} points below both. But its tokens also
# moved twice as far.
#
# **Early the bound costs.** After 768 of 3,072 completions, at .016, the weight alone has a lead of {=early} points over both; at .008 and .032 it is undecided.
#
# **Used once, but late.** At the same rate each batch served 32 updates, each completion one of them (five seeds). Without correction a run ends {=ahead(CLIP, OLD, late)}
# points below GRPO's clip. GSPO, clip-higher and CISPO were not seen to differ from it; differences up to {=limit([(arm, CLIP) for arm in ("GSPO", "clip-higher", CISPO)], late):.1f} points are not excluded.
#
# **One rounding.** A run of GRPO's clip in four epochs at this rate was repeated ten times, each with the base model's weights changed by about one rounding of float32. The ends have a
# standard deviation of {=100 * np.std(repeats, ddof=1):.1f} points; over ten seeds it is {=100 * np.std(ends(CLIP, epochs=4), ddof=1):.1f}. So expect no run to repeat on another machine.
#
# **Independent?** For 20 tokens $d\sqrt{20}$ is {=d["bfloat16"] * 20**0.5:.2f} with bfloat16 and {=d["float8"] * 20**0.5:.2f} with float8. The spread of the completions' $w$ is {=spread("completions", "bfloat16"):.2f} and {=spread("completions", "float8"):.2f}.
#
# **Predictions.** 10 of 11 held, by the means alone; they were written knowing earlier runs, in which 4 of 9 had failed (`staleness.py`). The one that failed: the bound alone
# ends within 3 points of both at every rate and length.
#
# Sources: GSPO, [2507.18071](https://arxiv.org/abs/2507.18071) Eq. 5, 7; CISPO, [2506.13585](https://arxiv.org/abs/2506.13585) Eq. 4, 5; SAPO,
# [2511.20347](https://arxiv.org/abs/2511.20347); GMPO, [2507.20673](https://arxiv.org/abs/2507.20673); DPPO, [2602.04879](https://arxiv.org/abs/2602.04879),
# removed from [TRL](https://github.com/huggingface/trl/pull/6402) and [prime-rl](https://github.com/PrimeIntellect-ai/prime-rl/pull/3418); [IPO](https://docs.primeintellect.ai/prime-rl/ipo.md);
# IcePop, [2512.16144](https://arxiv.org/abs/2512.16144) Eq. 1; truncated importance sampling,
# [Yao et al. 2025](https://openreview.net/forum?id=8MHqvb4lK9); top-p, [TRL #6789](https://github.com/huggingface/trl/issues/6789).
