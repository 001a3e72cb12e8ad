"""The class `tf.estimator.RunConfig`, which takes its first arguments by position."""

from bert_estimator.tpu import config


class _OfAllEstimators(type(config.RunConfig)):
    """Counts every configuration of this project as a `tf.estimator.RunConfig`, as TensorFlow did.

    There TPUEstimator's class was a subclass of it; here it is the base class. An estimator that
    was not given a configuration has one of the base class.
    """

    def __subclasscheck__(cls, subclass):
        return type.__subclasscheck__(config.RunConfig if cls is RunConfig else cls, subclass)

    def __instancecheck__(cls, instance):
        return cls.__subclasscheck__(type(instance))


class RunConfig(config.RunConfig, metaclass=_OfAllEstimators):
    """Is `bert_estimator.tpu.RunConfig` for scripts that give its arguments by position.

    Args:
      *args: up to four arguments by position: model_dir, tf_random_seed, save_summary_steps and
        save_checkpoints_steps.
      **kwargs: the other arguments.
    """

    _evaluates_on_master = False

    def __init__(self, *args, **kwargs):
        names = ("model_dir", "tf_random_seed", "save_summary_steps", "save_checkpoints_steps")
        if len(args) > len(names):
            raise TypeError(f"tf.estimator.RunConfig: only {names} can be given by position")
        super().__init__(**dict(zip(names, args, strict=False)), **kwargs)
