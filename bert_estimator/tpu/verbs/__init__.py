"""The verbs of an estimator (train, evaluate, predict, export, lower), and what they share."""
