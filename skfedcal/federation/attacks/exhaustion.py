"""Requests for memory and time that a site does not have."""

from __future__ import annotations

import logging
from typing import Any

from skfedcal.federation.attacks.attack import Attack, Finding, Target, one_of_each
from skfedcal.federation.attacks.changes import bombs
from skfedcal.federation.attacks.copies import Arrays, Message, SiteCopies, letter_of

_TEXTS = (
    "[" * 500_000,
    '{"a":' * 100_000,
    '{"format":' + "9" * 500_000 + "}",
    "{" + ",".join(f'"{i}":0' for i in range(100_000)) + "}",
    '{"format":"' + "x" * (1 << 21) + '"}',
)
# Text of a request and its arrays.
Sent = list[tuple[str, Arrays]]


class Bombs(Attack):
    """Requests for memory and time that a site does not have."""

    name = "memory and time"
    tried = (
        "ask for huge tables, domains, layers, loops and nested texts; the site must "
        "refuse before it allocates (a child process with limits)"
    )
    megabytes = 1024
    # Of processor time, so that other work of the machine does not count.
    seconds = 10
    # Of waiting, for a request that stops without work.
    patience = 300

    def attack(self, target: Target, found: Finding) -> None:
        """Send each request to a copy in a child process with limits."""
        chosen = one_of_each(target.plain or target.masked, "algorithm", "model")
        letters = [bent for entry in chosen for bent in bombs(letter_of(entry))]
        sent: Sent = [(bent.text, bent.arrays) for bent in letters]
        sent += [(text, {}) for text in _TEXTS]
        names = [*(bent.what for bent in letters), *(text[:20] for text in _TEXTS)]
        found.messages = len(sent)
        start = 0
        while start < len(sent):
            start += self._handled(target, sent[start:])
            if start < len(sent):
                found.examples.append(names[start])
                start += 1
        if found.examples:
            n_bad = len(found.examples)
            found.learnt = f"nothing, but {n_bad} requests exhaust the site"

    def _handled(self, target: Target, sent: Sent) -> int:
        """Messages that a child process with limits handled before it failed."""
        import multiprocessing

        context = multiprocessing.get_context("fork")
        reader, writer = context.Pipe(duplex=False)
        secure = not target.plain
        child = context.Process(
            target=_handle_with_limits,
            args=(target.copies, sent, secure, self.megabytes, self.seconds, writer),
        )
        child.start()
        writer.close()
        n_done = 0
        try:
            while reader.poll(self.patience) and reader.recv():
                n_done += 1
        except EOFError:
            pass
        if child.is_alive():
            child.kill()
        child.join()
        return n_done


def _handle_with_limits(
    copies: SiteCopies,
    sent: Sent,
    secure: bool,
    megabytes: int,
    seconds: int,
    writer: Any,
) -> None:
    import resource
    import signal
    import tracemalloc

    logging.disable(logging.CRITICAL)
    limit = megabytes << 20
    with open("/proc/self/statm") as stream:
        used = int(stream.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + limit, used + limit))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    site = copies.site()
    for i, (text, arrays) in enumerate(sent):
        signal.setitimer(signal.ITIMER_PROF, seconds)  # ends the process
        tracemalloc.start()
        message: Message = {"run": f"bomb {i}", "round": 0, "request": text}
        if secure:
            plan = copies.plan(f"bomb {i}")
            message = plan.to_message() | {"you": 0, "request": text}
        try:
            reply, _ = site.handle("keys" if secure else "answer", message, arrays)
            fits = "MemoryError" not in str(reply)
        except MemoryError:
            fits = False
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if not fits or peak > limit // 2:
            return
        writer.send(True)
    writer.close()
