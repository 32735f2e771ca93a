"""Changes of the code that no history can show, each with the proof."""

EQUIVALENT = {
    "high-water mark ignored in recovery": (
        "There is one store: the checkpoint's transaction itself deletes the receive rows that it consumed, so that a "
        "row at or below the mark does not exist at a start. Nothing is left that a mark could skip."
    ),
    "cut without taking in delivered batches of received messages": (
        "A batch that is in the inbox and not in the cut is in the receive log with numbers beyond `entered`. A start "
        "delivers everything beyond `entered` behind the restored queue, which is its place in the order. What is lost "
        "is only an event sent through a channel; that half is the mutant 'inbox_not_drained'."
    ),
    "blind retry of a commit whose answer was lost": (
        "The retry carries the number of a transaction that is committed already; the fence refuses it and the engine "
        "stops (E3202). The next start finds the committed transaction. Safety is kept by the number alone, what is "
        "lost is a life, which no invariant forbids."
    ),
    "confirmed sends are taken up again in recovery": (
        "Sends are repeated with the same number and bytes after any crash between accept and checkpoint (crash-window "
        "table). Skipping those that the last checkpoint calls confirmed saves traffic, and changes nothing that a "
        "broker may not see anyhow."
    ),
}
