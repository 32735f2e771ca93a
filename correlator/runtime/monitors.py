"""Which classes of monitors an engine refuses; a start asks, and so do the commands that check a configuration."""

from collections.abc import Iterable, Iterator

from correlator.core.monitor import Monitor
from correlator.errors import ConfigError
from correlator.settings import MonitorSettings


def unfit(
    monitors: Iterable[tuple[MonitorSettings, type[Monitor]]], *, stored: bool
) -> Iterator[tuple[MonitorSettings, ConfigError]]:
    """Yield the monitors that an engine cannot run, each with the error.

    Args:
        monitors: the settings of the configured monitors, with their classes.
        stored: whether the engine has a store.
    """
    names: set[str] = set()
    for settings, cls in monitors:
        if not cls.persistent:
            continue
        where = f"monitor {settings.type}"
        if not stored:
            yield (
                settings,
                ConfigError("E1206", where, "a persistent monitor needs a persistent engine", "", "Set 'store'"),
            )
        elif cls.state_name in names:
            what = f"its state name '{cls.state_name}' is used twice"
            todo = "Make one of them spawn the others, or give the class a name="
            yield settings, ConfigError("E1506", where, what, "Persistent monitors share no state", todo)
        names.add(cls.state_name)
