import numpy as np
import tensorflow.compat.v1 as tf

from input_pipelines.records.crc32c import crc32c, masked_crc32c, masked_crc32c_of_strings


def crc_of(data):
    return int(crc32c(np.frombuffer(data, np.uint8)))


def test_published_check_values():
    # The check value of the CRC catalogue, and the examples of RFC 3720, appendix B.4.
    assert crc_of(b"123456789") == 0xE3069283
    assert crc_of(bytes(32)) == 0x8A9136AA
    assert crc_of(b"\xff" * 32) == 0x62A8AB43
    assert crc_of(bytes(range(32))) == 0x46DD794E
    assert crc_of(bytes(range(31, -1, -1))) == 0x113FDB5C


def test_short_and_long_data_equal_a_bitwise_twin():
    def twin(data):
        crc = 0xFFFFFFFF
        for byte in data:
            crc ^= byte
            for _ in range(8):
                crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        return crc ^ 0xFFFFFFFF

    rng = np.random.RandomState(0)
    for length in (0, 1, 2, 3, 4, 5, 1023, 1024, 1025, 1026, 1027, 1028, 3000):
        data = rng.bytes(length)
        assert crc_of(data) == twin(data)


def test_rows_are_independent():
    rows = np.random.RandomState(1).randint(0, 256, (5, 12)).astype(np.uint8)
    assert crc32c(rows).tolist() == [crc_of(row.tobytes()) for row in rows]


def test_strings_of_any_lengths_together():
    rng = np.random.RandomState(2)
    lengths = [*range(20), 1000, 1023, 1024, 1025, 1032, 2048, 2049, 5000]
    lengths += rng.randint(0, 900, 300).tolist()
    strings = [rng.bytes(length) for length in lengths]
    expected = [int(masked_crc32c(np.frombuffer(string, np.uint8))) for string in strings]
    assert masked_crc32c_of_strings(strings).tolist() == expected
    assert masked_crc32c_of_strings([b""] * 3).tolist() == expected[:1] * 3
    assert masked_crc32c_of_strings([]).size == 0


def test_equals_what_tensorflow_writes(tmp_path):
    path = tmp_path / "records"
    data = bytes(range(256)) * 9
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(data)
    written = path.read_bytes()
    masked = masked_crc32c(np.frombuffer(data, np.uint8))
    assert written[-4:] == int(masked).to_bytes(4, "little")
    length_checksum = masked_crc32c(np.frombuffer(written[:8], np.uint8))
    assert written[8:12] == int(length_checksum).to_bytes(4, "little")
