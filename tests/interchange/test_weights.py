"""The table of what became of the weights of a checkpoint."""

from bert_estimator.interchange import weights


def test_layers_that_are_alike_share_a_line():
    rows = [
        ("output_bias", [3], "new"),
        ("bert/encoder/layer_0/output/dense/bias", [4], "restored"),
        ("bert/encoder/layer_1/output/dense/bias", [4], "restored"),
        ("bert/encoder/layer_11/output/dense/bias", [5], "restored"),
        ("bert/embeddings/word_embeddings", [9, 4], "restored"),
        ("bert/encoder/layer_12/output/dense/bias", [4], "unused"),
    ]
    assert weights.table("Title", rows) == "\n".join(
        [
            "Title: 4 restored, 1 new, 1 unused",
            "  restored  bert/embeddings/word_embeddings         [9, 4]",
            "  restored  bert/encoder/layer_*/output/dense/bias  [4] x 2",
            "  restored  bert/encoder/layer_*/output/dense/bias  [5]",
            "  new       output_bias                             [3]",
            "  unused    bert/encoder/layer_*/output/dense/bias  [4]",
        ]
    )
