"""What the library says of a gauge."""


class GaugeState:
    """What the library says of a gauge: telemetry_on, code and message (why it is off), steps_path, next_step, published, dropped_calls, ring_bytes."""

    def __init__(self, raw):
        self.telemetry_on = bool(raw.telemetry_on)
        self.code = raw.code
        self.message = raw.message.decode("utf-8", "replace")
        self.steps_path = raw.steps_path.decode("utf-8", "replace")
        self.next_step = raw.next_step
        self.published = raw.published
        self.dropped_calls = raw.dropped_calls
        self.ring_bytes = raw.ring_bytes

    def __repr__(self):
        return "GaugeState({})".format(", ".join("{}={!r}".format(*item) for item in vars(self).items()))
