"""Everything the scripts share: verifiable tasks, a small model, and the running of a training."""
