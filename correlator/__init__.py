"""correlator: an event-driven, reliable bridge engine."""
