// The closed forms that lessons/identity.py explains and derives.

export const sigma = (k, G) => Math.sqrt(k * (G - k)) / G;

export function binomial(p, n) { // P(k of n), k = 0..n
  const ways = [1];
  for (let k = 1; k <= n; k++) ways.push((ways[k - 1] * (n - k + 1)) / k);
  return ways.map((w, k) => w * p ** k * (1 - p) ** (n - k));
}

export const silent = (p, G) => p ** G + (1 - p) ** G;

export const fidelity = (p, G) =>
  binomial(p, G).reduce((sum, chance, k) => sum + chance * sigma(k, G), 0) / Math.sqrt(p * (1 - p));

// w_G(p) in E[g] = w(p) grad p: the weight of a prompt under GRPO, and under Dr. GRPO.
export const weight = (p, G) => fidelity(p, G) / Math.sqrt(p * (1 - p));
export const weightDrGRPO = (G) => (G - 1) / G;

// The root of E|g|^2 given k, for GRPO: `contrast` is |m+ - m-|^2, v the variances of right and wrong scores.
export const updateLength = (k, G, contrast, vRight, vWrong) =>
  Math.sqrt(sigma(k, G) ** 2 * contrast + ((G - k) * vRight + k * vWrong) / G ** 2);
