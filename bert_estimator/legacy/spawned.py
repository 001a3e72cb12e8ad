"""The main module of a process that a TF1 script starts by `multiprocessing`; see `children`."""

from bert_estimator.legacy import children

children.become_main(globals())
