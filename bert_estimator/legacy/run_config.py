"""`tf.estimator.RunConfig`: that of `bert_estimator.tpu`, with its arguments in the old order."""

from bert_estimator.tpu import config


class RunConfig(config.RunConfig):
    """As `bert_estimator.tpu.RunConfig`, for scripts that give its arguments by place.

    Args:
      model_dir, tf_random_seed, save_summary_steps, save_checkpoints_steps: the first four.
      **kwargs: all others, by name.
    """

    def __init__(self, *args, **kwargs):
        places = ("model_dir", "tf_random_seed", "save_summary_steps", "save_checkpoints_steps")
        if len(args) > len(places):
            raise TypeError(f"tf.estimator.RunConfig: only {places} can be given without a name")
        super().__init__(**dict(zip(places, args, strict=False)), **kwargs)
