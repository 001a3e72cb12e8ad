"""The named plans of run_squad.py's `--recipe`: flags' values, each value with its source.

You et al., "Large batch optimization for deep learning: training BERT in 76 minutes" (ICLR 2020),
measure their pretrained networks by fine-tuning on SQuAD 1.1 with the procedure of Devlin et al.,
"BERT" (2018): Adam, not LAMB. The batch, the rate and the epochs are from section 4.2 of that paper
(1.1) and from section 4.3 (2.0). Lengths, stride, warm-up and the search of answers are defaults of
google-research/bert's `run_squad.py`, which the paper's numbers come from.

Expected F1 on the development set of SQuAD 1.1, BERT-Large: `plans.EXPECTED_F1`; 90.9 for the
network of Devlin et al.
"""

from bert_estimator.command_line.provenance import Origin, Source
from bert_estimator.recipes.plans import Given


def _bert_paper(value):
    return Given(value, Source(Origin.BERT_PAPER))


def _bert(value):
    return Given(value, Source(Origin.GOOGLE))


_COMMON = {
    "optimizer": _bert_paper("adamw"),
    "learning_rate": _bert_paper(5e-5),
    "warmup_proportion": _bert(0.1),
    "max_seq_length": _bert(384),
    "doc_stride": _bert(128),
    "max_query_length": _bert(64),
    "n_best_size": _bert(20),
    "max_answer_length": _bert(30),
}

RECIPES = {
    "squad": {
        **_COMMON,
        "train_batch_size": _bert_paper(32),
        "num_train_epochs": _bert_paper(3.0),
        "version_2_with_negative": _bert_paper(False),
    },
    "squad_v2": {
        **_COMMON,
        "train_batch_size": _bert_paper(48),
        "num_train_epochs": _bert_paper(2.0),
        "version_2_with_negative": _bert_paper(True),
    },
}
