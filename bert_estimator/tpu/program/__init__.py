"""Programs apart from TensorFlow: devices, hosts, StableHLO. No TensorFlow is imported here."""
