// The closed forms that lessons/identity.py explains and derives.

export const sigma = (k, G) => Math.sqrt(k * (G - k)) / G;

export function binomial(p, n) { // P(k of n), k = 0..n
  const ways = [1];
  for (let k = 1; k <= n; k++) ways.push((ways[k - 1] * (n - k + 1)) / k);
  return ways.map((w, k) => w * p ** k * (1 - p) ** (n - k));
}

export const silent = (p, G) => p ** G + (1 - p) ** G;

// The weight of a problem: the mean update is w(p) times the gradient of p. Under GRPO, and under Dr. GRPO.
export const weight = (p, G) => binomial(p, G).reduce((sum, chance, k) => sum + chance * sigma(k, G), 0) / (p * (1 - p));
export const weightDrGRPO = (G) => (G - 1) / G;
