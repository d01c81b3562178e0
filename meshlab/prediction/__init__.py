"""Prediction: expected times of collectives and training steps, from the links of a machine."""
