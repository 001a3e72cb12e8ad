"""What --help prints: the flags of a script in groups, with their defaults."""

import textwrap

from bert_estimator.command_line import flags, help_page

_OF_DEFAULTS = (
    "A flag that is not given has the default shown here, unless a recipe or the built-in plan for "
    "runs without data sets another value; config.json in --output_dir says which value came from "
    "where."
)

# Heading -> the flags of any script that belong below it, in this order. A flag in no group comes
# last, below "Further flags", and a test fails.
GROUPS = {
    "Common flags": "output_dir task_name data_dir input_file eval_input_file train_file eval_file "
    "predict_file vocab_file bert_config_file init_checkpoint num_train_steps num_train_epochs "
    "train_batch_size learning_rate max_seq_length use_tpu precision config",
    "What to do": "do_train do_eval do_predict do_export compile_only suggest export_program "
    "recipe scale stage num_seeds",
    "Data": "do_lower_case strip_accents encoding task_kind language text_a_column text_b_column "
    "label_column class_weights max_predictions_per_seq max_bad_records version_2_with_negative "
    "doc_stride max_query_length",
    "Training": "optimizer num_warmup_steps warmup_proportion learning_rate_decay_power "
    "layerwise_lr_decay legacy_schedule_jump lamb_bias_correction bfloat16_first_moments "
    "random_seed allow_partial_init max_rollbacks pack",
    "Checkpoints, evaluation and predictions": "save_checkpoints_steps eval_steps "
    "keep_best_checkpoint early_stopping_patience max_eval_steps eval_batch_size "
    "predict_batch_size prediction_header export_inputs n_best_size max_answer_length "
    "null_score_diff_threshold take_over",
    "Cores, hosts and memory": "tpu_name num_tpu_cores num_cores_per_replica tpu_topology "
    "price_per_chip_hour "
    "micro_batch_size recompute use_one_hot_embeddings iterations_per_loop host_wait_secs",
    "Log": "log_every_secs",
}


def text(config_class: type, description: str) -> str:
    """Returns the help of a script.

    Args:
      config_class: its configuration, a dataclass with `flags.field`s.
      description: what the script does.
    """
    fields = {field.name: field for field in flags.of(config_class)}
    groups = {
        heading: [_entry(fields[name]) for name in names.split() if name in fields]
        for heading, names in GROUPS.items()
    }
    wrapped = textwrap.wrap(_OF_DEFAULTS, 100)
    return help_page.text("\n".join([description.strip(), "", *wrapped]), groups)


def _entry(field):
    kind = flags.kind_of(field)
    form = f"--[no]{field.name}" if kind is bool else f"--{field.name}={_VALUES[kind]}"
    explained = field.metadata["help"]
    if field.default not in (None, "") and not (kind is bool and not field.default):
        default = str(field.default).lower() if kind is bool else field.default
        explained += f" (default: {default})"
    return form, explained


_VALUES = {int: "N", float: "X", str: "TEXT"}
