"""What a run chooses by name. TensorFlow is not imported here, so that flags can list the names."""

# The optimizers' names, in the order in which help and errors list them. The dict
# `optimization.OPTIMIZERS` has their classes, in the same order.
OPTIMIZER_NAMES = ("lamb", "adamw", "lars", "adafactor")

# How many cores one copy of a model may be split over.
CORES_PER_REPLICA = (1, 2, 4, 8, 16, 32, 64, 128)

# What a network computes in.
PRECISIONS = ("float32", "bfloat16")

# What is learnt in pretraining: masked words alone, or also whether the second of two texts follows
# the first (BERT's next sentence), or whether the two were swapped (ALBERT's sentence order).
MLM, MLM_NSP, MLM_SOP = OBJECTIVES = ("mlm", "mlm_nsp", "mlm_sop")

# Which tokens of pretraining are masked together: each alone, a word's, or a run of words'.
MASKING_UNITS = TOKEN, WORD, SPAN = ("token", "word", "span")

# The least length of an example, in tokens: [CLS], a token, [SEP], a token, [SEP].
LEAST_TOKENS = 5

# What the labels of a task are: one of several for an example, any number of several, a number, or
# one of several for each word.
TASK_KINDS = ("classification", "multi_label", "regression", "tagging")

# What is read of a text that is longer than a sequence; see `input_pipelines.tasks.long_texts`.
LONG_TEXTS = ("cut", "head_tail", "windows")

# The kind of the task of run_squad.py, which does not have labels.
QUESTION_ANSWERING = "question_answering"

# What an exported model may take.
EXPORT_INPUTS = ("text", "ids")

# What a run exports: a SavedModel of TensorFlow's, or an ONNX model, whose products may be of int8.
SAVED_MODEL, ONNX, ONNX_INT8 = EXPORT_FORMATS = ("saved_model", "onnx", "onnx_int8")

# How the vectors of a text's tokens become one vector.
POOLINGS = ("mean", "cls", "max", "pooled")

# The tasks made from the text that comes with Python: those about texts, the keys of
# `embedded_tasks.TASKS`, and those about words.
EMBEDDED_TASKS = ("word_order", "summary")
EMBEDDED_TAGGING_TASKS = ("code_words",)
