"""The stateful optimizer: hyperparameters, cells of state, and updates that are compiled once."""
