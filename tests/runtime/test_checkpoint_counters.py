"""How long checkpoints took, all together."""


def test_a2_9_the_total_counts_the_first_checkpoint_too(world):
    with world.engine(interval=3600.0) as engine:
        assert engine.checkpoint()
        counters = engine.status().checkpoints
        assert counters.taken == 1
        assert counters.total_duration_s == counters.last_duration_s > 0
