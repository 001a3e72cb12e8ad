"""TensorFlow graphs, whatever they compute."""
