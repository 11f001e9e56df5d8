"""Map of one temperature, as a graph."""


def temperature(cal, logits):
    """One temperature."""
    return logits / cal.temperature_
