"""Celery: a task that is acknowledged late, with a state in SQLite, and that sends the next task.

Settings, as the documentation advises:

- `acks_late` and `reject_on_worker_lost`: a task that a killed worker had begun comes again
  (https://docs.celeryq.dev/en/stable/userguide/tasks.html);
- a prefetch multiplier of 1 with late acknowledgement
  (https://docs.celeryq.dev/en/stable/userguide/optimizing.html#optimizing-prefetch-limit), and one process, which keeps the order;
- `worker_cancel_long_running_tasks_on_connection_loss`, `broker_connection_retry_on_startup`, `confirm_publish`, and a policy that
  publishes again without limit (https://docs.celeryq.dev/en/stable/userguide/configuration.html).

The documentation promises that such a task comes again, and says that tasks with `acks_late` should be idempotent; with `remembers`
this one is. Orders and results are messages of Celery's own protocol
(https://docs.celeryq.dev/en/stable/internals/protocol.html).
"""

import functools

from celery import Celery

from tests.peers.job import Counts, Job

JOB = Job.here()

app = Celery("peer", broker=JOB.broker)
app.conf.update(
    task_default_queue=JOB.source,
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_cancel_long_running_tasks_on_connection_loss=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={"confirm_publish": True},
    task_publish_retry_policy={"max_retries": None, "interval_start": 0.2, "interval_step": 0.2, "interval_max": 1},
)


@functools.cache
def counts() -> Counts:
    """The state, opened once in each process of the worker."""
    return JOB.counts()


@app.task(name="count")
def count(order: int, customer: str) -> None:
    """Count one order, and send its result on."""
    app.send_task("counted", (order, customer, counts().add(order, customer)), queue=JOB.target)
