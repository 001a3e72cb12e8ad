"""What a run chooses by name. TensorFlow is not imported here, so that flags can list the names."""

# The keys of `optimization.OPTIMIZERS`, in the order in which help and errors list them.
OPTIMIZERS = ("lamb", "adamw", "lars", "adafactor")
