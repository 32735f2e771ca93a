"""A store that holds more than one page of ids and of state, read from inside and from outside."""

from itertools import islice

from correlator.core.commit import ReceiveCommit
from correlator.storage import loading
from correlator.storage.database import reading
from tests.storage import values
from tests.storage.conftest import MakeStore
from tests.storage.values import opened


def test_large_stores_are_read_in_pages(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    segments = [values.ids(number, f"i{number}", domain=domain) for domain in ("a", "b") for number in range(1, 51)]
    states = [values.state(number, a=b"%d" % number) for number in range(1, 71)]
    store.commit(1, [ReceiveCommit(receiver="orders", segment=None, ids=segment) for segment in segments])
    store.commit(2, [values.checkpoint(1, state=states)])
    store.close()
    with reading(url) as connection:
        assert list(islice(loading.id_segments(connection), 1 + len(segments))) == segments
    recovered = opened(make_store(url))
    assert list(recovered.ids) == segments
    assert list(recovered.ids) == segments, "as often as wanted"
    assert list(recovered.state) == states
