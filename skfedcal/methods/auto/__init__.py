"""Choice among methods: `FedAutoCalibrator`."""
