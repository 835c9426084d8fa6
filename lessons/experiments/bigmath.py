"""The difficulty of real problems: how many of Big-Math's 215,608 had k of 64 completions right
(arXiv:2502.17387).

The counts are read off a figure in Bay and Yearick, *GRPO, Dr. GRPO, and DAPO Are Three Operations
on One Number* (arXiv:2607.00152), licensed under CC BY 4.0
(https://creativecommons.org/licenses/by/4.0/): fig_realdata.pdf in their repository,
bay-yearick-lab/grpo-standard-deviation-identity. What was done: the heights of the 64 bars in its
left panel, which are vector paths, are integers to 6e-5 of a problem, and sum to 215,608. Its last
bar holds k = 63 and 64 together (24,313); the shares of the update in the right panel say how it
splits. Six problems whose rate is no multiple of 1/64 are in the bar that the figure puts them in.

The problems and their solve rates are on the Hugging Face hub: SynthLabsAI/Big-Math-RL-Verified,
and, as the authors of the figure read it, open-r1/Big-Math-RL-Verified-Processed (column
llama8b_solve_rate).
"""

import numpy as np

COUNTS = np.array([  # problems with k = 0..64 right, (65,)
    8661, 14611, 9679, 7263, 5943, 4806, 4296, 3752, 3475, 3183, 3011, 2709, 2652,
    2491, 2380, 2304, 2202, 2104, 2141, 2016, 1935, 1835, 1776, 1807, 1779, 1801,
    1763, 1740, 1782, 1702, 1765, 1661, 1709, 1672, 1642, 1710, 1684, 1749, 1708,
    1721, 1790, 1814, 1941, 1958, 1910, 1974, 2120, 2118, 2287, 2284, 2343, 2372,
    2611, 2643, 2793, 2984, 3191, 3288, 3591, 4083, 4523, 5499, 6558, 8867, 15446,
])  # fmt: skip
SHARE = COUNTS / COUNTS.sum()  # their share of all problems, (65,)
RATES = np.arange(65) / 64  # the solve rates k / 64, (65,)
