"""The loop: minibatches, records, checkpoints and draws, for one network or for replicas."""
