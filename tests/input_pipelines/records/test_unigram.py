import numpy as np

from input_pipelines.records import unigram


def test_the_cross_entropy_of_each_id_by_hand():
    # With one added to each count the probabilities are 1/10, 5/10, 3/10 and 1/10.
    found = unigram.nats(np.array([0, 4, 2, 0]))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, -np.log([0.1, 0.5, 0.3, 0.1]), rtol=1e-6)
