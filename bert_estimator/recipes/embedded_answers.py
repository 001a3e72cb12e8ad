"""The plan of `python run_squad.py` without files: questions on docstrings in every CPython.

Command   python run_squad.py --use_tpu --precision=bfloat16
Cost      two to three minutes of training on two CPU cores
Start     the main job's checkpoint in runs/pretraining if it exists; else from scratch
Score     `docs/question_answering.md`

The network is the main job's network, which the checkpoint needs, with more positions in use. The
rate and the length of the training were not tuned.
"""

from bert_estimator.recipes import embedded

BERT_CONFIG = embedded.BERT_CONFIG
VOCAB_SIZE = embedded.DATA["vocab_size"]

FLAGS = dict(
    optimizer="adamw",
    version_2_with_negative=True,
    max_seq_length=64,
    doc_stride=24,
    max_query_length=16,
    max_answer_length=30,
    train_batch_size=64,
    eval_batch_size=64,
    predict_batch_size=64,
    learning_rate=1e-3,
    num_train_epochs=8.0,
    save_checkpoints_steps=250,
    iterations_per_loop=50,
)
